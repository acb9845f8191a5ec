"""The sleep-mode allocator keeps memory that the budget does not know.

What you see: --enable-sleep-mode ("Enabling cumem allocator because sleep mode requires it") and an
out-of-memory error after the pool was sized, often "CUDA Error: out of memory at .../cumem_allocator.cpp";
PyTorch claims to have allocated more than the card has. Or "Memory usage increased after sleeping."

What misleads: the same flags without sleep mode start with a smaller pool, so people look at the model or at
graphs.

What is true: that allocator reserves address space of its own, outside torch's counters. Up to 0.26.0 the
measured non-torch part can come out negative, and the pool is too large by the same amount; 0.27.0 measures
with the driver instead.

What helps: a share lower by the difference (0.80 instead of 0.92 in public logs), 0.27.0 or newer, or no
sleep mode.
"""

from __future__ import annotations

from ullage.core.finding import Case, Finding
from ullage.core.units import GIB
from ullage.engines.vllm.causes._case import advice, figure, found, gib, ran, says, utilization
from ullage.engines.vllm.causes._checks import checked
from ullage.engines.vllm.causes._oom import Oom, not_these, oom, place, shared_with

_ALLOCATOR = r"cumem_allocator\.cpp"
_MODE = r"sleep mode requires it|enable_sleep_mode['\"]?[:=] ?True"


def test(case: Case) -> Finding | None:
    if says(case, r"Memory usage increased after sleeping"):
        return _grew(case)
    failure = oom(case)
    on = case.deployment.launch.flag("enable_sleep_mode") or says(case, _MODE, anywhere=True)
    woken = ran(case, r":wake_up$|cumem\.py:")
    if failure is None or not (on or woken) or (case.phase == "serving" and not woken):
        return None
    if place(case) in ("weights", "repack", "encoder") and not says(case, _ALLOCATOR, anywhere=True):
        return None
    proof = _over_capacity(failure) or says(case, _ALLOCATOR, anywhere=True) or _negative(case)
    lower = round(utilization(case) - 0.12, 2)
    return found(
        case, "sleep-mode-accounting", "certain" if proof else "likely", 45 if proof else 25,
        f"Sleep mode's allocator distorts the profile, so the KV cache was sized larger than what is there. "
        f"{failure.story}"
        .strip(),
        _explanation(case, failure), shown=["kv_gib", "non_torch_gib"], lines=[_ALLOCATOR, _MODE],
        refuted=not_these(case, failure), contributing=shared_with(failure),
        phase=None if case.phase in ("kv_pool", "graph_capture", "warmup", "serving") else "warmup",
        fixes=[
            checked(case, {"gpu_memory_utilization": lower}, "a share lower by what the profile did not see"),
            advice("start without --enable-sleep-mode", "likely"),
            advice("0.27.0 and newer measure with the driver", "possible"),
        ],
    )  # fmt: skip


def _over_capacity(failure: Oom) -> bool:
    """PyTorch counts more than the card holds: mapped address space, not memory."""
    return failure.allocated is not None and failure.total is not None and failure.allocated > failure.total


def _negative(case: Case) -> bool:
    non_torch = figure(case, "non_torch_gib")
    return non_torch is not None and non_torch.value < 0


def _explanation(case: Case, failure: Oom) -> str:
    if _over_capacity(failure):
        return (
            f"PyTorch reports {gib((failure.allocated or 0) / GIB)} allocated on a card of "
            f"{gib((failure.total or 0) / GIB)}: its counters hold address space of the sleep-mode allocator."
        )
    non_torch = figure(case, "non_torch_gib")
    if non_torch is not None and non_torch.value < 0:
        return f"The profile found {non_torch} GiB of non-torch memory; a negative term enlarges the pool."
    return "The profile's counters do not see what the sleep-mode allocator maps."


def _grew(case: Case) -> Finding:
    return found(
        case, "sleep-mode-accounting", "likely", 20,
        "The card had less free memory after the engine went to sleep than before.",
        "The engine compares the free memory of the whole card before and after; another process that grew "
        "meanwhile has the same effect.",
        fixes=[advice("keep other processes off the card while the engine sleeps", "likely")],
    )  # fmt: skip
