"""No mem_fraction_static works: below, the pool is negative; above, what lies outside does not fit.

What you see: "Not enough memory. Please try to increase --mem-fraction-static" at one value and CUDA out of
memory (in the draft model, in graph capture or in the first prefill) one or two hundredths higher.

What misleads: the two messages give opposite advice, increase and decrease, so people go back and forth.

What is true: the fraction must exceed weights / total, and total x (1 - f) must hold what is not in the
budget: graphs, workspaces, tables, activations and, through 0.5.13, the draft model's weights and KV. The two
bounds have met: the interval is empty.

What helps: something other than the fraction. Fewer or smaller weights per GPU (tensor parallelism,
quantisation, no draft), or less outside the budget: --cuda-graph-max-bs, --max-running-requests,
--chunked-prefill-size, --context-length.
"""

from __future__ import annotations

from ullage.core.finding import Case, Change, Finding
from ullage.engines.sglang.causes._oom import oom
from ullage.engines.sglang.causes._terms import (
    advice,
    charges_draft,
    fraction,
    max_bs,
    more_ranks,
    no_room,
    proof,
    speculates,
    terms,
)

#: with a draft outside the budget, this much of the card is seldom enough for draft, graphs and activations
_HIGH = 0.8
#: how near the lower bound a fraction is that "one step down" would cross it
_STEP = 0.03


def stuck(case: Case) -> bool:
    """True if the value in force fails on one side and the next one on the other."""
    f, interval = fraction(case), case.interval
    empty = interval is not None and interval.empty
    if no_room(case):
        known = terms(case)
        if known.free is not None or known.minimum is not None:
            return empty and known.share is not None and known.share > _HIGH
        return speculates(case) and not charges_draft(case) and f is not None and f >= _HIGH
    failure = oom(case)
    if failure is None or failure.place not in ("graphs", "draft", "pool", "workspace") or f is None:
        return False
    share = terms(case).share
    return empty and share is not None and share > f - _STEP


def test(case: Case) -> Finding | None:
    if not stuck(case):
        return None
    known, interval = terms(case), case.interval
    low = f"above {known.share:.3f} (the weights)" if known.share is not None else "above the weights' share"
    high = "what lies above it must still hold graphs and activations"
    if interval is not None and interval.high is not None:
        high = f"at most {interval.high:.3f}" + (f" ({interval.high_because})" if interval.high_because else "")
    draft = speculates(case) and not charges_draft(case)
    return Finding(
        cause="stuck-between-two-fractions", certainty="likely", weight=46,
        summary="No mem_fraction_static works for this launch: a lower one leaves no pool, a higher one no "
        "room for what lies outside it.",
        explanation=f"The fraction must lie {low}; and {high}. "
        + ("This release does not count the draft model's weights and KV in the budget, so they too must fit "
           "outside it. " if draft else "")
        + "The two messages, to increase and to decrease it, are each right about their own side; "
        "another setting has to open the gap.",
        evidence=proof(case, "free_before_weights_gib", "free_after_weights_gib"),
        fixes=tuple(_fixes(case)),
    )  # fmt: skip


def _fixes(case: Case) -> list[Change]:
    fixes = [
        more_ranks(case),
        max_bs(case, 4, "fewer graphs and smaller tables outside the budget", max_running_requests=16),
        advice("smaller activations of a prefill", "possible", chunked_prefill_size=2048),
    ]
    if speculates(case):
        fixes.insert(1, advice("without the draft its weights, KV and graphs fall away"))
    return fixes
