"""Llama 4: experts in every n-th layer, and a vision tower."""

from __future__ import annotations

from ullage.models.builder import Builder
from ullage.models.decoder import Sizes, attention, ends, norms, sparse_layers
from ullage.models.towers import depth, plain_mlp, vision_of


def llama4(b: Builder) -> None:
    llama4_decoder(b)
    _llama4_vision(b)


def _llama4_vision(b: Builder) -> None:
    v = vision_of(b)
    if v is None:
        return
    h, f = v.size("hidden_size"), v.size("intermediate_size")
    patch, channels = v.size("patch_size"), v.size("num_channels") or 3
    t = b.at("vision_model")
    t.tensor("patch_embedding.linear.weight", (h, channels * patch**2))
    t.tensor("class_embedding", (h,))
    t.tensor("positional_embedding_vlm", (((v.size("image_size") or 336) // max(1, patch)) ** 2 + 1, h))
    t.norm("layernorm_pre", h, bias=True)
    t.norm("layernorm_post", h, bias=True)
    layer = b.at("vision_model.model.layers.{}", depth(v, "num_hidden_layers"))
    for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
        layer.linear(f"self_attn.{name}", h, h, bias=True, plain=True)
    plain_mlp(layer.under("mlp"), h, f, ("fc1", "fc2"), bias=True)
    layer.norm("input_layernorm", h, bias=True)
    layer.norm("post_attention_layernorm", h, bias=True)
    ratio = max(v.number("pixel_shuffle_ratio") or 0.5, 1e-3)
    into, out = v.size("projector_input_dim") or 4096, v.size("projector_output_dim") or 4096
    t.linear("vision_adapter.mlp.fc1", into, int(h / ratio**2), plain=True)
    t.linear("vision_adapter.mlp.fc2", out, into, plain=True)
    b.at("multi_modal_projector").linear(
        "linear_1", Sizes(b.source).hidden, v.size("vision_output_dim") or out, plain=True
    )


def llama4_decoder(b: Builder) -> None:
    """Llama 4: stacked experts in every n-th layer, beside one shared expert."""
    s = Sizes(b.source)
    prefix = "language_model.model."
    ends(b, prefix, "language_model.lm_head", s)
    sparse = sparse_layers(s.text, s.layers, s.experts)
    place = b.at(f"{prefix}layers.{{}}", s.all)
    norms(place, s)
    attention(place, s)
    e, h, f = s.experts, s.hidden, s.inner
    m = b.at(f"{prefix}layers.{{}}", sparse).under("feed_forward")
    m.tensor("router.weight", (e, h))
    if b.source.storage.plain:
        m.tensor("experts.gate_up_proj", (e, h, 2 * f), stacked=True)
        m.tensor("experts.down_proj", (e, f, h), stacked=True)
    else:
        m.each_expert("experts", e).mlp(h, f)
    m.under("shared_expert").mlp(h, f)
    dense = b.at(f"{prefix}layers.{{}}", [n for n in s.all if n not in set(sparse)])
    dense.under("feed_forward").mlp(h, s.text.size("intermediate_size_mlp") or f)
