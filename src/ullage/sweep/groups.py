"""The launches of a space: one for each choice of its discrete settings, read as ``plan`` reads its command."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from ullage.core.deployment import Deployment
from ullage.core.errors import InputError
from ullage.core.launch import Arg, Launch
from ullage.core.problem import Problem
from ullage.engines.base import Engine
from ullage.engines.runtime.changes import UNDOES
from ullage.planning.checked import checked
from ullage.planning.plan import Asked, deployment_of, engine_of
from ullage.sweep.axes import Axis, Value

#: axes that are no flags of the engine
GPU, RELEASE, MODEL = ("gpu",), ("engine_version", "version"), ("model", "model_path")
#: sizes of a layout: each changes nearly everything, so each value is a group of its own
LAYOUT = (
    "tp_size", "pp_size", "dp_size", "ep_size", "attn_cp_size", "nnodes", "page_size", "block_size",
    "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "decode_context_parallel_size",
)  # fmt: skip


class Setting(Struct, frozen=True):
    """An axis with the engine's name for it. ``numeric`` ones are planned in bulk."""

    axis: Axis
    name: str
    numeric: bool


class Group(Struct, frozen=True):
    """One launch; the numeric settings are still those of the command."""

    deployment: Deployment
    problems: tuple[Problem, ...]


def setting(asked: Asked, axis: Axis) -> Setting:
    """The setting that an axis varies. Raises InputError where the engine has none of that name, CommandError
    where a value is none that it takes."""
    name = axis.name
    if name in (*GPU, *RELEASE, *MODEL):
        return Setting(axis, "model" if name in MODEL else "gpu" if name in GPU else "engine_version", False)
    engine = engine_of(asked.command)
    ends = dict.fromkeys(
        [axis.values[0], *((min(axis.values), max(axis.values)) if axis.numeric else axis.values)]
    )
    found = {_name(engine, asked, axis, value) for value in ends if value is not False}
    if len(found) != 1:
        raise InputError("has values of several kinds", where=f"--over {axis.name}")
    name = found.pop()
    return Setting(axis, name, axis.numeric and name not in LAYOUT)


def _name(engine: Engine, asked: Asked, axis: Axis, value: Value) -> str:
    """The engine's name for a flag: that of the setting which its words give."""
    words = flag(axis, value)
    launch = checked(engine.parse(f"{asked.command} {words}", asked.version, asked.files), engine.fraction)
    spelling = words.split(" ", 1)[0]
    for problem in engine.problems(launch, asked.files):
        if problem.flag == spelling and problem.stops and problem.certain:
            raise InputError(problem.text, where=f"--over {axis.name}", hint=problem.suggestion)
    for name, arg in launch.args.items():
        if arg.origin == "given" and arg.source.split(" ", 1)[0] == spelling:
            return name
    raise InputError(
        f"{spelling} is no setting that this command can take", where=f"--over {axis.name}",
        hint="name it as the engine's flag, such as mem-fraction-static or max-num-seqs",
    )  # fmt: skip


def flag(axis: Axis, value: Value) -> str:
    """The words that give a setting its value; none for a switch that is off."""
    if value is False:
        return ""
    name = f"--{axis.name.replace('_', '-')}"
    return name if value is True else f"{name} {shlex.quote(str(value))}"


def check_readings(asked: Asked, settings: Sequence[Setting]) -> None:
    """Raises InputError where a reading cannot hold for every value of an axis."""
    for given in settings:
        undone = UNDOES.get(given.name, frozenset())
        if given.name in ("gpu", "model", "engine_version"):
            undone = frozenset(asked.readings)
        for name in undone.intersection(asked.readings):
            raise InputError(
                f"is not the same for every {given.axis.name}",
                where=f"--reading {name}",
                hint="leave one of them out",
            )


def group(asked: Asked, settings: Sequence[Setting], values: Sequence[Value]) -> Group:
    """The launch with these values of the discrete settings."""
    chosen = {s.name: value for s, value in zip(settings, values, strict=True)}
    words = [
        flag(s.axis, value) for s, value in zip(settings, values, strict=True)
        if s.name not in ("gpu", "model", "engine_version")
    ]  # fmt: skip
    command = " ".join([asked.command, *filter(None, words)])
    gpu, version = chosen.get("gpu", asked.gpu), chosen.get("engine_version", asked.version)
    asked = replace(
        asked,
        command=command,
        gpu=None if gpu is None else str(gpu),
        version=None if version is None else str(version),
    )
    engine = engine_of(command)
    launch = checked(engine.parse(command, asked.version, asked.files), engine.fraction)
    if "model" in chosen:
        launch = _of_model(launch, str(chosen["model"]))
    return Group(deployment_of(launch, asked), tuple(engine.problems(launch, asked.files)))


def _of_model(launch: Launch, model: str) -> Launch:
    name = next((name for name in ("model_path", "model") if name in launch.args), "model")
    return replace(launch.with_args(**{name: Arg(model, "given")}), model=model)
