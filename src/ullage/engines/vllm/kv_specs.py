"""What one layer keeps in the KV cache of one rank.

Bytes are those of one rank. Sources: vLLM, v1/kv_cache_interface.py and the attention layers'
get_kv_cache_spec; the differences between releases were read from 0.8.5 to 0.33.0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace
from packaging.version import Version

from ullage.core.model import Layer, LinearState, Model
from ullage.core.versions import Rules

Kind = Literal["full", "sliding", "chunked", "mamba"]
MambaMode = Literal["none", "align", "all"]

#: bytes of one element of the cache; what "auto" means is decided by the caller
ELEMENT_BYTES: dict[str, float] = {
    "float32": 4, "float": 4, "bfloat16": 2, "float16": 2, "half": 2,
    "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1, "fp8_inc": 1, "fp8_ds_mla": 1, "uint8": 1, "int8": 1,
}  # fmt: skip


#: per head and token, for each of K and V, as functions of head_dim: scales stand beside the elements
PACKED: dict[str, tuple[float, float]] = {
    # name: (bytes per element, bytes per head)
    "int8_per_token_head": (1, 4), "fp8_per_token_head": (1, 4), "int4_per_token_head": (0.5, 4),
    "nvfp4": (0.5 + 1 / 16, 0),
}  # fmt: skip


#: DeepSeek sparse attention in fp8: 512 fp8 + 16 bytes of scales + 64 bf16 of rope
DS_MLA_BYTES = 656


class Cache(Struct, frozen=True):
    """The settings that shape the KV cache. ``in_flight`` counts the batches scheduled at once."""

    tp: int = 1
    pp: int = 1
    dcp: int = 1
    block_size: int = 16
    dtype: str = "auto"
    model_dtype: str = "bfloat16"
    max_num_batched_tokens: int = 8192
    in_flight: int = 1
    hybrid: bool = True
    mamba_mode: MambaMode = "none"
    ssm_dtype: str = "auto"
    num_speculative_tokens: int = 0
    kernel_block: int = 16
    num_gpu_blocks_override: int | None = None
    partition: tuple[int, ...] = ()
    latent_align: int = 1


class Spec(Struct, frozen=True):
    """One layer's cache: ``page_bytes`` hold ``block_size`` tokens (one state, for "mamba").

    ``mla`` marks a latent cache: its page must not be padded. ``shape`` tells specs of the same size apart.
    """

    kind: Kind
    block_size: int
    page_bytes: int
    window: int = 0
    shape: tuple[int, ...] = ()
    mla: bool = False
    request_blocks: int = 1
    checkpoint_blocks: int = 0


def element_bytes(dtype: str, model_dtype: str) -> float:
    """Bytes of one cache element. "auto" is the model's dtype."""
    name = model_dtype if dtype == "auto" else dtype
    return ELEMENT_BYTES.get(name.removeprefix("torch."), 1 if name.startswith("fp8") else 2)


