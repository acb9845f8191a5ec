"""A number that keeps book of what is done with it.

Each ``Number`` has the value it has for one row of settings, worked out by Python itself, and the node of the
graph that makes it. Code that adds and compares goes on as with any other number; where it takes a branch, the
branch is written down, and where something needs the plain number (a range, a dictionary, C code), the value is
pinned: the answer then only holds for rows with the same value. So nothing can go wrong unseen; at worst a row
is planned by itself.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ullage.sweep.program import Graph, Step
from ullage.sweep.thresholds import threshold

Plain = int | float | bool

_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge, "eq": operator.eq,
    "ne": operator.ne,
}  # fmt: skip
_ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": operator.truediv,
    "floordiv": operator.floordiv, "mod": operator.mod, "min": min, "max": max,
}  # fmt: skip
_MIRRORED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le", "eq": "eq", "ne": "ne"}
#: x op constant that is x itself
_NEUTRAL = {("add", 0), ("sub", 0), ("mul", 1), ("div", 1)}


class NotHashable(TypeError):
    """Raised instead of pinning where a cache asks for a hash."""


class Follower:
    """One plan that is being followed: the graph it adds to, and the path it has taken so far."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.path: list[Step] = []
        self.decided: dict[tuple[int, bool], float] = {}
        self.fixed: set[int] = set()
        self.caching = False
        self.num_searches = 0

    def input(self, name: str, value: Plain) -> Number:
        return Number(value, self.graph.node("input", (), name), self)

    def decide(self, node: int, outcome: Plain, *, pinned: bool) -> None:
        key = (node, pinned)
        if key not in self.decided and (node, True) not in self.decided:
            self.decided[key] = outcome
            self.path.append(Step(node, float(outcome), pinned))

    def fix(self, node: int, *, whole: bool) -> None:
        """From here on ``node`` has one value, and what is made of it is no longer a number to be followed. Of
        whole numbers x + constant has one value only where x has."""
        self.fixed.add(node)
        operation = self.graph.operations[node]
        if whole and operation.name in ("add", "sub"):
            others = [n for n in operation.arguments if self.graph.operations[n].name != "constant"]
            if len(others) == 1:
                self.fix(others[0], whole=True)

    def settled(self, arguments: tuple[int, ...]) -> bool:
        return all(n in self.fixed or self.graph.operations[n].name == "constant" for n in arguments)

    @contextmanager
    def unheard(self) -> Iterator[None]:
        """What is decided in here is not written down."""
        before = self.state()
        try:
            yield
        finally:
            self.back_to(before)

    def state(self) -> tuple[list[Step], dict[tuple[int, bool], float], set[int]]:
        """What is written down so far, to come back to."""
        return list(self.path), dict(self.decided), set(self.fixed)

    def back_to(self, state: tuple[list[Step], dict[tuple[int, bool], float], set[int]]) -> None:
        self.path, self.decided, self.fixed = state

    def constant(self, value: Plain) -> int:
        return self.graph.node("constant", (), float(value))


