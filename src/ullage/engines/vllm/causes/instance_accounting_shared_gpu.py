"""Memory of another process on the card is charged to this server.

What you see: a second server on a card ends with "No available memory for the cache blocks", although its
share would hold its weights easily; or "Error in memory profiling. Initial free memory A, current free memory
B".

What misleads: the share is read as a slice: 0.4 for one server and 0.4 for the other. The message asks for a
larger share, which for this accounting is true and sounds absurd.

What is true: up to 0.9.0 the V1 engine (and V0 of 0.6.4) takes all that is used on the device, other
processes and the CUDA context included, off its own share. From 0.9.1 others are no longer charged, but the
whole share must be free at start. The assertion means that another process freed memory during the profile,
which makes the difference meaningless.

What helps: 0.9.1 or newer; before, a share that includes what the other server holds. For the assertion:
start when the card is quiet, one server after the other.
"""

from __future__ import annotations

from ullage.core.finding import Case, Change, Finding, Refuted
from ullage.core.units import GIB
from ullage.engines.vllm.causes._budget import no_blocks, terms, weights_of_ledger
from ullage.engines.vllm.causes._case import (
    advice,
    between,
    figure,
    found,
    gib,
    on_unified_memory,
    says,
    utilization,
)
from ullage.engines.vllm.causes._oom import Oom, crowded, not_these, oom, place, shared_with

#: gpu_worker.py determine_available_memory (worker.py in V0), 0.6.0-0.33.0
_ASSERTION = r"Error in memory profiling\. Initial free memory"
#: the same two figures: nothing grew, and a release that asks for less than before (XPU, to 0.15.0) is wrong
_EQUAL = r"Initial free memory (?P<free>[\d.]+) GiB, current free memory (?P=free) GiB"
#: GiB outside PyTorch that a server of this age may hold itself (context, NCCL)
_OWN_GIB = 4.0
_V1 = r"EngineCore|v1/|core\.py:\d+|Initializing a V1 LLM engine"


def test(case: Case) -> Finding | None:
    if says(case, _ASSERTION):
        return None if says(case, _EQUAL) else _moved(case)
    failure = oom(case)
    if failure is not None:
        return _outgrown(case, failure)
    if not no_blocks(case):
        return None
    return _non_torch_of_others(case) or (_charged(case) if _charges_others(case) else None)


def _non_torch_of_others(case: Case) -> Finding | None:
    """V0 of 0.6.4 prints what the whole card holds outside this process's PyTorch as non-torch memory: more
    than a context and communicators take is another process's, and without it a pool would be left."""
    if figure(case, "peak_torch_gib") is None:
        return None
    known = terms(case)
    if known.non_torch is None or known.pool is None or known.non_torch < _OWN_GIB:
        return None
    if known.pool + known.non_torch - _OWN_GIB <= 0:
        return None
    return found(
        case, "instance-accounting-shared-gpu", "certain", 45,
        f"This release charges memory of other processes to this server's share: {gib(known.non_torch)} are "
        f"counted as non-torch memory, and the pool is {gib(known.pool)}.",
        "0.6.4 takes all that the card holds outside this process's PyTorch for its own. A CUDA context and "
        "communicators take one or two GiB.",
        shown=["non_torch_gib", "kv_gib"], phase="kv_pool",
        fixes=[advice("0.6.5 or newer (V0) does not charge other processes", "likely")],
    )  # fmt: skip


def _moved(case: Case) -> Finding:
    """The free memory grew between the two readings of the profile."""
    return found(
        case, "instance-accounting-shared-gpu", "likely", 20,
        "Another process gave memory back while vLLM measured its own, so the profile makes no sense.",
        "The free memory after the profile was larger than before it; the engine stops instead of guessing.",
        fixes=[advice("start again when no other process on the card starts or ends", "likely")],
        phase="profile",
    )  # fmt: skip


def _outgrown(case: Case, failure: Oom) -> Finding | None:
    """An allocation of the start failed beside a neighbour, or a pool that the profile had found room for."""
    where = place(case)
    beside = crowded(failure) and where in ("weights", "repack", "profile", "kv_pool", "capture")
    if not beside and not (where == "kv_pool" and case.phase == "kv_pool"):
        return None
    if on_unified_memory(case):
        return None
    held = f" They hold {gib((failure.others or 0) / GIB)} of it." if beside else ""
    return found(
        case, "instance-accounting-shared-gpu", "likely" if beside else "possible", 30 if beside else 12,
        f"Other processes on the card took memory that this start counts on.{held} {failure.story}".strip(),
        "The share is a ceiling on the whole card; what others hold or take meanwhile is missing from it.",
        refuted=not_these(case, failure), contributing=shared_with(failure),
        fixes=[
            advice("start when the other processes on the card have settled, or move them", "likely"),
            advice("a share that leaves them their part", gpu_memory_utilization=_beside(case, failure)),
        ],
    )  # fmt: skip


def _beside(case: Case, failure: Oom) -> float:
    others = (failure.others or 0) / failure.total if failure.total else 0.1
    return max(0.1, int((utilization(case) - others) * 100) / 100)


def _charged(case: Case) -> Finding | None:
    """A release that charges others, and weights that do not explain the empty pool."""
    known = terms(case)
    weights = known.weights or weights_of_ledger(case)
    if known.pool is not None or (weights and known.requested and weights >= 0.7 * known.requested):
        return None
    roomy = bool(weights and known.requested)
    small = not roomy and utilization(case) < 0.5  # a small share can be below this server's own weights
    text = "The log shows no figure of this server that would explain an empty pool."
    if roomy:
        text = (
            f"The weights take {gib(weights or 0)} of a share of {gib(known.requested or 0)}; what is "
            f"missing is not this server's."
        )
    return found(
        case, "instance-accounting-shared-gpu", "possible" if small else "likely", 30 if roomy else 20,
        "This release charges memory of other processes on the card to this server's share; nothing is left.",
        text, phase="kv_pool",
        refuted=[Refuted("the weights", f"they take {gib(weights or 0)}")] if roomy else (),
        fixes=[
            advice("0.9.1 or newer does not charge other processes", "likely"),
            Change({"--gpu-memory-utilization": f"<{utilization(case):g} + the part that others hold>"},
                   "this release counts the other process's memory too: the share must include what it holds"),
        ],
    )  # fmt: skip


def _charges_others(case: Case) -> bool:
    """V1 of 0.6.4 to 0.9.0; its own lines must show that it is V1, since V0 was still the fall-back."""
    return between(case, "0.6.4", "0.9.1.dev0", unknown=False) and says(case, _V1, anywhere=True)
