"""The memory of a run in words: a bar per rank, then the entries of the fullest one with their sources."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from ullage.core.ledger import Entry, Ledger
from ullage.core.report import Diagnosis
from ullage.core.units import GIB, gib_text
from ullage.render.names import rank_order, short
from ullage.render.shown import decides
from ullage.render.stages import colour, shade


def ledgers(found: Sequence[Ledger], d: Diagnosis | None = None) -> Iterator[RenderableType]:
    """A bar per rank, ranks that are alike folded; then the entries of the fullest one with their sources."""
    ordered = sorted((item for item in found if item.entries), key=lambda item: rank_order(item.rank))
    if not ordered:
        return
    for label, ledger in alike(ordered):
        yield _Bar(label, ledger)
    fullest = max(ordered, key=lambda item: item.used_bytes)
    yield Text("")
    asked = d is not None and (decides(d) or fullest.of("kv_pool"))
    yield _entries(
        fullest, d.budget.reserve if d is not None and asked else None, d.files if d is not None else ()
    )
    if d is not None and asked and d.budget.formula and not decides(d):
        where = d.budget.rule.partition("; ")[2]
        yield Text(
            f"KV pool by the rule: {'; '.join(d.budget.formula.splitlines())}"
            + (f" ({where})" if where else ""),
            style="dim",
        )


def alike(ledgers: Sequence[Ledger]) -> Iterator[tuple[str, Ledger]]:
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
    return ", ".join(rank or "driver" for rank in ranks)


def _close(a: Ledger, b: Ledger) -> bool:
    if abs(a.total_bytes - b.total_bytes) > 0.05 * GIB:
        return False
    stages = {entry.stage for entry in a.entries} & {entry.stage for entry in b.entries}
    return bool(stages) and all(abs(a.of(stage) - b.of(stage)) < 0.05 * GIB for stage in stages)


class _Bar:
    """One rank's GPU drawn to scale, as wide as the console allows: what is used, what is left."""

    def __init__(self, label: str, ledger: Ledger) -> None:
        self.label = f"{label or 'GPU':<12} "
        self.ledger = ledger

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        tail = self._tail()
        width = options.max_width - len(self.label) - len(tail.plain)
        yield Text.assemble(self.label, self._cells(max(12, min(56, width))), tail)

    def _cells(self, width: int) -> Text:
        text, used = Text(), 0
        total = max(self.ledger.total_bytes, sum(max(0, e.bytes) for e in self.ledger.entries), 1)
        for entry in self.ledger.entries:
            cells = min(width - used, round(width * max(0, entry.bytes) / total))
            text.append(shade(entry.stage) * cells, colour(entry.stage))
            used += cells
        return text.append("·" * (width - used))

    def _tail(self) -> Text:
        left = self.ledger.left_bytes
        text = Text(f"  {gib_text(self.ledger.total_bytes)}")
        if left < -0.03 * GIB:  # less is rounding
            return text.append(f"  {gib_text(-left)} too much", "red")
        return text.append(f"  {_left(left)} left")


def _entries(ledger: Ledger, reserve: Entry | None, files: Sequence[str]) -> Table:
    table = Table.grid(padding=(0, 2))
    for _ in range(2):
        table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(style="dim", overflow="fold")
    if ledger.total_source:
        table.add_row("", "free at first", gib_text(ledger.total_bytes), short(ledger.total_source, files))
    for entry in ledger.entries:
        if entry.high < 0.005 * GIB:
            continue
        mark = Text(shade(entry.stage), colour(entry.stage))
        table.add_row(mark, entry.name, _size(entry), f"{entry.certainty}  {short(entry.source, files)}")
    table.add_row("·", "left", _left(ledger.left_bytes), "")
    if reserve is not None:
        table.add_row(
            "",
            reserve.name,
            gib_text(reserve.bytes),
            f"{short(reserve.source, files)}: kept out of weights and pool",
        )
    return table


def _left(num_bytes: int) -> str:
    """What is left; a difference of rounded figures around zero is nothing."""
    return "nothing" if -0.03 * GIB <= num_bytes < 1 << 20 else gib_text(num_bytes)


def _size(entry: Entry) -> str:
    if entry.certainty != "estimated" or entry.low == entry.high:
        return gib_text(entry.bytes)
    low = max(0, entry.low) if entry.stage == "kv_pool" and entry.bytes > 0 else entry.low
    return f"{low / GIB:.1f} to {entry.high / GIB:.1f} GiB"
