"""What loading adds to the tensors themselves: rotary tables, weights quantised while loading, casts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache

from msgspec.structs import replace

from ullage.core.errors import InputError
from ullage.core.model import Model, TensorGroup
from ullage.engines.runtime.shards import VISION
from ullage.models.fields import Fields, text_fields

#: parts whose linear layers an online quantisation converts (router, head, embedding and towers stay)
_CONVERTED = ("attention", "mlp", "shared experts", "experts", "linear attention")


def fields_of(model: Model) -> Fields | None:
    """The language model's part of config.json."""
    if model.checkpoint is None or not model.checkpoint.config:
        return None
    from ullage.models.config import class_defaults

    top = Fields(model.checkpoint.config, model.source)
    try:
        text = text_fields(top)
        kind = text.text("model_type") or top.text("model_type")
        text.defaults = class_defaults(kind, top.text("model_type"))
    except InputError:
        return None
    return text


@lru_cache(maxsize=64)
def rope_bytes(model: Model, element: int, mrope: float = 4) -> int:
    """Bytes of the tables of cosines and sines: positions x rotary dimension x ``element`` bytes, once for each
    distinct setting. Linear and yarn scaling lengthen them by their factor; ``mrope`` is how many times longer
    the tables of three-dimensional positions are (4 in vLLM, 1 in SGLang).

    vllm 0.16.0 and sglang 0.5.9, layers/rotary_embedding: vLLM keeps the model's dtype, SGLang fp32 on CUDA.
    """
    fields = fields_of(model)
    if fields is None:
        return 0
    try:
        return _rope_bytes(fields, model, element, mrope)
    except InputError:
        return 0


#: types that place nothing by rotation, and those that keep positions in three dimensions (mrope)
_NO_ROPE = ("nemotron_h", "granitemoehybrid", "opt", "jamba")
_MROPE = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_5", "qwen2_5_omni")


