"""vLLM, 0.6.0 to 0.33.0: commands, logs, memory and causes. ``ENGINE`` is the only door."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from ullage.core.deployment import Budget, Deployment, Inferred, Interval, Reading
from ullage.core.finding import Hazard
from ullage.core.launch import Arg, Launch
from ullage.core.problem import Problem
from ullage.core.run import Run
from ullage.engines.base import Candidate, Cause, Files, Hints, Reader, Refusal


class Vllm:
    """The Engine protocol for vLLM. Each part is imported when first asked for."""

    name = "vllm"
    fraction = "gpu_memory_utilization"

    def owns_command(self, argv: Sequence[str]) -> bool:
        from ullage.engines.vllm import args

        return args.owns_command(argv)

    def parse(self, command: str, version: str | None, files: Files | None = None) -> Launch:
        from ullage.engines.vllm import args

        return args.parse(command, version, files)

    def problems(self, launch: Launch, files: Files | None = None) -> list[Problem]:
        from ullage.engines.vllm import args

        return args.problems(launch, files=files)

    def literals(self) -> Sequence[bytes]:
        from ullage.engines.vllm.phases import grammar

        return grammar().literals()

    def reader(self) -> Reader:
        from ullage.engines.vllm.log import VllmRuns

        return VllmRuns()

    def deployment(self, run: Run, hints: Hints) -> Deployment:
        from ullage.engines.vllm import deployment, memory

        return memory.with_rest(deployment.deployment(run, hints))

    def observed(self, run: Run) -> dict[str, Reading]:
        from ullage.engines.vllm import deployment

        return deployment.observed(run)

    def disagreements(self, run: Run, hints: Hints) -> list[str]:
        from ullage.engines.vllm import deployment

        return deployment.disagreements(run, hints)

    def budget(self, deployment: Deployment) -> Budget:
        from ullage.engines.vllm import host
        from ullage.engines.vllm.verdict import budget

        return host.budget(deployment) if host.on_host(deployment) else budget(deployment)

    def infer(self, run: Run, deployment: Deployment) -> dict[str, Inferred]:
        from ullage.engines.vllm import host, memory

        return {} if host.on_host(deployment) else memory.infer(run, deployment)

    def contradictions(self, run: Run, deployment: Deployment) -> list[str]:
        from ullage.engines.vllm import memory

        return memory.contradictions(run, deployment)

    def interval(self, run: Run | None, deployment: Deployment) -> Interval | None:
        from ullage.engines.vllm import host
        from ullage.engines.vllm.interval import interval

        return None if host.on_host(deployment) else interval(run, deployment)

    def effective(self, deployment: Deployment) -> dict[str, Arg]:
        from ullage.engines.vllm.effective import effective

        return effective(deployment)

    def refusals(self, deployment: Deployment) -> Sequence[Refusal]:
        from ullage.engines.vllm.refusals import refusals

        return refusals(deployment)

    def candidates(self, deployment: Deployment, interval: Interval | None) -> Sequence[Candidate]:
        from ullage.engines.vllm.candidates import candidates

        return candidates(deployment, interval)

    def warnings(self, deployment: Deployment) -> list[Hazard]:
        from ullage.engines.vllm.compat import warnings

        return warnings(deployment)

    def causes(self) -> Sequence[Cause]:
        return _causes()


@cache
def _causes() -> Sequence[Cause]:
    from ullage.engines.runtime.rows import load

    return [*load("ullage.engines.vllm.causes"), *load("ullage.engines.runtime.causes")]


ENGINE = Vllm()
