"""The verdict of ``plan`` for one deployment, and the same followed on numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from math import trunc
from types import ModuleType
from typing import Any

from msgspec.structs import asdict

from ullage import engines
from ullage.core.deployment import Deployment
from ullage.core.launch import Arg
from ullage.core.problem import Problem
from ullage.planning import plan as planning
from ullage.sweep.mirror import FOLLOWING, Mirror
from ullage.sweep.number import Follower, Number, Plain
from ullage.sweep.program import Answer, Node, Program

PLAN = "ullage.planning.plan"
#: the figures of an answer; the rest is words
FIGURES = ("kv_tokens", "low_tokens", "high_tokens", "kv_bytes", "bytes_per_token")
WORDS = ("verdict", "fails_at", "cause")


def answer(plan: ModuleType, engine: Any, deployment: Any, problems: Sequence[Problem]) -> dict[str, Any]:
    """What ``plan`` says of a deployment, without what it works out beside (interval, changes, cautions).

    ``plan`` is the module of that name, or its second instance; the verdict comes about as in its
    ``of_deployment``. The cause is that of the engine's formula.
    """
    budget = engine.budget(deployment)
    flags = [plan.Refusal("args", plan.FLAG, p.text) for p in problems if p.stops and p.certain]
    hazards = (plan._stop(hazard) for hazard in engine.warnings(deployment))
    refusals = [*flags, *engine.refusals(deployment), *plan.too_few_gpus(deployment), *filter(None, hazards)]
    judged = plan.judge(budget, None, refusals)
    tokens, kv, each = budget.kv_tokens, budget.kv_bytes or budget.pool_bytes, budget.bytes_per_token
    return {
        "verdict": judged.verdict, "fails_at": judged.fails_at, "cause": judged.cause,
        "kv_tokens": tokens and trunc(tokens.value), "low_tokens": tokens and trunc(tokens.low),
        "high_tokens": tokens and trunc(tokens.high), "kv_bytes": kv and kv.value,
        "bytes_per_token": each and each.value,
    }  # fmt: skip


@cache
def mirror() -> Mirror:
    return Mirror()


def follow(
    program: Program, deployment: Deployment, row: Mapping[str, Plain], problems: Sequence[Problem], *,
    singly: bool = False,
) -> None:  # fmt: skip
    """Add the path of one row to ``program``: its settings keep book of what is done with them.

    ``singly``: plan the row by itself; the path holds for rows like it alone.
    """
    follower = Follower(program.graph)
    numbers = {name: follower.input(name, value) for name, value in row.items()}
    if singly:
        program.add(follower.path, _noted(follower, _by_itself(deployment, numbers, problems)))
        return
    FOLLOWING.follower = follower
    try:
        said = answer(mirror().module(PLAN), _engine(deployment), _again(deployment, numbers), problems)
    except (ArithmeticError, AttributeError, TypeError, ValueError):
        said = _by_itself(deployment, numbers, problems)
    finally:
        FOLLOWING.follower = None
    program.add(follower.path, _noted(follower, said))


def _by_itself(
    deployment: Deployment, numbers: Mapping[str, Number], problems: Sequence[Problem]
) -> dict[str, Any]:
    """What ``plan`` says where its code does something with a number that cannot be followed: for this row."""
    plain = {name: Arg(number.pin(), "given") for name, number in numbers.items()}
    return answer(planning, engines.get(deployment.launch.engine), deployment.with_args(**plain), problems)


def _engine(deployment: Deployment) -> Any:
    return mirror().module(f"ullage.engines.{deployment.launch.engine}").ENGINE


def _again(deployment: Deployment, numbers: Mapping[str, Number]) -> Any:
    """The deployment in the second instance's words, with ``numbers`` for some of its settings."""
    launches, deployments = mirror().module("ullage.core.launch"), mirror().module("ullage.core.deployment")
    launch = launches.Launch(**_fields(deployment.launch))
    launch = launch.with_args(**{name: launches.Arg(value, "given") for name, value in numbers.items()})
    return deployments.Deployment(**{**_fields(deployment), "launch": launch})


def _fields(struct: Any) -> dict[str, Any]:
    return asdict(struct)


def _noted(follower: Follower, said: dict[str, Any]) -> Answer:
    found: Answer = {}
    for name, value in said.items():
        if type(value) is Number:
            found[name] = Node(value.counted()) if name in FIGURES else str(value)
        else:
            found[name] = value
    return found
