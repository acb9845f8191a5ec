"""Verdicts: the intervals hold what they promise, few repeats and drift included."""

from __future__ import annotations

import numpy as np
import pytest

from ullage.lab.campaign import verdict
from ullage.lab.campaign.verdict import Sample, effect


def test_directions() -> None:
    low, high = Sample((80.0, 80.5, 79.5), 0.5), Sample((100.0, 100.4, 99.8), 0.0)
    assert effect("x", "higher", low, high).word == "worse"
    assert effect("x", "lower", low, high).word == "better"
    found = effect("x", "higher", high, low)
    assert found.word == "better"
    assert found.low < found.value < found.high
    assert found.value == pytest.approx(100.06 / 80 - 1, abs=0.002)


def test_never_from_one_number() -> None:
    one, many = Sample((80.0,)), Sample((100.0, 101.0, 99.0))
    assert effect("x", "higher", one, many).word == "not judged"
    assert effect("x", "higher", many, one).word == "not judged"
    assert effect("x", "lower", Sample((0.0, 0.0)), many).word == "not judged"


def test_a_difference_below_what_matters_is_none() -> None:
    a, b = Sample((100.5, 100.51, 100.49), 0.5), Sample((100.0, 100.01, 99.99))
    assert effect("x", "higher", a, b).word == "better"
    assert effect("x", "higher", a, b, least=0.01).word == "no difference shown"


def test_drift_as_large_as_the_effect_hides_it() -> None:
    start, end = Sample((100.0, 100.2, 99.9), 0.0), Sample((110.0, 110.3, 109.8), 1.0)
    this = Sample((107.0, 107.2, 106.9), 0.5)
    assert effect("x", "higher", this, start).word == "better"
    found = effect("x", "higher", this, start, end)
    assert found.word == "no difference shown"
    assert found.low < 0 < found.high
    assert found.value == pytest.approx(107 / (100 * 110) ** 0.5 - 1, abs=0.003)
    assert verdict.drift("x", "higher", start, end, 0.95, 0.01).value == pytest.approx(0.1, abs=0.003)


def test_the_same_every_time() -> None:
    a, b = Sample((90.0, 95.0, 92.0), 0.5), Sample((100.0, 99.0, 101.0))
    assert effect("x", "higher", a, b) == effect("x", "higher", a, b)


def test_identical_values() -> None:
    a = Sample((100.0, 100.0, 100.0))
    assert effect("x", "higher", a, a).word == "no difference shown"


@pytest.mark.parametrize("repeats", [3, 5])
def test_intervals_cover_and_nothing_is_found_where_nothing_is(
    repeats: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 120 campaigns with a true effect of 10 % and noise of 3 %, the interval holds it in at least 93 %; of as
    many without an effect at most 8 % are called one (5 % are due; the limits are three standard errors away)."""
    monkeypatch.setattr(verdict, "RESAMPLES", 600)
    chance = np.random.default_rng(5)

    def draw(mean: float) -> tuple[float, ...]:
        return tuple(mean * np.exp(0.03 * chance.standard_normal(repeats)))

    covered = found = 0
    for _ in range(120):
        this = effect("x", "higher", Sample(draw(110), 0.5), Sample(draw(100), 0), Sample(draw(100), 1))
        covered += this.low <= 0.1 <= this.high
        found += effect("x", "higher", Sample(draw(100), 0.5), Sample(draw(100))).word != "no difference shown"
    assert covered >= 0.93 * 120
    assert found <= 0.1 * 120
