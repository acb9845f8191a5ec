"""Bytes that one token takes in SGLang's KV pool on one rank: ``cell_size``, by kind of attention and release.

Read: model_runner profile_max_num_token (..0.5.6), model_runner_kv_cache_mixin get_cell_size_per_token
(0.5.7..0.5.10), pool_configurator DefaultPoolConfigurator (0.5.11..0.5.23).
"""

from __future__ import annotations

from msgspec import Struct

from ullage.core.model import Layer, Model
from ullage.engines.sglang.backends import is_sparse_mla
from ullage.engines.sglang.settings import DTYPE_BYTES, FP4, Settings, at_least

ATTENTION = ("full", "sliding", "chunked", "mla", "compressed")
WINDOWED = ("sliding", "chunked")


#: cache dtypes worth trying where a log shows sizes but not the dtype, with the bytes of an element
DTYPES_TO_TRY = (("bfloat16", 2.0), ("fp8_e4m3", 1.0), ("fp4_e2m1", 0.5))


class Cells(Struct, frozen=True):
    """Bytes per token: what the engine budgets with, and what its pool really stores."""

    budgeted: float
    stored: float


def kv_dtype(s: Settings, model: Model) -> str:
    """The cache's dtype: as given, else FP8 where the checkpoint says so (0.5.3..), else the model's."""
    if s.kv_cache_dtype != "auto":
        return s.kv_cache_dtype
    if model.kv_quantization and "8" in model.kv_quantization and at_least(s.release, "0.5.3"):
        return "fp8_e4m3"
    wanted = s.dtype if s.dtype != "auto" else model.dtype
    # float32 checkpoints are served in half precision (model_config, _get_and_verify_dtype)
    return "float16" if wanted in (None, "float32", "float") else wanted or "bfloat16"


def element_bytes(s: Settings, model: Model) -> int:
    """Bytes of one cache element: bf16 2, fp8 1; 4-bit caches count 1 and are halved in ``cell_size``."""
    return DTYPE_BYTES.get(kv_dtype(s, model).removeprefix("torch."), 2)


def is_recurrent(model: Model) -> bool:
    """A hybrid with Mamba or linear-attention layers: only its attention layers keep tokens."""
    return any(layer.state is not None for layer in model.layers)


def pp_stages(num_layers: int, s: Settings) -> list[range]:
    """The layers of each pipeline stage: num_layers // pp each; what is left over goes to the last stage
    (..0.5.5), one each to the last stages (0.5.6..), or as SGLANG_PP_LAYER_PARTITION says.

    Read: sglang distributed/utils, get_pp_indices.
    """
    base, left = divmod(num_layers, s.pp)
    spread = at_least(s.release, "0.5.6")
    sizes = [base + (rank >= s.pp - left if spread else left * (rank == s.pp - 1)) for rank in range(s.pp)]
    given = [
        int(part) for part in s.env.get("SGLANG_PP_LAYER_PARTITION", "").split(",") if part.strip().isdecimal()
    ]
    sizes = given if len(given) == s.pp and sum(given) == num_layers else sizes
    starts = [sum(sizes[:rank]) for rank in range(s.pp)]
    return [range(start, start + size) for start, size in zip(starts, sizes, strict=True)]


def most_in_a_stage(indices: list[int], num_layers: int, s: Settings) -> int:
    """The largest number of ``indices`` in one stage: its pool is the smallest, and the smallest decides for
    all ranks (MIN over ranks, 0.5.2..)."""
    return max(sum(i in stage for i in indices) for stage in pp_stages(num_layers, s))


def kv_layers(model: Model, s: Settings) -> int:
    """Layers that a rank keeps KV for, as the engine counts them: all of its stage, or the attention layers
    of a recurrent hybrid."""
    count = model.num_layers or len(model.layers)
    if not is_recurrent(model):
        return most_in_a_stage(list(range(count)), count, s)
    attention = [i for i, layer in enumerate(model.layers) if layer.kind in ATTENTION]
    if s.pp == 1 or not at_least(s.release, "0.5.8"):
        return len(attention)
    return most_in_a_stage(attention, len(model.layers), s)


def main_layer(model: Model) -> Layer | None:
    """The layer whose heads stand for the whole model: the first full one, else the first that keeps KV."""
    kept = [layer for layer in model.layers if layer.kind in ATTENTION]
    return next((layer for layer in kept if layer.kind not in WINDOWED), kept[0] if kept else None)


