"""A program on arrays: rows go down the tree together and part where their branches do.

A block of rows is a grid (one dimension an axis, so that what depends on one axis is worked out once for each
of its values) until rows part across more than one axis; then it is a list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ullage.sweep.program import Answer, Branch, Graph, Operation, Program
from ullage.sweep.search import Search

Array = NDArray[Any]


class Rows:
    """Rows at one place of the tree: the values worked out so far, and which rows of the block they are.

    ``shape`` is that of the grid; every value broadcasts to it. ``places`` are the rows' numbers in the block,
    of that shape. Values of the rows they parted from are taken over when they are asked for.
    """

    def __init__(
        self, values: dict[int, Any], places: Array, parent: Rows | None = None, taken: Any = None
    ) -> None:
        self.values = values
        self.places = places
        self.parent = parent
        self.taken = taken

    @property
    def shape(self) -> tuple[int, ...]:
        return self.places.shape

    def value(self, node: int) -> Any:
        found = self.values.get(node)
        if found is None and self.parent is not None:
            found = self.values[node] = take(self.parent.value(node), self.parent.shape, self.taken)
        return found

    def part(self, chosen: Array) -> Rows:
        """The rows for which ``chosen`` (which broadcasts to the grid) is true."""
        dimensions = [i for i, size in enumerate(chosen.shape) if size > 1]
        taken: Any
        if len(dimensions) == 1 and len(self.shape) > 1:
            taken = (dimensions[0] - chosen.ndim, np.flatnonzero(chosen))
        else:
            taken = np.flatnonzero(np.broadcast_to(chosen, self.shape))
        return Rows({}, take(self.places, self.shape, taken), self, taken)


def take(value: Any, shape: tuple[int, ...], taken: Any) -> Any:
    """The part of ``value`` for the rows ``taken``: places along one dimension, or in the whole grid."""
    if np.ndim(value) == 0:
        return value
    if isinstance(taken, tuple):
        axis, places = taken
        if value.ndim < -axis or value.shape[axis] == 1:
            return value
        return np.take(value, places, axis=axis)
    if value.size == 1:
        return value.reshape(())[()]
    return np.broadcast_to(value, shape).reshape(-1)[taken]


def run(
    program: Program, inputs: Mapping[str, Any], shape: tuple[int, ...], grow: Callable[[int], None]
) -> Iterator[tuple[Rows, Answer]]:
    """The rows of a block by the leaf that they arrive at.

    Where rows take a path that no row took before, ``grow`` is called with the place of one of them in the
    block, and adds that path to the program.
    """
    places = np.arange(int(np.prod(shape)), dtype=np.int64).reshape(shape)
    waiting = [(program.root, Rows({}, places))]
    graph = program.graph
    with np.errstate(all="ignore"):
        while waiting:
            branch, rows = waiting.pop()
            if branch.node is None and branch.answer is None:
                grow(int(rows.places.flat[0]))
            for number in branch.schedule:
                rows.values[number] = work_out(graph, number, rows, inputs)
            if branch.answer is not None:
                yield rows, branch.answer
                continue
            for outcome, part in _parts(branch, rows):
                if outcome not in branch.after:
                    grow(int(part.places.flat[0]))
                waiting.append((branch.after[outcome], part))


def _parts(branch: Branch, rows: Rows) -> Iterator[tuple[float, Rows]]:
    """The rows by what the decision of ``branch`` comes to."""
    assert branch.node is not None
    value = rows.value(branch.node)
    if np.ndim(value) == 0:
        yield float(value if branch.pinned else bool(value)), rows
        return
    value = np.asarray(value) if branch.pinned else np.asarray(value, dtype=bool)
    if not branch.pinned:
        yes = int(np.count_nonzero(value))
        if yes in (0, value.size):
            yield float(yes > 0), rows
            return
        yield 1.0, rows.part(value)
        yield 0.0, rows.part(~value)
        return
    different = np.unique(value)
    for one in different:
        yield float(one), rows if different.size == 1 else rows.part(value == one)


def work_out(graph: Graph, number: int, rows: Rows, inputs: Mapping[str, Any]) -> Any:
    operation = graph.operations[number]
    if operation.name == "constant":
        return operation.constant
    if operation.name == "input":
        return _input(inputs[str(operation.constant)], rows)
    values = [rows.value(n) for n in operation.arguments]
    if operation.name == "search":
        return search(graph, operation, values)
    return OPERATIONS[operation.name](operation, *values)


def search(graph: Graph, operation: Operation, values: list[Any]) -> Any:
    """The largest n in 1..most for which the condition holds, which it does for 1: all rows halved together."""
    asked = operation.constant
    assert isinstance(asked, Search)
    known = dict(zip(operation.arguments, values, strict=True))
    shape = np.broadcast_shapes(*(np.shape(value) for value in values))
    low, high = np.ones(shape), np.broadcast_to(np.asarray(values[0], dtype=float), shape).copy()
    while np.any(low < high):
        known[asked.open] = middle = np.floor((low + high + 1) / 2)
        for number in asked.body:
            part = graph.operations[number]
            known[number] = OPERATIONS[part.name](part, *(known[n] for n in part.arguments))
        unsettled, holds = low < high, np.asarray(known[asked.goal], dtype=bool)
        low = np.where(unsettled & holds, middle, low)
        high = np.where(unsettled & ~holds, middle - 1, high)
    return low if shape else float(low)


def _input(value: Any, rows: Rows) -> Any:
    """An axis for these rows, however far down the tree it is first asked for."""
    return value if rows.parent is None else take(_input(value, rows.parent), rows.parent.shape, rows.taken)


def floor_division(operation: Operation, a: Any, b: Any) -> Any:
    """a // b as Python has it: the floor of the true quotient.

    Of whole numbers below 2**53 the rounded quotient has the same floor. Of others it may have been rounded up
    to a whole number: only those are divided again.
    """
    quotient = np.true_divide(a, b)
    floor = np.floor(quotient)
    if operation.whole:
        return floor
    doubtful = np.equal(quotient, floor)
    if not np.any(doubtful):
        return floor
    if np.ndim(floor) == 0:
        return np.floor_divide(a, b)
    x, y = np.broadcast_to(a, floor.shape)[doubtful], np.broadcast_to(b, floor.shape)[doubtful]
    floor[doubtful] = np.floor_divide(x, y)
    return floor


def remainder(operation: Operation, a: Any, b: Any) -> Any:
    return np.mod(a, b)


def rounded(operation: Operation, a: Any) -> Any:
    """round(a, digits) by Python's own rule, once for each value."""
    digits = operation.constant
    return _each(lambda x: round(x, digits), a)  # type: ignore[call-overload]


