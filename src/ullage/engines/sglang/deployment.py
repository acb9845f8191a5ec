"""A Run, and what a person says beside it -> Deployment: launch, model, machine, readings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Literal

from ullage.core.deployment import Deployment, Reading
from ullage.core.launch import Arg, Launch, Value
from ullage.core.machine import Gpu, Machine
from ullage.core.model import Model
from ullage.core.run import Figure, Rank, Run, Settings
from ullage.core.units import GIB, Band
from ullage.core.versions import parse_release
from ullage.engines.base import Hints
from ullage.engines.sglang import releases
from ullage.engines.sglang.args import defaults

#: the engine takes the minimum over the ranks (model_runner.py, get_available_gpu_memory(distributed=True))
_MINIMUM = frozenset({
    "free_before_weights_gib", "free_after_weights_gib", "free_after_kv_pool_gib", "free_before_graphs_gib",
    "free_after_graphs_gib", "free_at_ready_gib",
})  # fmt: skip
#: settings that the scheduler may change after the arguments were printed, by the figure that tells them
_TOLD = {"mem_fraction_static": "mem_fraction_static", "chunked_prefill_size": "chunked_prefill_size"}
#: settings that the engine resolves from what is given, so that another value in the log is no contradiction
_RESOLVED = frozenset({
    "model_path", "tokenizer_path", "served_model_name", "dtype", "kv_cache_dtype", "quantization", "page_size",
    "attention_backend", "moe_a2a_backend", "chunked_prefill_size", "speculative_algorithm", "load_format",
    "speculative_num_draft_tokens", "speculative_draft_model_path", "cuda_graph_bs", "cuda_graph_max_bs",
    "lora_paths", "random_seed", "enable_dp_attention", "disable_cuda_graph",
})  # fmt: skip


def deployment(run: Run, hints: Hints) -> Deployment:
    """What the log says, completed by the hints; where both speak the log wins."""
    launch = _launch(run, hints)
    return Deployment(
        launch=launch, model=hints.model or _model(launch.model), machine=_machine(run, hints, launch),
        readings=readings_of(run), by_rank=by_rank(run),
    )  # fmt: skip


# --- readings ---------------------------------------------------------------------------------------------


def observed(run: Run) -> dict[str, Reading]:
    """The figures as the log prints them, each of the lowest rank that prints it; "draft_" marks the draft
    worker's."""
    return _chosen(run.all(Figure), _by_place)


def readings_of(run: Run) -> dict[str, Reading]:
    """The figures that decide: the least free memory of all ranks, else the lowest rank's."""
    return _chosen(run.all(Figure), _deciding)


def by_rank(run: Run) -> dict[str, dict[str, Reading]]:
    """Each rank's own first figures, by rank label."""
    found: dict[str, dict[str, Reading]] = {}
    for figure in run.all(Figure):
        name = _name(figure)
        found.setdefault(figure.rank.label, {}).setdefault(
            name, Reading(name, figure.value, str(figure.source))
        )
    return found


_Order = Callable[[Figure], tuple[float, ...]]


def _chosen(figures: Iterable[Figure], order: _Order) -> dict[str, Reading]:
    best: dict[str, Figure] = {}
    for figure in figures:
        name = _name(figure)
        if name not in best or order(figure) < order(best[name]):
            best[name] = figure
    return {name: Reading(name, figure.value, str(figure.source)) for name, figure in best.items()}


def _name(figure: Figure) -> str:
    return f"draft_{figure.name}" if figure.draft else figure.name


def _by_place(figure: Figure) -> tuple[float, ...]:
    return _place(figure.rank)


def _deciding(figure: Figure) -> tuple[float, ...]:
    """Of one rank the first printing counts, which is why the value stands behind the rank's own place only
    where ranks are compared: free memory."""
    least = figure.value.value if figure.name in _MINIMUM and not figure.draft else 0.0
    return (least, *_place(figure.rank))


def _place(rank: Rank) -> tuple[float, ...]:
    """Sorts rank 0 first; a line without any rank stands beside rank 0."""
    return (rank.dp or 0, rank.pp or 0, rank.tp or 0)


# --- launch -----------------------------------------------------------------------------------------------


def _launch(run: Run, hints: Hints) -> Launch:
    given = hints.launch or Launch("sglang")
    version, source = _version(run, hints, given)
    args = _args(run, given)
    for name, value in defaults(parse_release(version)).items():
        if name not in args:
            args[name] = Arg(value, "default")
    model = args["model_path"].value if "model_path" in args else None
    return Launch(
        engine="sglang", version=version, version_source=source,
        model=model if isinstance(model, str) else given.model, args=args, env=given.env,
        command=given.command, unknown=given.unknown,
    )  # fmt: skip


def _args(run: Run, given: Launch) -> dict[str, Arg]:
    """The log's values; "given" where the command says the same, the command's own where the log is silent."""
    args = {name: arg for name, arg in given.args.items() if arg.origin != "default"}
    for name, arg in settings_of(run).items():
        known = args.get(name)
        if known is not None and _same(known.value, arg.value):
            args[name] = Arg(arg.value, known.origin, arg.source)
        elif arg.value is not None or known is None:
            args[name] = arg
    return args


