"""Layers: the attention of each layer of a config.json, with its sizes."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from ullage.core.model import Layer, LinearState
from ullage.models.fields import Fields
from ullage.models.pattern import Slot, slots, window
from ullage.models.recurrent import recurrent_state

HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
KV_HEADS = (
    "num_key_value_heads", "n_head_kv", "num_kv_heads", "multi_query_group_num", "num_attention_groups",
)  # fmt: skip
#: Model types whose layers each hold two attentions (SGLang 0.5.9: num_attention_layers is doubled).
_TWICE = {"longcat_flash"}


class _Shape(Struct, frozen=True):
    """What the layers of one model are made from, read once."""

    fields: Fields
    plain: tuple[Layer | None, ...]
    state: LinearState | None
    ratios: tuple[int, ...]
    index_dims: tuple[int, ...]


def layers(fields: Fields, num_layers: int) -> tuple[Layer, ...]:
    """The layers in order; () where their layout or sizes are not known."""
    blocks = _block_configs(fields, num_layers)
    if blocks is not None:
        return blocks
    found = slots(fields, num_layers)
    if not found:
        return ()
    made = _made(fields, found)
    known = [layer for layer in made if layer is not None]
    if len(known) != len(made):
        return ()
    shared = min(fields.size("num_kv_shared_layers"), num_layers)  # Gemma-3n, Gemma-4: the last ones
    known[num_layers - shared :] = [replace(layer, kind="shared") for layer in known[num_layers - shared :]]
    return tuple(known) * (2 if fields.text("model_type") in _TWICE else 1)


def _made(fields: Fields, found: list[Slot]) -> list[Layer | None]:
    state = recurrent_state(fields) if {"linear", "both"} & set(found) else None
    sparse = fields.inner("sparse_attention_config")
    shape = _Shape(
        fields,
        tuple(_plain(fields, len(found))),
        state,
        tuple(fields.integers("compress_ratios") or ()),
        tuple(_sparse_index(sparse, len(found)) if sparse else (0,) * len(found)),
    )
    return [_layer(shape, slot, number) for number, slot in enumerate(found)]


def _layer(shape: _Shape, slot: Slot, number: int) -> Layer | None:
    plain = shape.plain[number]
    match slot:
        case "none":
            return Layer("none")
        case "linear":
            return Layer("linear", state=shape.state) if shape.state else None
        case "both":
            attention = _full(shape, number)
            return replace(attention, state=shape.state) if attention and shape.state else None
        case "sliding":
            return plain and _sliding(shape.fields, plain)
        case "chunked":
            return plain and replace(plain, kind="chunked", window=shape.fields.size("attention_chunk_size"))
        case "compressed":
            return _compressed(shape.fields, shape.ratios[number])
        case "full":
            return _full(shape, number)


def _full(shape: _Shape, number: int) -> Layer | None:
    fields, plain = shape.fields, shape.plain[number]
    if fields.size("kv_lora_rank") and fields.has("qk_rope_head_dim") and fields.flag("use_mla") is not False:
        return Layer(
            "mla",
            kv_lora_rank=fields.size("kv_lora_rank"),
            rope_dim=fields.size("qk_rope_head_dim"),
            index_dim=fields.size("index_head_dim"),
            index_pool=max(fields.size("index_kpool"), 1),
        )
    if plain is None:
        return None
    dim, heads = fields.integer("global_head_dim"), None
    if fields.flag("attention_k_eq_v"):  # Gemma-4: the full layers have heads of their own
        heads = fields.integer("num_global_key_value_heads")
    return replace(
        plain,
        head_dim=dim or plain.head_dim,
        v_head_dim=dim or plain.v_head_dim,
        kv_heads=heads or plain.kv_heads,
        index_dim=shape.index_dims[number],
    )


def _sparse_index(sparse: Fields, num_layers: int) -> list[int]:
    """MiniMax-M3: width of the index key that its sparse layers keep beside K and V."""
    marks, width = sparse.integers("sparse_attention_freq") or [], sparse.size("sparse_index_dim")
    marks += [0] * (num_layers - len(marks))
    return [width if mark else 0 for mark in marks]


def _sliding(fields: Fields, plain: Layer) -> Layer:
    other = fields.inner("attention_other_setting")  # Step-3.5
    heads = fields.integer("swa_num_key_value_heads") or (other and other.integer("num_attention_groups"))
    dim = fields.integer("swa_head_dim")
    value_dim = fields.integer("swa_v_head_dim") or (dim if dim and not fields.has("v_head_dim") else None)
    return replace(
        plain,
        kind="sliding",
        window=window(fields),
        kv_heads=heads or plain.kv_heads,
        head_dim=dim or plain.head_dim,
        v_head_dim=value_dim or plain.v_head_dim,
    )


def _compressed(fields: Fields, ratio: int) -> Layer:
    indexed = fields.size("index_head_dim") if ratio == 4 else 0
    return Layer(
        "compressed",
        kv_heads=1,
        head_dim=fields.size("head_dim"),
        window=window(fields),
        rope_dim=fields.size("qk_rope_head_dim"),
        index_dim=indexed,
        index_pool=ratio if indexed else 1,
        compress_ratio=ratio,
    )


def _plain(fields: Fields, num_layers: int) -> list[Layer | None]:
    """Full attention of grouped heads, layer by layer; None where the heads or their width are not known."""
    dim = head_dim(fields)
    value_dim = (fields.integer("v_head_dim") if fields.has("head_dim") else None) or dim
    heads = kv_heads(fields, num_layers)
    return [
        Layer("full", kv_heads=count, head_dim=dim, v_head_dim=value_dim) if count and dim else None
        for count in heads
    ]


def kv_heads(fields: Fields, num_layers: int) -> list[int]:
    """KV heads of each layer: the config's own count, 1 with multi-query, else every head (vLLM 0.32.0 model
    configuration convertor; SGLang 0.5.9 model shapes). 0: unknown."""
    name, value = fields.get(*KV_HEADS)
    if isinstance(value, list):
        listed = (fields.integers(name) or [])[:num_layers]
        return listed + [0] * (num_layers - len(listed))
    return [_kv_heads(fields, name, value)] * num_layers


def _kv_heads(fields: Fields, name: str, value: object) -> int:
    if value is not None:
        return fields.size(name)
    inner = fields.inner("attn_config")
    if inner and inner.has("kv_n_heads"):  # DBRX, MPT
        return inner.size("kv_n_heads")
    return 1 if fields.flag("multi_query") else fields.size(*HEADS)


def head_dim(fields: Fields) -> int:
    """Width of a head: its own key, else hidden_size // heads; 0 where neither is known."""
    own = fields.integer("head_dim", "attention_head_dim", "kv_channels", "hidden_size_per_head")
    if own:
        return own
    heads = fields.size(*HEADS)
    return fields.size("hidden_size", "n_embd", "d_model") // heads if heads else 0


def _block_configs(fields: Fields, num_layers: int) -> tuple[Layer, ...] | None:
    """Llama-Nemotron (DeciLM): attention given block by block, some blocks without any."""
    blocks = fields.items("block_configs")
    if not blocks:
        return None
    heads, dim, made = fields.size(*HEADS), head_dim(fields), []
    for number, block in enumerate(blocks[:num_layers]):
        if not isinstance(block, dict) or not isinstance(block.get("attention"), dict):
            return ()
        attention = Fields(block["attention"], fields.source, f"block_configs[{number}].attention")
        group = attention.integer("n_heads_in_group")
        made.append(_block(heads // group, dim) if group and heads and dim else Layer("none"))
    return tuple(made)


def _block(heads: int, dim: int) -> Layer:
    return Layer("full", kv_heads=heads, head_dim=dim, v_head_dim=dim)
