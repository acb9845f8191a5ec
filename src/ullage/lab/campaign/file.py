"""The campaign file: YAML to frozen structs. Every error names file, line, key and what was expected."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import msgspec
from msgspec import Meta, Struct

from ullage.core.errors import InputError
from ullage.lab.campaign import metrics
from ullage.lab.campaign.marks import Marked, convert, read

Scalar = str | int | float | bool | None
FlagValue = Scalar | list[str | int | float]
Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._=+/-]{0,79}$",
                           description="letters, digits, spaces and . _ = + / -, at most 80")]  # fmt: skip
Variable = Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
Text = Annotated[str, Meta(min_length=1, max_length=4000)]
Length = Annotated[str | int | float, Meta(description='a length of time: "90s", "20m", "1h30m", or seconds')]
Count = Annotated[int, Meta(ge=1, le=100_000)]
Better = Literal["higher", "lower"]

#: names that ullage gives itself
BASELINE, DRIFT = "baseline", "baseline, again"
MOST_APPROACHES = 500
MOST_BYTES = 1 << 20


class Change(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What an experiment changes on the launch. ``launch`` gives a whole other command instead; then whatever
    differs beyond the declared flags and variables counts against it. ``also`` names settings that the change
    may drag along. A flag with null is taken out; a variable with null too."""

    flags: dict[str, FlagValue] = {}
    env: dict[Variable, Scalar] = {}
    image: Text | None = None
    build: Text | None = None
    launch: Text | None = None
    also: tuple[str, ...] = ()

    @property
    def anything(self) -> bool:
        return bool(self.flags or self.env or self.image or self.build or self.launch)