def bytes_per_token(layer: Layer, cache: Cache) -> int:
    """Bytes of one token in one attention layer on one rank; 0 for a layer that keeps none.

    kv_heads_rank * (head_dim + head_dim_v) * elem, kv_heads_rank = max(1, kv_heads // tp);
    MLA: (kv_lora_rank + rope_dim) * elem once, never divided by tp.
    """
    if layer.kind in ("none", "shared", "linear", "compressed"):
        return 0
    if layer.kind == "mla":
        return latent_bytes(layer, cache)
    heads = max(1, layer.kv_heads // cache.tp)
    size = layer.head_dim + (layer.v_head_dim or layer.head_dim)
    if cache.dtype in PACKED:
        per_element, per_head = PACKED[cache.dtype]
        return int(heads * (size * per_element + 2 * per_head))
    return int(heads * size * element_bytes(cache.dtype, cache.model_dtype))


def latent_bytes(layer: Layer, cache: Cache) -> int:
    """Bytes of one token of an MLA layer, without its indexer. Sparse layers store any fp8 as fp8_ds_mla.

    0.7.2 and 0.7.3 align the entry to 256 bytes (worker/cache_engine.py): 576 elements of bf16 take 1280.
    """
    if cache.dtype == "fp8_ds_mla" or (layer.index_dim and cache.dtype.startswith("fp8")):
        return DS_MLA_BYTES
    size = int((layer.kv_lora_rank + layer.rope_dim) * element_bytes(cache.dtype, cache.model_dtype))
    return cdiv(size, cache.latent_align) * cache.latent_align


def indexer_bytes(layer: Layer) -> int:
    """Bytes of one token in the key cache of a sparse layer's indexer: fp8 keys and one fp32 scale per 128."""
    return (layer.index_dim + layer.index_dim // 128 * 4) // max(1, layer.index_pool)


def state_bytes(state: LinearState, cache: Cache) -> int:
    """Bytes of one request's state in one Mamba or linear-attention layer on one rank.

    conv: conv_dim / tp * (kernel - 1 + speculative tokens) in the model's dtype; the groups of Mamba 2 are
    filled up to tp. Recurrent: heads / tp * head_dim * state_size.
    (model_executor/layers/mamba/mamba_utils.py)
    """
    conv_dim = state.conv_dim
    if state.kind == "mamba2" and state.num_groups % cache.tp:
        conv_dim += 2 * (cache.tp - state.num_groups) * state.state_size
    conv = conv_dim // cache.tp * (state.kernel - 1 + cache.num_speculative_tokens)
    if state.kind == "lightning":
        conv = 0
    model = element_bytes("auto", cache.model_dtype)
    recurrent = state.num_heads // cache.tp * state.head_dim * state.state_size
    if state.kind == "mamba1":
        recurrent = state.inner_size // cache.tp * state.state_size
    elif state.kind == "short_conv":
        recurrent = 0
    return int(conv * model + recurrent * element_bytes(cache.ssm_dtype, cache.model_dtype))


def ssm_dtype(model: Model) -> str:
    """The dtype of the recurrent state where the launch does not say. "auto": the model's own.

    Qwen3.5 and Nemotron-H read it from their config, Nemotron-H with fp32 as default; KDA always uses fp32
    (model_executor/models/config.py, mamba_utils.py).
    """
    states = [layer.state for layer in model.layers if layer.state]
    kind = model.model_type or ""
    if not states or states[0].kind == "kda":
        return "float32" if states else "auto"
    told = states[0].dtype
    if kind.startswith("nemotron"):
        return told or "float32"
    return told or "auto" if kind.startswith("qwen3_5") else "auto"


def attention_bytes(model: Model, cache: Cache) -> int:
    """Bytes of one token in the widest attention layer: what the Mamba pages are aligned to."""
    return max((bytes_per_token(layer, cache) for layer in set(model.layers)), default=0)


def hybrid_block_size(model: Model, cache: Cache) -> int:
    """Tokens in an attention block so that its page holds at least one Mamba state.

    block = a * cdiv(state, a * bytes_per_token), a = kernel alignment, at least the asked block size, 128 for
    MLA (platforms/interface.py, _align_hybrid_block_size; 0.10.0 on).
    """
    states = [state_bytes(state, cache) for state in {layer.state for layer in model.layers if layer.state}]
    token = attention_bytes(model, cache)
    if not states or not token:
        return cache.block_size
    align = max(cache.kernel_block, cache.block_size, 128 if model.is_mla else 1)
    return max(cache.block_size, align * cdiv(max(states), align * token))


def specs(model: Model, cache: Cache) -> list[Spec]:
    """The spec of each layer with a cache, in order of layers; an indexer follows its layer."""
    block = hybrid_block_size(model, cache)
    page = block * attention_bytes(model, cache)
    out: list[Spec] = []
    for layer in model.layers:
        out += layer_specs(layer, replace(cache, block_size=block), page)
    return out


def compressed_specs(layer: Layer, cache: Cache) -> list[Spec]:
    """The caches of a DeepSeek-V4 layer: the window; for a compression ratio the latents and the compressor's
    state, and the same for an indexer. Pages are filled up to 576 bytes, of 16-bit caches to 512.

    A token in fp8 takes head_dim - rope + 2 x rope + 8 bytes, 584. States are fp32, two vectors (twice as wide
    at ratio 4) a token: 4 tokens a block at ratio 4, else 8 (vllm 0.20.0 to 0.33.0,
    models/deepseek_v4/attention.py, compressor.py, v1/attention/backends/mla/sparse_swa.py).
    """
    plain = cache.dtype in ("bfloat16", "float16", "half")
    align = 512 if plain else 576
    token = 2 * layer.head_dim if plain else layer.head_dim + layer.rope_dim + 8
    ratio = max(1, layer.compress_ratio)

    def made(kind: Kind, block: int, size: int, window: int = 0) -> Spec:
        return Spec(kind, block, cdiv(size, align) * align, window, shape=(size,), mla=True)

    out = [made("sliding", 64, 64 * token, layer.window)]
    if ratio == 1:
        return out
    kept, overlap, rows = cache.block_size // ratio, 1 + (ratio == 4), 4 if ratio == 4 else 8
    out.append(made("full", cache.block_size, kept * token))
    out.append(made("sliding", rows, rows * 2 * overlap * layer.head_dim * 4, overlap * ratio))
    if layer.index_dim:
        key = layer.index_dim + layer.index_dim // 128 * 4
        out.append(made("full", cache.block_size, kept * key))
        out.append(made("sliding", rows, rows * 2 * overlap * layer.index_dim * 4, overlap * ratio))
    return out


def layer_specs(layer: Layer, cache: Cache, page: int) -> list[Spec]:
    if layer.kind in ("none", "shared"):
        return []
    if layer.kind == "compressed":
        return compressed_specs(layer, cache)
    if layer.state is not None and layer.kind != "linear":
        # attention and a recurrent mixer side by side: each keeps its own cache
        bare = replace(layer, state=None)
        return layer_specs(replace(layer, kind="linear"), cache, page) + layer_specs(bare, cache, page)
    if layer.state is not None:
        blocks = cache.num_speculative_tokens + (2 if cache.mamba_mode == "align" else 1)
        state = max(state_bytes(layer.state, cache), page)
        kept = int(cache.mamba_mode == "align" and layer.state.kind in ("mamba2", "kda"))
        return [Spec("mamba", cache.block_size, state, request_blocks=blocks, checkpoint_blocks=kept)]
    token, block = bytes_per_token(layer, cache), cache.block_size
    if layer.kind == "mla":
        latent = Spec("full", block, block * token, shape=(token,), mla=True)
        index = indexer_bytes(layer)
        return [latent, Spec("full", block, block * index, shape=(index,), mla=True)] if index else [latent]
    kind: Kind = layer.kind if layer.kind in ("sliding", "chunked") else "full"
    shape = (max(1, layer.kv_heads // cache.tp), layer.head_dim, layer.v_head_dim or layer.head_dim)
    window = layer.window if kind != "full" else 0
    return [Spec(kind, block, block * token, window, shape)]


def stages(model: Model, cache: Cache, release: Version | None = None) -> list[list[Spec]]:
    """The specs of each pipeline stage, in order."""
    model = VALUES.at(release)(model)
    counts = cache.partition or PARTITION.at(release)(len(model.layers), cache.pp)
    block = hybrid_block_size(model, cache)
    sized, page = replace(cache, block_size=block), block * attention_bytes(model, cache)
    specs = {layer: layer_specs(layer, sized, page) for layer in set(model.layers)}
    out, start = [], 0
    for count in counts:
        out.append([spec for layer in model.layers[start : start + count] for spec in specs[layer]])
        start += count
    return out


VALUES: Rules[[Model], Model] = Rules("width of the values in the cache")


@VALUES.since("≤0.6.0", source="vllm 0.14.0 to 0.19.1, models/mimo_v2_flash.py: v is padded to head_dim")
def as_wide_as_keys(model: Model) -> Model:
    """MiMo-V2, whose values are narrower than its keys, keeps both as wide as the keys."""
    if not (model.model_type or "").startswith("mimo_v2"):
        return model
    return replace(model, layers=tuple(replace(layer, v_head_dim=0) for layer in model.layers))


@VALUES.since("0.20.0", source="vllm 0.20.0, models/mimo_v2_flash.py: head_size_v, the DIFFKV backends")
def their_own_width(model: Model) -> Model:
    """Values are as wide as the model has them."""
    return model


PARTITION: Rules[[int, int], list[int]] = Rules("partition")


@PARTITION.since("≤0.6.0", source="vllm 0.7.3, distributed/utils.py, get_pp_indices")
def last_takes_the_rest(num_layers: int, pp: int) -> list[int]:
    """Layers of each stage: equal parts, the last stage takes the remainder."""
    part = num_layers // pp
    return [part] * (pp - 1) + [num_layers - part * (pp - 1)]


@PARTITION.since("0.8.0", source="vllm 0.8.5 to 0.32.0, distributed/utils.py, get_pp_indices")
def spread_before_the_last(num_layers: int, pp: int) -> list[int]:
    """Layers of each stage: the remainder is spread over the stages before the last, from the back."""
    counts = [num_layers // pp] * pp
    for i in range(2, num_layers % pp + 2):
        counts[-i] += 1
    return counts


def cdiv(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)


def token_bytes(layers: Sequence[Spec]) -> int:
    """Bytes that one more token takes in all the full-attention layers of a rank together."""
    return sum(spec.page_bytes // spec.block_size for spec in layers if spec.kind == "full")