class Number:
    """See the module. ``isinstance`` sees the type of the value."""

    __slots__ = ("follower", "node", "value")

    def __init__(self, value: Plain, node: int, follower: Follower) -> None:
        self.value = value
        self.node = node
        self.follower = follower

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return type(self.value)

    # --- what is written down ------------------------------------------------------------------------------

    def made(
        self, value: Plain, name: str, *arguments: int, constant: object = None, whole: bool = False
    ) -> Any:
        if self.follower.fixed and self.follower.settled(arguments):
            return value
        return Number(value, self.follower.graph.node(name, arguments, constant, whole=whole), self.follower)

    def arithmetic(self, name: str, other: object, *, swapped: bool = False) -> Any:
        if not is_number(other):
            return NotImplemented
        mine, theirs = self.value, plain(other)
        value = _ARITHMETIC[name](theirs, mine) if swapped else _ARITHMETIC[name](mine, theirs)
        if isinstance(mine, int) != isinstance(theirs, int):
            value = float(value)  # the larger of 0 and 2.5 is a real number, whichever it is
        if not swapped and not self.is_truth and type(other) is not Number and _neutral(name, mine, theirs):
            return Number(value, self.node, self.follower)
        whole = name == "floordiv" and isinstance(mine, int) and isinstance(theirs, int)
        nodes = (self.counted(), self.node_of(other))
        return self.made(value, name, *(reversed(nodes) if swapped else nodes), whole=whole)

    def counted(self) -> int:
        """The node as a number: a truth value counts as 0 or 1."""
        if isinstance(self.value, bool):
            return self.follower.graph.node("counted", (self.node,))
        return self.node

    def node_of(self, other: object) -> int:
        return other.counted() if type(other) is Number else self.follower.constant(plain(other))

    def compare(self, name: str, other: object) -> Any:
        if not is_number(other):
            return NotImplemented
        value = _COMPARE[name](self.value, plain(other))
        if type(other) is not Number:
            limit = threshold(self.follower.graph, self.node, name, float(plain(other)))
            if isinstance(limit, bool):
                return limit
            if limit is not None:
                node, name, border = limit
                return self.made(value, name, node, self.follower.constant(border))
        return self.made(value, name, self.counted(), self.node_of(other))

    def pin(self) -> Plain:
        """The plain value; from here on the path holds only for rows that have the same one."""
        if self.node not in self.follower.fixed:
            self.follower.decide(self.node, self.value, pinned=True)
            self.follower.fix(self.node, whole=isinstance(self.value, int) and not self.is_truth)
        return self.value

    def __bool__(self) -> bool:
        outcome = bool(self.value)
        if self.node not in self.follower.fixed:
            self.follower.decide(self.node, outcome, pinned=False)
        return outcome

    # --- arithmetic ----------------------------------------------------------------------------------------

    def __add__(self, other: object) -> Any:
        return self.arithmetic("add", other)

    def __radd__(self, other: object) -> Any:
        return self.arithmetic("add", other, swapped=True) if other != 0 or self.is_truth else self

    def __sub__(self, other: object) -> Any:
        return self.arithmetic("sub", other)

    def __rsub__(self, other: object) -> Any:
        return self.arithmetic("sub", other, swapped=True)

    def __mul__(self, other: object) -> Any:
        return self.arithmetic("mul", other)

    def __rmul__(self, other: object) -> Any:
        return self.arithmetic("mul", other, swapped=True)

    def __truediv__(self, other: object) -> Any:
        return self.arithmetic("div", other)

    def __rtruediv__(self, other: object) -> Any:
        return self.arithmetic("div", other, swapped=True)

    def __floordiv__(self, other: object) -> Any:
        return self.arithmetic("floordiv", other)

    def __rfloordiv__(self, other: object) -> Any:
        return self.arithmetic("floordiv", other, swapped=True)

    def __mod__(self, other: object) -> Any:
        return self.arithmetic("mod", other)

    def __rmod__(self, other: object) -> Any:
        return self.arithmetic("mod", other, swapped=True)

    def __divmod__(self, other: object) -> Any:
        return self // other, self % other

    def __neg__(self) -> Any:
        return self.made(-self.value, "neg", self.counted())

    def __pos__(self) -> Any:
        return self

    def __abs__(self) -> Any:
        return self.made(abs(self.value), "abs", self.counted())

    def __trunc__(self) -> Any:
        return self.rounded("trunc", math.trunc)

    def __floor__(self) -> Any:
        return self.rounded("floor", math.floor)

    def __ceil__(self) -> Any:
        return self.rounded("ceil", math.ceil)

    def __round__(self, digits: int | None = None) -> Any:
        if digits is None:
            return self.rounded("rint", round)
        if isinstance(self.value, int):
            return self
        return self.made(round(self.value, digits), "round", self.node, constant=digits)

    def rounded(self, name: str, function: Callable[[Any], int]) -> Any:
        if isinstance(self.value, int):
            return Number(int(self.value), self.counted(), self.follower)
        return self.made(function(self.value), name, self.node)

    @property
    def is_truth(self) -> bool:
        return isinstance(self.value, bool)

    def is_integer(self) -> Any:
        return self == math.trunc(self)

    # --- comparison ----------------------------------------------------------------------------------------

    def __lt__(self, other: object) -> Any:
        return self.compare("lt", other)

    def __le__(self, other: object) -> Any:
        return self.compare("le", other)

    def __gt__(self, other: object) -> Any:
        return self.compare("gt", other)

    def __ge__(self, other: object) -> Any:
        return self.compare("ge", other)

    def __eq__(self, other: object) -> Any:
        return self.compare("eq", other)

    def __ne__(self, other: object) -> Any:
        return self.compare("ne", other)

    def __hash__(self) -> int:
        if self.follower.caching:
            raise NotHashable("a number that is being followed is not stored in a cache")
        return hash(self.pin())

    # --- where the plain number is needed ------------------------------------------------------------------

    def __index__(self) -> int:
        return operator.index(self.pin())  # type: ignore[arg-type]

    def __int__(self) -> int:
        return int(self.pin())

    def __float__(self) -> float:
        return float(self.pin())

    def __pow__(self, other: Any) -> Any:
        return self.pin() ** other

    def __rpow__(self, other: Any) -> Any:
        return other ** self.pin()

    def __lshift__(self, other: Any) -> Any:
        return operator.lshift(self.pin(), other)

    def __and__(self, other: Any) -> Any:
        return self.pin() & other

    def __or__(self, other: Any) -> Any:
        return self.pin() | other

    __rand__, __ror__ = __and__, __or__

    def __str__(self) -> str:
        return str(self.pin())

    def __repr__(self) -> str:
        return repr(self.pin())

    def __format__(self, form: str) -> str:
        """Words are for people: a figure in a sentence pins nothing."""
        return format(self.value, form)


def _neutral(name: str, mine: Plain, theirs: Plain) -> bool:
    """True where ``mine`` stays what it is."""
    return (name, theirs) in _NEUTRAL or (name == "floordiv" and theirs == 1 and isinstance(mine, int))


def is_number(value: object) -> bool:
    return type(value) is Number or isinstance(value, int | float)


def plain(value: Any) -> Any:
    return value.value if type(value) is Number else value
