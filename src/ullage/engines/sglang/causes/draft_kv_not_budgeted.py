"""The draft model's weights or KV cache are allocated after the pool was sized without them.

What you see: the target's pool is allocated, then, while the draft worker (EAGLE, NEXTN, multi-layer heads,
standalone draft) loads or allocates its own pool, CUDA out of memory. "Memory pool end" may appear several
times, each time with less.

What misleads: the pool is complete, so the memory seems to have been enough; raising the fraction makes it
worse.

What is true: through 0.5.13 the budget counts neither the draft's weights nor its KV (as many tokens as the
target's, at the draft's own bytes per token); they must fit outside mem_fraction_static. From 0.5.14 they are
counted, except where a pool configurator (sliding window, multi-layer drafts) forgets the draft layers.

What helps: a lower fraction, --max-total-tokens as a cap for both pools, or a release that counts them.
"""

from __future__ import annotations

from collections.abc import Iterator

from ullage.core.finding import Case, Change, Finding
from ullage.engines.sglang.causes._oom import Oom, not_these, oom
from ullage.engines.sglang.causes._terms import (
    advice,
    charges_draft,
    checked,
    count,
    draft_begun,
    lower_fraction,
    proof,
    speculates,
)


def test(case: Case) -> Finding | None:
    failure = oom(case)
    if failure is None or not _of_draft(case, failure):
        return None
    left = [
        f.value.value
        for draft in (False, True)
        for f in case.run.figures("free_after_kv_pool_gib", draft=draft)
    ]
    marks = " then ".join(f"{x:.2f}" for x in left) if len(left) > 1 else ""
    return Finding(
        cause="draft-kv-not-budgeted", certainty="certain" if marks or failure.draft else "likely", weight=38,
        summary="The draft model's pool (or weights) did not fit beside a KV pool that was sized without it.",
        explanation=failure.story
        + (f"Free memory after each pool: {marks} GiB. " if marks else "")
        + _rule(case)
        + "A larger fraction makes it worse.",
        evidence=proof(case, "free_after_kv_pool_gib", "kv_tokens"),
        refuted=tuple(not_these(failure)), fixes=tuple(_fixes(case, failure)),
    )  # fmt: skip


def _of_draft(case: Case, failure: Oom) -> bool:
    """True if the draft worker was at work before graphs: by its frames, or since the target's pool stands."""
    if failure.place == "graphs" or case.phase in ("graph_capture", "serving", "warmup"):
        return False
    pools = len(case.run.figures("free_after_kv_pool_gib")) > 1
    return failure.draft or (speculates(case) and draft_begun(case)) or (pools and speculates(case))


def _fixes(case: Case, failure: Oom) -> Iterator[Change]:
    tokens = count(case, "kv_tokens")
    if tokens:
        yield checked(
            case, {"max_total_tokens": tokens // 2}, "caps the target's and the draft's pool together"
        )
    yield from lower_fraction(case, failure.lacking, 0.1, "leaves room for the draft outside the pool")
    yield advice("a release from 0.5.14 on counts the draft's weights and KV in the budget", "possible")


def _rule(case: Case) -> str:
    if case.deployment.launch.release is None:
        return (
            "Through 0.5.13 the budget counts neither the draft's weights nor its KV; later releases "
            "do, except where "
            "a pool configurator forgets the draft layers. "
        )
    if charges_draft(case):
        return "This release counts the draft; the pool configurator of this model does not. "
    return "This release counts neither the draft's weights nor its KV in the budget. "
