"""Gemma 4: two kinds of attention layers, dense or with experts, and a vision tower."""

from __future__ import annotations

from ullage.models.builder import Builder, Place
from ullage.models.decoder import Sizes, ends, norms
from ullage.models.towers import depth, vision_of


def gemma4(b: Builder) -> None:
    gemma4_decoder(b)
    _gemma4_vision(b)


def _gemma4_vision(b: Builder) -> None:
    v = vision_of(b)
    if v is None:
        return
    h, f, dim = v.size("hidden_size"), v.size("intermediate_size"), v.size("head_dim")
    layer = b.at("model.vision_tower.encoder.layers.{}", depth(v, "num_hidden_layers"))
    for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
        layer.tensor(f"self_attn.{name}.linear.weight", (h, h))
    for name, shape in (("gate_proj", (f, h)), ("up_proj", (f, h)), ("down_proj", (h, f))):
        layer.tensor(f"mlp.{name}.linear.weight", shape)
    layer.norm("self_attn.q_norm", dim)
    layer.norm("self_attn.k_norm", dim)
    for name in (
        "input_layernorm",
        "post_attention_layernorm",
        "pre_feedforward_layernorm",
        "post_feedforward_layernorm",
    ):
        layer.norm(name, h)
    t = b.at("model.vision_tower")
    t.tensor("patch_embedder.input_proj.weight", (h, 3 * (v.size("patch_size") or 16) ** 2))
    t.tensor("patch_embedder.position_embedding_table", (2, v.size("position_embedding_size") or 10240, h))
    if v.flag("standardize"):
        t.tensor("std_bias", (h,))
        t.tensor("std_scale", (h,))
    b.at("model.embed_vision").tensor("embedding_projection.weight", (Sizes(b.source).hidden, h))


def gemma4_decoder(b: Builder) -> None:
    """Gemma 4: full layers have wider and fewer KV heads, and with ``attention_k_eq_v`` no values of their
    own."""
    s, t = Sizes(b.source), b.source.text
    prefix = "model.language_model."
    ends(b, prefix, "lm_head", s)
    place = b.at(f"{prefix}layers.{{}}", s.all)
    norms(place, s)
    place.tensor("layer_scalar", (1,))
    kinds = t.texts("layer_types") or []
    full = {n for n in s.all if (kinds[n] == "full_attention" if n < len(kinds) else n % 6 == 5)}
    _gemma4_attention(
        b.at(f"{prefix}layers.{{}}", [n for n in s.all if n not in full]), s, s.head_dim, s.kv_heads, True
    )
    wide, few = t.size("global_head_dim") or s.head_dim, t.size("num_global_key_value_heads") or s.kv_heads
    values = not t.flag("attention_k_eq_v")
    _gemma4_attention(b.at(f"{prefix}layers.{{}}", sorted(full)), s, wide, few, values)
    shared = min(t.size("num_kv_shared_layers"), s.layers) if t.flag("use_double_wide_mlp") else 0
    b.at(f"{prefix}layers.{{}}", range(s.layers - shared)).under("mlp").mlp(s.hidden, s.inner)
    b.at(f"{prefix}layers.{{}}", range(s.layers - shared, s.layers)).under("mlp").mlp(s.hidden, 2 * s.inner)
    _per_layer(b, prefix, s)
    if t.flag("enable_moe_block") or (t.flag("enable_moe_block") is None and s.experts):
        _gemma4_experts(place, s)


def _per_layer(b: Builder, prefix: str, s: Sizes) -> None:
    """E2B and E4B: an embedding of every token for every layer, larger than the rest."""
    width = s.text.size("hidden_size_per_layer_input")
    if not width:
        return
    top, place = b.at(prefix.rstrip(".")), b.at(f"{prefix}layers.{{}}", s.all)
    rows = s.text.size("vocab_size_per_layer_input") or s.vocabulary
    top.tensor("embed_tokens_per_layer.weight", (rows, s.layers * width))
    top.linear("per_layer_model_projection", s.layers * width, s.hidden, plain=True)
    place.linear("per_layer_input_gate", width, s.hidden)
    place.linear("per_layer_projection", s.hidden, width)
    place.norm("post_per_layer_input_norm", s.hidden)


def _gemma4_attention(place: Place, s: Sizes, dim: int, kv_heads: int, values: bool) -> None:
    a = place.under("self_attn")
    a.linear("q_proj", s.heads * dim, s.hidden)
    a.linear("k_proj", kv_heads * dim, s.hidden)
    if values:
        a.linear("v_proj", kv_heads * dim, s.hidden)
    a.linear("o_proj", s.hidden, s.heads * dim)
    a.norm("q_norm", dim)
    a.norm("k_norm", dim)


def _gemma4_experts(place: Place, s: Sizes) -> None:
    e, h, f = s.experts, s.hidden, s.expert_inner
    if s.source.storage.plain:
        place.tensor("experts.gate_up_proj", (e, 2 * f, h), stacked=True)
        place.tensor("experts.down_proj", (e, h, f), stacked=True)
    else:
        place.each_expert("experts", e).mlp(h, f)
    place.tensor("router.proj.weight", (e, h))
    place.tensor("router.scale", (h,))
    place.tensor("router.per_expert_scale", (e,))
    for name in ("post_feedforward_layernorm_1", "post_feedforward_layernorm_2", "pre_feedforward_layernorm_2"):
        place.norm(name, h)