def settings_of(run: Run) -> dict[str, Arg]:
    """Settings that the log prints: its server_args line, and figures that tell one."""
    found: dict[str, Arg] = {}
    for settings in run.all(Settings):
        for name, value in settings.values.items():
            if _is_value(value):
                found.setdefault(name, Arg(value, "log", str(settings.source)))  # type: ignore[arg-type]
    for name, figure_name in _TOLD.items():
        figure = run.figure(figure_name)
        if figure is not None and (name not in found or found[name].value is None):
            value = figure.value.value
            found[name] = Arg(
                int(value) if value == int(value) and value > 1 else value, "log", str(figure.source)
            )
    return found


def _is_value(value: object) -> bool:
    return value is None or isinstance(value, str | int | float | bool | list | dict)


def _version(
    run: Run, hints: Hints, given: Launch
) -> tuple[str | None, Literal["log", "command", "inferred"] | None]:
    printed = next(
        (note.fields["version"] for note in run.notes_named("version") if "version" in note.fields), None
    )
    if run.version or printed:
        return run.version or printed, "log"
    if hints.version:
        return hints.version, "command"
    if given.version:
        return given.version, given.version_source
    inferred = releases.inferred(run)
    return inferred, "inferred" if inferred else None


def _model(model_id: str | None) -> Model | None:
    """The model of an id, from the bundled catalogue; a path in a log is never looked up on this machine."""
    if model_id is None:
        return None
    from ullage.models.catalogue import find

    return find(model_id)


# --- machine ----------------------------------------------------------------------------------------------


def _machine(run: Run, hints: Hints, launch: Launch) -> Machine | None:
    """The hinted machine; else what an out-of-memory message tells of its GPU, and the ranks that spoke."""
    if hints.machine is not None:
        return hints.machine
    total = run.figure("oom_total_gib")
    count = _world(launch)
    if total is None:
        return Machine(count=count) if count is not None else None
    band = total.value.band.scaled(GIB)
    gpu = Gpu(name="", cuda_bytes=Band(round(band.value), band.low, band.high), source=str(total.source))
    return Machine(gpu=gpu, count=count)


def _world(launch: Launch) -> int | None:
    """GPUs of one launch: tp x pp, times dp where the replicas are whole servers."""
    sizes = [launch.integer(name) for name in ("tp_size", "pp_size")]
    if all(size is None or size < 1 for size in sizes):
        return None
    whole = 1
    for size in sizes:
        whole *= max(1, size or 1)
    return whole if launch.flag("enable_dp_attention") else whole * max(1, launch.integer("dp_size") or 1)


# --- where the hints contradict the log -------------------------------------------------------------------


def disagreements(run: Run, hints: Hints) -> list[str]:
    """One sentence for each hint that the log contradicts."""
    return [*_version_disagrees(run, hints), *_settings_disagree(run, hints), *_memory_disagrees(run, hints)]


def _version_disagrees(run: Run, hints: Hints) -> Iterator[str]:
    release, fitting = parse_release(hints.version), releases.possible(run)
    if release is None or not fitting or release > releases.releases()[-1]:
        return
    if not fitting[0] <= release <= fitting[-1]:
        between = str(fitting[0]) if len(fitting) == 1 else f"{fitting[0]} to {fitting[-1]}"
        yield f"The release is given as {hints.version}, but the log's lines have the form of {between}."


def _settings_disagree(run: Run, hints: Hints) -> Iterator[str]:
    given = hints.launch.args if hints.launch is not None else {}
    for name, arg in settings_of(run).items():
        said = given.get(name)
        if said is None or said.origin != "given" or name in _RESOLVED or arg.value is None:
            continue
        if not _same(said.value, arg.value):
            yield (
                f"The command says {name} = {_shown(said.value)}, the log {_shown(arg.value)} ({arg.source}); "
                "the log's value is used."
            )


def _memory_disagrees(run: Run, hints: Hints) -> Iterator[str]:
    """A GPU that has less than the log shows to be free, or another total than an error names."""
    gpu = hints.machine.gpu if hints.machine is not None else None
    if gpu is None or gpu.total_bytes is None:
        return
    free, total = run.figure("free_before_weights_gib"), run.figure("oom_total_gib")
    if free is not None and free.value.band.low * GIB > gpu.total_bytes:
        yield (
            f"The GPU is given as {gpu.name} with {gpu.total_bytes / GIB:.1f} GiB, but the log shows "
            f"{free.value} GiB free on one ({free.source})."
        )
    elif total is not None and abs(total.value.value * GIB / gpu.total_bytes - 1) > 0.06:
        yield (
            f"The GPU is given as {gpu.name} with {gpu.total_bytes / GIB:.1f} GiB, but the log's error names a "
            f"capacity of {total.value} GiB ({total.source})."
        )


def _same(one: Value, other: Value) -> bool:
    if isinstance(one, int | float) and isinstance(other, int | float):
        return abs(one - other) <= 1e-9 * max(1.0, abs(one))
    return one == other


def _shown(value: Value) -> str:
    return str(value)[:60]
