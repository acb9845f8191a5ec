"""Errors that entries share, and what a measurement says of them.

Every entry's time is a nominal one times the factor of its kind (all reads of weights, all collectives, ..), a
normal variable of mean 1 whose spread is the entry's band. A measured step is the sum of all entries: it moves
the factors (the more uncertain and the larger, the more) and narrows them. So one benchmark mends every other
batch size, width and context.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import exp, log, sqrt

from msgspec import Struct
from msgspec.structs import replace

from ullage.core.timing import StepKind, TimeEntry, TimeLedger
from ullage.core.units import Band

#: half a 90 % band of a normal distribution, in standard deviations
NORMAL = 1.645
#: factors are never carried beyond these by a measurement: then the model lacks something
LEAST, MOST = 0.2, 5.0
SURE = Band(1.0, 1.0, 1.0)


class Factors(Struct, frozen=True):
    """Means and covariances of the factors, by name; a pair that is missing has covariance 0. Names that are
    missing have mean 1, and their entry's own band for a spread."""

    mean: dict[str, float] = {}
    covariance: dict[tuple[str, str], float] = {}
    points: tuple[str, ...] = ()

    def of(self, name: str) -> float:
        return self.mean.get(name, 1.0)


class Point(Struct, frozen=True):
    """A measured step: what the entries of the same batch and width add up to, in microseconds."""

    entries: tuple[TimeEntry, ...]
    measured_us: float
    error: float
    text: str


class Spread(Struct, frozen=True):
    """Relative standard deviations of a factor below and above its mean: bands need not be even."""

    low: float
    high: float

    def side(self, up: bool) -> float:
        return self.high if up else self.low


def spreads(entries: Sequence[TimeEntry]) -> dict[str, Spread]:
    """The spread of each factor: of its entries the time-weighted mean."""
    weight = vector(entries)
    low: dict[str, float] = {}
    high: dict[str, float] = {}
    for entry in entries:
        if entry.certainty == "estimated":
            low[entry.factor] = low.get(entry.factor, 0.0) + (entry.microseconds - entry.low) / NORMAL
            high[entry.factor] = high.get(entry.factor, 0.0) + (entry.high - entry.microseconds) / NORMAL
    return {name: Spread(low[name] / us, high[name] / us) for name, us in weight.items() if us > 0}


def vector(entries: Sequence[TimeEntry]) -> dict[str, float]:
    """Microseconds of the estimated entries by factor."""
    found: dict[str, float] = {}
    for entry in entries:
        if entry.certainty == "estimated":
            found[entry.factor] = found.get(entry.factor, 0.0) + entry.microseconds
    return found


def fixed(entries: Sequence[TimeEntry]) -> float:
    """Microseconds of the entries that no factor moves: measured or given ones."""
    return sum(entry.microseconds for entry in entries if entry.certainty != "estimated")


def calibrated(points: Sequence[Point]) -> Factors:
    """The factors after each measured point, one after the other (a Kalman filter's update)."""
    found = Factors()
    for point in points:
        found = _updated(found, point)
    return found


def _residual(factors: Factors, point: Point) -> float:
    """Microseconds by which the measured step is longer than the entries say."""
    nominal = vector(point.entries)
    return point.measured_us - fixed(point.entries) - sum(us * factors.of(n) for n, us in nominal.items())


def _updated(factors: Factors, point: Point) -> Factors:
    """A factor that no point has touched yet starts with the spread of that side on which the truth lies."""
    a, residual = vector(point.entries), _residual(factors, point)
    before = dict(factors.covariance)
    for name, spread in spreads(point.entries).items():
        before.setdefault((name, name), spread.side(residual > 0) ** 2)
    names = sorted({name for pair in before for name in pair})
    gain = {n: sum(before.get((n, m), 0.0) * us for m, us in a.items()) for n in names}
    total = sum(a.get(n, 0.0) * gain[n] for n in names) + (point.error * point.measured_us) ** 2
    if total <= 0:
        return factors
    mean = {n: min(MOST, max(LEAST, factors.of(n) + gain[n] * residual / total)) for n in names}
    after = {(n, m): before.get((n, m), 0.0) - gain[n] * gain[m] / total for n in names for m in names}
    return Factors(mean, after, (*factors.points, point.text))


