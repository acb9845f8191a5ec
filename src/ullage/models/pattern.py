"""The order of layers: which of them attend to all, to a window, recurrently or not at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from ullage.models.fields import Fields

#: What a layer is before its sizes are known; "both" runs a recurrent mixer beside full attention.
Slot = Literal["full", "sliding", "chunked", "linear", "none", "both", "compressed"]

_NAMES: dict[str, Slot] = {
    "full_attention": "full", "attention": "full", "global_attention": "full", "global": "full", "full": "full",
    "indexed_attention": "full", "minimax_m3_sparse": "full", "softmax_attention": "full",
    "sliding_attention": "sliding", "local_attention": "sliding", "local": "sliding", "sliding": "sliding",
    "chunked_attention": "chunked",
    "linear_attention": "linear", "mamba": "linear", "mamba2": "linear", "conv": "linear",
    "short_conv": "linear", "kda": "linear", "gdn": "linear", "recurrent": "linear",
    "moe": "none", "mlp": "none", "hybrid": "both",
}  # fmt: skip
_LETTERS: dict[str, Slot] = {"M": "linear", "*": "full", "E": "none", "-": "none"}
#: Model types whose one ``sliding_window`` covers every layer (vLLM 0.32.0: a model's window holds for all
#: layers that name no other; SGLang does not use it for these).
_WINDOW_EVERYWHERE = {
    "mistral",
    "mixtral",
    "phi3",
    "phimoe",
    "phi4_multimodal",
    "starcoder2",
    "ministral3",
    "mistral3",
}
#: Every p-th layer is full, the others slide, where the config gives no list (transformers 5.24.0).
_PERIODS = {
    "gemma2": 2, "gemma3": 6, "gemma3_text": 6, "gemma3n": 5, "gemma3n_text": 5, "gemma4": 6, "gemma4_text": 6,
    "gpt_oss": 2, "cohere2": 4, "olmo3": 4, "exaone4": 4,
}  # fmt: skip
#: Names that speak of a layout which nothing here reads: the layers then stay unknown.
_UNREAD = (
    "dual_chunk_attention_config", "attention_types", "block_types", "_block_types", "sliding_window_layers",
    "global_attn_every_n_layers", "d_state", "time_mix_extra_dim", "layer_switch", "mamba_config", "ssm_cfg",
)  # fmt: skip


def slots(fields: Fields, num_layers: int) -> list[Slot] | None:
    """One slot a layer; None where the config's layout is not known."""
    for read in _READERS:
        found = read(fields, num_layers)
        if found is not None:
            return found
    if any(fields.values.get(name) for name in _UNREAD):
        return None
    return _windowed(fields, num_layers)


def _listed(fields: Fields, num_layers: int) -> list[Slot] | None:
    """layer_types (transformers) or layers_block_type; entries past the last layer belong to MTP layers."""
    names = fields.texts("layer_types", "layers_block_type")
    if not names:
        return None
    if len(names) < num_layers:
        raise fields.wrong("layer_types", f"one entry for each of {num_layers} layers", names)
    known = [_NAMES.get(name) for name in names[:num_layers]]
    kept = [slot for slot in known if slot is not None]
    if len(kept) != len(known):
        return _compressed(fields, num_layers) or []
    return [_without_window(slot, fields) for slot in kept]


def _without_window(slot: Slot, fields: Fields) -> Slot:
    return "full" if slot == "sliding" and not window(fields) else slot


def _lettered(fields: Fields, num_layers: int) -> list[Slot] | None:
    """Nemotron-H: a letter a layer, M Mamba, * attention, - MLP, E experts."""
    pattern = fields.text("hybrid_override_pattern")
    if not pattern:
        return None
    letters = [_LETTERS.get(letter) for letter in pattern.replace("|", "")]
    kept = [slot for slot in letters if slot is not None]
    if len(kept) != len(letters) or len(kept) < num_layers:
        raise fields.wrong("hybrid_override_pattern", f"{num_layers} of the letters M * E -", pattern)
    return kept[:num_layers]


def _numbered(fields: Fields, num_layers: int) -> list[Slot] | None:
    """hybrid_layer_pattern (MiMo-V2; 1 slides), attn_type_list (MiniMax-Text-01; 0 is linear), no_rope_layers
    (Llama 4; 1 is chunked)."""
    rows: tuple[tuple[str, Slot, Slot], ...] = (
        ("hybrid_layer_pattern", "sliding", "full"),
        ("attn_type_list", "full", "linear"),
        ("no_rope_layers", "chunked", "full"),
    )
    for name, one, zero in rows:
        marks = fields.integers(name)
        if marks and (name != "no_rope_layers" or fields.has("attention_chunk_size")):
            if len(marks) < num_layers:
                raise fields.wrong(name, f"one entry for each of {num_layers} layers", marks)
            return [one if mark else zero for mark in marks[:num_layers]]
    return None


