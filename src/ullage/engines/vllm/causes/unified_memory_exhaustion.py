"""On a board with one memory for CPU and GPU the launch takes what the system needs.

What you see: on DGX Spark (GB10), Thor, Orin or an APU the host stalls, resets or kills a process during
loading, profile, capture or a long prefill; the kernel log has "NVRM: ... Out of memory [NV_ERR_NO_MEMORY]";
the engine often prints nothing.

What misleads: there is no CUDA error, or only one after the host has given up, and `free` still shows GiB.

What is true: the share bounds the KV cache, not the moment's peaks, and on such a board there is no second
memory to absorb them. Page cache cannot always be given back fast enough; loading from a memory-mapped file
counts twice for a moment.

What helps: a lower share (0.70 to 0.80) that leaves the host 20 GiB or more; smaller max_num_batched_tokens
and image limits; dropping the page cache before the launch; swap off, so that the failure is quick.
"""

from __future__ import annotations

from ullage.core.finding import Case, Finding, How
from ullage.core.run import Phase
from ullage.engines.vllm.causes._case import advice, found, on_unified_memory, says, utilization
from ullage.engines.vllm.causes._checks import checked, fewer_tokens
from ullage.engines.vllm.causes._oom import oom, place

_KERNEL = r"NV_ERR_NO_MEMORY|NVRM:.*Out of memory"
_DRIVER = rf"{_KERNEL}|mem_available=\d+ ?GiB"


def test(case: Case) -> Finding | None:
    sureness = _sureness(case)
    if sureness is None:
        return None
    lower = max(0.5, round(min(utilization(case) - 0.1, 0.75), 2))
    return found(
        case, "unified-memory-exhaustion", sureness[0], sureness[1],
        "CPU and GPU share this memory, and the launch took what the host needed.",
        "The driver or the kernel ran out of physical memory; the share bounds the KV cache, not the peaks "
        "around it.",
        lines=[_DRIVER], phase=_phase(case),
        outcome="crashed" if case.outcome == "unknown" and says(case, _KERNEL, anywhere=True) else None,
        fixes=[
            checked(case, {"gpu_memory_utilization": lower}, "leaves the host its memory"),
            *fewer_tokens(case, "shorter steps have smaller peaks", 2, "possible"),
            advice("`sync` and drop the page cache before the launch", "possible"),
        ],
    )  # fmt: skip


def _sureness(case: Case) -> tuple[How, int] | None:
    """Certain by the driver's line; likely where memory fails, or nothing moves, on such a board."""
    if says(case, _DRIVER, anywhere=True):
        sure: How = "certain" if says(case, _KERNEL, anywhere=True) else "likely"
        return sure, 40 if on_unified_memory(case) else 20
    if not on_unified_memory(case):
        return None
    failure = oom(case)
    if failure is not None:
        return ("likely", 20) if place(case) in ("kv_pool", "unknown", "profile") else ("possible", 20)
    killed = case.root is not None and (
        abs(case.root.signal or 0) == 9 or says(case, r"Killed process|oom-kill|OOM-killed|^Killed\b")
    )
    if killed and case.phase in ("weights", "profile", "kv_pool", "graph_capture", "warmup", "serving"):
        return "certain", 35
    return ("possible", 10) if case.outcome == "hang" and case.phase in ("profile", "kv_pool") else None


def _phase(case: Case) -> Phase | None:
    """After the weights comes the pool: the driver's line has no stage of its own."""
    return "kv_pool" if case.phase == "weights" and says(case, r"Loading weights took", anywhere=True) else None
