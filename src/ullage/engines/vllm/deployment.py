"""A Run and what a person says beside it -> Deployment: launch, model, machine, readings."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Literal

from ullage.core.deployment import Deployment, Reading
from ullage.core.launch import Arg, Launch, Value
from ullage.core.machine import Gpu, Machine
from ullage.core.model import Model
from ullage.core.run import Figure, Note, Run, Settings, Source
from ullage.core.units import GIB, Measured
from ullage.core.versions import parse_release
from ullage.engines.base import Hints
from ullage.engines.vllm.args import defaults

VersionSource = Literal["log", "command", "inferred"]
#: notes that tell a setting, by field name
_TOLD = ("max-model-len", "max-num-batched-tokens", "max-model-len-fitted", "attention-backend")
_VENDORS = {"rocm": "amd", "cpu": "cpu", "xpu": "intel", "hpu": "intel", "tpu": "google"}
#: settings whose default is shown and reckoned with
_DEFAULTS = (
    "gpu_memory_utilization", "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "dtype",
    "kv_cache_dtype", "cpu_offload_gb", "swap_space", "max_loras", "max_lora_rank",
)  # fmt: skip
#: figures that the deciding rank's own line gives
_OF_RANK = frozenset(
    {"weights_gib", "peak_activation_gib", "non_torch_gib", "consumed_gib", "total_non_kv_gib", "kv_gib"}
)


def deployment(run: Run, hints: Hints) -> Deployment:
    """What the log says, completed by the hints; where both speak the log wins."""
    readings = readings_of(run)
    launch = _launch(run, hints, readings)
    return Deployment(
        launch=launch, model=hints.model or _model(launch.model),
        machine=_machine(run, hints, readings, launch), readings=readings, by_rank=by_rank(run),
    )  # fmt: skip


# --- readings ---------------------------------------------------------------------------------------------


def readings_of(run: Run) -> dict[str, Reading]:
    """What decides: as observed, but the least free memory at the start over all ranks, since one is enough to
    refuse."""
    readings = observed(run)
    free = [figure for figure in run.all(Figure) if figure.name == "free_at_start_gib"]
    if free:
        readings["free_at_start_gib"] = _reading(min(free, key=lambda figure: figure.value.value))
    return readings


def observed(run: Run) -> dict[str, Reading]:
    """Each figure's deciding value: of the rank that has least room where ranks print their own profile, else
    of the first rank that prints it. Figures inside an error, which tell the failed rank's own state, come
    after those of other lines."""
    failed = {event.source for event in run.failures}
    found: dict[str, list[Figure]] = {}
    for figure in run.all(Figure):
        if not figure.draft:
            found.setdefault(figure.name, []).append(figure)
    decides = _deciding(found)
    readings = {name: _reading(_chosen(name, figures, decides, failed)) for name, figures in found.items()}
    if "total_gib" not in readings and "oom_total_gib" in readings:
        told = readings["oom_total_gib"]
        readings["total_gib"] = Reading("total_gib", told.value, told.source)
    given = _setting(run, "gpu_memory_utilization")
    if given is not None and isinstance(given[0], int | float):
        name = "gpu_memory_utilization"
        readings[name] = Reading(name, Measured(float(given[0])), given[1])
    return readings


def _reading(figure: Figure) -> Reading:
    return Reading(figure.name, figure.value, str(figure.source))


def _owner(figure: Figure) -> tuple[str, int | None]:
    return figure.rank.label, figure.rank.pid


def _deciding(found: dict[str, list[Figure]]) -> tuple[str, int | None] | None:
    """The process that has least room by the profile lines: V1 prints what is not KV cache, V0 what is left."""
    spent = found.get("total_non_kv_gib")
    if spent:
        return _owner(max(spent, key=lambda figure: figure.value.value))
    left = [figure for figure in found.get("kv_gib", ()) if "reserved for KV Cache" in figure.text]
    return _owner(min(left, key=lambda figure: figure.value.value)) if left else None


def _chosen(
    name: str, figures: list[Figure], decides: tuple[str, int | None] | None, failed: set[Source]
) -> Figure:
    if name in _OF_RANK and decides is not None:
        own = [figure for figure in figures if _owner(figure) == decides]
        figures = own or figures
    return next((figure for figure in figures if figure.source not in failed), figures[0])


def by_rank(run: Run) -> dict[str, dict[str, Reading]]:
    """Each rank's own first figures, of the processes that hold a GPU where any does. A worker that did not
    know its rank yet is named by its pid later on."""
    names = _labels(run)
    found: dict[str, dict[str, Reading]] = {}
    for figure in run.all(Figure):
        if not figure.draft:
            label = names.get(figure.rank.pid or -1, figure.rank.label)
            found.setdefault(label, {}).setdefault(figure.name, _reading(figure))
    workers = {label: own for label, own in found.items() if own.keys() & _OF_RANK}
    return dict(sorted((workers or found).items(), key=_natural))


def _natural(item: tuple[str, object]) -> list[tuple[int, str]]:
    """The order of ranks: "TP2" before "TP10"."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", item[0])]


def _labels(run: Run) -> dict[int, str]:
    """Process id -> the most exact rank label that the process ever prints."""
    found: dict[int, str] = {}
    for event in run.events:
        rank = event.rank
        if rank.pid is not None and (rank.tp is not None or rank.pp is not None):
            found[rank.pid] = rank.label
    return found


# --- launch -----------------------------------------------------------------------------------------------