def _indexed(fields: Fields, num_layers: int) -> list[Slot] | None:
    """Lists of layer numbers: the layers named are one kind, the rest the other."""
    inner = fields.inner("linear_attn_config")
    full = inner.integers("full_attn_layers") if inner else None
    if full:  # Kimi-Linear counts its layers from 1
        return _chosen({number - 1 for number in full}, num_layers, "full", "linear")
    attention = fields.integers("attn_layer_indices", "full_attn_idxs", "full_attention_layers")
    if attention:
        return _chosen(set(attention), num_layers, "full", "linear")
    local = fields.integers("local_layer_ids")
    return _chosen(set(local), num_layers, "sliding", "full") if local else None


def _chosen(numbers: set[int], num_layers: int, inside: Slot, outside: Slot) -> list[Slot]:
    return [inside if number in numbers else outside for number in range(num_layers)]


def _periodic(fields: Fields, num_layers: int) -> list[Slot] | None:
    """Attention at fixed steps among recurrent layers."""
    period = fields.integer("attn_layer_period")
    if period:  # Jamba
        offset = fields.size("attn_layer_offset")
        return _chosen(set(range(offset, num_layers, period)), num_layers, "full", "linear")
    step = fields.integer("full_attention_interval", "layer_group_size")
    if step:  # Qwen3-Next, Bailing hybrid
        return _chosen(set(range(step - 1, num_layers, step)), num_layers, "full", "linear")
    if (fields.text("model_type") or "") == "falcon_h1":
        return ["both"] * num_layers
    return None


def _compressed(fields: Fields, num_layers: int) -> list[Slot] | None:
    """DeepSeek-V4: every layer keeps compressed latents beside a window."""
    ratios = fields.integers("compress_ratios")
    if not ratios:
        return None
    if len(ratios) < num_layers:
        raise fields.wrong("compress_ratios", f"one entry for each of {num_layers} layers", ratios)
    return ["compressed"] * num_layers


def _chunked(fields: Fields, num_layers: int) -> list[Slot] | None:
    """Llama 4: three layers of four attend within chunks."""
    if (fields.text("model_type") or "") not in ("llama4", "llama4_text") or not fields.has(
        "attention_chunk_size"
    ):
        return None
    step = fields.integer("no_rope_layer_interval") or 4
    return _chosen(set(range(step - 1, num_layers, step)), num_layers, "full", "chunked")


def _windowed(fields: Fields, num_layers: int) -> list[Slot] | None:
    """Sliding windows without a list of layers."""
    kind = fields.text("model_type") or ""
    if not window(fields) or fields.flag("use_sliding_window") is False:
        return ["full"] * num_layers
    pattern = fields.get("sliding_window_pattern")[1]
    if isinstance(pattern, str) and pattern and set(pattern) <= {"L", "G"}:
        return ["sliding" if pattern[i % len(pattern)] == "L" else "full" for i in range(num_layers)]
    period = fields.integer("sliding_window_pattern") or _PERIODS.get(kind)
    if kind == "mimo_v2_flash":
        return _chosen({0, *range(5, num_layers, 6)}, num_layers, "full", "sliding")
    if period:
        found = _chosen(set(range(period - 1, num_layers, period)), num_layers, "full", "sliding")
        return [*found[:-1], "full"] if kind.startswith("gemma4") and found else found
    if fields.flag("use_sliding_window"):  # Qwen2: the upper layers slide
        return _chosen(set(range(fields.size("max_window_layers"))), num_layers, "full", "sliding")
    return ["sliding"] * num_layers if kind in _WINDOW_EVERYWHERE else None


def window(fields: Fields) -> int:
    """Tokens of the sliding window, 0 where there is none. SGLang's MiMo key counts as the plain one."""
    name, value = fields.get("sliding_window_size", "sliding_window")
    if isinstance(value, list):  # some Mistral configs list a window a layer: not read
        return 0
    return fields.integer(name) or 0


_READERS: tuple[Callable[[Fields, int], list[Slot] | None], ...] = (
    _compressed, _listed, _lettered, _numbered, _indexed, _periodic, _chunked,
)  # fmt: skip
