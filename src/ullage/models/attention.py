"""Attention shapes: elements a token, bytes an element. What a rank keeps of them is the engine's own rule."""

from __future__ import annotations

from collections import Counter

from ullage.core.model import Layer, LayerKind, Model

#: Bytes of one element, by the names that torch, config.json, safetensors, flags and logs use; below 1: packed.
DTYPE_BYTES: dict[str, float] = {
    "float64": 8, "double": 8, "f64": 8, "int64": 8, "i64": 8, "u64": 8,
    "float32": 4, "float": 4, "fp32": 4, "f32": 4, "int32": 4, "i32": 4, "u32": 4,
    "bfloat16": 2, "bf16": 2, "float16": 2, "half": 2, "fp16": 2, "f16": 2, "int16": 2, "i16": 2, "u16": 2,
    "float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1, "f8_e4m3": 1,
    "f8_e5m2": 1, "f8_e4m3fnuz": 1, "f8_e5m2fnuz": 1, "f8_e8m0": 1, "float8_e8m0fnu": 1,
    "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1, "fp8_inc": 1,
    "int8": 1, "uint8": 1, "i8": 1, "u8": 1, "bool": 1,
    "fp4": 0.5, "f4": 0.5, "int4": 0.5, "fp4_e2m1": 0.5, "nvfp4": 0.5,
    "float4_e2m1fn_x2": 1, "float4_e2m1": 0.5, "mxfp4": 0.5,
}  # fmt: skip
_HELD: tuple[LayerKind, ...] = ("full", "sliding", "chunked")


def dtype_bytes(name: str | None) -> float | None:
    """Bytes of one element of ``name`` ("torch.bfloat16", "fp8_e4m3", "F8_E4M3"); None for "auto" and for
    names not known. Layouts that are no plain dtype ("fp8_ds_mla") are the engines' own."""
    return DTYPE_BYTES.get(name.strip().lower().removeprefix("torch.")) if name else None


def elements_per_token(layer: Layer) -> int:
    """Cache elements that one token takes in one layer of the whole model, index keys not counted.

    Attention keeps kv_heads x (head_dim + v_head_dim), MLA kv_lora_rank + rope_dim. Recurrent, empty and
    sharing layers keep nothing; a compressed layer keeps one latent of head_dim for each token in its window.
    """
    if layer.kind in _HELD:
        return layer.kv_heads * (layer.head_dim + (layer.v_head_dim or layer.head_dim))
    if layer.kind == "mla":
        return layer.kv_lora_rank + layer.rope_dim
    return layer.head_dim if layer.kind == "compressed" else 0


def index_bytes_per_token(layer: Layer) -> float:
    """Bytes that the sparse indexer (DSA) keeps for one token of an MLA layer: fp8 keys of index_dim and one
    fp32 scale for every 128 of them, 132 at index_dim 128; one entry for every ``index_pool`` tokens.

    As SGLang 0.5.9 (NSA token pool) and vLLM 0.16.0 (indexer cache) both count it.
    """
    scales = 4 * -(-layer.index_dim // 128)
    return (layer.index_dim + scales) / layer.index_pool if layer.kind == "mla" and layer.index_dim else 0.0


def elements_per_token_of(model: Model) -> int:
    """Elements of a token over all layers, as if each kept every token: 61 x 576 = 35,136 for Kimi-K2.5."""
    return sum(elements_per_token(layer) for layer in model.layers)


def state_elements(layer: Layer) -> tuple[int, int]:
    """(convolution, recurrent) elements that one request keeps in one layer, before any sharding."""
    state = layer.state
    if state is None:
        return 0, 0
    return state.conv_dim * max(state.kernel - 1, 0), state.num_heads * state.head_dim * state.state_size


def count_kinds(model: Model) -> dict[LayerKind, int]:
    """How many layers of each kind: {"sliding": 40, "full": 8} for Gemma-3-12B."""
    return dict(Counter(layer.kind for layer in model.layers))
