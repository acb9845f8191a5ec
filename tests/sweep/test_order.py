"""The Pareto front and the first rows, against doing it the long way."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ullage.core.errors import InputError
from ullage.sweep.order import Best, Front, front, keys
from ullage.sweep.table import Table

POINTS = st.integers(1, 4).flatmap(
    lambda k: st.lists(st.tuples(*[st.integers(0, 5)] * k), min_size=1, max_size=40)
)  # fmt: skip


def beaten(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    return other != one and all(b <= a for a, b in zip(one, other, strict=True))


@given(POINTS)
def test_front(points: list[tuple[int, ...]]) -> None:
    costs = np.array(points, dtype=float)
    found = [tuple(int(x) for x in costs[i]) for i in front(costs)]
    assert sorted(found) == sorted({p for p in points if not any(beaten(p, q) for q in points)})
    assert len(found) == len(set(found))


def table(tokens: list[float], gpus: list[int], verdicts: list[int]) -> Table:
    return Table(
        {"kv_tokens": np.array(tokens), "num_gpus": np.array(gpus), "verdict": np.array(verdicts)},
        {"verdict": ["starts", "unsure", "fails"]},
    )  # fmt: skip


ROWS = st.lists(st.tuples(st.integers(0, 9), st.integers(1, 4), st.integers(0, 2)), min_size=1, max_size=60)


@given(ROWS, st.integers(1, 20), st.integers(1, 20))
def test_a_table_at_a_time_is_the_same(rows: list[tuple[int, int, int]], size: int, limit: int) -> None:
    order = keys(["-kv_tokens,num_gpus"], "--sort")
    best, whole = Best(order, limit), Front(keys(["kv_tokens", "-num_gpus"], "--pareto"))
    for start in range(0, len(rows), size):
        part = table(*(list(column) for column in zip(*rows[start : start + size], strict=True)))
        best.add(part)
        whole.add(part)
    assert best.table is not None and whole.table is not None
    wanted = sorted(((-t, n) for t, n, _ in rows))[:limit]
    assert [(-row["kv_tokens"], row["num_gpus"]) for row in best.table.rows()] == wanted
    starts = [(-t, n) for t, n, v in rows if v == 0]
    assert {(-row["kv_tokens"], row["num_gpus"]) for row in whole.table.rows()} == {
        p for p in starts if not any(beaten(p, q) for q in starts)
    }


def test_unknown_figures_are_no_objective() -> None:
    found = Front(keys(["kv_tokens"], "--pareto"))
    found.add(table([np.nan, 3.0], [1, 1], [0, 0]))
    assert found.table is not None
    assert [row["kv_tokens"] for row in found.table.rows()] == [3]


@pytest.mark.parametrize("text", ["", "a,,b", "-", "x" * 200])
def test_no_key(text: str) -> None:
    with pytest.raises(InputError):
        keys([text], "--sort")
