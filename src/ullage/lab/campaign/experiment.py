"""An experiment: what it is, how far it came, and what it gave. Kept as one attribute of an Optuna trial."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

from ullage.core.launch import Value
from ullage.core.units import Band

#: planned -> preflight -> (refused) | starting -> measuring -> done; crashed from any of them
Stage = Literal["planned", "preflight", "starting", "measuring", "done", "refused", "crashed"]
Role = Literal["baseline", "approach", "drift", "trial"]
FINISHED: tuple[Stage, ...] = ("done", "refused", "crashed")


class Confounder(Struct, frozen=True):
    """A setting in which an experiment differs from the baseline without having declared it. ``because``:
    "dragged along" by the release's own defaults, or "given" in a launch of its own."""

    setting: str
    baseline: Value
    this: Value
    because: Literal["dragged along", "given"]


class Preflight(Struct, frozen=True):
    """What the plan said before anything was started."""

    verdict: Literal["starts", "fails", "unsure"]
    why: str = ""
    cause: str | None = None
    kv_tokens: int | None = None
    settings: dict[str, Value] = {}
    warnings: tuple[str, ...] = ()
    predicted: dict[str, Band] = {}
    fixes: tuple[str, ...] = ()


class Told(Struct, frozen=True):
    """Why a server failed, in short; the run's own record has all of it."""

    cause: str | None
    certainty: str | None
    summary: str
    phase: str | None = None
    evidence: tuple[str, ...] = ()
    fixes: tuple[str, ...] = ()


class Step(Struct, frozen=True):
    """A stage entered, in seconds since 1970, in which attempt."""

    stage: Stage
    at: float
    attempt: int = 0


class Experiment(Struct, frozen=True, kw_only=True):
    """One experiment. ``repeats`` are the figures of each run of the benchmark by their standard names;
    ``measured_at`` is the middle of them in seconds since 1970. ``attempt`` counts from 1 how often it was
    begun: a killed campaign begins an unfinished one anew. ``fingerprint`` changes with what would be run."""

    number: int = -1
    name: str
    role: Role
    reason: str = ""
    stage: Stage = "planned"
    changes: dict[str, Any] = {}
    params: dict[str, Any] = {}
    command: str = ""
    fingerprint: str = ""
    attempt: int = 0
    history: tuple[Step, ...] = ()
    preflight: Preflight | None = None
    confounded: tuple[Confounder, ...] = ()
    split: tuple[dict[str, Any], ...] = ()
    runs: tuple[str, ...] = ()
    repeats: tuple[dict[str, float], ...] = ()
    measured_at: float | None = None
    ready_s: float | None = None
    took_s: float | None = None
    place: str = ""
    why: str = ""
    told: Told | None = None
    notes: tuple[str, ...] = ()

    @property
    def finished(self) -> bool:
        return self.stage in FINISHED

    @property
    def settled(self) -> bool:
        """True if it will not be run again; a baseline that was not measured is tried anew."""
        return self.finished and (self.role != "baseline" or self.stage == "done")

    @property
    def predicted(self) -> dict[str, Band]:
        return self.preflight.predicted if self.preflight else {}

    def values(self, metric: str) -> tuple[float, ...]:
        """The repeats of one metric."""
        return tuple(found[metric] for found in self.repeats if metric in found)

    def mean(self, metric: str) -> float | None:
        found = self.values(metric)
        return sum(found) / len(found) if found else None