def apply(entries: Sequence[TimeEntry], factors: Factors) -> tuple[TimeEntry, ...]:
    """The entries with their factors; measured points narrow the bands of estimated ones."""
    spread = spreads(entries)
    return tuple(_applied(entry, factors, spread) for entry in entries)


def _applied(entry: TimeEntry, factors: Factors, spread: Mapping[str, Spread]) -> TimeEntry:
    name = entry.factor
    if entry.certainty != "estimated" or name not in factors.mean or name not in spread:
        return entry
    us = entry.microseconds * factors.of(name)
    half = NORMAL * sqrt(max(0.0, factors.covariance.get((name, name), 0.0))) * entry.microseconds
    return replace(entry, microseconds=us, low=max(0.0, us - half), high=us + half)


def deviation(
    weights: Mapping[str, float], factors: Factors, spread: Mapping[str, Spread], *, up: bool
) -> float:
    """Standard deviation of a weighted sum of factors to one side: the measured covariances where there are
    such; of other factors the side that moves the sum that way."""
    total = 0.0
    for name, weight in weights.items():
        if (name, name) not in factors.covariance:
            total += (weight * spread[name].side(up == (weight > 0))) ** 2 if name in spread else 0.0
            continue
        total += sum(weight * weights[m] * factors.covariance.get((name, m), 0.0) for m in weights)
    return sqrt(max(0.0, total))


def ledger(
    kind: StepKind, batch: int, context: int, rows: int, entries: Sequence[TimeEntry], factors: Factors
) -> TimeLedger:
    """The entries as a ledger, with the band of their sum."""
    found = apply(entries, factors)
    total, spread, weights = sum(entry.microseconds for entry in found), spreads(entries), vector(entries)
    low = NORMAL * deviation(weights, factors, spread, up=False)
    high = NORMAL * deviation(weights, factors, spread, up=True)
    return TimeLedger(kind, batch, context, rows, found, max(0.2 * total, total - low), total + high)


def ratio(
    length: Band, baseline: Sequence[TimeEntry], speculative: Sequence[TimeEntry], factors: Factors,
    form: Band = SURE,
) -> Band:  # fmt: skip
    """L x T_1 / T_spec with its band. Errors that both times share cancel; those of the acceptance and of the
    formula itself (``form``, about 1) come on top."""
    first = sum(entry.microseconds for entry in apply(baseline, factors))
    second = sum(entry.microseconds for entry in apply(speculative, factors))
    a, b = vector(baseline), vector(speculative)
    weights = {name: a.get(name, 0.0) / first - b.get(name, 0.0) / second for name in {*a, *b}}
    spread = _both(spreads(baseline), spreads(speculative))
    low = NORMAL * deviation(weights, factors, spread, up=False)
    high = NORMAL * deviation(weights, factors, spread, up=True)
    value = length.value * first / second
    low = sqrt(low**2 + _log(length.value, length.low) ** 2 + _log(form.value, form.low) ** 2)
    high = sqrt(high**2 + _log(length.high, length.value) ** 2 + _log(form.high, form.value) ** 2)
    return Band(value, value * exp(-low), value * exp(high))


def _both(one: Mapping[str, Spread], other: Mapping[str, Spread]) -> dict[str, Spread]:
    """The wider of two spreads of each factor."""
    found = dict(one)
    for name, spread in other.items():
        known = found.get(name, spread)
        found[name] = Spread(max(known.low, spread.low), max(known.high, spread.high))
    return found


def _log(more: float, less: float) -> float:
    return max(0.0, log(more / less)) if more > 0 and less > 0 else 0.0
