"""At start less of the card is free than the share asks for.

What you see: "Free memory on device cuda:0 (A/T GiB) on startup is less than desired GPU memory utilization
(U, R GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes." before any weight
is read (0.9.1 and newer). From 0.32.0 also "... less than the engine's budget after excluding external
process's weights".

What misleads: nothing of the model is wrong, and nothing is too large. With several ranks only one card may
be short; the other ranks end with broken pipes and collective errors that point at the network. V0 had no
such check, so an upgrade looks like a regression.

What is true: U is a share of the whole card, and the engine refuses to start unless all of it is free. The
rest is held by somebody else: another server, a leftover of the last one, a desktop, or, with 0.11.0 and
newer, this process's own CUDA context and communicator, which are set up before the check.

What helps: stop what holds the memory, or wait until it is gone; else a share a little below A / T.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from ullage.core.finding import Case, Change, Finding, Refuted
from ullage.engines.vllm.causes._case import (
    advice,
    figure,
    found,
    gib,
    numbers,
    on_unified_memory,
    ran,
    says,
    under_wsl,
)
from ullage.engines.vllm.causes._checks import checked
from ullage.engines.vllm.causes._oom import oom

CHECK = (
    r"Free memory on device[^\n]* (?:on startup )?is less than (?:desired GPU memory utilization|the "
    r"engine's budget)"
    r"|Externally held weights on device"
)
_FIGURES = re.compile(
    r"Free memory on device(?: \S+)? \((?P<free>[\d.]+)/(?P<total>[\d.]+) GiB\)[^\n]*?"
    r"utilization \((?P<share>[\d.]+), (?P<requested>[\d.]+) GiB\)"
)


#: the first use of the device in a worker
_CONTEXT = r":(?:init_device|set_device|_lazy_init|_cuda_init|init_worker_distributed_environment)$"


def test(case: Case) -> Finding | None:
    if not says(case, CHECK):
        return _no_context(case)
    seen = shortage(case)
    return found(
        case, "free-memory-below-request", "certain", 30 if seen else 20, _summary(seen),
        _explanation(case, seen), shown=["free_at_start_gib"], fixes=fixes(case, seen), refuted=refuted(seen),
        contributing=_contributing(case, seen), phase="init",
    )  # fmt: skip


def _no_context(case: Case) -> Finding | None:
    """Not even a CUDA context, or the first tensor, finds room: the card is full before the launch."""
    failure = oom(case)
    if (
        failure is None
        or case.phase not in (None, "init")
        or not ran(case, _CONTEXT)
        or ran(case, ":load_model$")
    ):
        return None
    return found(
        case, "free-memory-below-request", "likely", 25,
        f"The card is so full that a worker cannot even set itself up on it. {failure.story}".strip(),
        "The failure is in the worker's first use of the device; nothing of the model had been loaded.",
        fixes=fixes(case, {}), refuted=refuted({}), contributing=["other-process-on-gpu"], phase="init",
    )  # fmt: skip


def shortage(case: Case) -> dict[str, float]:
    """free, total, share and requested of the check, in GiB; empty where the line has no figures."""
    seen = numbers(_FIGURES, case)
    if seen:
        return seen
    parts = {n: figure(case, f"{n}_gib") for n in ("free_at_start", "total", "requested")}
    if any(part is None for part in parts.values()):
        return {}
    free, total, requested = (part.value for part in parts.values() if part is not None)
    return {"free": free, "total": total, "requested": requested, "share": requested / total}


def _summary(seen: dict[str, float]) -> str:
    if not seen:
        return "Less of the card is free at start than gpu_memory_utilization asks for."
    return (
        f"Only {gib(seen['free'])} of {gib(seen['total'])} are free at start, and "
        f"gpu_memory_utilization={seen['share']:g} asks for {gib(seen['requested'])}: "
        f"{gib(seen['total'] - seen['free'])} are in use by somebody else."
    )


def _explanation(case: Case, seen: dict[str, float]) -> str:
    if not seen:
        return "The check compares the free memory with share x total before anything is loaded."
    text = (
        f"{seen['share']:g} x {seen['total']:g} = {gib(seen['requested'])} must be free, "
        f"{gib(seen['requested'] - seen['free'])} are missing. "
    )
    held = seen["total"] - seen["free"]
    if on_unified_memory(case):
        return (
            text + "On this board free memory is what the host has available: page cache and processes count."
        )
    if held > 3:
        return text + f"{gib(held)} is more than a context: another process holds the card."
    return (
        text
        + "So little is usual for a desktop, for other contexts, or for this process's own context and NCCL."
    )


def fixes(case: Case, seen: dict[str, float]) -> Iterator[Change]:
    """Free the card first; a smaller share only where it is worth something."""
    if not seen:
        yield advice("end the processes that nvidia-smi shows on the card", "likely")
        return
    share = math.floor(seen["free"] / seen["total"] * 100 - 0.5) / 100
    if seen["total"] - seen["free"] > 3 and not on_unified_memory(case):
        yield advice("end the process that holds the card (nvidia-smi), or choose another card", "likely")
    if on_unified_memory(case):
        yield advice("stop leftover processes, then `sync` and drop the page cache before the launch", "likely")
    if share >= 0.1:
        yield checked(
            case, {"gpu_memory_utilization": share},
            f"{seen['free']:g} / {seen['total']:g} = {_floored(seen['free'] / seen['total'])} is the most that "
            f"passes the check as the card is now",
        )  # fmt: skip


def _floored(share: float) -> str:
    return f"{math.floor(1000 * share) / 1000:.3f}"


def refuted(seen: dict[str, float]) -> Iterator[Refuted]:
    yield Refuted("the model is too large", "nothing of it had been loaded")
    yield Refuted("fragmentation", "no allocation has failed; the check compares two totals")
    if seen and seen["requested"] - seen["free"] > 2.5:
        yield Refuted(
            "NCCL buffers",
            f"{gib(seen['requested'] - seen['free'])} are missing; a communicator takes 0.2 to 2 GiB",
        )


def _contributing(case: Case, seen: dict[str, float]) -> Iterator[str]:
    if on_unified_memory(case):
        yield "unified-memory-accounting"
    elif under_wsl(case):
        yield "wsl-host-holds-vram"
    elif seen and seen["total"] - seen["free"] > 3:
        yield "other-process-on-gpu"
