from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ullage.core.units import GIB, MIB, Band, Measured, gib_text, parse_size


@pytest.mark.parametrize(
    ("text", "value", "low", "high"),
    [("21.78", 21.78, 21.775, 21.785), ("1,234", 1234.0, 1233.5, 1234.5), ("19.5", 19.5, 19.45, 19.55), ("-1.23", -1.23, -1.235, -1.225)],
)  # fmt: skip
def test_a_figure_keeps_its_print_step(text: str, value: float, low: float, high: float) -> None:
    band = Measured.parse(text).band
    if "," in text:  # a whole number has no step: it is exact
        assert (band.value, band.low, band.high) == (value, value, value)
    else:
        assert (band.value, band.low, band.high) == pytest.approx((value, low, high))


@given(st.decimals(min_value=-10000, max_value=10000, places=2))
def test_parse_and_show_agree(number: object) -> None:
    assert float(str(Measured.parse(str(number)))) == pytest.approx(float(str(number)))


@pytest.mark.parametrize("text", ["", "abc", "--", "."])
def test_no_number(text: str) -> None:
    with pytest.raises(ValueError, match="no number"):
        Measured.parse(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [("786.00 MiB", 786 * MIB), ("21.78GB", round(21.78 * GIB)), ("1024", 1024), ("2 gib", 2 * GIB)],
)
def test_engines_print_gb_and_mean_gib(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GB", "1 parsec", "1 2 GB"])
def test_not_a_size(text: str) -> None:
    with pytest.raises(ValueError, match="not a size"):
        parse_size(text)


def test_never_minus_zero() -> None:
    assert gib_text(0) == "0.00 GiB"
    assert gib_text(-1 * MIB) == "-1.0 MiB"
    assert gib_text(4 * MIB) == "4.0 MiB"
    assert gib_text(0.07 * GIB) == "0.07 GiB"


def test_the_odds_of_a_band() -> None:
    band = Band(10, 5, 20)
    assert band.chance_above(10) == pytest.approx(0.5)
    assert band.chance_above(5) == pytest.approx(0.95, abs=1e-3)
    assert band.chance_above(20) == pytest.approx(0.05, abs=1e-3)
    chances = [band.chance_above(limit) for limit in range(-5, 40)]
    assert chances == sorted(chances, reverse=True)
    assert Band(3, 3, 3).chance_above(2.9) == 1.0
    assert Band(3, 3, 3).chance_above(3) == 0.0
