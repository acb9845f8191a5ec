"""Vision towers and their projectors: kept in 16 bit, beside the language model."""

from __future__ import annotations

from ullage.models.builder import GATED, Builder, Place
from ullage.models.decoder import Sizes, causal
from ullage.models.fields import MOST_LAYERS, Fields
from ullage.models.latent import latent


def vision_of(b: Builder) -> Fields | None:
    found = b.source.top.inner("vision_config")
    return found if found is not None and found.values else None


def depth(v: Fields, *names: str) -> range:
    return range(v.integer(*names, most=MOST_LAYERS) or 0)


def plain_mlp(place: Place, hidden: int, inner: int, names: tuple[str, str], *, bias: bool) -> None:
    place.linear(names[0], inner, hidden, bias=bias, plain=True)
    place.linear(names[1], hidden, inner, bias=bias, plain=True)


def qwen_vision(b: Builder, prefix: str) -> None:
    """Qwen3-VL and Qwen3.5: a merger, and with deepstack one more for each layer that it taps."""
    v = vision_of(b)
    if v is None:
        return
    h, f = v.size("hidden_size"), v.size("intermediate_size") or 4 * v.size("hidden_size")
    patch, merged = v.size("patch_size") or 16, h * (v.size("spatial_merge_size") or 2) ** 2
    block = b.at(f"{prefix}.blocks.{{}}", depth(v, "depth"))
    block.linear("attn.qkv", 3 * h, h, bias=True, plain=True)
    block.linear("attn.proj", h, h, bias=True, plain=True)
    plain_mlp(block.under("mlp"), h, f, ("linear_fc1", "linear_fc2"), bias=True)
    block.norm("norm1", h, bias=True)
    block.norm("norm2", h, bias=True)
    top, out = b.at(prefix), v.size("out_hidden_size") or Sizes(b.source).hidden
    _merger(top.under("merger"), h, merged, out)
    listed = v.integers("deepstack_visual_indexes")
    taps = len(listed) if listed is not None else 3 * b.source.kind.startswith("qwen3_vl")
    _merger(b.at(f"{prefix}.deepstack_merger_list.{{}}", range(taps)), merged, merged, out)
    top.tensor(
        "patch_embed.proj.weight",
        (h, v.size("in_channels") or 3, v.size("temporal_patch_size") or 2, patch, patch),
    )
    top.tensor("patch_embed.proj.bias", (h,))
    top.tensor("pos_embed.weight", (v.size("num_position_embeddings") or 2304, h))


def _merger(place: Place, norm: int, merged: int, out: int) -> None:
    place.norm("norm", norm, bias=True)
    place.linear("linear_fc1", merged, merged, bias=True, plain=True)
    place.linear("linear_fc2", out, merged, bias=True, plain=True)


def qwen3_vl(b: Builder) -> None:
    causal(b, "model.language_model.")
    qwen_vision(b, "model.visual")


def qwen2_5_vl(b: Builder) -> None:
    """Qwen2.5-VL: gated MLPs in the tower, RMS norms."""
    causal(b)
    v = vision_of(b)
    if v is None:
        return
    h, f = v.size("hidden_size"), v.size("intermediate_size") or 3420
    patch, merged = v.size("patch_size") or 14, h * (v.size("spatial_merge_size") or 2) ** 2
    block = b.at("visual.blocks.{}", depth(v, "depth"))
    block.linear("attn.qkv", 3 * h, h, bias=True, plain=True)
    block.linear("attn.proj", h, h, bias=True, plain=True)
    block.under("mlp").mlp(h, f, GATED, bias=True, plain=True)
    block.norm("norm1", h)
    block.norm("norm2", h)
    top = b.at("visual")
    top.norm("merger.ln_q", h)
    top.linear("merger.mlp.0", merged, merged, bias=True, plain=True)
    top.linear(
        "merger.mlp.2", v.size("out_hidden_size") or Sizes(b.source).hidden, merged, bias=True, plain=True
    )
    frames = v.size("temporal_patch_size") or 2
    top.tensor("patch_embed.proj.weight", (h, v.size("in_chans") or 3, frames, patch, patch))


