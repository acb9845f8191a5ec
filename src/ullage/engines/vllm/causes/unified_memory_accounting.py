"""On a board with one memory for CPU and GPU the free figure moves with the host.

What you see: on DGX Spark (GB10), Thor, Orin or an APU the check "Free memory on device ... is less than
desired GPU memory utilization" misses by a percent or two, on a launch that passed before.

What misleads: no process uses the GPU, and nvidia-smi shows no memory at all on such a board. Ranks on other
nodes then fill the log with "Broken pipe" and collective errors that look like a network fault.

What is true: the engine reads the host's available memory there. Page cache of a download, swap, a leftover
container and the kernel itself lower it from one boot to the next by several GiB.

What helps: stop leftover processes, `sync` and drop the page cache before the launch, reclaim swap; or a
share a few percent lower. Retrying blindly does not help.
"""

from __future__ import annotations

from ullage.core.finding import Case, Finding
from ullage.engines.vllm.causes import free_memory_below_request as check
from ullage.engines.vllm.causes._case import found, gib, on_unified_memory, says

#: a shortfall of this share of the memory is within what page cache and host processes move between boots
_SPREAD = 0.02


#: V0 worker.py: the free memory grew during the profile
_MOVED = r"Error in memory profiling\. Initial free memory"


def test(case: Case) -> Finding | None:
    if on_unified_memory(case) and says(case, _MOVED):
        return found(
            case, "unified-memory-accounting", "likely", 35,
            "CPU and GPU share this memory, and something on the host gave memory back during the profile.",
            "The check compares the free memory before and after the profile: nobody else may free any.",
            phase="profile",
        )  # fmt: skip
    seen = check.shortage(case) if says(case, check.CHECK) else {}
    if not seen or not on_unified_memory(case):
        return None
    missing = seen["requested"] - seen["free"]
    if missing > _SPREAD * seen["total"]:
        return None
    return found(
        case, "unified-memory-accounting", "certain", 35,
        f"CPU and GPU share this memory: the host has {gib(seen['free'])} available, {gib(missing)} less "
        f"than gpu_memory_utilization={seen['share']:g} asks for.",
        f"{seen['share']:g} x {seen['total']:g} = {gib(seen['requested'])} must be available on the host. A "
        f"gap of {missing / seen['total']:.1%} is within what page cache, swap and host processes change "
        f"between boots.",
        shown=["free_at_start_gib"], fixes=check.fixes(case, seen), refuted=check.refuted(seen), phase="init",
    )  # fmt: skip
