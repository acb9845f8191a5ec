"""Reports to words for a terminal or a pipe. Colour never carries the meaning alone."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Sequence

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ullage.core.deployment import Inferred
from ullage.core.finding import Evidence
from ullage.core.report import Comparison, Diagnosis, Difference
from ullage.render.memory import ledgers
from ullage.render.names import short, told, unit, words
from ullage.render.remedies import remedies, title
from ullage.render.shown import bounds, decides, reached
from ullage.render.words import effect, headline, mark, number, shortened, summary, telling

#: columns of a report into a pipe
PIPE_WIDTH = 110
LEAST_WIDTH, MOST_WIDTH = 40, 500


def why(diagnosis: Diagnosis, to: Console | None = None) -> None:
    """Print the whole answer: what, why by which formula, where the memory is, what differs, what mends it."""
    to = to or console()
    for part in _why(diagnosis):
        to.print(part)


def diff(diagnosis: Diagnosis, to: Console | None = None) -> None:
    """Print two runs side by side."""
    to = to or console()
    for part in _diff(diagnosis):
        to.print(part)


def console() -> Console:
    """As wide as the terminal; into a pipe as wide as text reads well, unless COLUMNS says otherwise (within
    what can be read at all)."""
    told = os.environ.get("COLUMNS", "")
    if told.isascii() and told.isdigit() and int(told[:6]):
        width = min(MOST_WIDTH, max(LEAST_WIDTH, int(told[:6])))
    else:
        width = max(LEAST_WIDTH, shutil.get_terminal_size().columns) if sys.stdout.isatty() else PIPE_WIDTH
    return Console(highlight=False, soft_wrap=False, width=width)


def _why(d: Diagnosis) -> Iterator[RenderableType]:
    yield _title(d)
    yield Padding(Text(summary(d), style="bold"), (1, 2, 0, 2))
    if d.cause and d.cause != "none":
        yield Padding(Text(f"cause: {d.cause} ({d.certainty})", style="dim"), (0, 2))
    if d.explanation or decides(d):
        yield _section("WHY", *_reasons(d))
    if shown := reached(d):
        yield _section("WHERE THE MEMORY IS", *ledgers(shown, d))
    found = [item for item in d.inferred.values() if told(item.name, item.value)]
    if found:
        yield _section("WORKED OUT FROM THE FIGURES", _inferred(found, d.files))
    if d.compare is not None:
        yield _section(f"COMPARED WITH {d.compare.baseline_file}", *_compared(d.compare))
    if d.refuted:
        yield _section("IT IS NOT", *(_bullet(r.hypothesis, r.because) for r in d.refuted))
    if d.fixes or bounds(d) is not None:
        yield _section(title(d), *remedies(d))
    if d.evidence:
        yield _section("THE LINES THAT PROVE IT", *_evidence(d.evidence, d.files))
    said = [*d.contradictions, *d.notes]
    if said:
        yield _section("NOTE", *(_bullet(short(text, d.files)) for text in said))


def _diff(d: Diagnosis) -> Iterator[RenderableType]:
    compare = d.compare
    if compare is None:
        yield Text("Nothing to compare: the second log is of no known engine.")
        return
    yield _title(d)
    yield _section(f"A: {compare.baseline_file}    B: {', '.join(d.files)}", *_compared(compare))
    if compare.baseline_budget is not None and compare.baseline_budget.ledgers:
        yield _section("MEMORY OF A", *ledgers(compare.baseline_budget.ledgers))
    if d.budget.ledgers:
        yield _section("MEMORY OF B", *ledgers(d.budget.ledgers))
    shown = sorted(compare.baseline_observed.keys() | d.observed.keys())
    if shown:
        table = _table("figure", "A", "B")
        for name in shown:
            a, b = compare.baseline_observed.get(name), d.observed.get(name)
            table.add_row(
                words(name) + unit(name).replace(" ", ", "),
                str(a.value) if a else "-",
                str(b.value) if b else "-",
            )
        yield _section("FIGURES", table)


def _title(d: Diagnosis) -> Text:
    style = {"started": "bold green", "unknown": "bold yellow"}.get(d.outcome, "bold red")
    return Text(headline(d), style=style)


def _section(title: str, *parts: RenderableType) -> RenderableType:
    return Group(Text(""), Text(title, style="bold"), *(Padding(part, (0, 0, 0, 2)) for part in parts))


def _bullet(head: str, tail: str = "") -> RenderableType:
    table = Table.grid(padding=(0, 1))
    text = Text(head)
    if tail:
        text = Text.assemble((head, "bold"), ": ", tail)
    table.add_row(Text("-"), text)
    return table


def _reasons(d: Diagnosis) -> Iterator[RenderableType]:
    if decides(d):
        for line in d.budget.formula.splitlines():
            yield Text(line, style="bold cyan")
        rule, _, source = d.budget.rule.partition("; ")
        for head, line in (("rule: ", rule), ("", source)):
            if line:
                yield Text(f"{head}{line}", style="dim")
    if d.explanation:
        if decides(d):
            yield Text("")
        for paragraph in d.explanation.split("\n\n"):
            yield Text(paragraph)


def _inferred(found: Sequence[Inferred], files: Sequence[str]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(style="dim", overflow="fold")
    for item in found:
        table.add_row(words(item.name), number(item), short(item.basis, files))
    return table


def _compared(c: Comparison) -> Iterator[RenderableType]:
    if not c.differences:
        yield Text("No difference that either log shows.")
        return
    table = _table("", "setting or figure", "baseline", "this run", "effect on the pool")
    for difference in c.differences:
        table.add_row(*_difference(difference))
    yield table
    for text in c.confounded:
        yield _bullet(text)


def _difference(d: Difference) -> tuple[Text, str, str, str, str]:
    style = "bold red" if d.decisive else "dim"
    return Text(mark(d), style), words(d.setting), d.baseline, d.this, effect(d)


def _table(*heads: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), show_edge=False, header_style="dim")
    for head in heads:
        table.add_column(head)
    return table


def _evidence(
    evidence: Sequence[Evidence], files: Sequence[str], limit: int = 14, followed: int = 4
) -> Iterator[RenderableType]:
    heads = {"root": "first", "cascade": "then", "context": "see"}
    table = Table.grid(padding=(0, 1))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    shown = telling(evidence, followed)[:limit]
    for item in shown:
        rank = f"[{item.rank}] " if item.rank else ""
        times = f" ({item.count} lines)" if item.count > 1 else ""
        text = Text(rank + shortened(item.text) + times)
        table.add_row(heads[item.role], short(f"{item.file}:{item.line}", files), text)
    yield table
    if len(evidence) > len(shown):
        yield Text(f"and {len(evidence) - len(shown)} more kinds of line; --json has them all", style="dim")