def settings_of(run: Run) -> dict[str, Arg]:
    """The arguments that the log prints: those given first, then those of the engine's own line."""
    found: dict[str, Arg] = {}
    for settings in sorted(run.all(Settings), key=lambda settings: settings.resolved):
        for name, value in settings.values.items():
            if _is_value(value):
                found.setdefault(name, Arg(value, "log", str(settings.source)))  # type: ignore[arg-type]
    for note in _told(run):
        for name, text in note.fields.items():
            if name == "attention_backend" or (text.isdigit() and name.startswith("max_")):
                value = int(text) if text.isdigit() else text
                found.setdefault(name, Arg(value, "log", str(note.source)))
    return found


def _is_value(value: object) -> bool:
    return isinstance(value, str | int | float | bool | list | dict)


def _told(run: Run) -> Iterator[Note]:
    return (note for note in run.all(Note) if note.name in _TOLD)


def _setting(run: Run, name: str) -> tuple[object, str] | None:
    arg = settings_of(run).get(name)
    return (arg.value, arg.source) if arg else None


def _launch(run: Run, hints: Hints, readings: dict[str, Reading]) -> Launch:
    given = hints.launch or Launch("vllm")
    printed = settings_of(run)
    args = {**given.args}
    for name, arg in printed.items():
        known = args.get(name)
        if known is None or known.value != arg.value:
            args[name] = arg
    name = "gpu_memory_utilization"
    if name in readings and name not in printed and not _same(args.get(name), readings[name].value.value):
        args[name] = Arg(readings[name].value.value, "log", readings[name].source)
    version, source = _version(run, hints)
    if hints.launch is not None or any(run.all(Settings)):
        args = {**_defaults(version), **args}
    return Launch(
        engine="vllm", version=version, version_source=source, model=_model_id(run, args) or given.model,
        args=args, env=given.env, command=given.command, unknown=given.unknown,
    )  # fmt: skip


def _defaults(version: str | None) -> dict[str, Arg]:
    """The release's defaults of the settings that bear on memory: only asked for where it is known what was
    given."""
    known = defaults(parse_release(version))
    return {name: Arg(known[name], "default", "flags.toml") for name in _DEFAULTS if name in known}


def _same(arg: Arg | None, value: float) -> bool:
    return arg is not None and isinstance(arg.value, int | float) and abs(arg.value - value) < 1e-9


def _version(run: Run, hints: Hints) -> tuple[str | None, VersionSource | None]:
    """The release: of the log, else as said, else as far as the log's lines imply."""
    if run.version and run.version_source == "log":
        return run.version, "log"
    said = hints.version or (hints.launch.version if hints.launch else None)
    if said:
        return said, "command"
    return (run.version, "inferred") if run.version else (None, None)


def _model_id(run: Run, args: dict[str, Arg]) -> str | None:
    for value in (args["model"].value if "model" in args else None, *_noted(run, "model", "model")):
        if isinstance(value, str) and value:
            return value
    return None


def _noted(run: Run, name: str, field: str) -> Iterable[Value]:
    return (note.fields.get(field) for note in run.notes_named(name))


def _model(name: str | None) -> Model | None:
    if not name:
        return None
    try:
        from ullage.models.load import find
    except ImportError:
        return None
    return find(name)


# --- machine ----------------------------------------------------------------------------------------------


def _machine(run: Run, hints: Hints, readings: dict[str, Reading], launch: Launch) -> Machine | None:
    """The hints' machine with the log's total, else what the log tells of one."""
    total = readings.get("total_gib")
    total_bytes = round(total.value.value * GIB) if total else None
    name = next((str(v).replace("_", " ") for v in _noted(run, "device-name", "gpu") if v), "")
    known = hints.machine
    if known is not None and known.gpu is not None:
        return known
    if total_bytes is None and not name:
        return known
    platform = next((str(v) for v in _noted(run, "platform", "platform") if v), "")
    vendor = _VENDORS.get(platform, "nvidia")
    gpu = Gpu(name=name, total_bytes=total_bytes, vendor=vendor, source=total.source if total else "")
    return Machine(gpu=gpu, count=known.count if known else _world(launch))


def _world(launch: Launch) -> int | None:
    sizes = [
        launch.integer(n) for n in ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
    ]
    count = 1
    for size in sizes:
        count *= size or 1
    return count if any(sizes) else None


def disagreements(run: Run, hints: Hints) -> list[str]:
    """Hints that the log contradicts, one sentence each. The log wins."""
    found: list[str] = []
    if hints.launch is not None:
        found += _differing(settings_of(run), hints.launch)
    if run.version and run.version_source == "log" and hints.version and hints.version != run.version:
        found.append(f"the log says release {run.version}, not {hints.version}")
    total = readings_of(run).get("total_gib")
    said = hints.machine.gpu.total_bytes if hints.machine and hints.machine.gpu else None
    if total and said and abs(total.value.value * GIB - said) > 0.06 * said:
        found.append(f"{total.source} says {total.value} GiB a GPU; the GPU named has {said / GIB:.2f} GiB")
    return found


def _differing(printed: dict[str, Arg], launch: Launch) -> Iterator[str]:
    for name, arg in printed.items():
        said = launch.args.get(name)
        if said is not None and said.origin == "given" and _differ(said.value, arg.value):
            yield f"{arg.source} says {name} = {arg.value!r}, the command {said.value!r}"


def _differ(said: Value, printed: Value) -> bool:
    if isinstance(said, int | float) and isinstance(printed, int | float):
        return float(said) != float(printed)
    return str(said) != str(printed) and not isinstance(printed, dict | list)
