"""The profile misses the true peak of one long prefill of this architecture.

What you see: torch.OutOfMemoryError under load at the first long prompt, in a projection or an index of the
attention (wq_b, kv_b_proj, indexer, a context or workspace function of MLA), with a share near 1.

What misleads: the profile ran with the same max_num_batched_tokens and passed, so the batch seems covered.

What is true: the dummy run has no attention metadata, so attention is skipped, and it spreads the tokens over
many sequences. What MLA and sparse attention build for one long sequence (up-projected keys of the cached
context, index scores, top-k buffers) is never measured.

What helps: a share lower by 0.02 to 0.05, or a smaller max_num_batched_tokens; from 0.11.0 the up-projection
of MLA is in the profile, index buffers of sparse attention in some releases not.
"""

from __future__ import annotations

from ullage.core.finding import Case, Finding
from ullage.engines.vllm.causes._case import found, ran, says, utilization
from ullage.engines.vllm.causes._checks import checked, fewer_tokens
from ullage.engines.vllm.causes._oom import not_these, oom, place, shared_with

#: parts of MLA and sparse attention that only run on real attention metadata
_FRAMES = (
    r":_?forward_prefill|_compute_prefill_context|:_context_parallel_compute_prefill|mla_attention|/mla/|indexer"
    r"|fp8_mqa_logits|sparse_attn"
)
_WORDS = r"\bwq_b\b|\bkv_b_proj\b|\bq_b_proj\b|mqa_logits|\bindexer\b"


def test(case: Case) -> Finding | None:
    failure = oom(case)
    if failure is None or not (ran(case, _FRAMES) or says(case, _WORDS)):
        return None
    bare = case.run.reached in (None, "args", "init") and not case.frames
    if not (case.phase == "serving" or place(case) == "serving" or bare):
        return None
    lower = round(utilization(case) - 0.03, 2)
    return found(
        case, "prefill-peak-not-profiled", "likely", 30,
        f"One long prefill needs more than the profile measured, because the dummy run skips attention. "
        f"{failure.story}"
        .strip(),
        "The failing buffer belongs to the attention of one sequence, which the profile never runs.",
        refuted=not_these(case, failure), contributing=shared_with(failure), phase="serving",
        fixes=[
            checked(case, {"gpu_memory_utilization": lower}, "leaves more outside the pool"),
            *fewer_tokens(case, "shorter prefill steps"),
        ],
    )  # fmt: skip
