"""Out of memory in a step of the service: what the four causes of it share."""

from __future__ import annotations

from collections.abc import Iterator

from ullage.core.finding import Case, Change, Finding, How
from ullage.engines.sglang.causes._oom import Oom, not_these, oom
from ullage.engines.sglang.causes._terms import advice, lower_fraction, proof


def in_service(case: Case) -> Oom | None:
    """The allocation that failed in a step (warm-up included), or None where it failed earlier."""
    failure = oom(case)
    if failure is None or case.phase not in ("serving", "warmup"):
        return None
    return None if failure.place == "graphs" and case.phase != "serving" else failure


def finding(
    case: Case, failure: Oom, cause: str, weight: int, summary: str, true: str, *, certainty: How = "likely",
    fixes: Iterator[Change] | tuple[Change, ...] = (),
) -> Finding:  # fmt: skip
    return Finding(
        cause=cause, certainty=certainty, weight=weight, summary=summary,
        explanation=f"{failure.story}{true} Under load the fraction must go down, the opposite of what "
                    f"the message "
        "at pool sizing asks for.",
        evidence=proof(case, "free_at_ready_gib"), refuted=tuple(not_these(failure)),
        fixes=(*fixes, *_lower(case, failure)),
    )  # fmt: skip


def _lower(case: Case, failure: Oom) -> Iterator[Change]:
    lower = list(lower_fraction(case, failure.lacking, 0.04, "what the pool gives up is free for activations"))
    yield from lower or [advice("a lower mem_fraction_static leaves more for activations")]
