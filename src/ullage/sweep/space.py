"""A space of settings in blocks of rows: the rows of a block differ in numbers only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ullage.sweep.axes import Axis

Array = NDArray[Any]
#: rows of a block: its arrays stay in the processor's cache
BLOCK = 1 << 16
#: rows drawn together, so that those of one group are enough to be planned together
DRAWN = 1 << 18


@dataclass
class Block:
    """``group``: the value of each discrete axis, by its place on it. ``inputs``: the numbers, which broadcast
    to ``shape``."""

    group: tuple[int, ...]
    inputs: Mapping[str, Any]
    shape: tuple[int, ...]

    def __len__(self) -> int:
        return prod(self.shape)


def size(axes: Sequence[Axis]) -> int:
    return prod(len(axis.values) for axis in axes)


def numbers(axis: Axis) -> Array:
    return np.array(axis.values, dtype=float)


def grid(discrete: Sequence[Axis], numeric: Sequence[Axis], block: int = BLOCK) -> Iterator[Block]:
    """Every point, group by group; within a group the last axis changes fastest."""
    inner = len(numeric)
    while inner > 0 and size(numeric[inner - 1 :]) <= block:
        inner -= 1
    outer, split, inner_axes = numeric[: max(0, inner - 1)], numeric[max(0, inner - 1) : inner], numeric[inner:]
    dimensions = len(split) + len(inner_axes)
    fixed = {axis.name: _along(numbers(axis), i + len(split), dimensions) for i, axis in enumerate(inner_axes)}
    for group in product(*(range(len(axis.values)) for axis in discrete)):
        for point in product(*(axis.values for axis in outer)):
            inputs = {**{axis.name: float(v) for axis, v in zip(outer, point, strict=True)}, **fixed}
            shape = tuple(len(axis.values) for axis in inner_axes)
            if not split:
                yield Block(group, _in_order(numeric, inputs), shape or (1,))
                continue
            step = max(1, block // max(1, prod(shape)))
            for values in _slices(numbers(split[0]), step):
                part = {**inputs, split[0].name: _along(values, 0, dimensions)}
                yield Block(group, _in_order(numeric, part), (len(values), *shape))


def _in_order(numeric: Sequence[Axis], inputs: Mapping[str, Any]) -> dict[str, Any]:
    return {axis.name: inputs[axis.name] for axis in numeric}


def _along(values: Array, dimension: int, dimensions: int) -> Array:
    return values.reshape([-1 if i == dimension else 1 for i in range(dimensions)])


def _slices(values: Array, step: int) -> Iterator[Array]:
    for start in range(0, len(values), step):
        yield values[start : start + step]


def drawn(
    discrete: Sequence[Axis], numeric: Sequence[Axis], count: int, seed: int, block: int = BLOCK
) -> Iterator[Block]:
    """``count`` points, each axis drawn by itself, every value as likely as any other; the same for a seed.

    Of those drawn together the ones alike in the first axis come together.
    """
    chance = np.random.default_rng(seed)
    for start in range(0, count, DRAWN):
        rows = min(DRAWN, count - start)
        groups = np.zeros(rows, dtype=np.int64)
        for axis in discrete:
            groups = groups * len(axis.values) + chance.integers(0, len(axis.values), rows)
        places = {axis.name: chance.integers(0, len(axis.values), rows) for axis in numeric}
        order = _order(groups, places[numeric[0].name] if numeric else groups)
        columns = {axis.name: numbers(axis)[places[axis.name][order]] for axis in numeric}
        groups = groups[order]
        ends = [0, *(np.flatnonzero(np.diff(groups)) + 1).tolist(), rows]
        for first, last in pairwise(ends):
            group = _group(int(groups[first]), discrete)
            for part in range(first, last, block):
                end = min(part + block, last)
                yield Block(group, {name: column[part:end] for name, column in columns.items()}, (end - part,))


def _order(groups: Array, places: Array) -> Array:
    """By group, then by place on an axis; small numbers are sorted much faster as such."""
    code = groups * (int(places.max(initial=0)) + 1) + places
    return np.argsort(code.astype(np.uint16) if code.max(initial=0) < 1 << 16 else code, kind="stable")


def _group(code: int, discrete: Sequence[Axis]) -> tuple[int, ...]:
    found = []
    for axis in reversed(discrete):
        code, place = divmod(code, len(axis.values))
        found.append(place)
    return tuple(reversed(found))


def point(block: Block, place: int, whole: Mapping[str, bool]) -> dict[str, int | float]:
    """The numbers of one row of a block, as they are typed."""
    found: dict[str, int | float] = {}
    for name, value in block.inputs.items():
        one = float(np.broadcast_to(value, block.shape).reshape(-1)[place]) if np.ndim(value) else float(value)
        found[name] = int(one) if whole[name] else one
    return found
