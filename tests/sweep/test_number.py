"""A number that is followed: the arrays give what Python gives, to the last bit."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ullage.engines.vllm.kv_fit import bisect
from ullage.sweep.evaluate import run
from ullage.sweep.mirror import Mirror, least, most, real, span, total, whole
from ullage.sweep.number import Follower, Number
from ullage.sweep.program import Node, Program
from ullage.sweep.search import searching

WHOLE = st.integers(-(1 << 40), 1 << 40)
REAL = st.floats(-1e13, 1e13, allow_nan=False).filter(lambda x: x == 0 or abs(x) > 1e-6)


def array_of(function: Callable[..., Any], rows: list[tuple[Any, ...]]) -> list[float]:
    """``function`` of each row, by following it and running the program on all rows at once."""
    program = Program()
    names = [f"x{i}" for i in range(len(rows[0]))]

    def grow(place: int) -> None:
        follower = Follower(program.graph)
        said = function(*(follower.input(name, value) for name, value in zip(names, rows[place], strict=True)))
        program.add(follower.path, {"out": Node(said.counted()) if type(said) is Number else float(said)})

    inputs = {
        name: np.array(column, dtype=float) for name, column in zip(names, zip(*rows, strict=True), strict=True)
    }
    out = np.full(len(rows), np.nan)
    for part, answer in run(program, inputs, (len(rows),), grow):
        value = answer["out"]
        out[part.places] = part.value(value.number) if isinstance(value, Node) else value
    return [float(x) for x in out]


@given(st.lists(st.tuples(WHOLE, WHOLE.filter(bool)), min_size=1, max_size=20))
def test_whole_division(rows: list[tuple[int, int]]) -> None:
    assert array_of(lambda a, b: a // b, rows) == [float(a // b) for a, b in rows]


@given(st.lists(st.tuples(REAL, REAL.filter(bool)), min_size=1, max_size=20))
def test_real_division(rows: list[tuple[float, float]]) -> None:
    assert array_of(lambda a, b: a // b, rows) == [a // b for a, b in rows]


@given(st.lists(st.tuples(st.integers(1, 1 << 24), st.floats(1e-3, 1e6)), min_size=1, max_size=20))
def test_just_below_a_whole_quotient(rows: list[tuple[int, float]]) -> None:
    near = [(math.nextafter(n * b, d), b) for n, b in rows for d in (0.0, math.inf)]
    assert array_of(lambda a, b: a // b, near) == [a // b for a, b in near]


@given(st.lists(st.tuples(REAL), min_size=1, max_size=20), st.integers(0, 4))
def test_rounding(rows: list[tuple[float]], digits: int) -> None:
    assert array_of(lambda x: round(x), rows) == [float(round(x)) for (x,) in rows]
    assert array_of(lambda x: round(x, digits), rows) == [round(x, digits) for (x,) in rows]
    assert array_of(lambda x: whole(x) + math.ceil(x) - math.floor(x), rows) == [
        float(int(x) + math.ceil(x) - math.floor(x)) for (x,) in rows
    ]


@given(st.lists(st.tuples(st.integers(0, 600), st.integers(0, 600)), min_size=1, max_size=20))
def test_branches_loops_and_built_ins(rows: list[tuple[int, int]]) -> None:
    def plain(
        a: Any,
        b: Any,
        low: Any = min,
        high: Any = max,
        add: Any = sum,
        integer: Any = int,
        floating: Any = float,
        steps: Any = range,
    ) -> Any:
        sizes = [n for n in (1, 2, 4, *steps(8, integer(low(a, 64)), 8)) if n <= b]
        if not sizes or a in (3, 5):
            return -1
        biggest = high(high(sizes), low(b, 100))
        return (
            add(n <= biggest for n in (1, 2, 4, 8, 16, 32)) * biggest
            + floating(a) / 3
            + (b > a)
            + {7: 70}.get(b, 0)
        )

    followed = array_of(lambda a, b: plain(a, b, least, most, total, whole, real, span), rows)
    assert followed == [float(plain(a, b)) for a, b in rows]


@given(
    st.lists(st.tuples(st.floats(-4, 4)), min_size=1, max_size=30),
    st.sampled_from([0.2, 0.4, 0.6, 1.0, 0.0, 2.0]),
)
def test_likelihoods(rows: list[tuple[float]], limit: float) -> None:
    erf = Mirror().find("math").__dict__["erf"]
    for compare in (operator.ge, operator.gt, operator.le, operator.lt):
        found = array_of(lambda z, by=compare: 1 if by(0.5 * (1 + erf(z)), limit) else 0, rows)
        assert found == [float(compare(0.5 * (1 + math.erf(z)), limit)) for (z,) in rows]


@given(st.lists(st.tuples(st.floats(-5, 5)), min_size=1, max_size=20))
def test_the_larger_of_a_whole_and_a_real_number(rows: list[tuple[float]]) -> None:
    assert array_of(lambda x: whole(most(x, 0)), rows) == [float(int(max(x, 0))) for (x,) in rows]


@given(
    st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 3000), st.integers(1, 9)), min_size=1, max_size=20)
)
def test_searches(rows: list[tuple[int, int, int]]) -> None:
    def of(a: Any, b: Any, c: Any, look: Any, low: Any) -> Any:
        found = look(lambda n: low(n, 700) // c + n // 3 <= a, b)
        return found * 2 if found > 10 else look(lambda n: c > 3, b)

    followed = array_of(lambda a, b, c: of(a, b, c, searching(bisect), least), rows)
    assert followed == [float(of(a, b, c, bisect, min)) for a, b, c in rows]


def test_a_search_that_branches_on_its_number_is_followed_step_by_step() -> None:
    rows = [(a, b) for a in (1, 5, 20, 77) for b in (1, 30, 100)]

    def of(a: Any, b: Any, look: Any) -> Any:
        return look(lambda n: n * 2 <= a if n > 10 else n <= a, b)

    assert array_of(lambda a, b: of(a, b, searching(bisect)), rows) == [
        float(of(a, b, bisect)) for a, b in rows
    ]


def test_words_pin_nothing_and_keys_do() -> None:
    follower = Follower(Program().graph)
    number = follower.input("x", 3)
    assert f"{number:.2f}" == "3.00"
    assert not follower.path
    assert {3: "three"}[number] == "three"
    assert (follower.path[0].pinned, follower.path[0].outcome) == (True, 3.0)
    assert isinstance(number, int) and not isinstance(number, float)


def test_the_modules_themselves_stay_as_they_are() -> None:
    from ullage.core import units
    from ullage.sweep.follow import mirror

    again = mirror().module("ullage.core.units")
    assert again is not units
    assert units.__dict__["erf"] is math.erf
    assert again.__dict__["erf"] is not math.erf
    assert again.Band(1.0, 0.0, 2.0).chance_above(0.5) == units.Band(1.0, 0.0, 2.0).chance_above(0.5)
