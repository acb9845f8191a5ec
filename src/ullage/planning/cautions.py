"""What else is wrong with a command, or worth knowing, beside its verdict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ullage.core.deployment import Deployment
from ullage.core.finding import Hazard
from ullage.core.problem import Problem
from ullage.core.report import Caution, Plan
from ullage.core.units import tokens_text
from ullage.engines.base import Refusal

#: a pool that cannot hold one request of this many tokens (or of the model's whole length) serves nobody
LEAST_TOKENS = 8192


def cautions(
    plan: Plan, problems: Sequence[Problem], refusals: Sequence[Refusal], hazards: Sequence[Hazard],
    longest: int | None,
) -> Iterator[Caution]:  # fmt: skip
    yield from (Caution(other.cause, other.text) for other in refusals[1:])
    told = {refusal.text for refusal in refusals}
    yield from (Caution(f"flag-{p.kind}", _spelled(p)) for p in problems if p.text not in told)
    yield from (Caution(hazard.id, hazard.text) for hazard in hazards if hazard.text not in told)
    yield from _pool(plan, longest)
    yield from _unknown(plan)
    yield from (Caution("engine", text) for text in plan.budget.warnings)


def _spelled(problem: Problem) -> str:
    return f"{problem.text}: write {problem.suggestion}" if problem.suggestion else problem.text


def _pool(plan: Plan, longest: int | None) -> Iterator[Caution]:
    tokens = plan.budget.kv_tokens
    least = min(longest or LEAST_TOKENS, LEAST_TOKENS)
    if plan.verdict != "fails" and tokens is not None and tokens.value < least:
        yield Caution(
            "pool-too-small",
            f"it starts, but is of no use: the pool holds {tokens_text(tokens.value)} tokens,"
            f" not one request of {tokens_text(least)}",
        )


def ranks(deployment: Deployment) -> int:
    """GPUs that the launch asks for: tensor x pipeline parallel size, times data parallel replicas."""
    launch = deployment.launch
    found = 1
    for names in (("tp_size", "tensor_parallel_size"), ("pp_size", "pipeline_parallel_size")):
        found *= max(1, next((n for name in names if (n := launch.integer(name))), 1))
    replicas = max(1, launch.integer("data_parallel_size") or launch.integer("dp_size") or 1)
    return found if launch.flag("enable_dp_attention") else found * replicas


def _unknown(plan: Plan) -> Iterator[Caution]:
    if plan.model is None:
        name = plan.model_id or "the model"
        yield Caution(
            "model-unknown", f"{name[:80]} is not in the catalogue: pass --model-dir with its config.json"
        )
    elif plan.model.source.startswith("catalogue:") and _guessed(plan.model.source):
        yield Caution("model-guessed", f"{plan.model.id}: {plan.model.source.removeprefix('catalogue: ')}")
    if plan.machine is None or plan.machine.gpu is None:
        yield Caution("gpu-unknown", 'no GPU is named: pass --gpu "8x H100"')
    elif plan.machine.gpu.source == "given" and any(map(str.isalpha, plan.machine.gpu.name.replace("GiB", ""))):
        yield Caution(
            "gpu-guessed", f"{plan.machine.gpu.name} is not in the table: planned by the memory it names"
        )
    if plan.version is None:
        yield Caution(
            "release-unknown", "no release is named: the newest rules are used; pass --engine-version"
        )


def _guessed(source: str) -> bool:
    return "shape only" in source or "unverified" in source
