"""From a tensor's name to the line of the ledger it counts to, and the way tensor parallelism cuts it.

Names as the hub's checkpoints spell them, numbers or {} in the places of layer and expert. Both engines load by
these names, so that one table serves names made from a config and names read from headers.
"""

from __future__ import annotations

import re
from functools import lru_cache

from msgspec import Struct

from ullage.core.model import Split

#: what may follow a linear layer's name, and whether a cut of the layer's rows or columns cuts it too
_PIECE = re.compile(
    r"\.(weight|bias|weight_scale_inv|weight_scale|weight_scale_2|weight_packed|weight_shape|input_scale"
    r"|activation_scale|weight_zero_point|qweight|qzeros|scales|g_idx|weight_global_scale|input_global_scale"
    r"|SCB|weight\.\w+(?:\.\w+)?)$"
)
_SCALARS = {
    "weight_shape", "weight_scale_2", "input_scale", "weight_global_scale", "input_global_scale",
    "activation_scale", "weight.nested_quant_map", "weight.quant_map", "weight.quant_state.bitsandbytes__nf4",
}  # fmt: skip
_TOWER = re.compile(
    r"(?:^|\.)(?:visual|vision_tower|vision_model|vision_encoder|vision_embed_tokens|audio_tower|vit"
    r"|mm_projector|multi_modal_projector|embed_vision|embed_audio|image_newline|vision_language_adapter"
    r"|patch_merger|sound_encoder|aligner)(?:\.|$)"
)
_PROJECTOR = re.compile(r"projector|merger|adapter|aligner|embed_vision|embed_audio|mlp1\.")
_VOCABULARY = re.compile(r"(?:embed_tokens|tok_embeddings|embeddings|wte|word_embeddings|embed_in)$")
_HEAD = re.compile(r"(?:^|\.)(?:lm_head|head|embed_out|output)$")
_ROWS = re.compile(
    r"\.(?:o_proj|down_proj|w2|out_proj|fc2|wo|attn\.proj|linear_fc2|mlp\.2|output_linear|linear_2|proj"
    r"|wo_b|attn\.dense|self_attn\.dense|dense_4h_to_h|c_proj)(?:\.linear)?$"
)
_COLUMNS = re.compile(
    r"\.(?:q_proj|k_proj|v_proj|q_b_proj|kv_b_proj|gate_proj|up_proj|w1|w3|qkv_proj|gate_up_proj|in_proj\w*|fc1"
    r"|wqkv|qkv|fc0|linear_fc1|mlp\.0|input_linear|linear_1|query_key_value|c_attn|c_fc|dense_h_to_4h"
    r"|b_proj|f_b_proj|g_b_proj|g_proj|wq_b|wo_a)(?:\.linear)?$"
)
_STATE = re.compile(r"\.(?:A_log|D|dt_bias|conv1d|sinks|[qkv]_conv1d|conv\.conv|x_proj|dt_proj)$")
_ROUTER = re.compile(r"\.(?:gate|router|router\.\w+|gate\.\w+|shared_expert_gate|e_score_correction_bias|wg)$")
_GRANITE = ("block_sparse_moe.input_linear", "block_sparse_moe.output_linear")
_ATTENTION = re.compile(r"attn|attention|\.mixer\.[qkvo]_proj")
_RECURRENT = re.compile(r"linear_attn|mamba|mixer|short_conv|\.conv\.")


class Part(Struct, frozen=True):
    """``piece`` is what follows the layer's name ("weight", "weight_scale", "bias"); "" for none."""

    part: str
    split: Split
    piece: str = ""


@lru_cache(maxsize=4096)
def part_of(name: str) -> Part:
    """The part and split of the tensor ``name``; what no rule knows is whole on every rank, under "other"."""
    found = _PIECE.search(name)
    piece = found[1] if found else ""
    base = name[: found.start()] if found else name
    part, split = _tower(base) if _TOWER.search(base) else _language(base)
    return Part(part, "whole" if piece in _SCALARS else _piece_split(split, piece), piece)


def _piece_split(split: Split, piece: str) -> Split:
    """A cut of the inputs leaves the bias whole; a cut of the outputs leaves GPTQ's index of inputs whole."""
    if split == "rows" and piece in ("bias", "SCB"):
        return "whole"
    return "whole" if piece == "g_idx" and split != "rows" else split


def _tower(base: str) -> tuple[str, Split]:
    part = "projector" if _PROJECTOR.search(base) else "vision attention" if _in_attention(base) else "vision"
    if _ROWS.search(base) and "patch_embed" not in base:
        return part, "rows"
    return part, "columns" if _COLUMNS.search(base) else "whole"


def _in_attention(base: str) -> bool:
    return _ATTENTION.search(base) is not None or base.endswith((".wqkv", ".wo"))


def _language(base: str) -> tuple[str, Split]:
    if ".experts." in base or base.endswith((".experts", *_GRANITE)):
        return "experts", _expert_split(base)
    if _HEAD.search(base):
        return "head", "vocabulary"
    if _VOCABULARY.search(base) and "per_layer" not in base:
        return "embedding", "vocabulary"
    if ".indexer." in base:
        return "indexer", "whole"
    if _ROUTER.search(base):
        return "router", "whole"
    part = _component(base)
    if _STATE.search(base):
        return part, "columns"
    if part == "attention" and base.endswith((".k_proj", ".v_proj", ".qkv_proj")):
        return part, "columns" if base.endswith("qkv_proj") else "kv_heads"
    if _ROWS.search(base):
        return part, "rows"
    return part, "columns" if _COLUMNS.search(base) else "whole"


def _component(base: str) -> str:
    if "norm" in base.rsplit(".", 1)[-1] or base.endswith((".ln_f", ".layer_scalar")):
        return "norms"
    if "shared_expert" in base or "shared_mlp" in base:
        return "shared experts"
    if _RECURRENT.search(base) and not re.search(r"\.mixer\.(?:[qkvo]_proj|up_proj|down_proj|fc\d)", base):
        return "linear attention"
    if _ATTENTION.search(base):
        return "attention"
    if re.search(r"mlp|feed_forward|fc[12]$|block_sparse_moe|\.mixer\.(?:up|down)_proj", base):
        return "mlp"
    return "other"


def _expert_split(base: str) -> Split:
    """Of one expert: w1 and w3 (gate, up) by outputs, w2 (down) by inputs; down's bias stays whole."""
    last = base.rsplit(".", 1)[-1]
    if last.startswith(("down_proj", "w2", "output_linear")):
        return "whole" if last.endswith("bias") else "rows"
    return "columns"
