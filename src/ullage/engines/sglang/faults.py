"""Sizes that SGLang's ranks cannot share, in its own words: cause tp-not-divisible."""

from __future__ import annotations

from collections.abc import Iterator

from ullage.core.deployment import Deployment
from ullage.core.model import Model
from ullage.engines.runtime.even import uneven_experts, uneven_tensors
from ullage.engines.runtime.loading import groups_of
from ullage.engines.sglang.layout import Layout, cuts_of, layout

#: routers whose tp must not exceed the experts (models/qwen2_moe.py, qwen3_moe.py, deepseek_v2.py)
_TP_AT_MOST_EXPERTS = (
    "qwen2_moe",
    "qwen3_moe",
    "deepseek_v2",
    "deepseek_v3",
    "kimi_k2",
    "glm4_moe",
    "minimax_m2",
)


def faults(deployment: Deployment) -> tuple[str, ...]:
    """One sentence for each size that stops the load, whatever memory there is; () where all divide."""
    model = deployment.model
    return tuple(_faults(model, layout(deployment))) if model is not None else ()


def _faults(model: Model, at: Layout) -> Iterator[str]:
    cuts = cuts_of(model, at)
    if model.num_heads and model.num_heads % at.attn_tp:
        yield f"{model.num_heads} attention heads are not divisible by {at.attn_tp} ranks of one attention"
    for heads in sorted({layer.kv_heads for layer in model.layers if layer.kind != "mla" and layer.kv_heads}):
        if heads % at.attn_tp and at.attn_tp % heads:
            yield f"{heads} KV heads and attention tensor parallel size {at.attn_tp}: neither divides the other"
    if model.model_type in _TP_AT_MOST_EXPERTS and at.tp > model.num_experts > 0:
        yield f"Tensor parallel size {at.tp} is greater than the number of experts {model.num_experts}."
    if at.pp > model.num_layers > 0:
        yield f"{model.num_layers} layers cannot be spread over {at.pp} pipeline stages"
    yield from uneven_experts(model, cuts)
    yield from uneven_tensors(groups_of(model), model, cuts)
