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

from ullage.core.finding import Case, Finding
from ullage.engines.vllm.causes._budget import no_blocks, terms, weights_of_ledger
from ullage.engines.vllm.causes._case import advice, between, found, gib, says, utilization

_ASSERTION = r"Error in memory profiling\. Initial free memory"
_V1 = r"EngineCore|v1/|core\.py:\d+|Initializing a V1 LLM engine"


def test(case: Case) -> Finding | None:
    if says(case, _ASSERTION):
        return found(
            case, "instance-accounting-shared-gpu", "likely", 20,
            "Another process gave memory back while vLLM measured its own, so the profile makes no sense.",
            "The free memory after the profile was larger than before it; the engine stops instead of "
            "guessing.",
            fixes=[advice("start again when no other process on the card starts or ends", "likely")],
            phase="profile",
        )  # fmt: skip
    if not no_blocks(case) or not _charges_others(case):
        return None
    known = terms(case)
    weights = known.weights or weights_of_ledger(case)
    if known.pool is not None or (weights and known.requested and weights >= 0.7 * known.requested):
        return None
    roomy = bool(weights and known.requested)
    text = (
        f"The weights take {gib(weights or 0)} of a share of {gib(known.requested or 0)}; what is missing is "
        f"not this "
        f"server's."
        if roomy
        else "The log shows no figure of this server that would explain an empty pool."
    )
    return found(
        case, "instance-accounting-shared-gpu", "likely", 30 if roomy else 20,
        "This release charges memory of other processes on the card to this server's share, and nothing is "
        "left.",
        text, phase="kv_pool",
        fixes=[
            advice("0.9.1 or newer does not charge other processes", "likely"),
            advice("a share larger by what the other process holds", "likely",
                   gpu_memory_utilization=min(0.95, round(utilization(case) + 0.3, 2))),
        ],
    )  # fmt: skip


def _charges_others(case: Case) -> bool:
    """V1 of 0.6.4 to 0.9.0; its own lines must show that it is V1, since V0 was still the fall-back."""
    return between(case, "0.6.4", "0.9.1.dev0", unknown=False) and says(case, _V1, anywhere=True)
