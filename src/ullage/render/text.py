"""Reports to words for a terminal or a pipe. Colour never carries the meaning alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil, floor

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ullage.core.deployment import Inferred, Interval
from ullage.core.finding import Change, Evidence, Prediction
from ullage.core.ledger import Entry, Ledger
from ullage.core.report import Comparison, Diagnosis, Difference
from ullage.core.units import GIB, gib_text, tokens_text

#: how an entry of the ledger is drawn, by certainty or use
_SHADES = {
    "init": "░",
    "weights": "█",
    "profile": "▒",
    "kv_pool": "▓",
    "graph_capture": "▒",
    "warmup": "░",
    "serving": "░",
}
_COLOURS = {
    "init": "yellow",
    "weights": "blue",
    "profile": "magenta",
    "kv_pool": "green",
    "graph_capture": "cyan",
}
_PHASES = {
    "args": "while reading its arguments",
    "init": "while the ranks find each other",
    "weights": "while loading weights",
    "profile": "in the profile run",
    "kv_pool": "while sizing the KV pool",
    "graph_capture": "while capturing CUDA graphs",
    "warmup": "while warming up",
    "serving": "while serving",
}
_NAMES = {"sglang": "SGLang", "vllm": "vLLM"}
_OUTCOMES = {"started": "started", "crashed": "crashed", "hang": "hangs", "unknown": "outcome unknown"}


def why(diagnosis: Diagnosis, console: Console | None = None) -> None:
    """Print the whole answer: what, why by which formula, where the memory is, what differs, what mends it."""
    console = console or Console(highlight=False, soft_wrap=False)
    for part in _why(diagnosis):
        console.print(part)


def diff(diagnosis: Diagnosis, console: Console | None = None) -> None:
    """Print two runs side by side."""
    console = console or Console(highlight=False, soft_wrap=False)
    for part in _diff(diagnosis):
        console.print(part)


def _why(d: Diagnosis) -> Iterator[RenderableType]:
    yield _title(d)
    yield Padding(Text(d.summary, style="bold"), (1, 2, 0, 2))
    if d.cause and d.cause != "none":
        yield Padding(Text(f"cause: {d.cause} ({d.certainty})", style="dim"), (0, 2))
    if d.explanation or d.budget.formula:
        yield _section("WHY", *_reasons(d))
    if d.budget.ledgers:
        yield _section("WHERE THE MEMORY IS", *_ledgers(d.budget.ledgers))
    if d.inferred:
        yield _section("WORKED OUT FROM THE FIGURES", _inferred(d.inferred))
    if d.compare is not None:
        yield _section(f"COMPARED WITH {d.compare.baseline_file}", *_compared(d.compare))
    if d.refuted:
        yield _section("IT IS NOT", *(_bullet(r.hypothesis, r.because) for r in d.refuted))
    if d.fixes or d.interval is not None:
        yield _section("WHAT MENDS IT" if d.outcome != "started" else "WHAT ELSE STARTS", *_fixes(d))
    if d.evidence:
        yield _section("THE LINES THAT PROVE IT", *_evidence(d.evidence))
    said = [*d.contradictions, *d.notes]
    if said:
        yield _section("NOTE", *(_bullet(text) for text in said))


def _diff(d: Diagnosis) -> Iterator[RenderableType]:
    compare = d.compare
    if compare is None:
        yield Text("Nothing to compare: the second log is of no known engine.")
        return
    yield _title(d)
    yield _section(f"A: {compare.baseline_file}    B: {', '.join(d.files)}", *_compared(compare))
    if compare.baseline_budget is not None and compare.baseline_budget.ledgers:
        yield _section("MEMORY OF A", *_ledgers(compare.baseline_budget.ledgers))
    if d.budget.ledgers:
        yield _section("MEMORY OF B", *_ledgers(d.budget.ledgers))
    shown = sorted(compare.baseline_observed.keys() | d.observed.keys())
    if shown:
        table = _table("figure", "A", "B")
        for name in shown:
            a, b = compare.baseline_observed.get(name), d.observed.get(name)
            table.add_row(name, str(a.value) if a else "-", str(b.value) if b else "-")
        yield _section("FIGURES", table)


def _title(d: Diagnosis) -> Text:
    parts = [_NAMES.get(d.engine or "", d.engine or "unknown engine")]
    if d.version:
        parts[0] += f" {d.version}" + (f" ({d.version_source})" if d.version_source != "log" else "")
    outcome = _OUTCOMES[d.outcome]
    parts.append(f"{outcome} {_PHASES[d.phase]}" if d.phase and d.outcome in ("crashed", "hang") else outcome)
    ranks = len(d.budget.ledgers)
    if ranks > 1:
        parts.append(f"{ranks} ranks")
    if d.runs > 1:
        parts.append(f"start {d.run_index + 1} of {d.runs} in this log")
    style = {"started": "bold green", "unknown": "bold yellow"}.get(d.outcome, "bold red")
    return Text("  ·  ".join(parts), style=style)


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
    if d.budget.formula:
        for line in d.budget.formula.splitlines():
            yield Text(line, style="bold cyan")
        if d.budget.rule:
            yield Text(f"rule: {d.budget.rule}", style="dim")
    if d.explanation:
        if d.budget.formula:
            yield Text("")
        for paragraph in d.explanation.split("\n\n"):
            yield Text(paragraph)


def _ledgers(ledgers: Sequence[Ledger]) -> Iterator[RenderableType]:
    """A bar per rank, ranks that are alike folded; then the entries of the fullest one with their sources."""
    for label, ledger in _alike(ledgers):
        yield _bar(label, ledger)
    fullest = max(ledgers, key=lambda item: item.used_bytes)
    yield Text("")
    yield _entries(fullest)


def _alike(ledgers: Sequence[Ledger]) -> Iterator[tuple[str, Ledger]]:
    """Ranks whose entries differ by less than 0.05 GiB are one line ("TP0 … TP7")."""
    groups: list[list[Ledger]] = []
    for ledger in ledgers:
        if groups and _close(groups[-1][0], ledger):
            groups[-1].append(ledger)
        else:
            groups.append([ledger])
    for group in groups:
        label = group[0].rank if len(group) == 1 else f"{group[0].rank} … {group[-1].rank}"
        yield label, group[0]


def _close(a: Ledger, b: Ledger) -> bool:
    if len(a.entries) != len(b.entries) or abs(a.total_bytes - b.total_bytes) > 0.05 * GIB:
        return False
    return all(
        x.name == y.name and abs(x.bytes - y.bytes) < 0.05 * GIB
        for x, y in zip(a.entries, b.entries, strict=True)
    )


def _bar(label: str, ledger: Ledger, width: int = 56) -> Text:
    text = Text(f"{label or 'GPU':<12} ")
    used = 0
    total = max(ledger.total_bytes, sum(max(0, e.bytes) for e in ledger.entries), 1)
    for entry in ledger.entries:
        cells = round(width * max(0, entry.bytes) / total)
        text.append(_SHADES.get(entry.stage, "░") * cells, _COLOURS.get(entry.stage, "white"))
        used += cells
    text.append("·" * max(0, width - used))
    text.append(f"  {gib_text(ledger.total_bytes)}")
    if ledger.left_bytes < 0:
        text.append(f"  {gib_text(-ledger.left_bytes)} too much", "red")
    else:
        text.append(f"  {gib_text(ledger.left_bytes)} left")
    return text


def _entries(ledger: Ledger) -> Table:
    table = Table.grid(padding=(0, 2))
    for _ in range(2):
        table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(style="dim")
    for entry in ledger.entries:
        mark = Text(_SHADES.get(entry.stage, "░"), _COLOURS.get(entry.stage, "white"))
        table.add_row(mark, entry.name, _size(entry), f"{entry.certainty}  {entry.source}")
    table.add_row("·", "left", gib_text(ledger.left_bytes), "")
    return table


def _size(entry: Entry) -> str:
    if entry.certainty != "estimated" or entry.low == entry.high:
        return gib_text(entry.bytes)
    return f"{entry.low / GIB:.1f} to {entry.high / GIB:.1f} GiB"


def _inferred(found: dict[str, Inferred]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, justify="right")
    table.add_column(style="dim")
    for item in found.values():
        table.add_row(item.name, _number(item), item.basis)
    return table


def _number(item: Inferred) -> str:
    if item.low == item.high:
        return f"{item.value:,.10g}"
    digits = 4 if abs(item.value) < 10 else 2
    if abs(item.value) >= 1000:
        return f"{item.value:,.0f} ({item.low:,.0f} to {item.high:,.0f})"
    return f"{item.value:.{digits - 1}f} ({item.low:.{digits}f} to {item.high:.{digits}f})"


def _compared(c: Comparison) -> Iterator[RenderableType]:
    if not c.differences:
        yield Text("No difference that either log shows.")
        return
    table = _table("", "setting or figure", "baseline", "this run", "effect on the pool")
    for difference in c.differences:
        table.add_row(*_difference(difference))
    yield table
    for text in c.confounded:
        yield _bullet("confounded", text)


def _difference(d: Difference) -> tuple[Text, str, str, str, str]:
    mark = Text("decides", "bold red") if d.decisive else Text("does not", "dim")
    if d.effect_bytes is None and not d.decisive:
        mark = Text("differs", "dim")
    effect = f"{-d.effect_bytes / GIB:+.2f} GiB" if d.effect_bytes is not None else ""
    return mark, d.setting, d.baseline, d.this, "  ".join(filter(None, (effect, d.note)))


def _table(*heads: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), show_edge=False, header_style="dim")
    for head in heads:
        table.add_column(head)
    return table


def _fixes(d: Diagnosis) -> Iterator[RenderableType]:
    if d.interval is not None:
        yield from _interval(d.interval)
    for change in d.fixes:
        yield _change(change)


def _interval(item: Interval) -> Iterator[RenderableType]:
    flag = f"--{item.flag.lstrip('-').replace('_', '-')}"
    if item.low is None and item.high is None:
        return
    if item.empty:
        yield Text(f"No value of {flag} starts:", style="bold")
    else:
        low = f"above {ceil(item.low * 1000) / 1000:.3f}" if item.low is not None else ""
        high = f"up to {floor(item.high * 1000) / 1000:.3f}" if item.high is not None else ""
        best = f"; try {item.recommended:.3g}" if item.recommended is not None else ""
        yield Text(f"{flag} starts {' and '.join(filter(None, (low, high)))}{best}", style="bold")
    for text in (item.low_because, item.high_because):
        if text:
            yield Text(f"  {text}", style="dim")


def _change(change: Change) -> RenderableType:
    text = Text()
    flags = "  ".join(name if value is True else f"{name} {value}" for name, value in change.change.items())
    if flags:
        text.append(flags, "bold green")
    if change.predicted is not None:
        text.append(f"  → {_predicted(change.predicted)}")
    if change.why:
        text.append(("\n" if flags else "") + change.why)
    table = Table.grid(padding=(0, 1))
    table.add_row(Text("-"), text)
    return table


def _predicted(p: Prediction) -> str:
    words = {
        "starts": "starts",
        "fails": "still fails",
        "unsure": "the pool is positive; the rest is not known",
    }
    parts = [words[p.verdict]]
    if p.kv_bytes is not None:
        parts.append(f"pool {gib_text(p.kv_bytes)}")
    if p.kv_tokens:
        parts.append(f"{tokens_text(p.kv_tokens)} tokens")
    return ", ".join(parts) + (f" ({p.note})" if p.note else "")


def _evidence(evidence: Sequence[Evidence], limit: int = 14) -> Iterator[RenderableType]:
    heads = {"root": "first", "cascade": "then", "context": "see"}
    table = Table.grid(padding=(0, 1))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column()
    for item in evidence[:limit]:
        rank = f"[{item.rank}] " if item.rank else ""
        times = f" ({item.count} lines)" if item.count > 1 else ""
        text = Text(rank + _shortened(item.text) + times)
        table.add_row(heads[item.role], f"{item.file}:{item.line}", text)
    yield table
    if len(evidence) > limit:
        yield Text(f"and {len(evidence) - limit} more kinds of line; --json has them all", style="dim")


def _shortened(text: str, limit: int = 300) -> str:
    one = " ".join(text.split())
    return one if len(one) <= limit else f"{one[:limit]} …"
