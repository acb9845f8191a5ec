"""A hybrid or sliding-window model: fixed state, or a reserve, is larger than the budget.

What you see: "Loaded weights leave no GPU memory ... Raise --mem-fraction-static above 0.923" while a higher
value is already in force, "Not enough GPU memory for hybrid (mamba/linear-attention) state cache", "state
cache is too small to serve any requests", or an SWA pool that cannot hold one request.

What misleads: the fraction in the message is computed from the weights alone; raising the setting changes
nothing because another term decides.

What is true: hybrid models keep a recurrent state for each request slot, and newer releases reserve the
larger of total x (1 - f) and a fixed activation and state floor. That floor, or slots x state, exceeds what
the weights left.

What helps: fewer slots (--max-running-requests, --max-mamba-cache-size), a smaller state type
(--mamba-ssm-dtype bfloat16), a strategy with fewer slots per request, a smaller --chunked-prefill-size, less
speculation, more GPUs.
"""

from __future__ import annotations

import re

from ullage.core.finding import Case, Finding
from ullage.engines.sglang.causes._terms import advice, proof, terms

_TEXT = re.compile(
    r"hybrid \(mamba|linear-attention\) state cache|state cache is too small|max_mamba_cache_size"
    r"|SWA pool[^\n]*(?:cannot hold|leaves no room)|Not enough space for mamba",
    re.IGNORECASE,
)


def floor_applies(case: Case) -> bool:
    """True if the message names the hybrid state, or asks for a fraction below the one in force."""
    known = terms(case)
    if _TEXT.search(case.text):
        return True
    bound = known.suggested if known.suggested is not None else known.minimum
    return bound is not None and known.fraction is not None and bound < known.fraction


def test(case: Case) -> Finding | None:
    if not floor_applies(case):
        return None
    known = terms(case)
    below = ""
    if known.suggested is not None and known.fraction is not None:
        below = (
            f"The message asks for a fraction above {known.suggested:g} while {known.fraction:g} is in force, "
            "so the weights are not what decides. "
        )
    slots = case.deployment.launch.integer("max_running_requests")
    return Finding(
        cause="hybrid-state-floor-exceeds-budget", certainty="certain", weight=42, phase="kv_pool",
        summary="The fixed state (or reserve) of this hybrid model is larger than what the weights left; "
        "a higher mem_fraction_static does not help.",
        explanation=below + "The reserve is the larger of total x (1 - mem_fraction_static) and a fixed "
                            "floor for "
        "activations and request states; raising the fraction changes only the smaller of the two.",
        evidence=proof(case, "free_after_weights_gib", "suggested_fraction"),
        fixes=(
            advice("fewer request slots keep less state", max_running_requests=max(1, (slots or 64) // 2)),
            advice("half the bytes of each recurrent state", mamba_ssm_dtype="bfloat16"),
            advice("a smaller prefill chunk lowers the activation "
                   "floor", "possible", chunked_prefill_size=2048),
        ),
    )  # fmt: skip
