"""The time of a step: what must hold of any work, and the founding model's own."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ullage.core.units import Band
from ullage.spec.acceptance import Width
from ullage.spec.constants import Peak, constants, peak_of, runtime_of
from ullage.spec.step import Call, Costs, Graphs, Round, entries
from ullage.spec.work import Cache, Experts, Matrices, Work

PEAK = Peak("x", 2000.0, "made up", 900.0)
DENSE = Work(
    (Matrices("attention", 4e9, 2e9), Matrices("MLP", 8e9, 4e9)), (Cache("KV cache", 1e5, layers=32),), 32
)
MOE = Work(DENSE.matrices, DENSE.caches, 32, Experts(6e10, 3e10, 128, 8, 32))
DRAFT = Work((Matrices("draft", 4e8, 2e8),), (Cache("KV cache", 4e3, layers=1),), 1)


def costs(us: float = 20.0, *, graphs: Graphs | None = None) -> Costs:
    def calls(rows: int, requests: int, width: Width | None) -> Sequence[Call]:
        return [Call("target", "all-reduces", 64, rows * 8192, Band(us, us * 0.8, us * 1.3), "made up")]

    return Costs(PEAK, runtime_of("sglang"), constants(), calls, graphs or Graphs())


def total(work: Work, asked: Round, given: Costs) -> float:
    return sum(entry.microseconds for entry in entries(work, asked, given))


BATCH = st.integers(1, 300)
CONTEXT = st.integers(1, 100_000)
WORK = st.sampled_from([DENSE, MOE])
WIDTH = st.one_of(st.none(), st.integers(1, 8).map(lambda k: Width(k)))


@settings(deadline=None)
@given(WORK, BATCH, BATCH, CONTEXT, WIDTH)
def test_more_requests_never_take_less_time(
    work: Work, one: int, other: int, context: int, width: Width | None
) -> None:
    low, high = sorted((one, other))
    assert total(work, Round(low, context, width, DRAFT), costs()) <= total(
        work, Round(high, context, width, DRAFT), costs()
    ) * (1 + 1e-9)


@settings(deadline=None)
@given(WORK, BATCH, CONTEXT, CONTEXT, WIDTH)
def test_more_context_never_takes_less_time(
    work: Work, batch: int, one: int, other: int, width: Width | None
) -> None:
    low, high = sorted((one, other))
    assert total(work, Round(batch, low, width, DRAFT), costs()) <= total(
        work, Round(batch, high, width, DRAFT), costs()
    ) * (1 + 1e-9)


@settings(deadline=None)
@given(WORK, BATCH, CONTEXT, st.integers(1, 10))
def test_a_deeper_round_never_takes_less_time(work: Work, batch: int, context: int, k: int) -> None:
    shallow, deep = (Round(batch, context, Width(n), DRAFT) for n in (k, k + 1))
    assert total(work, shallow, costs()) < total(work, deep, costs())


@settings(deadline=None)
@given(st.floats(0, 1e4), st.floats(0, 1e4), BATCH)
def test_slower_all_reduces_never_take_less_time(one: float, other: float, batch: int) -> None:
    low, high = sorted((one, other))
    asked = Round(batch, 1000, Width(2), DRAFT)
    assert total(DENSE, asked, costs(low)) <= total(DENSE, asked, costs(high)) * (1 + 1e-9)


@settings(deadline=None)
@given(WORK, BATCH, CONTEXT, WIDTH)
def test_every_entry_lies_within_its_band(work: Work, batch: int, context: int, width: Width | None) -> None:
    for entry in entries(work, Round(batch, context, width, DRAFT), costs()):
        assert 0 <= entry.low <= entry.microseconds * (1 + 1e-9)
        assert entry.microseconds <= entry.high * (1 + 1e-9)
        assert entry.source


def test_a_step_outside_a_graph_waits_for_the_host() -> None:
    small = Work((Matrices("all", 1e8, 5e7),), (), 32)
    captured, eager = (costs(graphs=g) for g in (Graphs(), Graphs(requests=0)))
    names = [entry.name for entry in entries(small, Round(1, 100), eager)]
    assert "launches without a CUDA graph" in names
    assert total(small, Round(1, 100), eager) > 2 * total(small, Round(1, 100), captured)


def test_graphs_are_counted_in_rows_or_in_requests() -> None:
    assert Graphs(rows=8).hold(8, 2) and not Graphs(rows=8).hold(9, 2)
    assert Graphs(requests=4).hold(16, 4) and not Graphs(requests=4).hold(5, 5)


def test_the_rows_of_a_request_share_a_read_of_the_cache_where_the_kernel_can() -> None:
    apart = Work((), (Cache("KV cache", 1e5, layers=1, shared=False),), 1)
    shared = Work((), (Cache("KV cache", 1e5, layers=1),), 1)

    def cache(work: Work, width: Width | None) -> float:
        found = entries(work, Round(4, 10_000, width), costs())
        return next(entry.microseconds for entry in found if entry.name == "KV cache")

    assert cache(shared, Width(3)) == cache(shared, None)
    assert cache(apart, Width(3)) == pytest.approx(4 * cache(apart, None))


def test_a_window_bounds_what_is_read() -> None:
    item = Cache("KV cache, windows", 1.0, 128)
    assert (item.tokens(50), item.tokens(5000)) == (50, 128)


def test_every_gpu_of_the_table_is_one_of_the_catalogue() -> None:
    from ullage.core.tables import load
    from ullage.hardware import gpus
    from ullage.spec.constants import _Peaks

    table = load("ullage.spec", "peaks.toml", _Peaks)
    assert {row.name for row in table.peak} <= set(gpus.names())
    assert all(row.source and row.bandwidth_gbs > 0 for row in table.peak)


def test_a_name_of_two_gpus_is_the_slower() -> None:
    both = peak_of("NVIDIA A100-SXM4-80GB or NVIDIA A100-SXM4-40GB")
    assert both is not None and both.name == "NVIDIA A100-SXM4-40GB"
    assert peak_of("no such card") is None
