"""Values that no launch can have: refused in one line before any arithmetic."""

from __future__ import annotations

from ullage.core.errors import CommandError
from ullage.core.launch import Arg, Launch

#: settings that count something: at least 1, and no more than any machine could hold
_COUNTS = frozenset({
    "tp_size", "pp_size", "dp_size", "ep_size", "tensor_parallel_size", "pipeline_parallel_size",
    "data_parallel_size", "context_length", "max_running_requests", "max_total_tokens", "page_size",
    "max_num_seqs", "max_num_batched_tokens", "block_size", "max_model_len", "cuda_graph_max_bs",
})  # fmt: skip
_MOST = 1 << 40
#: settings in which -1 means something ("as long as fits", "off")
_MINUS_ONE = frozenset({"max_model_len", "chunked_prefill_size"})


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
    if not 1 <= value <= _MOST:
        raise CommandError(f"{_shown(value)} is out of range", where=_flag(name), hint="at least 1")


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