def heads_per_rank(layer: Layer, s: Settings) -> int:
    """KV heads of one rank: heads // attn_tp, at least one (more ranks than heads repeat them)."""
    return max(1, layer.kv_heads // s.attn_tp)


def layer_elements(layer: Layer, s: Settings) -> int:
    """Cache elements of one token in one layer on one rank.

    MHA and GQA: heads x (head_dim + v_head_dim); ..0.5.6 heads x head_dim x 2. MLA: kv_lora_rank + rope,
    whole on every rank.
    """
    if layer.kind == "mla":
        return layer.kv_lora_rank + layer.rope_dim
    value_dim = layer.v_head_dim if layer.v_head_dim and at_least(s.release, "0.5.7") else layer.head_dim
    return heads_per_rank(layer, s) * (layer.head_dim + value_dim)


def indexer_bytes(layer: Layer, s: Settings) -> int:
    """Bytes of one token's index key: index_dim fp8 and a float32 scale per 128; charged from 0.5.3.post1."""
    if not layer.index_dim or not at_least(s.release, "0.5.3.post1"):
        return 0
    return -(-(layer.index_dim + layer.index_dim // 128 * 4) // max(1, layer.index_pool))


def sparse_row_bytes(layer: Layer, s: Settings, *, stored: bool) -> int:
    """Bytes of one token in one layer of a sparse MLA pool (DSA) with an fp8 cache, index key excluded.

    FlashMLA rows hold 512 fp8 + 4 float32 scales + 64 bf16 = 656 bytes; trtllm rows 576. The budget counted
    576 in 0.5.3..0.5.16, so the pool took 1.113 times its budget; from 0.5.17 on it counts what it stores.
    """
    plain = layer.kv_lora_rank + layer.rope_dim
    raw = "trtllm" in (s.dsa_prefill_backend, s.dsa_decode_backend) or (
        s.dsa_prefill_backend == s.dsa_decode_backend == "tilelang" and at_least(s.release, "0.5.20")
    )
    if raw or not (stored or at_least(s.release, "0.5.17")):
        return plain
    return layer.kv_lora_rank + layer.kv_lora_rank // 128 * 4 + layer.rope_dim * 2


def cell_size(model: Model, s: Settings) -> Cells:
    """Bytes per token of a model with one kind of attention.

    layers x elements x dtype (+ index key); fp4: half, and one scale byte for every 16 elements.
    """
    layer, layers = main_layer(model), kv_layers(model, s)
    if layer is None:
        return Cells(0, 0)
    size = element_bytes(s, model)
    row = layer_elements(layer, s) * size
    index = indexer_bytes(layer, s)
    if is_sparse_mla(model) and kv_dtype(s, model) in ("fp8_e4m3", "fp8"):
        charged = sparse_row_bytes(layer, s, stored=False) + index
        return Cells(
            charged * layers, (sparse_row_bytes(layer, s, stored=True) + layer.index_dim // 32 * 33) * layers
        )
    cell = row * layers
    if kv_dtype(s, model) in FP4:
        cell = cell // 2 + _fp4_scales(layer, s, layers, size)
    if kv_dtype(s, model) == "mxfp8":
        cell += layer_elements(layer, s) * layers // 32
    extra = _windows_charge(model, s, size, row)
    return Cells(cell + index * layers + extra, cell + index * layers)


def _fp4_scales(layer: Layer, s: Settings, layers: int, size: int) -> int:
    """MLA (elements // 16) x layers; heads: heads x head_dim x layers x 2 // 16."""
    if layer.kind == "mla":
        return (layer.kv_lora_rank + layer.rope_dim) // 16 * layers * size
    return heads_per_rank(layer, s) * layer.head_dim * layers * 2 * size // 16


def _windows_charge(model: Model, s: Settings, size: int, full: float) -> float:
    """MiMo-V2 before 0.5.9: its sliding layers by their own heads, beside its full ones in 0.5.7; in 0.5.8
    beside all layers as if they were full, which counts them twice (sglang 0.5.7 and 0.5.8, kv cache mixin)."""
    if model.architecture != "MiMoV2FlashForCausalLM" or at_least(s.release, "0.5.9"):
        return 0
    sliding = [layer for layer in model.layers if layer.kind in WINDOWED]
    own = sum(layer_elements(layer, s) for layer in sliding) * size
    return own if at_least(s.release, "0.5.8") else own - full * len(sliding)
