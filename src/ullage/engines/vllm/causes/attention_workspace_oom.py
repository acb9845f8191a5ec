"""The pool takes everything, and the attention back end cannot allocate its workspace.

What you see: torch.OutOfMemoryError right after "GPU KV cache size", in the metadata builder of an attention
back end (FlashInfer, MLA), asking for 256 to 394 MiB or a multiple of 72 MiB. Or, at any time,
"Buffer overflow when allocating memory for batch_prefill_tmp_v ... in AlignedAllocator".

What misleads: the pool was sized by the engine itself, graphs are not captured yet, and the amount is small.

What is true: FlashInfer's workspace (256 MiB to 0.11.0, 394 MiB from 0.11.1, 2 GiB in batch-invariant mode)
and the context workspace of MLA are made with the builders, after the budget was fixed. They must come out of
what the share left free, where context and communicator are too. The overflow is another thing: the workspace
exists, and one plan needs more than its fixed size.

What helps: a share lower by 0.02; VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE: smaller where the default is not
needed, larger where a plan overflows it;
another attention back end.
"""

from __future__ import annotations

from ullage.core.finding import Case, Finding
from ullage.engines.vllm.causes._case import found, ran, says, utilization, verbatim
from ullage.engines.vllm.causes._checks import checked
from ullage.engines.vllm.causes._oom import not_these, oom, shared_with

_BUILDER = (
    r":(?:initialize_metadata_builders|initialize_attn_backend|init_attn_backend|_get_workspace_buffer)$"
    r"|attention/backends/\S+\.py:(?:__init__|build\w*|_init\w*workspace\w*)$"
)


#: flashinfer/data/include/flashinfer/allocator.h: the buffer is the engine's, of a fixed size
_TOO_SMALL = r"Buffer overflow when allocating memory for|Error in function 'aligned_alloc'"


def _fixed(case: Case) -> Finding:
    return found(
        case, "attention-workspace-oom", "certain", 32,
        "FlashInfer's plan needs more than the workspace that the engine gave it.",
        "The workspace has a fixed size, and the plan of a large batch or of many heads does not fit in it. "
        "The GPU itself has memory left.",
        fixes=[verbatim("VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE", 1073741824, "a larger workspace", "likely")],
    )  # fmt: skip


def test(case: Case) -> Finding | None:
    if says(case, _TOO_SMALL):
        return _fixed(case)
    failure = oom(case)
    if failure is None or case.phase in ("weights", "serving", "graph_capture") or not ran(case, _BUILDER):
        return None
    lower = round(utilization(case) - 0.02, 2)
    return found(
        case, "attention-workspace-oom", "certain", 32,
        f"The attention back end's workspace does not fit beside the KV cache. {failure.story}".strip(),
        "The workspace is made with the metadata builder, after the budget was fixed, and is not part of it.",
        shown=["kv_gib", "kv_tokens"], refuted=not_these(case, failure), contributing=shared_with(failure),
        phase="kv_pool",
        fixes=[
            checked(case, {"gpu_memory_utilization": lower}, "leaves room for the workspace"),
            verbatim("VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE", 134217728, "a smaller workspace", "possible"),
        ],
    )  # fmt: skip