def qwen2_vl(b: Builder) -> None:
    """Qwen2-VL: ``embed_dim`` wide, an MLP of mlp_ratio x that, layer norms."""
    causal(b)
    v = vision_of(b)
    if v is None:
        return
    h = v.size("embed_dim") or 1280
    patch, merged = v.size("patch_size") or 14, h * (v.size("spatial_merge_size") or 2) ** 2
    block = b.at("visual.blocks.{}", depth(v, "depth") or range(32))
    block.linear("attn.qkv", 3 * h, h, bias=True, plain=True)
    block.linear("attn.proj", h, h, bias=True, plain=True)
    plain_mlp(block.under("mlp"), h, h * (v.size("mlp_ratio") or 4), ("fc1", "fc2"), bias=True)
    block.norm("norm1", h, bias=True)
    block.norm("norm2", h, bias=True)
    top = b.at("visual")
    top.norm("merger.ln_q", h, bias=True)
    top.linear("merger.mlp.0", merged, merged, bias=True, plain=True)
    top.linear("merger.mlp.2", Sizes(b.source).hidden, merged, bias=True, plain=True)
    top.tensor(
        "patch_embed.proj.weight",
        (h, v.size("in_channels") or 3, v.size("temporal_patch_size") or 2, patch, patch),
    )


def kimi_k25(b: Builder) -> None:
    """Kimi-K2.5: MoonViT in 3D, a patch merger as projector."""
    latent(b, "language_model.model.", "language_model.lm_head")
    kimi_vision(b)


def kimi_vision(b: Builder) -> None:
    v = vision_of(b)
    if v is None:
        return
    h, f = v.size("vt_hidden_size", "hidden_size"), v.size("vt_intermediate_size", "intermediate_size")
    kernel = v.integers("merge_kernel_size") or [2, 2]
    merged = h * kernel[0] * kernel[-1]
    out = v.size("text_hidden_size") or Sizes(b.source).hidden
    p = b.at("mm_projector")
    p.norm("pre_norm", h, bias=True)
    p.linear("proj.0", merged, merged, bias=True, plain=True)
    p.linear("proj.2", out, merged, bias=True, plain=True)
    block = b.at("vision_tower.encoder.blocks.{}", depth(v, "vt_num_hidden_layers", "num_hidden_layers"))
    _moonvit_block(block, h, f)
    top = b.at("vision_tower")
    top.norm("encoder.final_layernorm", h, bias=True)
    height, width = v.size("init_pos_emb_height") or 64, v.size("init_pos_emb_width") or 64
    top.tensor("patch_embed.pos_emb.weight", (height, width, h))
    _patches(top.under("patch_embed.proj"), h, v.size("patch_size") or 14)


def _moonvit_block(block: Place, h: int, f: int) -> None:
    block.norm("norm0", h, bias=True)
    block.norm("norm1", h, bias=True)
    plain_mlp(block.under("mlp"), h, f, ("fc0", "fc1"), bias=True)
    block.linear("wqkv", 3 * h, h, bias=True, plain=True)
    block.linear("wo", h, h, bias=True, plain=True)


def _patches(place: Place, h: int, patch: int) -> None:
    place.tensor("weight", (h, 3, patch, patch))
    place.tensor("bias", (h,))


def kimi_vl(b: Builder) -> None:
    """Kimi-VL: MoonViT, and a projector of two linear layers."""
    latent(b, "language_model.model.", "language_model.lm_head")
    v = vision_of(b)
    if v is None:
        return
    h, merged = v.size("hidden_size"), v.size("hidden_size") * 4
    _moonvit_block(
        b.at("vision_tower.encoder.blocks.{}", depth(v, "num_hidden_layers")), h, v.size("intermediate_size")
    )
    top = b.at("vision_tower")
    top.norm("encoder.final_layernorm", h, bias=True)
    top.tensor("patch_embed.pos_emb.weight", (64, 64, h))
    _patches(top.under("patch_embed.proj"), h, v.size("patch_size") or 14)
    p = b.at("multi_modal_projector")
    p.norm("pre_norm", h, bias=True)
    p.linear("linear_1", merged, merged, bias=True, plain=True)
    p.linear("linear_2", Sizes(b.source).hidden, merged, bias=True, plain=True)


