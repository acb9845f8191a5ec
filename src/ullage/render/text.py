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
from ullage.core.run import PHASES
from ullage.core.units import GIB, gib_text, tokens_text
from ullage.render.names import rank_order, unit, words

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
    "init": "while starting up, before the weights",
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
    if d.explanation or decides(d):
        yield _section("WHY", *_reasons(d))
    if shown := reached(d):
        yield _section("WHERE THE MEMORY IS", *_ledgers(shown, d))
    if d.inferred:
        yield _section("WORKED OUT FROM THE FIGURES", _inferred(d.inferred))
    if d.compare is not None:
        yield _section(f"COMPARED WITH {d.compare.baseline_file}", *_compared(d.compare))
    if d.refuted:
        yield _section("IT IS NOT", *(_bullet(r.hypothesis, r.because) for r in d.refuted))
    if d.fixes or bounds(d) is not None:
        yield _section(_fixes_title(d), *_fixes(d))
    if d.evidence:
        yield _section("THE LINES THAT PROVE IT", *_evidence(d.evidence))
    said = [*d.contradictions, *d.notes]
    if said:
        yield _section("NOTE", *(_bullet(text) for text in said))


def _fixes_title(d: Diagnosis) -> str:
    if d.outcome != "started":
        return "WHAT MENDS IT"
    return "WHAT WOULD HELP" if d.fixes else "WHAT ELSE WORKS"


def decides(d: Diagnosis) -> bool:
    """True if the pool's formula is the reason of what happened, not just a figure of the run."""
    if not d.budget.formula:
        return False
    fails = d.budget.verdict == "fails" and d.budget.fails_at not in ("args", "init", "weights")
    said = d.budget.formula in f"{d.summary}\n{d.explanation}"
    return d.outcome != "started" and (said or (fails and d.phase not in ("args", "init", "weights")))


def reached(d: Diagnosis) -> list[Ledger]:
    """The ranks' ledgers without what the rules only expect of stages that the run did not get past; none where
    the log shows nothing and memory is no part of the answer."""
    last = PHASES.index(d.phase) if d.phase and d.outcome in ("crashed", "hang") else len(PHASES)

    def was(entry: Entry) -> bool:
        at = PHASES.index(entry.stage)
        return (
            entry.certainty == "observed" or at < last or (at == last and entry.stage in ("weights", "serving"))
        )

    shown = [
        Ledger(
            item.rank, item.total_bytes, _fitting(item, [e for e in item.entries if was(e)]), item.total_source
        )
        for item in d.budget.ledgers
    ]
    seen = any(entry.certainty == "observed" for item in shown for entry in item.entries)
    return [item for item in shown if item.entries] if seen or decides(d) or bounds(d) is not None else []


def _fitting(ledger: Ledger, entries: list[Entry]) -> tuple[Entry, ...]:
    """``entries`` without those of the rules for which what the log shows leaves no room."""
    room = ledger.total_bytes - sum(entry.bytes for entry in entries if entry.certainty == "observed")
    found = []
    for entry in entries:
        if entry.certainty != "observed" and entry.stage != "weights":
            if entry.low > room:
                continue
            room -= entry.low
        found.append(entry)
    return tuple(found)


def bounds(d: Diagnosis) -> Interval | None:
    """The interval of the fraction where it is an answer: a run that works or fails for it, or a change."""
    item = d.interval
    if item is None or (item.low is None and item.high is None):
        return None
    named = any(_flag(item) in change.change for change in d.fixes)
    asked = (
        named
        or d.compare is not None
        or d.budget.verdict == "fails"
        or (d.outcome == "started" and not d.fixes)
    )
    return item if asked else None


def _flag(item: Interval) -> str:
    return f"--{item.flag.lstrip('-').replace('_', '-')}"


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
            table.add_row(
                words(name) + unit(name).replace(" ", ", "),
                str(a.value) if a else "-",
                str(b.value) if b else "-",
            )
        yield _section("FIGURES", table)