def error_function(operation: Operation, a: Any) -> Any:
    from math import erf

    return _each(erf, a)


def _each(function: Callable[[float], float], a: Any) -> Any:
    different, places = np.unique(np.asarray(a, dtype=float), return_inverse=True)
    return np.array([function(float(x)) for x in different])[places].reshape(np.shape(a))


def count(operation: Operation, a: Any) -> Any:
    """How many of the constants do not exceed ``a``."""
    limits = np.asarray(operation.constant, dtype=float)
    return np.asarray(np.searchsorted(limits, a, side="right"), dtype=float)


def _plain(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda operation, *values: function(*values)


OPERATIONS: dict[str, Callable[..., Any]] = {
    "add": _plain(np.add), "sub": _plain(np.subtract), "mul": _plain(np.multiply),
    "div": _plain(np.true_divide),
    "min": _plain(np.minimum), "max": _plain(np.maximum), "neg": _plain(np.negative), "abs": _plain(np.abs),
    "lt": _plain(np.less), "le": _plain(np.less_equal), "gt": _plain(np.greater),
    "ge": _plain(np.greater_equal), "eq": _plain(np.equal), "ne": _plain(np.not_equal),
    "trunc": _plain(np.trunc), "floor": _plain(np.floor), "ceil": _plain(np.ceil), "rint": _plain(np.rint),
    "counted": _plain(lambda a: np.asarray(a, dtype=float) if np.ndim(a) else float(a)),
    "floordiv": floor_division, "mod": remainder, "round": rounded, "erf": error_function, "count": count,
}  # fmt: skip
