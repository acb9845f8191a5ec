"""mem_fraction_static allows less than what the weights already hold, so no KV pool is left.

What you see: after "Load weight end", on every rank, "Not enough memory. Please try to increase
--mem-fraction-static" (0.4.0 to 0.5.23), or from 0.5.14 "Loaded weights leave no GPU memory for the KV cache
under --mem-fraction-static=...", although GiB are free.

What misleads: memory is free, so people lower the fraction "to leave more room", look for NCCL buffers,
fragmentation or another process. The fraction does not limit the weights and is not a share for them: it says
how much of the GPU weights and KV pool may take together, and everything above it is kept free for graphs and
activations. Lowering it takes memory away from the pool only.

What is true: pool = free_after_weights - total x (1 - mem_fraction_static), where total is what was free
before the weights (the smallest over the ranks). It is zero or negative, so no fraction up to 1 -
free_after_weights / total can start.

What helps: a fraction clearly above that bound, as long as what stays outside it still holds the graphs and
the activations of one prefill; else fewer bytes of weights on each GPU (more tensor, pipeline or expert
parallelism, a smaller quantisation, no draft model).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from ullage.core.finding import Case, Change, Finding, How, Refuted
from ullage.engines.sglang.causes._terms import (
    Terms,
    advice,
    better_fractions,
    checked,
    more_ranks,
    no_room,
    proof,
    smallest,
    terms,
)
from ullage.engines.sglang.causes.dp_attention_replicated_weights import replicated
from ullage.engines.sglang.causes.hybrid_state_floor_exceeds_budget import floor_applies
from ullage.engines.sglang.causes.instance_accounting_shared_gpu import held_elsewhere
from ullage.engines.sglang.causes.stuck_between_two_fractions import stuck

_SHOWN = ("free_before_weights_gib", "free_after_weights_gib", "weights_gib", "minimum_viable")


def test(case: Case) -> Finding | None:
    known = terms(case)
    negative = known.pool is not None and known.pool <= 0
    if not no_room(case) and not (negative and _dies_at_pool(case)):
        return None
    other = floor_applies(case) or replicated(case) or held_elsewhere(case) or stuck(case)
    certainty: How = "possible" if other else "certain" if known.pool is not None or known.minimum else "likely"
    return Finding(
        cause="budget-below-weights", certainty=certainty, weight=40 if negative else 20, phase="kv_pool",
        summary=_summary(known), explanation=_explanation(known), evidence=proof(case, *_SHOWN),
        refuted=tuple(_refuted(case, known)), fixes=tuple(_fixes(case, known)),
    )  # fmt: skip


def _dies_at_pool(case: Case) -> bool:
    """True if the run ended as the pool was to be sized, with nothing but echoes to say why."""
    return case.outcome == "crashed" and case.phase == "kv_pool" and case.root is None


def _summary(known: Terms) -> str:
    if known.share is None:
        return "mem_fraction_static is smaller than the share of the weights; no KV pool is left."
    held = f"The weights alone hold {100 * known.share:.2f} % of the GPU memory that was free before them"
    if known.fraction is None:
        return f"{held}, more than mem_fraction_static allows; no KV pool is left."
    if known.fraction > known.share + 0.0005:
        return f"{held}; SGLang refused mem_fraction_static {known.fraction:g} for want of a KV pool."
    return (
        f"{held}; mem_fraction_static {known.fraction:g} lets weights and KV pool together take only "
        f"{100 * known.fraction:g} %, so no KV pool is left."
    )


def _explanation(known: Terms) -> str:
    parts = [
        "The pool is what is free after the weights, less the part of the GPU that SGLang keeps for the rest"
    ]
    if known.total is not None and known.free is not None and known.fraction is not None:
        reserve = known.total * (1 - known.fraction)
        short = "more than the" if reserve >= known.free else "which leaves too little of the"
        parts.append(
            f"(graphs, activations): total x (1 - mem_fraction_static) = {reserve:.2f} GiB at "
            f"{known.fraction:g}, {short} {known.free:.2f} GiB that are free: {known.formula}."
        )
    else:
        parts.append("(graphs, activations): total x (1 - mem_fraction_static).")
    if known.share is not None:
        least = math.ceil(known.share * 1000) / 1000
        parts.append(f"No fraction below {least:.3f} can start, whatever NCCL or the graphs take.")
    if known.total is not None and known.fraction is not None and known.fraction > 0.05:
        lower = Terms(known.total, known.free, known.fraction - 0.05)
        if lower.pool is not None:
            parts.append(f"Lowering the fraction makes it worse: {lower.formula}.")
    parts.append(
        "The message is right to say increase; too high a value fails later, in graph capture or a prefill."
    )
    return " ".join(parts)


def _fixes(case: Case, known: Terms) -> Iterator[Change]:
    share = known.share
    possible = share is None or share < 0.965
    if possible and share is None:
        yield advice(
            "the fraction must exceed weights / total; the pool is what lies above it", mem_fraction_static=0.9
        )
    elif possible:
        best = better_fractions(case, known)
        yield from best
        yield from _others(case, share or 0.0, best)
    if not possible or (share is not None and share > 0.88):
        yield more_ranks(case)


def _others(case: Case, share: float, best: list[Change]) -> Iterator[Change]:
    """Beside the best fraction one that keeps more room, and half the bytes a token at the best."""
    wanted = next((value for c in best for value in c.change.values() if isinstance(value, float)), None)
    if wanted is None:
        return
    lower = math.ceil((share + wanted) * 50) / 100
    if share + 0.01 < lower < wanted - 0.005:
        yield checked(
            case, {"mem_fraction_static": lower}, "a smaller pool, with more room for graphs and prefill"
        )
    if case.deployment.launch.text("kv_cache_dtype") in (None, "auto"):
        yield checked(
            case,
            {"mem_fraction_static": wanted, "kv_cache_dtype": "fp8_e4m3"},
            "half the bytes a token, where the attention backend reads fp8; a little less exact",
            certainty="possible",
        )


def _refuted(case: Case, known: Terms) -> Iterator[Refuted]:
    pool, used = known.pool, smallest(case, "init_used_gib")
    if pool is not None and pool < 0:
        size = f"{used:.2f} GiB" if used is not None else "tenths of a GiB"
        short = f"the budget is short of {-pool:.2f} GiB"
        yield Refuted("NCCL buffers", f"all that was taken before the weights is {size}; {short}")
        yield Refuted(
            "IPC mappings or BAR space", "they do not enter the rule, which reads free device memory only"
        )
    if known.free is not None and known.free > 0:
        yield Refuted(
            "fragmentation", f"{known.free:.2f} GiB are free and nothing was allocated when it was refused"
        )
    yield Refuted("CUDA graphs", "they are captured after the pool; this stage comes before it")
