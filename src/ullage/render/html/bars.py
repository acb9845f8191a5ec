"""Ledgers, timelines and intervals as shares of a line: what the templates draw."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from ullage.core.deployment import Interval
from ullage.core.ledger import Ledger
from ullage.core.report import Span
from ullage.core.timing import TimeLedger
from ullage.core.units import GIB
from ullage.render.memory import alike
from ullage.render.names import rank_order

#: a line's length in the drawings' own unit
LENGTH = 1000.0
#: entries of less than this many GiB are drawn with their neighbours' line but get no row
LEAST_BYTES = 0.005 * GIB


class Part(Struct, frozen=True):
    """A piece of a line: where it begins and how long it is (0 to 1000), its stage, and what it says."""

    x: float
    width: float
    stage: str
    name: str
    says: str
    sure: bool = True


class Bar(Struct, frozen=True):
    """One rank (or several that are alike) drawn to scale."""

    label: str
    ledger: Ledger
    parts: tuple[Part, ...]
    full: float
    missing_bytes: int


def of(ledgers: Sequence[Ledger]) -> list[Bar]:
    """A bar for each kind of rank, in the order of ranks."""
    ordered = sorted((item for item in ledgers if item.entries), key=lambda item: rank_order(item.rank))
    return [_bar(label or "GPU", ledger) for label, ledger in alike(ordered)]


def fullest(ledgers: Sequence[Ledger]) -> Ledger | None:
    """The ledger that decides: the rank that uses most."""
    return max((item for item in ledgers if item.entries), key=lambda item: item.used_bytes, default=None)


def _bar(label: str, ledger: Ledger) -> Bar:
    whole = max(ledger.total_bytes, sum(max(0, entry.bytes) for entry in ledger.entries), 1)
    return Bar(
        label, ledger, tuple(_parts(ledger, whole)), LENGTH * max(0, ledger.total_bytes) / whole,
        max(0, -ledger.left_bytes),
    )  # fmt: skip


def _parts(ledger: Ledger, whole: int) -> Iterator[Part]:
    at = 0.0
    for entry in ledger.entries:
        width = LENGTH * max(0, entry.bytes) / whole
        if width:
            says = f"{entry.name}: {entry.bytes / GIB:.2f} GiB, {entry.certainty}"
            yield Part(
                round(at, 2), round(width, 2), entry.stage, entry.name, says, entry.certainty != "estimated"
            )
        at += width


class Row(Struct, frozen=True):
    """The stages of a rank on the line of time."""

    label: str
    parts: tuple[Part, ...]
    failed: bool


def timeline(spans: Sequence[Span]) -> tuple[list[Row], float]:
    """A row a rank, and the length of the whole in seconds. Ranks with the same stages are one row."""
    end = max((span.end_s for span in spans), default=0.0)
    if end <= 0:
        return [], 0.0
    rows: list[tuple[list[str], list[Span]]] = []
    for rank in dict.fromkeys(sorted((span.rank for span in spans), key=rank_order)):
        mine = [span for span in spans if span.rank == rank]
        same = next((row for row in rows if _same(row[1], mine, end)), None)
        if same is not None:
            same[0].append(rank)
        else:
            rows.append(([rank], mine))
    return [
        Row(_ranks(ranks), tuple(_span(span, end) for span in mine), any(s.failed for s in mine))
        for ranks, mine in rows
    ], end


def _same(a: Sequence[Span], b: Sequence[Span], end: float) -> bool:
    return len(a) == len(b) and all(
        x.stage == y.stage
        and x.failed == y.failed
        and abs(x.begin_s - y.begin_s) + abs(x.end_s - y.end_s) < 0.01 * end
        for x, y in zip(a, b, strict=True)
    )


def _ranks(ranks: Sequence[str]) -> str:
    return (f"{ranks[0]} … {ranks[-1]}" if len(ranks) > 2 else ", ".join(ranks)) or "server"


def _span(span: Span, end: float) -> Part:
    begin, width = LENGTH * span.begin_s / end, LENGTH * (span.end_s - span.begin_s) / end
    says = f"{span.stage}: {span.end_s - span.begin_s:,.0f} s" + (", failed" if span.failed else "")
    return Part(round(begin, 2), round(max(2.0, width), 2), span.stage, span.stage, says, not span.failed)


class Scale(Struct, frozen=True):
    """A fraction's line from 0 to 1 (0 to 1000): the part that starts, the value now, the best one."""

    begin: float
    width: float
    now: float | None
    best: float | None


def scale(item: Interval, now: object) -> Scale | None:
    """The interval as a drawing; None where it is empty or unknown."""
    if item.empty or (item.low is None and item.high is None):
        return None
    low, high = max(0.0, item.low or 0.0), min(1.0, 1.0 if item.high is None else item.high)
    if high <= low:
        return None
    value = float(now) if isinstance(now, int | float) and not isinstance(now, bool) and 0 <= now <= 1 else None
    return Scale(
        round(LENGTH * low, 1), round(LENGTH * (high - low), 1),
        None if value is None else round(LENGTH * value, 1),
        None if item.recommended is None else round(LENGTH * item.recommended, 1),
    )  # fmt: skip


class TimeBar(Struct, frozen=True):
    """One time ledger drawn to the scale of the longest."""

    label: str
    parts: tuple[Part, ...]
    says: str


class Use(Struct, frozen=True):
    """One use of time in each of the ledgers, in milliseconds; ``number`` is its colour."""

    name: str
    number: int
    ms: tuple[float | None, ...]
    certainty: str
    source: str


#: colours for uses of time
COLOURS = 8


def times(named: Sequence[tuple[str, TimeLedger]]) -> list[TimeBar]:
    """A bar for each ledger, longest uses first, all to one scale."""
    longest = max((ledger.total_us for _, ledger in named), default=0.0) or 1.0
    order = _order(named)
    return [
        TimeBar(label, tuple(_uses(ledger, order, longest)), f"{ledger.total_us / 1e3:.2f} ms")
        for label, ledger in named
    ]


def _order(named: Sequence[tuple[str, TimeLedger]]) -> dict[str, int]:
    """Each use's place: that which takes most anywhere comes first."""
    most: dict[str, float] = {}
    for _, ledger in named:
        for entry in ledger.entries:
            most[entry.name] = max(most.get(entry.name, 0.0), entry.microseconds)
    return {name: number for number, name in enumerate(sorted(most, key=lambda name: -most[name]))}


def _uses(ledger: TimeLedger, order: Mapping[str, int], longest: float) -> Iterator[Part]:
    at = 0.0
    for entry in sorted(ledger.entries, key=lambda entry: order[entry.name]):
        width = LENGTH * max(0.0, entry.microseconds) / longest
        if width > 0:
            says = f"{entry.name}: {entry.microseconds / 1e3:.2f} ms"
            number = str(min(order[entry.name], COLOURS - 1))
            yield Part(round(at, 2), round(width, 2), number, entry.name, says)
        at += width


def uses(named: Sequence[tuple[str, TimeLedger]]) -> list[Use]:
    """The rows of the table beside the bars."""
    rows = []
    for name, number in _order(named).items():
        found = [next((e for e in ledger.entries if e.name == name), None) for _, ledger in named]
        last = next(entry for entry in reversed(found) if entry is not None)
        ms = tuple(entry.microseconds / 1e3 if entry else None for entry in found)
        if max(value or 0.0 for value in ms) >= 0.005:
            rows.append(Use(name, min(number, COLOURS - 1), ms, last.certainty, last.source))
    return rows
