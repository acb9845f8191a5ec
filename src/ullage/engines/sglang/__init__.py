"""SGLang, 0.4.0 to 0.5.23: commands, logs, memory and causes. ``ENGINE`` is the only door."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from ullage.core.deployment import Budget, Deployment, Inferred, Interval, Reading
from ullage.core.finding import Hazard
from ullage.core.launch import Arg, Launch
from ullage.core.problem import Problem
from ullage.core.run import Run
from ullage.engines.base import Candidate, Cause, Files, Hints, Reader, Refusal


class Sglang:
    """The Engine protocol for SGLang. Each part is imported when first asked for."""

    name = "sglang"
    fraction = "mem_fraction_static"

    def owns_command(self, argv: Sequence[str]) -> bool:
        from ullage.engines.sglang import args

        return args.owns_command(argv)

    def parse(self, command: str, version: str | None, files: Files | None = None) -> Launch:
        from ullage.engines.sglang import args

        return args.parse(command, version, files)

    def problems(self, launch: Launch, files: Files | None = None) -> list[Problem]:
        from ullage.engines.sglang import args

        return args.problems(launch, files=files)

    def literals(self) -> Sequence[bytes]:
        from ullage.engines.sglang.log import grammar

        return grammar().literals()

    def reader(self) -> Reader:
        from ullage.engines.sglang import log

        return log.reader()

    def deployment(self, run: Run, hints: Hints) -> Deployment:
        from ullage.engines.sglang import deployment

        return deployment.deployment(run, hints)

    def observed(self, run: Run) -> dict[str, Reading]:
        from ullage.engines.sglang import deployment

        return deployment.observed(run)

    def disagreements(self, run: Run, hints: Hints) -> list[str]:
        from ullage.engines.sglang import deployment

        return deployment.disagreements(run, hints)

    def budget(self, deployment: Deployment) -> Budget:
        from ullage.engines.sglang.budget import budget

        return budget(deployment)

    def infer(self, run: Run, deployment: Deployment) -> dict[str, Inferred]:
        from ullage.engines.sglang import memory

        return memory.infer(run, deployment)

    def contradictions(self, run: Run, deployment: Deployment) -> list[str]:
        from ullage.engines.sglang import memory

        return memory.contradictions(run, deployment)

    def interval(self, run: Run | None, deployment: Deployment) -> Interval | None:
        from ullage.engines.sglang.interval import interval

        return interval(run, deployment)

    def effective(self, deployment: Deployment) -> dict[str, Arg]:
        from ullage.engines.sglang.effective import effective

        return effective(deployment)

    def refusals(self, deployment: Deployment) -> Sequence[Refusal]:
        from ullage.engines.sglang.refusals import refusals

        return refusals(deployment)

    def candidates(self, deployment: Deployment, interval: Interval | None) -> Sequence[Candidate]:
        from ullage.engines.sglang.candidates import candidates

        return candidates(deployment, interval)

    def warnings(self, deployment: Deployment) -> list[Hazard]:
        from ullage.engines.sglang.compat import warnings

        return warnings(deployment)

    def causes(self) -> Sequence[Cause]:
        return _causes()


@cache
def _causes() -> Sequence[Cause]:
    from ullage.engines.runtime.rows import load

    return [*load("ullage.engines.sglang.causes"), *load("ullage.engines.runtime.causes")]


ENGINE = Sglang()
