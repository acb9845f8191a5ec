"""With DP attention ranks hold copies of the attention weights; weights per GPU exceed total / tp.

What you see: "Not enough memory. Please try to increase --mem-fraction-static" (or a negative profiled token
count) in a launch with --enable-dp-attention, with "mem usage" far above the checkpoint's size divided by tp.

What misleads: the same model starts without DP attention; the fraction already is high, and the message asks
for more.

What is true: attention is sharded over tp / dp ranks only; with dp = tp each GPU holds all of it (and,
without --enable-dp-lm-head, embedding tables are held in full too). Some platforms keep a second, shuffled
copy of the experts. What is left lies below total x (1 - mem_fraction_static).

What helps: expert parallelism (--ep-size) or more GPUs so that the expert weights per GPU shrink, a smaller
dp, or a higher fraction where the arithmetic allows it.
"""

from __future__ import annotations

from ullage.core.finding import Case, Finding
from ullage.engines.sglang.causes._terms import Terms, advice, better_fractions, no_room, proof, terms

#: above this share of the card the weights are the fault rather than the fraction
_MOST = 0.8


def replicated(case: Case) -> bool:
    """True if the pool is refused under DP attention with weights that fill most of the card."""
    launch = case.deployment.launch
    copies = launch.integer("dp_size") or 1
    if not no_room(case) or not launch.flag("enable_dp_attention") or copies < 2:
        return False
    share = terms(case).share
    return share is None or share > _MOST


def test(case: Case) -> Finding | None:
    if not replicated(case):
        return None
    known, launch = terms(case), case.deployment.launch
    dp, tp = launch.integer("dp_size") or 1, launch.integer("tp_size") or 1
    copies = f"attention is sharded over {max(1, tp // dp)} of {tp} ranks"
    held = f"; the weights hold {100 * known.share:.1f} % of the card" if known.share is not None else ""
    return Finding(
        cause="dp-attention-replicated-weights", certainty="likely", weight=42, phase="kv_pool",
        summary=f"DP attention keeps {dp} copies of the attention weights ({copies}){held}; no KV pool "
                f"is left.",
        explanation=(
            f"With dp_size {dp} {copies}, so the weights per GPU are well above the checkpoint divided "
            f"by {tp}. "
            + _rule(known)
            + "A higher fraction helps only while the share of the weights stays below it."
        ),
        evidence=proof(case, "weights_gib", "free_after_weights_gib", "profiled_tokens"),
        fixes=(
            *better_fractions(case, known),
            advice("the experts, which are most of the weights, are then spread over all ranks", ep_size=tp),
            advice("fewer copies of the attention weights", dp_size=max(1, dp // 2)),
        ),
    )  # fmt: skip


def _rule(known: Terms) -> str:
    """The rule with its numbers, and that they contradict the refusal where they do."""
    if not known.formula or known.pool is None:
        return ""
    if known.pool > 0:
        return (
            f"The printed figures give {known.formula}, which contradicts the refusal: a smaller "
            f"fraction was in "
            "force, or another rank had less free. "
        )
    return f"SGLang's rule gives {known.formula}. "