def siglip(b: Builder, v: Fields, prefix: str) -> None:
    """SigLIP, Gemma 3's tower."""
    h, f = v.size("hidden_size"), v.size("intermediate_size")
    patch = v.size("patch_size") or 14
    e = b.at(f"{prefix}.embeddings")
    e.tensor("patch_embedding.weight", (h, v.size("num_channels") or 3, patch, patch))
    e.tensor("patch_embedding.bias", (h,))
    e.tensor("position_embedding.weight", (((v.size("image_size") or 896) // patch) ** 2, h))
    _encoder(b.at(f"{prefix}.encoder.layers.{{}}", depth(v, "num_hidden_layers")), h, f)
    b.at(prefix).norm("post_layernorm", h, bias=True)


def _encoder(layer: Place, h: int, f: int) -> None:
    """A layer of CLIP or SigLIP."""
    for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
        layer.linear(f"self_attn.{name}", h, h, bias=True, plain=True)
    plain_mlp(layer.under("mlp"), h, f, ("fc1", "fc2"), bias=True)
    layer.norm("layer_norm1", h, bias=True)
    layer.norm("layer_norm2", h, bias=True)


def gemma3(b: Builder) -> None:
    v = vision_of(b)
    if v is None:
        causal(b)
        return
    causal(b, "language_model.model.", "language_model.lm_head")
    siglip(b, v, "vision_tower.vision_model")
    p = b.at("multi_modal_projector")
    p.tensor("mm_input_projection_weight", (v.size("hidden_size"), Sizes(b.source).hidden))
    p.norm("mm_soft_emb_norm", v.size("hidden_size"))


def llava(b: Builder) -> None:
    """LLaVA: CLIP large at 336 pixels unless the config says otherwise, two linear layers as projector."""
    causal(b, "language_model.model.", "language_model.lm_head")
    v = vision_of(b)
    if v is None:
        return
    h, f = v.size("hidden_size") or 1024, v.size("intermediate_size") or 4096
    patch, pixels = v.size("patch_size") or 14, v.size("image_size") or 336
    prefix = "vision_tower.vision_model"
    e = b.at(f"{prefix}.embeddings")
    e.tensor("class_embedding", (h,))
    e.tensor("patch_embedding.weight", (h, 3, patch, patch))
    e.tensor("position_embedding.weight", ((pixels // patch) ** 2 + 1, h))
    _encoder(b.at(f"{prefix}.encoder.layers.{{}}", depth(v, "num_hidden_layers") or range(24)), h, f)
    for name in ("pre_layrnorm", "post_layernorm"):
        b.at(prefix).norm(name, h, bias=True)
    out = Sizes(b.source).hidden
    p = b.at("multi_modal_projector")
    p.linear("linear_1", out, h, bias=True, plain=True)
    p.linear("linear_2", out, out, bias=True, plain=True)
    b.at("").tensor("image_newline", (out,))


def mistral3(b: Builder) -> None:
    """Mistral Small 3.1 on: Pixtral's tower, a patch merger and two linear layers."""
    causal(b, "language_model.model.", "language_model.lm_head")
    v, top = vision_of(b), b.source.top
    if v is None:
        return
    h, f, out = v.size("hidden_size"), v.size("intermediate_size"), Sizes(b.source).hidden
    t = b.at("vision_tower")
    t.norm("ln_pre", h)
    t.tensor("patch_conv.weight", (h, v.size("num_channels") or 3, v.size("patch_size"), v.size("patch_size")))
    layer = b.at("vision_tower.transformer.layers.{}", depth(v, "num_hidden_layers"))
    for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
        layer.linear(f"attention.{name}", h, h, plain=True)
    layer.under("feed_forward").mlp(h, f, GATED, plain=True)
    layer.norm("attention_norm", h)
    layer.norm("ffn_norm", h)
    p, bias = b.at("multi_modal_projector"), bool(top.flag("multimodal_projector_bias"))
    p.norm("norm", h)
    p.linear("patch_merger.merging_layer", h, h * (top.size("spatial_merge_size") or 2) ** 2, plain=True)
    p.linear("linear_1", out, h, bias=bias, plain=True)
    p.linear("linear_2", out, out, bias=bias, plain=True)


def plain_tower(b: Builder, tower: str, projector: str, *, gated: bool = False) -> None:
    """A transformer of patches as most towers are, for those that nothing above knows: attention, an MLP of
    two or
    (``gated``) three matrices, a projector of two. Near the truth in size, not in names."""
    v = vision_of(b)
    if v is None:
        return
    h = v.size("hidden_size", "embed_dim", "vt_hidden_size")
    f = v.size("intermediate_size", "mlp_dim", "vt_intermediate_size") or 4 * h
    block = b.at(
        f"{tower}.layers.{{}}", depth(v, "num_hidden_layers", "depth", "num_layers", "vt_num_hidden_layers")
    )
    for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
        block.linear(f"self_attn.{name}", h, h, bias=True, plain=True)
    if gated:
        block.under("mlp").mlp(h, f, GATED, plain=True)
    else:
        plain_mlp(block.under("mlp"), h, f, ("fc1", "fc2"), bias=True)
    patch = v.size("patch_size") or 14
    b.at(tower).tensor("patch_embed.weight", (h, 3 * patch * patch))
    merged = h * max(1, v.size("spatial_merge_size") or 1) ** 2
    hidden = Sizes(b.source).hidden
    b.at(projector).tensor("linear_1.weight", (hidden, merged))
    b.at(projector).tensor("linear_2.weight", (hidden, hidden))
