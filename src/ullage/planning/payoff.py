"""What speculation gives at a batch size, a depth, over all batch sizes: functions of a Subject and an
acceptance."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from ullage.core.units import Band
from ullage.planning.speed import Subject
from ullage.spec.acceptance import Acceptance, Width
from ullage.spec.profit import break_even_call, break_even_length
from ullage.spec.report import AllReduces, AtBatch, AtDepth, Verdict
from ullage.spec.step import Call, routing, touched

#: the gains for which an allowed all-reduce is worked out, and the deepest chain that is tried
GAINS, DEEPEST = (1.0, 1.5), 10
#: the odds from which a verdict is given
SURE = 0.6


# --- one batch ----------------------------------------------------------------------------------------------


def at_batch(subject: Subject, batch: int, context: int, width: Width, acceptance: Acceptance) -> AtBatch:
    """Speculation of ``width`` at one batch size."""
    before, after = subject.ledger(batch, context), subject.ledger(batch, context, width)
    length = length_of(acceptance, width)
    gain = subject.speedup(batch, context, width, length)
    narrow = subject.speedup(batch, context, width, Band(length.value, length.value, length.value))
    band = Band(
        break_even_length(before.total_us, after.total_us),
        length.value / narrow.high,
        length.value / narrow.low,
    )
    without = _per_second(before.band_us, Band(1.0, 1.0, 1.0))
    with_drafts = _per_second(after.band_us, length)
    experts, costs = subject.work.experts, subject.costs
    asked, drafted = subject.round(batch, context), subject.round(batch, context, width)
    return AtBatch(
        batch, verdict(gain, band, width), before, after, without, with_drafts, gain, band,
        _all_reduces(subject, batch, context, width, length.value),
        touched(experts, asked, routing(costs)) if experts else None,
        touched(experts, drafted, routing(costs)) if experts else None,
    )  # fmt: skip


def length_of(acceptance: Acceptance, width: Width) -> Band:
    low, high = acceptance.limits(width)
    return Band(acceptance.at(width), low, high)


def _per_second(step_us: Band, length: Band) -> Band:
    return Band(
        length.value / step_us.value * 1e6, length.low / step_us.high * 1e6, length.high / step_us.low * 1e6
    )


def verdict(gain: Band, needed: Band, width: Width) -> Verdict:
    """Whether it pays: never, where more tokens are needed than a round can give."""
    most = width.steps + 1
    if needed.value > most and needed.chance_above(most) >= SURE:
        return "cannot"
    chance = gain.chance_above(1.0)
    return "pays" if chance >= SURE else "loses" if chance <= 1 - SURE else "unsure"


def layers_call(subject: Subject, batch: int, context: int, width: Width) -> Call | None:
    """The all-reduces inside the layers of the verify pass."""
    asked = subject.round(batch, context, width)
    calls = subject.costs.calls(asked.rows, asked.batch, width)
    return next((call for call in calls if call.stage == "target" and call.name == "all-reduces"), None)


def _all_reduces(subject: Subject, batch: int, context: int, width: Width, length: float) -> AllReduces | None:
    call = layers_call(subject, batch, context, width)
    if call is None:
        return None
    before, after = subject.ledger(batch, context), subject.ledger(batch, context, width)
    taken = sum(entry.microseconds for entry in after.entries if entry.name == call.name)
    rest = after.total_us - taken
    allowed = tuple((gain, break_even_call(length, before.total_us, rest, call.count, gain)) for gain in GAINS)
    us = call.us if call.certainty == "observed" else call.us.scaled(taken / call.count / call.us.value)
    return AllReduces(call.count, call.bytes, us, rest, allowed)


# --- depths and batches -------------------------------------------------------------------------------------


def depths(
    subject: Subject, batch: int, context: int, width: Width, acceptance: Acceptance
) -> tuple[AtDepth, ...]:
    """Chains of other depths; () for a tree, whose acceptance says little of a chain's."""
    if not width.is_chain:
        return ()
    return tuple(_depth(subject, batch, context, width.deeper(k), acceptance) for k in range(1, DEEPEST + 1))


def _depth(subject: Subject, batch: int, context: int, width: Width, acceptance: Acceptance) -> AtDepth:
    length = length_of(acceptance, width)
    return AtDepth(width.steps, length.value, subject.speedup(batch, context, width, length))


def best_depth(subject: Subject, batch: int, context: int, width: Width, acceptance: Acceptance) -> int:
    """The depth of a chain that gives most; 0 where none pays."""
    found = [_depth(subject, batch, context, width.deeper(k), acceptance) for k in range(1, DEEPEST + 1)]
    best = max(found, key=lambda item: item.speedup.value)
    return best.depth if best.speedup.value > 1 else 0


def paying(
    subject: Subject, context: int, width: Width, acceptance: Acceptance, most: int
) -> tuple[tuple[int, int | None], ...]:
    """Ranges of batch sizes at which the speed-up is above 1, by doubling and then halving between; with
    experts there may be several."""
    length = length_of(acceptance, width)

    def pays(batch: int) -> bool:
        return subject.speedup(batch, context, width, length).value > 1

    tried = [1]
    while tried[-1] * 2 <= most:
        tried.append(tried[-1] * 2)
    if tried[-1] != most:
        tried.append(most)
    found: list[tuple[int, int | None]] = []
    start = 1 if pays(1) else None
    for before, after in pairwise(tried):
        now = pays(after)
        if start is None and now:
            start = _turn(before, after, pays)
        elif start is not None and not now:
            found.append((start, _turn(before, after, lambda n: not pays(n)) - 1))
            start = None
    return (*found, (start, None)) if start is not None else tuple(found)


def _turn(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """The first number above ``low``, at most ``high``, for which ``holds``: by bisection."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
