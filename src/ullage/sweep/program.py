"""A plan followed once, as data: the operations that made its figures, and the branches that it took.

Operations are nodes of one graph, equal ones stored once, so that a node's number comes after those of its
arguments. Branches are a tree: each path through the engine's code is one path from the root to a leaf, and a
leaf holds the answer. A row of settings that takes a path no other took before is followed itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

#: an answer: a node's number, or a value that is the same for all rows of its path
Answer = dict[str, "Node | str | float | None"]


@dataclass(frozen=True)
class Node:
    """A reference to a node of the graph."""

    number: int


@dataclass
class Operation:
    """``name`` of what is done with ``arguments`` (nodes); ``constant`` is a literal, or an extra operand."""

    name: str
    arguments: tuple[int, ...]
    constant: object = None
    whole: bool = False


@dataclass
class Graph:
    """Every operation once, arguments before what uses them."""

    operations: list[Operation] = field(default_factory=list)
    known: dict[tuple[object, ...], int] = field(default_factory=dict)

    def node(
        self, name: str, arguments: tuple[int, ...], constant: object = None, *, whole: bool = False
    ) -> int:
        """The number of this operation, new or known. ``whole``: all its arguments are whole numbers."""
        key = (name, arguments, type(constant), constant, whole)
        number = self.known.get(key)
        if number is None:
            number = self.known[key] = len(self.operations)
            self.operations.append(Operation(name, arguments, constant, whole))
        return number

    def needed(self, goals: Iterable[int], have: set[int]) -> list[int]:
        """The nodes to work out for ``goals``, in order; those in ``have`` are there already."""
        found: set[int] = set()
        stack = list(goals)
        while stack:
            number = stack.pop()
            if number not in found and number not in have:
                found.add(number)
                stack += self.operations[number].arguments
        return sorted(found)


class Astray(Exception):
    """A plan that was followed again went another way, though it came from the same place."""


@dataclass(frozen=True)
class Step:
    """One decision on a path: ``node`` came out as ``outcome``. ``pinned``: the code needed the number itself,
    not only whether it is nought."""

    node: int
    outcome: float
    pinned: bool


@dataclass
class Branch:
    """A place in the tree: a decision with what follows from each outcome, or a leaf with the answer.

    ``schedule`` lists the nodes to work out here, in order.
    """

    node: int | None = None
    pinned: bool = False
    schedule: list[int] = field(default_factory=list)
    after: dict[float, Branch] = field(default_factory=dict)
    answer: Answer | None = None


@dataclass
class Program:
    """What is known so far of the plans of one group of rows."""

    graph: Graph = field(default_factory=Graph)
    root: Branch = field(default_factory=Branch)
    num_paths: int = 0

    def splits(self) -> Counter[str]:
        """How often rows part by one input alone, for each input."""
        found: Counter[str] = Counter()
        waiting = [self.root]
        while waiting:
            branch = waiting.pop()
            waiting += branch.after.values()
            if branch.node is not None and len(branch.after) > 1:
                needed = (self.graph.operations[n] for n in self.graph.needed([branch.node], set()))
                inputs = [str(operation.constant) for operation in needed if operation.name == "input"]
                if len(inputs) == 1:
                    found[inputs[0]] += len(branch.after) - 1
        return found

    def add(self, path: list[Step], answer: Answer) -> None:
        """Put one followed plan into the tree."""
        branch, have = self.root, set[int]()
        for step in path:
            if branch.node is None:
                branch.node, branch.pinned = step.node, step.pinned
                branch.schedule = self.graph.needed([step.node], have)
            if branch.node != step.node:
                raise Astray("a plan went another way at the same place")
            have.update(branch.schedule)
            branch = branch.after.setdefault(step.outcome, Branch())
        goals = [value.number for value in answer.values() if isinstance(value, Node)]
        branch.schedule = self.graph.needed(goals, have)
        branch.answer = answer
        self.num_paths += 1