class Baseline(Change, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The settings that everything is compared with, on top of the launch."""

    reason: Text | None = None


class Approach(Change, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One thing to try."""

    WORDS: ClassVar[dict[str, str]] = {
        "name": "a short name for the report",
        "reason": "one sentence: why this should help",
    }
    name: Name
    reason: Text


class Interval(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A range of numbers to search: ``low`` to ``high``, both included; in steps, or by its logarithm."""

    WORDS: ClassVar[dict[str, str]] = {"low": "the least value", "high": "the greatest value"}
    low: int | float
    high: int | float
    step: int | float | None = None
    log: bool = False


Axis = list[str | int | float | bool | None] | Interval


class Space(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Values over which Optuna searches, instead of a list of approaches. ``trials`` are launches that are
    measured or crash; what the plan refuses costs nothing and does not count."""

    flags: dict[str, Axis] = {}
    env: dict[Variable, Axis] = {}
    sampler: Literal["tpe", "nsga2", "grid"] = "tpe"
    trials: Count | None = None
    seed: int | None = None
    also: tuple[str, ...] = ()


class Source(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where a metric stands in what a benchmark gives: a JSON path ("metrics.tok_s", "runs[0].x") or a regular
    expression with one group."""

    json: str | None = None
    regex: str | None = None
    unit: str | None = None
    better: Better | None = None


class Benchmark(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The load. ``args`` are flags of the benchmark. ``command`` (kind: command) may hold {url} {host} {port}
    {model} {result}; its result is read from the file {result} where the command names it, else from what it
    prints. ``program`` is how the benchmark is started, where it is not found beside the server's.
    ``warmup`` runs are made and thrown away."""

    kind: Literal["vllm", "sglang", "guidellm", "command"] = "vllm"
    args: dict[str, FlagValue] = {}
    command: Text | None = None
    program: Text | None = None
    env: dict[Variable, Scalar] = {}
    metrics: dict[str, Source] = {}
    warmup: Annotated[int, Meta(ge=0, le=100)] = 0


class Goal(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A metric to judge by, and which way is better."""

    WORDS: ClassVar[dict[str, str]] = {"metric": "a metric's name, such as output_throughput"}
    metric: str
    better: Better | None = None


class Limits(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How long things may take. ``start``: until the server is ready; ``benchmark``: one run of the benchmark;
    ``campaign``: everything (what is unfinished then waits for resume); ``stop``: until a server that was asked
    to end is killed; ``free``: until the GPUs must be free again."""

    start: Length = "30m"
    benchmark: Length = "30m"
    campaign: Length | None = None
    stop: Length = "30s"
    build: Length = "1h"
    free: Length = "60s"


class Slurm(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    partition: str | None = None
    time: Length = "4h"
    parameters: dict[str, str | int | float | bool] = {}


class Where(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where experiments run. ``side_by_side`` at once, each on ``gpus_each`` GPUs of its own (default: as many
    as the launch has ranks) and a port of its own. ``gpus`` are the GPUs that may be used (default: all)."""

    kind: Literal["local", "ssh", "ray", "slurm"] = "local"
    side_by_side: Annotated[int, Meta(ge=1, le=256)] = 1
    gpus: tuple[Annotated[int, Meta(ge=0, le=1023)], ...] | None = None
    gpus_each: Annotated[int, Meta(ge=0, le=1024)] | None = None
    hosts: tuple[str, ...] = ()
    address: str | None = None
    cpus_each: Annotated[float, Meta(ge=0, le=4096)] = 1
    slurm: Slurm = Slurm()


class Campaign(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A campaign file, as written."""

    WORDS: ClassVar[dict[str, str]] = {
        "launch": 'the launch command as it is run: "vllm serve MODEL ..." or "python -m sglang.launch_server"',
    }
    launch: Text
    name: Name | None = None
    gpu: Text | None = None
    engine_version: str | None = None
    model_dir: str | None = None
    readings: dict[str, float] = {}
    baseline: Baseline = Baseline()
    approaches: tuple[Approach, ...] = ()
    space: Space | None = None
    benchmark: Benchmark = Benchmark()
    goals: tuple[str | Goal, ...] = ()
    repeats: Annotated[int, Meta(ge=1, le=1000)] = 3
    confidence: Annotated[float, Meta(ge=0.5, le=0.9999)] = 0.95
    least_effect: Annotated[float, Meta(ge=0, lt=10)] = 0.01
    limits: Limits = Limits()
    where: Where = Where()
    storage: Text | None = None


class Target(Struct, frozen=True):
    """A goal, resolved."""

    metric: str
    better: Better
    unit: str = ""


class Loaded(Struct, frozen=True):
    """A campaign file with where it stands and its goals resolved; the first goal decides the verdict."""

    path: Path
    campaign: Campaign
    targets: tuple[Target, ...]
    marked: Marked

    @property
    def name(self) -> str:
        return self.campaign.name or self.path.stem

    def folder(self, kind: str) -> Path:
        """A folder of this campaign's own beside its file."""
        return self.path.parent / f"{self.path.stem}.{kind}"


def load(path: Path) -> Loaded:
    """The campaign in ``path``. Raises InputError with file, line and key."""
    marked = read(_text(path), str(path))
    from ullage.lab.campaign.faults import faults

    campaign = convert(marked, Campaign)
    for what, where, hint in faults(campaign):
        raise marked.error(what, where, hint)
    return Loaded(path.resolve(), campaign, _targets(campaign, marked), marked)


def _text(path: Path) -> str:
    try:
        with path.open("rb") as stream:
            raw = stream.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        raise InputError(
            f"cannot be read: {getattr(error, 'strerror', None) or error}", where=str(path)[:200]
        ) from None
    if len(raw) > MOST_BYTES:
        raise InputError("is larger than 1 MiB: no campaign file", where=str(path))
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise InputError("is not UTF-8 text", where=f"{path}:{line}") from None


def _targets(c: Campaign, marked: Marked) -> tuple[Target, ...]:
    """The goals with direction and unit: of the goal, of the benchmark's metric, else of the standard name."""
    goals = c.goals or (
        ("output_throughput",) if c.benchmark.kind != "command" else (next(iter(c.benchmark.metrics)),)
    )
    found = []
    for i, goal in enumerate(goals):
        given = goal if isinstance(goal, Goal) else Goal(metric=goal)
        own, known = c.benchmark.metrics.get(given.metric), metrics.find(given.metric)
        if own is None and (known is None or c.benchmark.kind == "command"):
            near = metrics.near(given.metric, c.benchmark.metrics)
            raise marked.error(f"{given.metric[:60]!r} is no metric of this benchmark", ("goals", i),
                               f"near: {', '.join(near)}" if near else None)  # fmt: skip
        better = given.better or (own.better if own else None) or (known.better if known else None)
        if better is None:
            raise marked.error(f"which way is better for {given.metric[:60]!r}?", ("goals", i),
                               f"{{metric: {given.metric[:60]}, better: higher}}")  # fmt: skip
        unit = (own.unit if own and own.unit else None) or (known.unit if known else "")
        found.append(Target(given.metric, better, unit))
    if c.space is not None and c.space.sampler == "tpe" and len(found) > 1:
        raise marked.error("several goals", ("goals", 1), "sampler: nsga2 searches for several goals")
    return tuple(found)


def fingerprint(*parts: object) -> str:
    """A short digest of what an experiment is, to see whether a file changed since it ran."""
    return hashlib.blake2b(msgspec.json.encode(parts, order="sorted"), digest_size=8).hexdigest()


def schema() -> bytes:
    """The JSON schema of a campaign file, for editors."""
    found = msgspec.json.schema(Campaign)
    whole = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "ullage campaign", **found}
    return msgspec.json.format(msgspec.json.encode(whole), indent=2) + b"\n"
