"""Values that no launch can have: refused in one line before any arithmetic."""

from __future__ import annotations

from collections.abc import Mapping

from ullage.core.deployment import Reading
from ullage.core.errors import CommandError, InputError
from ullage.core.launch import Arg, Launch
from ullage.core.units import Measured
from ullage.engines.runtime.changes import INPUTS

#: settings that count something: at least 1, and no more than any machine could hold
_COUNTS = frozenset({
    "tp_size", "pp_size", "dp_size", "ep_size", "tensor_parallel_size", "pipeline_parallel_size",
    "data_parallel_size", "context_length", "max_running_requests", "max_total_tokens", "page_size",
    "max_num_seqs", "max_num_batched_tokens", "block_size", "max_model_len", "cuda_graph_max_bs",
})  # fmt: skip
_MOST = 1 << 40
#: settings that count GPUs, and the most that a launch can have: layers bound the stages
_RANKS = {
    "tp_size": 1024, "tensor_parallel_size": 1024, "dp_size": 1024, "data_parallel_size": 1024, "ep_size": 1024,
    "pp_size": 128, "pipeline_parallel_size": 128,
}  # fmt: skip
#: settings in which -1 means something ("as long as fits", "off")
_MINUS_ONE = frozenset({"max_model_len", "chunked_prefill_size"})


#: figures that a plan can start from, beside the inputs of a budget
READINGS = INPUTS | {
    "mem_fraction_static", "gpu_memory_utilization", "requested_gib", "kv_gib", "k_gib", "v_gib", "kv_tokens",
    "graphs_gib", "free_after_kv_pool_gib", "free_before_graphs_gib", "free_after_graphs_gib",
    "free_at_ready_gib", "draft_free_after_weights_gib", "minimum_viable", "needed_kv_gib", "max_concurrency",
    "max_num_seqs", "mamba_blocks",
}  # fmt: skip


def readings(given: Mapping[str, float]) -> dict[str, Reading]:
    """--reading NAME=VALUE as readings. Raises InputError for a name that no plan uses, and memory below 0."""
    for name, value in given.items():
        if name not in READINGS:
            from difflib import get_close_matches

            near = ", ".join(get_close_matches(name, sorted(READINGS), n=3))
            raise InputError(
                "is no figure that a plan uses",
                where=f"--reading {name[:60]}",
                hint=f"near: {near}" if near else None,
            )
        if value < 0 and name in INPUTS:
            raise InputError(f"{value:g} is less than nothing", where=f"--reading {name[:60]}")
    return {name: Reading(name, Measured.parse(repr(value)), "--reading") for name, value in given.items()}


def checked(launch: Launch, fraction: str) -> Launch:
    """``launch`` itself. Raises CommandError for a size or a share out of all range."""
    for name, arg in launch.args.items():
        if arg.origin != "given":
            continue
        if name in _COUNTS:
            _count(name, arg)
        if name == fraction:
            _share(name, arg)
    return launch


def _count(name: str, arg: Arg) -> None:
    value = arg.value
    if isinstance(value, bool) or value is None or (value == -1 and name in _MINUS_ONE) or value == "auto":
        return
    if not isinstance(value, int | float):
        raise CommandError(f"not a number: {str(value)[:40]!r}", where=_flag(name))
    most = _RANKS.get(name, _MOST)
    if not 1 <= value <= most:
        hint = "at least 1" if value < 1 else f"at most {most:,}"
        raise CommandError(f"{_shown(value)} is out of range", where=_flag(name), hint=hint)


def _share(name: str, arg: Arg) -> None:
    value = arg.value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise CommandError(f"not a number: {str(value)[:40]!r}", where=_flag(name))
    if not 0 < value <= 1:
        raise CommandError(
            f"{_shown(value)} is no share of the memory", where=_flag(name), hint="between 0 and 1, such as 0.9"
        )


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _shown(value: float) -> str:
    return f"{value:g}" if abs(value) < 1e15 else f"{value:.3g}"
