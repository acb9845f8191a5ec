"""Processes of an earlier run still hold the card.

What you see: the check of free memory fails at start, with most of the card in use; a process list shows
VLLM::EngineCore or VLLM::Worker_TP0, or the log holds an earlier start that was killed.

What misleads: the port is free and the API server is gone, so the earlier run seems to be over. The message
advises a smaller share, which would only hide the leftover.

What is true: killing the API server with SIGKILL leaves its engine core and workers alive, re-parented, with
their memory. A supervisor or a restart policy then starts the next server into the same card.

What helps: end the leftover processes and wait until their memory is back; stop servers with SIGTERM, or end
the whole process group or container.
"""

from __future__ import annotations

import re

from ullage.core.finding import Case, Finding, How
from ullage.engines.vllm.causes import free_memory_below_request as check
from ullage.engines.vllm.causes._case import advice, found, gib, on_unified_memory, says

#: a vLLM process by the title it gives itself (0.10.0+), as nvidia-smi and ps show it
_LISTED = re.compile(
    r"VLLM::(?:EngineCore|Worker|A[Pp][Ii]Server|DPCoordinator)|orphan(?:ed)? .*(?:vllm|EngineCore)"
)


def test(case: Case) -> Finding | None:
    if not says(case, check.CHECK):
        return None
    seen = check.shortage(case)
    sureness = _sureness(case, seen)
    if sureness is None:
        return None
    certainty, weight = sureness
    held = f" {gib(seen['total'] - seen['free'])} of the card" if seen else " the card"
    return found(
        case, "stale-process-holds-gpu", certainty, weight,
        f"Processes of an earlier vLLM run still hold{held}.",
        "The log shows engine processes that do not belong to this start; their memory is missing in its check."
        if certainty == "certain"
        else "This is a restart in the same log, and most of the card was already in use when it began.",
        lines=[_LISTED.pattern], refuted=check.refuted(seen), phase="init",
        fixes=[
            advice("end the leftover VLLM:: processes before the next start", "certain"),
            advice("stop the server with SIGTERM, not SIGKILL", "likely"),
        ],
    )  # fmt: skip


def _sureness(case: Case, seen: dict[str, float]) -> tuple[How, int] | None:
    """Certain with the processes in the log; likely for a restart into a card that is mostly in use."""
    texts = [event.text for event in case.run.events] + [line.text for line in case.run.last]
    listed = any(_LISTED.search(text) for text in texts)
    if listed:
        return "certain", 40
    if case.run.index > 0 and seen and not on_unified_memory(case) and seen["free"] < 0.5 * seen["total"]:
        return "certain", 35
    return None
