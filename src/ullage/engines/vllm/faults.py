"""Sizes that vLLM's ranks cannot share, in its own words: cause tp-not-divisible."""

from __future__ import annotations

from collections.abc import Iterator

from ullage.core.deployment import Deployment
from ullage.core.model import Model
from ullage.engines.runtime.even import uneven_tensors
from ullage.engines.runtime.loading import groups_of
from ullage.engines.vllm.layout import Layout, cuts_of, layout

#: routers whose tp must not exceed the experts (models/qwen2_moe.py, qwen3_moe.py, mixtral.py)
_TP_AT_MOST_EXPERTS = (
    "qwen2_moe",
    "qwen3_moe",
    "mixtral",
    "deepseek_v2",
    "deepseek_v3",
    "kimi_k2",
    "minimax_m2",
)


def faults(deployment: Deployment) -> tuple[str, ...]:
    """One sentence for each size that stops the load, whatever memory there is; () where all divide.

    Experts that do not divide by the ranks are spread unevenly and are no fault (fused_moe/layer.py,
    determine_expert_map).
    """
    model = deployment.model
    return tuple(_faults(model, layout(deployment))) if model is not None else ()


def _faults(model: Model, at: Layout) -> Iterator[str]:
    cuts = cuts_of(model, at)
    if model.num_heads and model.num_heads % at.tp:
        yield (
            f"Total number of attention heads ({model.num_heads}) must be divisible by tensor parallel size "
            f"({at.tp})."
        )
    for heads in sorted({layer.kv_heads for layer in model.layers if layer.kind != "mla" and layer.kv_heads}):
        if heads % at.tp and at.tp % heads:
            yield f"{heads} KV heads and tensor parallel size {at.tp}: neither divides the other"
    if model.model_type in _TP_AT_MOST_EXPERTS and at.tp > model.num_experts > 0:
        yield f"Tensor parallel size {at.tp} is greater than the number of experts {model.num_experts}."
    if at.pp > model.num_layers > 0:
        yield f"{model.num_layers} layers cannot be spread over {at.pp} pipeline stages"
    rows = -(-model.vocab_size // 64) * 64
    if rows % at.tp:
        yield f"{rows} is not divisible by {at.tp}"
    yield from uneven_tensors(groups_of(model), model, cuts)
