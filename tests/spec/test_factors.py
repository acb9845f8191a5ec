"""What a measurement says of the other steps."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ullage.core.timing import TimeEntry
from ullage.core.units import Band
from ullage.spec.factors import LEAST, MOST, Factors, Point, apply, calibrated, ledger, ratio


def entry(name: str, us: float, low: float = 0.8, high: float = 1.25, factor: str = "") -> TimeEntry:
    return TimeEntry("target", name, us, us * low, us * high, "estimated", "made up", factor or name)


STEP = (entry("weights", 5000.0), entry("collectives", 3000.0, 0.5, 3.0), entry("host", 500.0))
LARGER = (entry("weights", 5000.0), entry("collectives", 9000.0, 0.5, 3.0), entry("host", 700.0))


@settings(deadline=None)
@given(st.floats(0.6, 2.0))
def test_a_measured_step_takes_what_was_measured(share: float) -> None:
    measured = 8500.0 * share
    found = calibrated([Point(STEP, measured, 0.01, "here")])
    assert sum(e.microseconds for e in apply(STEP, found)) == pytest.approx(measured, rel=0.05)
    assert all(LEAST <= value <= MOST for value in found.mean.values())


def test_the_most_uncertain_entry_moves_most() -> None:
    found = calibrated([Point(STEP, 12_000.0, 0.01, "slow host")])
    assert found.of("collectives") > 1.8 > 1.2 > found.of("weights") > 1
    assert found.points == ("slow host",)


def test_a_measurement_moves_other_steps_and_narrows_them() -> None:
    before = ledger("decode", 8, 1000, 8, LARGER, Factors())
    after = ledger("decode", 8, 1000, 8, LARGER, calibrated([Point(STEP, 12_000.0, 0.01, "here")]))
    assert after.total_us > before.total_us
    assert after.high_us - after.low_us < before.high_us - before.low_us
    same = ledger("decode", 1, 1000, 1, STEP, calibrated([Point(STEP, 12_000.0, 0.01, "here")]))
    assert same.high_us / same.low_us < 1.05


def test_given_entries_are_not_moved() -> None:
    given_entry = TimeEntry(
        "target", "all-reduces", 30_000.0, 30_000.0, 30_000.0, "observed", "given", "collectives"
    )
    found = apply((given_entry, STEP[0]), Factors({"collectives": 0.5, "weights": 1.1}))
    assert [e.microseconds for e in found] == [30_000.0, pytest.approx(5500.0)]


def test_errors_that_both_steps_share_cancel() -> None:
    sure = Band(1.0, 1.0, 1.0)
    alike = ratio(sure, STEP, STEP, Factors())
    assert (alike.low, alike.value, alike.high) == (1.0, 1.0, 1.0)
    unlike = ratio(sure, STEP, (*STEP, entry("draft", 2000.0)), Factors())
    assert unlike.low < unlike.value < 1


def test_the_acceptance_own_limits_widen_the_ratio() -> None:
    found = ratio(Band(2.0, 1.8, 2.2), STEP, STEP, Factors())
    assert (found.low, found.high) == (pytest.approx(1.8), pytest.approx(2.2))
