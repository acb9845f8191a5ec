"""Weights of one rank where the checkpoint's tensors are not known: a share of its size, and what ranks repeat.

Estimated. Replicated on every rank: MLA's first projections, routers, vision towers. Under DP attention each
group holds the attention whole. MLA keeps absorbed copies beside kv_b_proj. ``weights`` counts tensors.
"""

from __future__ import annotations

from ullage.core.model import Layer, Model
from ullage.core.units import GIB, Band
from ullage.engines.sglang.settings import Settings

#: rank of the query's first projection; every published MLA model above 4096 wide has this one
QUERY_RANK = 1536
#: what a load takes beside the tensors: kernels' workspaces, 2 MiB segments, lazily loaded code
BESIDE = Band(0.2 * GIB, 0.05 * GIB, 1.2 * GIB)


def weights_by_shape(model: Model | None, s: Settings) -> Band | None:
    """Bytes on one rank with limits; None where the checkpoint's size is unknown."""
    if model is None or not model.checkpoint_bytes:
        return None
    value = (model.checkpoint_bytes - unloaded_bytes(model, s)) / (s.tp * s.pp)
    value += replicated_bytes(model) / s.pp * (1 - 1 / s.tp)
    value += attention_bytes(model) / s.pp * (1 / s.attn_tp - 1 / s.tp)
    value += absorbed_bytes(model, s)
    low, high = value * 0.98 + BESIDE.low, value * 1.03 + BESIDE.high
    return Band(value * 1.004 + BESIDE.value, low, high)


def unloaded_bytes(model: Model, s: Settings) -> float:
    """Multi-token-prediction layers of the checkpoint, which only NEXTN loads: as large as an average layer."""
    if not model.num_nextn_layers or s.speculative or not model.num_layers or not model.checkpoint_bytes:
        return 0
    return model.checkpoint_bytes * model.num_nextn_layers / (model.num_layers + model.num_nextn_layers)


def bytes_per_parameter(model: Model) -> float:
    if not model.parameters or not model.checkpoint_bytes:
        return 2.0
    return model.checkpoint_bytes / model.parameters


def replicated_bytes(model: Model) -> float:
    """Bytes that every rank holds whole: MLA's q_a and kv_a, routers, the vision tower, in 16 bits."""
    mla = [layer for layer in model.layers if layer.kind == "mla"]
    query = QUERY_RANK if model.hidden_size > 4096 else 0
    first = sum(model.hidden_size * (query + layer.kv_lora_rank + layer.rope_dim) for layer in mla)
    indexer = sum(layer.index_dim * (model.hidden_size + 64 * QUERY_RANK) for layer in mla if layer.index_dim)
    routers = model.num_layers * model.hidden_size * model.num_experts
    tower = 0.6 * GIB if model.vision is not None else 0
    return 2 * (first + indexer + routers) + tower


def attention_bytes(model: Model) -> float:
    """Bytes of all weights that an attention group divides, by shapes: heads and the embedding.

    Quantised as the rest of a dense model; at least 8 bits where there are experts.
    """
    elements = sum(_attention_elements(model, layer) for layer in model.layers)
    elements += model.vocab_size * model.hidden_size
    each = bytes_per_parameter(model)
    return elements * (max(1.0, each) if model.num_experts else each)


def _attention_elements(model: Model, layer: Layer) -> float:
    heads, hidden = model.num_heads, model.hidden_size
    if layer.kind == "mla":
        # q_b, kv_b and o_proj with heads of 128 + rope and 128
        query = QUERY_RANK if hidden > 4096 else hidden
        return heads * (query * (128 + layer.rope_dim) + layer.kv_lora_rank * 256 + hidden * 128)
    if layer.kind in ("full", "sliding", "chunked"):
        value_dim = layer.v_head_dim or layer.head_dim
        return hidden * (heads * (layer.head_dim + value_dim) + layer.kv_heads * (layer.head_dim + value_dim))
    return 0


def absorbed_bytes(model: Model, s: Settings) -> float:
    """w_kc and w_vc of MLA: kv_lora_rank x (128 + 128) x heads / attn_tp, in 16 bits, beside kv_b_proj."""
    mla = [layer for layer in model.layers if layer.kind == "mla"]
    return sum(layer.kv_lora_rank * 256 * model.num_heads / s.attn_tp * 2 for layer in mla) / s.pp