def _title(d: Diagnosis) -> Text:
    parts = [_NAMES.get(d.engine or "", d.engine or "unknown engine")]
    if d.version:
        told = {"command": "as given", "inferred": "inferred from its lines"}.get(d.version_source or "")
        parts[0] += f" {d.version}" + (f" ({told})" if told else "")
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


def _ledgers(ledgers: Sequence[Ledger], d: Diagnosis | None = None) -> Iterator[RenderableType]:
    """A bar per rank, ranks that are alike folded; then the entries of the fullest one with their sources."""
    ordered = sorted((item for item in ledgers if item.entries), key=lambda item: rank_order(item.rank))
    if not ordered:
        return
    for label, ledger in _alike(ordered):
        yield _bar(label, ledger)
    fullest = max(ordered, key=lambda item: item.used_bytes)
    yield Text("")
    asked = d is not None and (decides(d) or fullest.of("kv_pool"))
    yield _entries(fullest, d.budget.reserve if d is not None and asked else None)
    if d is not None and asked and d.budget.formula and not decides(d):
        where = d.budget.rule.partition("; ")[2]
        yield Text(
            f"KV pool by the rule: {'; '.join(d.budget.formula.splitlines())}"
            + (f" ({where})" if where else ""),
            style="dim",
        )


def _alike(ledgers: Sequence[Ledger]) -> Iterator[tuple[str, Ledger]]:
    """Ranks whose entries differ by less than 0.05 GiB are one line ("TP0 … TP7"); so is one of which less is
    printed, as far as it goes."""
    groups: list[list[Ledger]] = []
    for ledger in ledgers:
        group = next((g for g in groups if _close(g[0], ledger)), None)
        if group is not None:
            group.append(ledger)
        else:
            groups.append([ledger])
    for group in groups:
        yield (
            _label([item.rank for item in group], [item.rank for item in ledgers]),
            max(group, key=lambda item: len(item.entries)),
        )


def _label(ranks: list[str], order: list[str]) -> str:
    """ "TP0 … TP7" for neighbours, "TP0, TP2" for others."""
    first = order.index(ranks[0])
    if len(ranks) > 2 and order[first : first + len(ranks)] == ranks:
        return f"{ranks[0]} … {ranks[-1]}"
    return ", ".join(ranks)


def _close(a: Ledger, b: Ledger) -> bool:
    if abs(a.total_bytes - b.total_bytes) > 0.05 * GIB:
        return False
    stages = {entry.stage for entry in a.entries} & {entry.stage for entry in b.entries}
    return bool(stages) and all(abs(a.of(stage) - b.of(stage)) < 0.05 * GIB for stage in stages)


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


def _entries(ledger: Ledger, reserve: Entry | None) -> Table:
    table = Table.grid(padding=(0, 2))
    for _ in range(2):
        table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(style="dim", overflow="fold")
    if ledger.total_source:
        table.add_row("", "free at first", gib_text(ledger.total_bytes), ledger.total_source)
    for entry in ledger.entries:
        if entry.high < 0.005 * GIB:
            continue
        mark = Text(_SHADES.get(entry.stage, "░"), _COLOURS.get(entry.stage, "white"))
        table.add_row(mark, entry.name, _size(entry), f"{entry.certainty}  {entry.source}")
    table.add_row("·", "left", gib_text(ledger.left_bytes), "")
    if reserve is not None:
        table.add_row(
            "", reserve.name, gib_text(reserve.bytes), f"{reserve.source}: kept out of weights and pool"
        )
    return table


def _size(entry: Entry) -> str:
    if entry.certainty != "estimated" or entry.low == entry.high:
        return gib_text(entry.bytes)
    return f"{entry.low / GIB:.1f} to {entry.high / GIB:.1f} GiB"


