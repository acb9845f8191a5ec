"""The image (video, audio) encoder's activations are larger than what is left outside mem_fraction_static.

What you see: CUDA out of memory while serving, in the vision tower, its attention or get_image_feature, as a
request with large or many images arrives.

What misleads: text requests of any length work, and the failed amount can be many GiB.

What is true: encoders work on all patches of a request at once; attention without a fused kernel needs
patches squared. Nothing of it is in the pool's budget, and chunked prefill does not split it.

What helps: limits on images and pixels per request (--limit-mm-data-per-request, --mm-process-config), a
fused encoder attention (--mm-attention-backend), a lower fraction, a data-parallel encoder.
"""

from __future__ import annotations

from ullage.core.finding import Case, Finding
from ullage.engines.sglang.causes._serving import finding, in_service
from ullage.engines.sglang.causes._terms import advice


def test(case: Case) -> Finding | None:
    failure = in_service(case)
    if failure is None or failure.place != "vision":
        return None
    return finding(
        case, failure, "vision-encoder-activation-oom", 38,
        "The image encoder's activations did not fit beside the pool.",
        "The encoder works on all patches of a request at once, outside the pool's budget and outside "
        "chunked prefill.",
        certainty="certain",
        fixes=(
            advice(
                "a fused encoder attention needs no patches x patches matrix", mm_attention_backend=_fused(case)
            ),
            advice("fewer images or pixels per request (--limit-mm-data-per-request, --mm-process-config)"),
        ),
    )  # fmt: skip


def _fused(case: Case) -> str:
    """FlashAttention 3 runs on SM80 to SM90 only; Triton's encoder attention everywhere."""
    gpu = case.deployment.machine.gpu if case.deployment.machine else None
    return (
        "fa3"
        if gpu is not None and gpu.capability is not None and gpu.capability[0] in (8, 9)
        else "triton_attn"
    )
