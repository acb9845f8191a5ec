"""A sparse layer asks for a workspace that grows with the batch of tokens, inside the dummy run.

What you see: torch.OutOfMemoryError in profile_run or _dummy_run, under fused_moe, modular_kernel,
workspace.py, DeepGEMM or an indexer, before the KV cache is sized.

What misleads: the weights are loaded and GiB are free, so people change gpu_memory_utilization. The pool does
not exist yet; the share has no influence on this pass.

What is true: the buffers between the two projections of the experts hold max_num_batched_tokens x experts per
token rows (with DP and expert parallelism the tokens of all ranks), and sparse attention gathers keys for the
same batch. The profile runs that worst case at once.

What helps: a smaller --max-num-batched-tokens, in proportion; another MoE back end; more cards.
"""

from __future__ import annotations

from ullage.core.finding import Case, Finding
from ullage.core.units import GIB
from ullage.engines.vllm.causes._case import advice, found, gib, size
from ullage.engines.vllm.causes._checks import fewer_tokens, in_force
from ullage.engines.vllm.causes._oom import not_these, oom, place, shared_with


def test(case: Case) -> Finding | None:
    failure = oom(case)
    if failure is None:
        return None
    where = place(case)
    sparse = case.deployment.model is not None and case.deployment.model.num_experts > 0
    if where != "workspace" and not (where == "profile" and sparse and case.phase == "profile"):
        return None
    rows = _rows_gib(case)
    tokens = in_force(case).max_num_batched_tokens
    return found(
        case, "moe-workspace-profile-oom", "certain" if where == "workspace" else "likely",
        30 if where == "workspace" else 15,
        f"The workspace of the sparse layers for a batch of {tokens:,} tokens does not fit beside the "
        f"weights. {failure.story}".strip(),
        f"It grows with "
        f"max_num_batched_tokens{f'; the expert rows of one buffer are {gib(rows)}' if rows else ''}. The "
        f"pool is sized only after this pass, so gpu_memory_utilization does not matter here.",
        shown=["weights_gib"], refuted=not_these(case, failure), contributing=shared_with(failure),
        phase="profile",
        fixes=[
            *fewer_tokens(case, "the workspace shrinks in proportion", 4),
            advice("fewer weights on each card", "possible", tensor_parallel_size=2 * in_force(case).cache.tp),
        ],
    )  # fmt: skip


def _rows_gib(case: Case) -> float | None:
    """GiB of tokens x experts per token x 2 x intermediate size, 2 bytes each, on one rank."""
    model = case.deployment.model
    if model is None or not (model.experts_per_token and model.moe_intermediate_size):
        return None
    rows = size(case, "max_num_batched_tokens", 8192) * model.experts_per_token
    return rows * 2 * model.moe_intermediate_size * 2 / size(case, "tensor_parallel_size") / GIB
