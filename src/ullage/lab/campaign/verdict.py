"""Better, worse, or no difference shown: the effect on a metric with its interval, never from one number.

The baseline is measured at the start and again at the end. The effect compares an approach with the baseline
as it
was at that moment (between the two, by time). Its interval is a bootstrap (scipy), made honest in two ways:

The values are compared by their logarithms, so that an effect is a ratio and stays one.

- Few repeats: resampling n values understates their spread, by sqrt((n - 1) / n) and as the normal distribution
  does against Student's t. Each value's distance from its mean is stretched by both before it is resampled.
- Drift: between two starts of the same server more changes than within one. The interval covers the comparisons
  with the start and with the end alone, so that what is shown holds against both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

from msgspec import Struct

from ullage.lab.campaign.file import Better

Word = Literal["better", "worse", "no difference shown", "not judged"]
RESAMPLES = 4000
#: what is resampled is the same every time, so that a report read twice says the same
SEED = 20_260_101


class Effect(Struct, frozen=True):
    """The relative change of a metric against the baseline (0.05: 5 % more), with its interval."""

    metric: str
    value: float
    low: float
    high: float
    word: Word
    baseline: float
    this: float
    because: str = ""


class Drift(Struct, frozen=True):
    """The relative change of the baseline from the start to the end of the campaign."""

    metric: str
    value: float
    low: float
    high: float
    word: Word


class Sample(Struct, frozen=True):
    """Repeats of one metric; ``at`` is the time of their middle in seconds."""

    values: tuple[float, ...]
    at: float = 0.0

    @property
    def mean(self) -> float:
        return sum(self.values) / len(self.values)


def effect(
    metric: str, better: Better, this: Sample, start: Sample, end: Sample | None = None, *,
    confidence: float = 0.95, least: float = 0.0,
) -> Effect:  # fmt: skip
    """The effect of an approach. ``least`` is the smallest relative change that matters."""
    if not this.values or not start.values:
        raise ValueError("nothing measured")
    usable = end if end is not None and len(end.values) > 1 else None
    every = (*this.values, *start.values, *(usable.values if usable else ()))
    if min(every) <= 0:
        return Effect(metric, 0.0, 0.0, 0.0, "not judged", start.mean, this.mean, "a value of 0 has no ratio")
    weight = _weight(this.at, start, usable)
    a, b, c = _logs(this), _logs(start), _logs(usable) if usable else None
    base = b.mean if c is None else (1 - weight) * b.mean + weight * c.mean
    value = math.expm1(a.mean - base)
    if min(len(a.values), len(b.values)) < 2:
        because = "one measurement has no spread"
        return Effect(metric, value, value, value, "not judged", math.exp(base), this.mean, because)
    bounds = [_interval(a, b, None, 0.0, confidence)]
    if c is not None:
        bounds += [_interval(a, c, None, 0.0, confidence), _interval(a, b, c, weight, confidence)]
    low, high = math.expm1(min(found[0] for found in bounds)), math.expm1(max(found[1] for found in bounds))
    return Effect(metric, value, low, high, _word(low, high, better, least), math.exp(base), this.mean)


def _logs(sample: Sample) -> Sample:
    return Sample(tuple(math.log(value) for value in sample.values), sample.at)


def drift(metric: str, better: Better, start: Sample, end: Sample, confidence: float, least: float) -> Drift:
    """How the baseline moved between its two measurements."""
    found = effect(metric, better, end, start, confidence=confidence, least=least)
    return Drift(metric, found.value, found.low, found.high, found.word)


def _word(low: float, high: float, better: Better, least: float) -> Word:
    if low > least:
        return "better" if better == "higher" else "worse"
    if high < -least:
        return "worse" if better == "higher" else "better"
    return "no difference shown"


def _weight(at: float, start: Sample, end: Sample | None) -> float:
    """Where ``at`` lies between the two baselines, 0 to 1."""
    if end is None or end.at <= start.at:
        return 0.0
    return min(1.0, max(0.0, (at - start.at) / (end.at - start.at)))


def _interval(
    this: Sample, start: Sample, end: Sample | None, weight: float, confidence: float
) -> tuple[float, float]:
    import numpy as np
    from scipy.stats import bootstrap

    samples = [this, start] if end is None else [this, start, end]
    stretched: list[Any] = [np.asarray(_stretched(sample.values, samples, confidence)) for sample in samples]

    def statistic(a: np.ndarray, b: np.ndarray, c: np.ndarray | None = None, axis: int = -1) -> np.ndarray:
        base = b.mean(axis=axis) if c is None else (1 - weight) * b.mean(axis=axis) + weight * c.mean(axis=axis)
        found: np.ndarray = a.mean(axis=axis) - base
        return found

    if all(np.ptp(values) == 0 for values in stretched):
        value = float(statistic(*stretched))
        return value, value
    found = bootstrap(
        stretched, statistic, n_resamples=RESAMPLES, confidence_level=confidence, method="percentile",
        vectorized=True, rng=np.random.default_rng(SEED),
    ).confidence_interval  # fmt: skip
    return float(found.low), float(found.high)


def _stretched(values: Sequence[float], samples: Sequence[Sample], confidence: float) -> list[float]:
    """``values`` with their distances from the mean stretched for their small number."""
    from scipy.stats import norm, t

    n, mean = len(values), sum(values) / len(values)
    if n < 2:
        return list(values)
    freedom = _freedom([s.values for s in samples])
    tail = 0.5 + confidence / 2
    factor = (n / (n - 1)) ** 0.5 * float(t.ppf(tail, freedom) / norm.ppf(tail))
    return [mean + (value - mean) * factor for value in values]


def _freedom(samples: Sequence[Sequence[float]]) -> float:
    """Degrees of freedom of a difference of means, after Welch and Satterthwaite."""
    parts = []
    for values in samples:
        n, mean = len(values), sum(values) / len(values)
        if n > 1:
            parts.append((sum((value - mean) ** 2 for value in values) / (n - 1) / n, n - 1))
    total = sum(part for part, _ in parts)
    under = sum(part * part / n for part, n in parts)
    return max(1.0, total * total / under) if under > 0 else float(sum(n for _, n in parts) or 1.0)