def _rope_bytes(fields: Fields, model: Model, element: int, mrope: float) -> int:
    kind = fields.text("model_type") or model.model_type or ""
    if kind in _NO_ROPE:
        return 0
    positions = min(fields.size("max_position_embeddings"), 1 << 24)
    dim = fields.size("qk_rope_head_dim") or fields.size("head_dim")
    dim = dim or (model.hidden_size // model.num_heads if model.num_heads else 0)
    share = fields.number("partial_rotary_factor") or (
        0.25 if kind.startswith(("qwen3_5", "qwen3_next")) else 1.0
    )
    width = int(dim * share) * element
    if kind.startswith("gemma4"):  # sliding layers, and the wider heads of the full ones
        return positions * (dim + fields.size("global_head_dim")) * element
    if kind.startswith("gemma3"):  # local, and global scaled by 8 but for the 1B model
        return positions * width * (9 if model.vision is not None else 2)
    name, value = fields.get("rope_scaling", "rope_parameters")
    return int(
        positions
        * width
        * _longer(fields.inner(name) if isinstance(value, dict) else None, kind, positions, mrope)
    )


def _longer(rope: Fields | None, kind: str, positions: int, mrope: float) -> float:
    """How many times max_position_embeddings the table is long."""
    if kind.startswith(_MROPE) or (rope is not None and rope.has("mrope_section")):
        return mrope
    scaling = (rope.text("rope_type", "type") if rope else None) or "default"
    factor = min((rope.number("factor") if rope else None) or 1.0, 64.0)
    if rope is not None and "yarn" in scaling:
        return factor * (rope.size("original_max_position_embeddings") or positions) / max(1, positions)
    return factor if scaling in ("linear", "dynamic") else 1.0


def converted(groups: Iterable[TensorGroup], online: str | None, cast: str | None) -> Iterator[TensorGroup]:
    """``groups`` as the engine keeps them: 16-bit linear layers quantised while loading (``online``: "fp8",
    "bitsandbytes"), and plain weights cast to another float type (``cast``: "BF16", "F32")."""
    target = {"fp8": "F8_E4M3", "bitsandbytes": "NF4", "w8a8_int8": "I8", "w8a8_fp8": "F8_E4M3"}.get(
        online or ""
    )
    for group in groups:
        plain = group.dtype in ("BF16", "F16", "F32") and group.part not in VISION
        if target and plain and group.part in _CONVERTED and _is_matrix(group):
            yield replace(group, dtype=target)
        elif (
            cast
            and group.dtype in ("BF16", "F16", "F32")
            and group.dtype != cast
            and _is_model_type(group, cast)
        ):
            yield replace(group, dtype=cast)
        else:
            yield group


def _is_matrix(group: TensorGroup) -> bool:
    matrix = len(group.shape) - group.stacked == 2
    return (
        matrix and group.name.endswith((".weight", "gate_up_proj", "down_proj")) and "conv1d" not in group.name
    )


def _is_model_type(group: TensorGroup, cast: str) -> bool:
    """True for what follows the model's dtype: matrices; small fp32 tensors (A_log, biases of routers) stay."""
    return cast == "F32" or len(group.shape) >= 2


def doubt(model: Model) -> tuple[float, float, float]:
    """(low, value, high): shares of the rule that public loads lie below or above it, by how the weights are
    stored and how well that is known.

    Repacked 4-bit experts keep scales and work space beside them; a checkpoint known by its name alone may keep
    far more in 16 bit than assumed, above all one with a vision tower or a recurrent state; its own band
    (models/variants.toml) counts where it is wider.
    """
    low, value, high = _doubt(model)
    facts = model.checkpoint.facts if model.checkpoint is not None else {}
    band, told = facts.get("band"), facts.get("value")
    value = float(told) if isinstance(told, float) else value
    if isinstance(band, list) and len(band) == 2:
        return max(low, float(band[0])), value, max(high, float(band[1]))
    return low, value, high


def _doubt(model: Model) -> tuple[float, float, float]:
    from ullage.models.tensors import is_known

    if not is_known(model):
        return 0.15, 0.01, 0.15
    if model.model_type == "deepseek_v4":
        return 0.02, 0.03, 0.09  # no published headers to check against; wo_a may be kept in 16 bit
    if model.model_type == "qwen4_exp":
        return 0.03, 0.07, 0.14  # two public loads in NVFP4, 7 and 13 % above the tensors that are known
    words = model.quantization or ""
    config = model.checkpoint.config if model.checkpoint else {}
    assumed = model.checkpoint is not None and model.checkpoint.assumed
    guess = config.get("quantization_config") if assumed else None
    method = guess.get("quant_method") if isinstance(guess, dict) else None
    if "nvfp4" in words or (isinstance(guess, dict) and guess.get("quant_algo") == "NVFP4"):
        guessed = assumed and model.checkpoint is not None and "band" in model.checkpoint.facts
        return (0.03, 0.02, 0.12) if guessed else (0.02, 0.012, 0.04)
    if "mxfp4" in words:
        return 0.02, 0.003, 0.06  # kernels pad by rules that change from release to release
    if method in ("awq", "gptq", "auto-round", "compressed-tensors"):
        mixed = model.vision is not None or model.is_hybrid
        return (0.03, 0.06, 0.25) if mixed else (0.02, 0.004, 0.05)
    if model.checkpoint is not None and "gguf" in model.checkpoint.facts:
        return 0.02, 0.012, 0.04
    if guess:
        return 0.03, 0.003, 0.04
    return (0.0, 0.001, 0.013) if model.vision is None else (0.0, 0.003, 0.016)


def cast_of(model: Model, dtype: str | None) -> str | None:
    """The float type that plain weights are cast to, where it has another width than theirs; ``dtype`` is the
    launch's own."""
    if dtype in ("float32", "float"):
        return "F32"
    return "BF16" if (model.dtype or "").endswith("float32") else None


@lru_cache(maxsize=32)
def groups_of(model: Model) -> tuple[TensorGroup, ...]:
    """The tensors of a model; () where they are not known."""
    from ullage.models.tensors import of_model

    try:
        return of_model(model)
    except (InputError, RecursionError, OverflowError, MemoryError):
        return ()