def _inferred(found: dict[str, Inferred]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(style="dim", overflow="fold")
    for item in found.values():
        table.add_row(words(item.name), _number(item), item.basis)
    return table


def _number(item: Inferred) -> str:
    """The value with its band, as exact as the band allows, and its unit."""
    of = unit(item.name)
    if item.low == item.high:
        return f"{item.value:,.10g}{of}"
    if item.low == item.value and item.high >= 4096:
        return f"at least {item.value:,.10g}{of}"
    if abs(item.value) >= 1000:
        return f"{item.value:,.0f}{of} ({item.low:,.0f} to {item.high:,.0f})"
    if not of and all(float(value).is_integer() for value in (item.value, item.low, item.high)):
        return f"{item.value:.0f} ({item.low:.0f} to {item.high:.0f})"
    digits = 2 if of else 3
    low, high = (f"{value:.{digits if of else digits + 1}f}" for value in (item.low, item.high))
    return f"{item.value:.{digits}f}{of} ({low} to {high})"


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
    mark = Text("decides", "bold red") if d.decisive else Text("does not", "dim")
    if d.effect_bytes is None and not d.decisive:
        mark = Text("differs", "dim")
    effect = f"{-d.effect_bytes / GIB:+.2f} GiB" if d.effect_bytes is not None else ""
    return mark, words(d.setting), d.baseline, d.this, d.note or effect


def _table(*heads: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), show_edge=False, header_style="dim")
    for head in heads:
        table.add_column(head)
    return table


def _fixes(d: Diagnosis) -> Iterator[RenderableType]:
    if (item := bounds(d)) is not None:
        yield from _interval(item, d)
    for change in d.fixes:
        yield _change(change)


def _interval(item: Interval, d: Diagnosis) -> Iterator[RenderableType]:
    flag = _flag(item)
    low = f"above {ceil(item.low * 1000) / 1000:.3f}" if item.low is not None else ""
    high = f"at most {floor(item.high * 1000) / 1000:.3f}" if item.high is not None else ""
    if item.empty:
        yield Text(f"No value of {flag} works: it must be {low} and {high}", style="bold")
    else:
        best = f"; {item.recommended:.3g} is prudent" if item.recommended is not None else ""
        if any(flag in change.change for change in d.fixes):
            best = ""  # the change below says what to set
        elif d.outcome == "started" and item.recommended is not None:
            name = flag.lstrip("-").replace("-", "_")
            arg = d.settings.get(name) or d.inferred.get(name)
            now = arg.value if arg is not None else None
            if isinstance(now, float) and abs(now - item.recommended) < 0.0051:
                best = f"; {now:.3g} is in force, and prudent"
        yield Text(f"{flag} must be {' and '.join(filter(None, (low, high)))}{best}", style="bold")
    for head, text in ((low, item.low_because), (high, item.high_because)):
        if text:
            yield Text(f"  {head}: {text}", style="dim")


def _change(change: Change) -> RenderableType:
    text = Text()
    flags = "  ".join(pasted(name, value) for name, value in change.change.items())
    if flags:
        text.append(flags, "bold green")
    if change.predicted is not None:
        text.append(f"  → {_predicted(change.predicted)}")
    if change.why:
        text.append(("\n" if flags else "") + sentence(change.why))
    table = Table.grid(padding=(0, 1))
    table.add_row(Text("-"), text)
    return table


def pasted(name: str, value: object) -> str:
    """A setting as one types it: a flag with its value, a variable as NAME=value, or that it is left out."""
    if not name.startswith("-"):
        return f"unset {name}" if value in ("", None, True) else f"{name}={_quoted(value)}"
    if value is False:
        return f"without {name}"
    return name if value is True else f"{name} {value}"


def _quoted(value: object) -> str:
    text = str(value)
    return f"'{text}'" if " " in text and not text.startswith("<") else text


def sentence(text: str) -> str:
    """``text`` with a capital in front, unless it begins with a name in code, and a full stop."""
    first = text.split(" ", 1)[0]
    code = "_" in first or "=" in first or first.startswith("-")
    done = text if code else text[:1].upper() + text[1:]
    return done if done.endswith((".", "!", "?")) else f"{done}."


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
    table.add_column(overflow="fold")
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
