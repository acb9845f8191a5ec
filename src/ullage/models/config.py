"""config.json -> Model. Whatever the JSON holds, what comes back is a Model or an InputError."""

from __future__ import annotations

from collections.abc import Mapping

from ullage.core.errors import InputError
from ullage.core.model import Model, Vision
from ullage.core.tables import load
from ullage.models.fields import MOST_LAYERS, Fields, text_fields
from ullage.models.layers import HEADS, layers
from ullage.models.quant import quantization

_LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
_CONTEXT = (
    "max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "max_sequence_length",
    "model_max_length", "max_target_positions",
)  # fmt: skip
#: RoPE types that leave max_position_embeddings as it is: they are already scaled, or have no factor.
_SCALED = {
    "default", "llama3", "longrope", "su", "yarn", "deepseek_yarn", "deepseek_llama_scaling", "mrope",
    "proportional",
}  # fmt: skip


def from_config(
    config: Mapping[str, object],
    *,
    id: str,  # noqa: A002
    source: str,
    side: Mapping[str, object] | None = None,
) -> Model:
    """The model that a config.json (as a dict) describes; ``side`` is modelopt's hf_quant_config.json.

    What the config does not say stays None, 0 or (). ``quantization`` is "" where the config speaks of none,
    so that None keeps meaning "unknown". Raises InputError, naming the key, where a value is of the wrong kind.
    """
    if not isinstance(config, Mapping) or not all(isinstance(key, str) for key in config):
        raise InputError("a config.json holds one JSON object", where=source)
    top = Fields(config, source)
    text = text_fields(top)
    kind = text.text("model_type") or top.text("model_type")
    text.defaults = class_defaults(kind, top.text("model_type"))
    num_layers = text.integer(*_LAYERS, most=MOST_LAYERS) or _listed_layers(text)
    if not num_layers and not text.has("hidden_size", "n_embd", "d_model", "architectures"):
        raise InputError(
            "no num_hidden_layers and no hidden_size: not a language model's config.json", where=source
        )
    words = quantization(
        top, text, Fields(side, f"{source}: hf_quant_config.json") if side is not None else None
    )
    return Model(
        id=id,
        source=source,
        architecture=_architecture(top, text),
        model_type=top.text("model_type") or kind,
        num_layers=num_layers,
        hidden_size=text.size("hidden_size", "n_embd", "d_model"),
        num_heads=text.size(*HEADS),
        intermediate_size=_largest(text, "intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size"),
        vocab_size=text.size("vocab_size", "padded_vocab_size"),
        max_context=max_context(text),
        dtype=_dtype(top, text),
        layers=layers(text, num_layers) if num_layers else (),
        num_experts=text.size("n_routed_experts", "num_local_experts", "num_experts", "moe_num_experts"),
        experts_per_token=text.size(
            "num_experts_per_tok", "num_experts_per_token", "top_k_experts", "moe_topk", "moe_top_k"
        ),
        moe_intermediate_size=_largest(text, "moe_intermediate_size", "expert_ffn_hidden_size"),
        num_nextn_layers=_nextn(text),
        tied_embeddings=_tied(top, text),
        quantization=words.weights,
        kv_quantization=words.kv,
        vision=_vision(top),
    )


def _listed_layers(text: Fields) -> int:
    """Layers of a config that lists them and gives no number (Nemotron-H)."""
    listed = text.texts("layers_block_type") if isinstance(text.get("layers_block_type")[1], list) else None
    return min(len(text.text("hybrid_override_pattern") or listed or ""), MOST_LAYERS)


def class_defaults(kind: str | None, wrapper: str | None) -> Mapping[str, object]:
    """Keys that published configs of this type leave to their transformers class."""
    table: dict[str, dict[str, object]] = load("ullage.models", "defaults.toml", dict[str, dict[str, object]])
    names = (kind, f"{wrapper}_text", wrapper)
    return next((table[name] for name in names if name and name in table), {})


def _architecture(top: Fields, text: Fields) -> str | None:
    names = top.texts("architectures") or text.texts("architectures")
    return names[0] if names else None


def _largest(fields: Fields, *names: str) -> int:
    """A width; where it is given layer by layer (Gemma-3n), the largest."""
    name, value = fields.get(*names)
    if isinstance(value, list):
        return max(fields.integers(name) or [0])
    return fields.size(name)


def max_context(fields: Fields) -> int | None:
    """Tokens that the model was made for: the smallest length that the config names, times the RoPE factor
    where the type is not one that is scaled already.

    vLLM 0.32.0, model configuration (maximum length). SGLang 0.5.9 agrees but for Gemma-3, where it applies
    the factor once more.
    """
    lengths = [length for name in _CONTEXT if (length := fields.integer(name))]
    if not lengths:
        return None
    gemma3 = "gemma3" in (fields.text("model_type") or "")
    return int(min(lengths) * (1.0 if gemma3 else _rope_factor(fields)))


def _rope_factor(fields: Fields) -> float:
    name, value = fields.get("rope_scaling", "rope_parameters")
    rope = fields.inner(name) if isinstance(value, Mapping) else None
    if rope is None:
        return 1.0
    kind = rope.text("rope_type", "type") or "default"
    factor = rope.number("factor") if kind not in _SCALED else None
    if factor is not None and not 0 < factor <= 1e6:
        raise rope.wrong("factor", "a factor above 0", factor)
    return factor or 1.0


def _dtype(top: Fields, text: Fields) -> str | None:
    found = text.text("dtype", "torch_dtype") or top.text("dtype", "torch_dtype")
    return found.removeprefix("torch.") if found else None


def _nextn(fields: Fields) -> int:
    """Multi-token-prediction layers that the checkpoint carries."""
    count = fields.integer(
        "num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers", most=MOST_LAYERS
    )
    if count is None and fields.flag("use_mtp") is not False:
        count = fields.integer("num_mtp_modules", most=MOST_LAYERS)
    return count or 0


def _tied(top: Fields, text: Fields) -> bool:
    """As transformers resolves it: the wrapper's own word, else the text part's, else its class default."""
    found = top.flag("tie_word_embeddings")
    return bool(text.flag("tie_word_embeddings", "tie_embedding") if found is None else found)


def _vision(top: Fields) -> Vision | None:
    """The attributes that SGLang's memory heuristic reads, by their literal names: a tower that calls its
    depth ``depth`` or ``vt_num_hidden_layers`` has no num_hidden_layers."""
    thinker = top.inner("thinker_config") if isinstance(top.values.get("thinker_config"), Mapping) else None
    for fields in (top, thinker):
        inner = fields.inner("vision_config") if fields else None
        if inner is not None and inner.values:
            return Vision(inner.integer("num_hidden_layers"), inner.integer("hidden_size"))
    return None
