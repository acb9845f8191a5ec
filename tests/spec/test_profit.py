"""The algebra of speculation: the founding figures, and what must hold of any figures."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ullage.comm.collectives import num_all_reduces, per_call_us
from ullage.spec.profit import (
    alpha_of,
    break_even_call,
    break_even_length,
    cap,
    compute_bound_rows,
    distinct_experts,
    expected_length,
    extended,
    independent_rows,
    positions_of,
    speedup,
)

#: milliseconds of the founding case: a step at 89.5 tok/s, and all-reduces said to fill 30 ms
STEP, CALLS = 1000 / 89.5, 30.0
COUNT = 122


def rest_ms() -> float:
    """O: a round without its all-reduces. Weights for 1 and for 3 rows at 80 % of 1,792 GB/s (bf16 for 10.55 G
    parameters that are always read, 0.5625 B for those of the touched experts), what the baseline does beside
    them and 122 all-reduces of 30 us, and 1.7 ms of draft and host."""

    def weights(rows: int) -> float:
        experts = distinct_experts(384, 8, rows) * 60 * 3 * 7168 * 2048 * 0.5625
        return (10.55e9 * 2 + experts) / 8 / (0.8 * 1792e9) * 1e3

    other = STEP - weights(1) - COUNT * 0.030
    return weights(3) + other + 1.7


def test_founding_case_counts_122_all_reduces_of_42_kib_at_246_us() -> None:
    from ullage.comm.collectives import Layout, collectives
    from ullage.models.load import find

    model = find("moonshotai/Kimi-K2.5")
    assert model is not None
    found = collectives(model, Layout(tp=8, expert_ranks=8, embedding_ranks=8, head_ranks=8), "decode", 3)
    assert num_all_reduces(found) == COUNT
    assert found[0].bytes == 42 * 1024
    assert round(per_call_us(CALLS * 1000, COUNT)) == 246


def test_founding_case_needs_3_69_tokens_where_three_rows_give_3() -> None:
    needed = break_even_length(STEP, CALLS + rest_ms())
    assert needed == pytest.approx(3.69, abs=0.02)
    assert needed > cap(2) == 3
    assert break_even_length(STEP, CALLS) == pytest.approx(2.69, abs=0.005)


def test_founding_heads_give_2_04_to_2_28() -> None:
    assert expected_length((0.645, 0.393)) == pytest.approx(2.04, abs=0.005)
    alpha = alpha_of(2.687, 3)
    assert alpha == pytest.approx(0.739, abs=0.0005)
    assert expected_length(positions_of(alpha, 2)) == pytest.approx(2.28, abs=0.01)


def test_founding_all_reduces_may_take_119_us_and_49_for_half_as_much_again() -> None:
    length = 2.28
    assert break_even_call(length, STEP * 1e3, 11e3, COUNT) == pytest.approx(119, abs=0.6)
    assert break_even_call(length, STEP * 1e3, 11e3, COUNT, 1.5) == pytest.approx(49, abs=0.6)
    assert break_even_call(1.9, STEP * 1e3, 14e3, COUNT, 1.5) == pytest.approx(1, abs=0.6)
    assert break_even_call(1.62, STEP * 1e3, 14e3, COUNT, 1.5) is None


def test_founding_case_would_have_given_137_to_153_at_32_us() -> None:
    round_ms = 11.0 + COUNT * 0.032
    for length, tok_s, gain in ((2.04, 137, 1.53), (2.28, 153, 1.71)):
        assert length / round_ms * 1e3 == pytest.approx(tok_s, abs=0.6)
        assert speedup(length, STEP, round_ms) == pytest.approx(gain, abs=0.006)


@pytest.mark.parametrize(
    ("alpha", "k", "length"),
    [(0.5, 1, 1.5), (0.6, 3, 2.18), (0.7, 5, 2.94), (0.8, 7, 4.16), (0.9, 4, 4.10), (0.8, 2, 2.44)],
)
def test_lengths_of_a_constant_acceptance(alpha: float, k: int, length: float) -> None:
    assert expected_length(positions_of(alpha, k)) == pytest.approx(length, abs=0.006)


@pytest.mark.parametrize(
    ("experts", "per_token", "rows", "touched"),
    [
        (384, 8, 3, 23.5),
        (384, 8, 128, 358.1),
        (256, 8, 8, 57.4),
        (128, 8, 16, 82.4),
        (128, 4, 64, 111.2),
        (512, 10, 32, 239.6),
    ],
)
def test_distinct_experts(experts: int, per_token: int, rows: int, touched: float) -> None:
    assert distinct_experts(experts, per_token, rows) == pytest.approx(touched, abs=0.06)


def test_an_h100_is_bound_by_compute_from_295_rows() -> None:
    assert compute_bound_rows(989e12, 3.35e12, 2) == pytest.approx(295, abs=0.5)
    assert compute_bound_rows(989e12, 3.35e12, 0.5) == pytest.approx(74, abs=0.5)


def test_positions_go_on_with_the_last_conditional_acceptance() -> None:
    assert extended((0.8, 0.6), 4) == pytest.approx((0.8, 0.6, 0.45, 0.3375))
    assert extended((0.5,), 3) == pytest.approx((0.5, 0.25, 0.125))
    assert extended((0.8, 0.6, 0.4), 2) == (0.8, 0.6)
    assert extended((), 2) == (0.0, 0.0)


# --- laws -----------------------------------------------------------------------------------------------------

RATES = st.floats(0, 1)
DEPTHS = st.integers(1, 20)
TIMES = st.floats(0.01, 1e6)


@settings(deadline=None)
@given(RATES, RATES, DEPTHS)
def test_more_acceptance_never_gives_fewer_tokens(one: float, other: float, k: int) -> None:
    low, high = sorted((one, other))
    assert expected_length(positions_of(low, k)) <= expected_length(positions_of(high, k)) <= k + 1 + 1e-9


@settings(deadline=None)
@given(RATES, DEPTHS)
def test_deeper_drafts_never_give_fewer_tokens(alpha: float, k: int) -> None:
    assert expected_length(positions_of(alpha, k)) <= expected_length(positions_of(alpha, k + 1))


@settings(deadline=None)
@given(st.floats(0, 0.999), DEPTHS)
def test_a_length_gives_its_acceptance_back(alpha: float, k: int) -> None:
    length = expected_length(positions_of(alpha, k))
    assert expected_length(positions_of(alpha_of(length, k), k)) == pytest.approx(length, abs=1e-9)


@settings(deadline=None)
@given(TIMES, TIMES, st.floats(1, 10), st.floats(1, 3))
def test_it_pays_exactly_beyond_the_break_even(before: float, after: float, length: float, gain: float) -> None:
    needed = break_even_length(before, after, gain)
    if abs(length / needed - 1) > 1e-9:
        assert (speedup(length, before, after) > gain) == (length > needed)


@settings(deadline=None)
@given(TIMES, TIMES, st.floats(1, 10), st.integers(1, 500))
def test_the_allowed_all_reduce_is_the_one_that_breaks_even(
    before: float, rest: float, length: float, count: int
) -> None:
    allowed = break_even_call(length, before, rest, count)
    if allowed is None:
        assert speedup(length, before, rest) < 1
    else:
        assert speedup(length, before, rest + count * allowed) == pytest.approx(1, rel=1e-6)


@settings(deadline=None)
@given(st.integers(1, 512), st.integers(1, 64), st.floats(0, 1e4), st.floats(0, 1e4))
def test_more_rows_never_touch_fewer_experts(experts: int, per_token: int, one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert distinct_experts(experts, per_token, low) <= distinct_experts(experts, per_token, high) <= experts


@settings(deadline=None)
@given(st.integers(1, 500), st.integers(1, 64), RATES, RATES)
def test_rows_count_at_most_themselves(requests: int, rows: int, between: float, within: float) -> None:
    assert 1 <= independent_rows(requests, rows, between, within) <= requests * rows + 1e-6
