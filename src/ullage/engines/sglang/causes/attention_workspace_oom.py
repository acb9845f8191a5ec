"""The KV pool takes everything and the attention backend cannot allocate its fixed workspace or tables.

What you see: CUDA out of memory right after "Memory pool end", in the attention backend's constructor,
init_cuda_graph_state or a table of requests, before the first graph is captured.

What misleads: the pool was allocated without complaint; the failed amount is small (128 to 512 MiB).

What is true: the workspace (FlashInfer 384 MiB, 512 MiB for some models, 2 GiB for deterministic mode) and
the tables of request slots x context length are outside the budget and need room in total x (1 -
mem_fraction_static).

What helps: a slightly lower fraction, a shorter --context-length or fewer --max-running-requests (the
tables), a smaller SGLANG_FLASHINFER_WORKSPACE_SIZE, or a backend without workspace (triton).
"""

from __future__ import annotations

import re

from ullage.core.finding import Case, Change, Finding, How
from ullage.engines.sglang.causes._oom import not_these, oom
from ullage.engines.sglang.causes._terms import advice, lower_fraction, proof, speculates

#: FlashInfer's own allocator, inside the workspace it was given (flashinfer allocator.h)
_TOO_SMALL = re.compile(r"Buffer overflow when allocating memory for|Error in function 'aligned_alloc'")


def test(case: Case) -> Finding | None:
    if _TOO_SMALL.search(case.text):
        return _workspace_too_small(case)
    failure = oom(case)
    if failure is None or failure.draft or case.phase in ("serving", "weights"):
        return None
    certainty: How
    if failure.place == "workspace":
        certainty = "certain"
    elif failure.place == "pool" and not speculates(case):
        certainty = "likely"
    else:
        return None
    lower = lower_fraction(case, failure.lacking, 0.03, "leaves room for workspace and tables")
    return Finding(
        cause="attention-workspace-oom", certainty=certainty, weight=32,
        summary="After the KV pool too little was left for the attention backend's workspace and the "
                "request tables.",
        explanation=f"{failure.story}Workspace and tables are not part of the pool's budget; they need "
                    "room outside "
        "mem_fraction_static.",
        evidence=proof(case, "free_after_kv_pool_gib"), refuted=tuple(not_these(failure)),
        fixes=(*lower, advice("smaller tables", max_running_requests=64),
               advice("a backend without a large workspace", "possible", attention_backend="triton")),
    )  # fmt: skip


def _workspace_too_small(case: Case) -> Finding:
    return Finding(
        cause="attention-workspace-oom", certainty="likely", weight=30,
        summary="FlashInfer's workspace is too small for this batch and head layout; GPU memory is not short.",
        explanation="The kernel takes its scratch from a workspace of fixed size, and this step needs more.",
        evidence=proof(case),
        fixes=(
            Change({"SGLANG_FLASHINFER_WORKSPACE_SIZE": 1 << 30}, "a larger workspace (bytes)"),
            advice("or a backend without a workspace", "possible", attention_backend="triton"),
        ),
    )  # fmt: skip
