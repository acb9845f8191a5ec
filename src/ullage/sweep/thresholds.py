"""How likely something is, against a limit: turned into a limit of what the likelihood is of.

``0.5 * (1 + erf(z)) >= 0.6`` holds from one z on. That z is found once, to the last bit, and rows are compared
with it: the same answer as by erf itself, which numpy does not have.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from functools import lru_cache

from ullage.sweep.program import Graph

_STEPS: dict[str, Callable[[float, float], float]] = {"add": operator.add, "mul": operator.mul}
_CHECKS: dict[str, Callable[[float, float], bool]] = {
    "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge,
}  # fmt: skip
#: beyond it erf is one to the last bit
FAR = 6.5


def threshold(graph: Graph, node: int, name: str, limit: float) -> tuple[int, str, float] | bool | None:
    """(node, comparison, limit) that decides the same as ``node`` compared with ``limit``; a bool where it is
    always the same. None where ``node`` is no rising function of an erf."""
    if name not in _CHECKS:
        return None
    chain: list[tuple[str, float]] = []
    operation = graph.operations[node]
    while operation.name in _STEPS:
        constants = [n for n in operation.arguments if graph.operations[n].name == "constant"]
        if len(constants) != 1:
            return None
        value = graph.operations[constants[0]].constant
        if not isinstance(value, float) or (operation.name == "mul" and value <= 0):
            return None
        chain.append((operation.name, value))
        node = next(n for n in operation.arguments if n != constants[0])
        operation = graph.operations[node]
    if operation.name != "erf":
        return None
    border = _border(tuple(reversed(chain)), name, limit)
    if isinstance(border, bool):
        return border
    return operation.arguments[0], "ge" if name in ("gt", "ge") else "lt", border


@lru_cache(256)
def _border(chain: tuple[tuple[str, float], ...], name: str, limit: float) -> float | bool:
    """The smallest z for which the comparison comes out as it does far to the right."""

    def holds(z: float) -> bool:
        value = math.erf(z)
        for step, constant in chain:
            value = _STEPS[step](value, constant)
        return _CHECKS[name](value, limit)

    low, high = -FAR, FAR
    right = holds(high)
    if holds(low) == right:
        return right
    while math.nextafter(low, high) < high:
        middle = low + (high - low) / 2
        if holds(middle) == right:
            high = middle
        else:
            low = middle
    return high
