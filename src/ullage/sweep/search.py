"""A search by halving, as one operation: the largest n in 1..most for which a condition holds.

Followed step by step, every row would take a path of its own. So the condition is followed once, for an n that
is left open; the rows are then halved together, each by its own condition.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ullage.sweep.number import Follower, Number, plain
from ullage.sweep.program import Graph


@dataclass(frozen=True)
class Search:
    """``body``: the nodes of the condition that depend on the open number, in order; ``goal`` is the last."""

    open: int
    body: tuple[int, ...]
    goal: int


Halving = Callable[[Callable[[Any], Any], Any], Any]


def searching(halve: Halving) -> Halving:
    """``halve(holds, most)`` for numbers that are followed."""

    def search(holds: Callable[[Any], Any], most: Any) -> Any:
        if most < 1:
            return 0
        first = holds(1)
        if not first:
            return 0
        follower = next((n.follower for n in (most, first) if type(n) is Number), None)
        found = _followed(follower, halve, holds, most) if follower is not None else None
        return halve(holds, most) if found is None else found

    return search


def _followed(follower: Follower, halve: Halving, holds: Callable[[Any], Any], most: Any) -> Any:
    """The search as one node; None where the condition branches on the open number."""
    graph = follower.graph
    with follower.unheard():
        value = plain(halve(holds, most))
    number = Number(value, graph.node("open", (), follower.num_searches), follower)
    follower.num_searches += 1
    before = follower.state()
    goal = holds(number)
    if type(goal) is not Number:
        follower.back_to(before)
        return None
    body = depending(graph, goal.node, number.node)
    if any(depending(graph, step.node, number.node) for step in follower.path[len(before[0]) :]):
        follower.back_to(before)
        return None
    if goal.node not in body:
        return most  # it holds for 1, and so for every other
    outside = {n for node in body for n in graph.operations[node].arguments} - {*body, number.node}
    end = most.counted() if type(most) is Number else follower.constant(most)
    search = Search(number.node, body, goal.node)
    return Number(value, graph.node("search", (end, *sorted(outside)), search), follower)


def depending(graph: Graph, goal: int, on: int) -> tuple[int, ...]:
    """The nodes that ``goal`` needs and that need ``on``, in order."""
    touched = {on}
    for number in graph.needed([goal], set()):
        if number > on and touched.intersection(graph.operations[number].arguments):
            touched.add(number)
    return tuple(sorted(touched - {on}))
