"""What passes between the campaign and the place where an experiment runs: plain structs that travel as
JSON."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from msgspec import Struct

from ullage.lab.campaign import durations
from ullage.lab.campaign.approach import Command
from ullage.lab.campaign.experiment import Stage, Told
from ullage.lab.campaign.file import Benchmark, Limits

#: is told of each stage as it is entered, with the run's name
Tell = Callable[[Stage, str], None]
#: 0 while all is well; 1: end the experiment; 2: end it at once
Stop = Callable[[], int]


class Seconds(Struct, frozen=True):
    """The limits, in seconds."""

    start: float
    benchmark: float
    stop: float
    build: float
    free: float

    @classmethod
    def of(cls, limits: Limits) -> Seconds:
        names = ("start", "benchmark", "stop", "build", "free")
        return cls(**{name: durations.seconds(getattr(limits, name)) for name in names})


class Job(Struct, frozen=True, kw_only=True):
    """One experiment to run: start ``command`` on ``gpus`` (None: as it is) at ``host`` (None: here), load
    it, end it. ``root`` is the folder of runs."""

    campaign: str
    experiment: str
    attempt: int
    command: Command
    benchmark: Benchmark
    repeats: int
    seconds: Seconds
    metrics: tuple[str, ...] = ()
    gpus: tuple[int, ...] | None = None
    host: str | None = None
    gpu: str | None = None
    version: str | None = None
    root: str | None = None


class Given(Struct, frozen=True, kw_only=True):
    """What came of it. ``stopped`` and ``lost`` are neither success nor failure: somebody asked to end, or the
    machine cannot be reached; the experiment waits for resume. ``steps`` are the
    stages with their times. ``unclean`` says what could not be freed: nothing more may run there."""

    end: Literal["done", "crashed", "stopped", "lost"]
    run: str = ""
    repeats: tuple[dict[str, float], ...] = ()
    measured_at: float | None = None
    ready_s: float | None = None
    took_s: float | None = None
    place: str = ""
    why: str = ""
    told: Told | None = None
    notes: tuple[str, ...] = ()
    steps: tuple[tuple[Stage, float], ...] = ()
    unclean: str = ""
