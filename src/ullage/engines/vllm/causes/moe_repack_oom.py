"""Expert weights are laid out anew after loading, and the second copy does not fit beside the first.

What you see: every shard is loaded, then torch.OutOfMemoryError under process_weights_after_loading, in a
function that repacks, shuffles or swizzles experts (Marlin, FlashInfer, CUTLASS, AITER layouts).

What misleads: the weights did fit, the progress bar is at 100 %, and the card has shown that it can hold
them. The engine's line (0.13.0 and newer) advises a lower gpu_memory_utilization, which has no influence
here.

What is true: the kernel wants another layout. All experts of a layer are copied into a new tensor while the
old one is still alive, so the peak is the weights plus one layer of experts, or two.

What helps: more cards or another split of the layers, so that the fullest rank has a layer of experts to
spare; a release or back end that repacks expert by expert; another MoE back end that takes the checkpoint's
own layout.
"""

from __future__ import annotations

from ullage.core.finding import Case, Change, Finding
from ullage.core.units import GIB
from ullage.engines.vllm.causes._case import advice, found, gib, ran, size
from ullage.engines.vllm.causes._oom import not_these, oom, place, shared_with

_LAYOUT = (
    r"repack|for_marlin|to_marlin|shuffle|swizzle|prepare_\w*moe|moe_wna16_marlin|convert_to_\w*kernel_format"
    r"|process_weights_after_loading$"
)
_EXPERTS = r"moe|expert|marlin_utils_fp4|mxfp4"


def test(case: Case) -> Finding | None:
    failure = oom(case)
    if failure is None or place(case) != "repack" or not (ran(case, _LAYOUT) and ran(case, _EXPERTS)):
        return None
    layer = _expert_layer_gib(case)
    more = f" One layer of experts is about {gib(layer)} on a rank." if layer else ""
    return found(
        case, "moe-repack-oom", "certain", 35,
        f"The experts are repacked after loading and the second copy does not fit. {failure.story}".strip(),
        f"The failure is in the change of layout, after the last shard was read.{more}",
        refuted=not_these(case, failure), contributing=shared_with(failure), phase="weights",
        fixes=[
            _fewer_experts(case),
            advice("a release that repacks expert by expert into a preallocated tensor", "possible"),
            advice("a MoE back end that takes the checkpoint's layout", "possible", moe_backend="triton"),
        ],
    )  # fmt: skip


def _fewer_experts(case: Case) -> Change:
    """More ranks of tensor parallelism; with pipeline stages the stages are what holds whole experts apart."""
    if size(case, "pipeline_parallel_size") > 1:
        return advice(
            "a split of the layers that leaves the fullest stage one layer of experts to spare "
            "(VLLM_PP_LAYER_PARTITION), or more GPUs"
        )
    return advice("fewer experts on each card", tensor_parallel_size=2 * size(case, "tensor_parallel_size"))


def _expert_layer_gib(case: Case) -> float | None:
    """GiB of one layer of routed experts on a rank, three projections, at the checkpoint's average bits."""
    model = case.deployment.model
    if model is None or not (model.num_experts and model.parameters and model.checkpoint_bytes):
        return None
    weights = 3 * model.num_experts * model.hidden_size * model.moe_intermediate_size
    ranks = size(case, "tensor_parallel_size") * size(case, "data_parallel_size")
    return weights * model.checkpoint_bytes / model.parameters / ranks / GIB or None
