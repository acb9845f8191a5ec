"""Decoders with a recurrent state in most layers: Qwen3-Next and 3.5, Nemotron-H, Granite 4, Kimi-Linear,
LFM2."""

from __future__ import annotations

from ullage.models import latent as mla
from ullage.models.builder import UNGATED, Builder, Place
from ullage.models.decoder import Sizes, attention, embedding, ends, output, sparse_layers
from ullage.models.decoder import experts as mlp_experts
from ullage.models.fields import MOST_LAYERS


def gated_delta(b: Builder, prefix: str = "model.", head: str = "lm_head") -> None:
    """Qwen3-Next and Qwen3.5: three gated delta nets to one gated attention, and an MTP layer."""
    s = Sizes(b.source)
    ends(b, prefix, head, s)
    at = f"{prefix}layers.{{}}"
    linear = linear_layers(s)
    full = [n for n in s.all if n not in set(linear)]
    place = b.at(at, s.all)
    for name in ("input_layernorm", "post_attention_layernorm"):
        place.norm(name, s.hidden)
    delta_net(b.at(at, linear).under("linear_attn"), s)
    attention(b.at(at, full), s)
    _mlp(place, s)
    _gated_delta_mtp(b, s)


def linear_layers(s: Sizes) -> list[int]:
    """The layers with a recurrent state: those that a list names so, else all but every fourth."""
    step, kinds = s.text.size("full_attention_interval") or 4, s.text.texts("layer_types") or []
    return [n for n in s.all if (kinds[n] == "linear_attention" if n < len(kinds) else (n + 1) % step != 0)]


def qwen3_5(b: Builder) -> None:
    """Qwen3.5: the same, under a vision tower."""
    from ullage.models.towers import qwen_vision

    gated_delta(b, "model.language_model.")
    qwen_vision(b, "model.visual")


def _mlp(place: Place, s: Sizes) -> None:
    if s.experts:
        mlp_experts(place, s)
    else:
        place.under("mlp").mlp(s.hidden, s.inner)


def delta_net(place: Place, s: Sizes) -> None:
    """Qwen3.5 keeps four projections where Qwen3-Next has two, and some norms in fp32."""
    t, h, split = s.text, s.hidden, s.kind.startswith(("qwen3_5", "qwen4"))
    keys, values = t.size("linear_num_key_heads"), t.size("linear_num_value_heads")
    dk, dv = t.size("linear_key_head_dim"), t.size("linear_value_head_dim")
    conv, wide = 2 * keys * dk + values * dv, "F32" if split else None
    place.tensor("A_log", (values,), wide)
    place.tensor("dt_bias", (values,))
    place.tensor("conv1d.weight", (conv, 1, t.size("linear_conv_kernel_dim") or 4))
    if split:
        place.linear("in_proj_qkv", conv, h)
        place.linear("in_proj_z", values * dv, h)
        place.linear("in_proj_b", values, h, plain=True)
        place.linear("in_proj_a", values, h, plain=True)
    else:
        place.linear("in_proj_qkvz", conv + values * dv, h)
        place.linear("in_proj_ba", 2 * values, h, plain=True)
    place.norm("norm", dv, dtype=wide)
    place.linear("out_proj", h, values * dv)


def _gated_delta_mtp(b: Builder, s: Sizes) -> None:
    count = s.text.integer("mtp_num_hidden_layers", most=16)
    if count is None:
        count = 0 if s.kind.startswith("qwen3_5") else 1
    if not count:
        return
    top = b.at("mtp")
    top.linear("fc", s.hidden, 2 * s.hidden, plain=True)
    for name in ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden"):
        top.norm(name, s.hidden)
    place = b.at("mtp.layers.{}", range(count))
    for name in ("input_layernorm", "post_attention_layernorm"):
        place.norm(name, s.hidden)
    attention(place, s)
    if s.experts:
        _mtp_experts(place.under("mlp"), s)
    else:
        place.under("mlp").mlp(s.hidden, s.inner)


def _mtp_experts(m: Place, s: Sizes) -> None:
    """The MTP layer's experts are always stored one by one."""
    m.tensor("gate.weight", (s.experts, s.hidden))
    m.each_expert("experts", s.experts).mlp(s.hidden, s.expert_inner)
    single = s.text.size("shared_expert_intermediate_size")
    if single:
        m.under("shared_expert").mlp(s.hidden, single)
        m.tensor("shared_expert_gate.weight", (1, s.hidden))


def _mamba2(place: Place, hidden: int, sizes: tuple[int, int, int, int, int], bias: bool) -> None:
    """``sizes``: heads, head_dim, groups, state size, kernel. A_log, D, dt_bias and the convolution go by
    head."""
    heads, dim, groups, state, kernel = sizes
    inner = heads * dim
    conv = inner + 2 * groups * state
    for name in ("A_log", "D", "dt_bias"):
        place.tensor(name, (heads,))
    place.tensor("conv1d.weight", (conv, 1, kernel))
    if bias:
        place.tensor("conv1d.bias", (conv,))
    place.linear("in_proj", inner + conv + heads, hidden)
    place.norm("norm", inner)
    place.linear("out_proj", hidden, inner)


def nemotron_h(b: Builder) -> None:
    """Nemotron-H: one mixer a layer, named by a letter: M Mamba-2, * attention, - MLP, E experts."""
    s, t = Sizes(b.source), b.source.text
    top = b.at("backbone")
    embedding(top, s, "embeddings")
    top.norm("norm_f", s.hidden)
    if not s.source.tied:
        output(b.at(""), "lm_head", s)
    named = {"mamba": "M", "attention": "*", "moe": "E", "mlp": "-"}
    listed = "".join(named.get(kind, "?") for kind in t.texts("layers_block_type") or [])
    letters = (t.text("hybrid_override_pattern") or listed)[:MOST_LAYERS]
    of = {letter: [n for n, found in enumerate(letters) if found == letter] for letter in "M*-E"}
    at = "backbone.layers.{}"
    b.at(at, range(len(letters))).norm("norm", s.hidden)
    sizes = (
        t.size("mamba_num_heads"), t.size("mamba_head_dim"), t.size("n_groups"), t.size("ssm_state_size"),
        t.size("conv_kernel") or 4,
    )  # fmt: skip
    _mamba2(b.at(at, of["M"]).under("mixer"), s.hidden, sizes, t.flag("use_conv_bias") is not False)
    attention(b.at(at, of["*"]), s, "mixer")
    b.at(at, of["-"]).under("mixer").mlp(s.hidden, s.inner, UNGATED)
    _nemotron_experts(b.at(at, of["E"]).under("mixer"), s)


def _nemotron_experts(m: Place, s: Sizes) -> None:
    latent = s.text.size("moe_latent_size") or s.hidden
    m.tensor("gate.weight", (s.experts, s.hidden))
    m.tensor("gate.e_score_correction_bias", (s.experts,), "F32")
    if latent != s.hidden:
        m.linear("fc1_latent_proj", latent, s.hidden)
        m.linear("fc2_latent_proj", s.hidden, latent)
    m.each_expert("experts", s.experts).mlp(latent, s.expert_inner, UNGATED)
    m.under("shared_experts").mlp(s.hidden, s.text.size("moe_shared_expert_intermediate_size"), UNGATED)


def granite_hybrid(b: Builder) -> None:
    """Granite 4: Mamba-2 in most layers, attention in a few, stacked experts and a shared MLP in all."""
    s, t = Sizes(b.source), b.source.text
    ends(b, "model.", "lm_head", s)
    at, kinds = "model.layers.{}", t.texts("layer_types") or []
    place = b.at(at, s.all)
    for name in ("input_layernorm", "post_attention_layernorm"):
        place.norm(name, s.hidden)
    heads = t.size("mamba_n_heads")
    dim = t.size("mamba_d_head") or t.size("mamba_expand") * s.hidden // max(1, heads)
    sizes = (heads, dim, t.size("mamba_n_groups"), t.size("mamba_d_state"), t.size("mamba_d_conv") or 4)
    mamba = [n for n in s.all if n < len(kinds) and kinds[n] == "mamba"]
    _mamba2(b.at(at, mamba).under("mamba"), s.hidden, sizes, t.flag("mamba_conv_bias") is not False)
    attention(b.at(at, [n for n in s.all if n not in set(mamba)]), s)
    if s.experts:
        m = place.under("block_sparse_moe")
        m.tensor("router.layer.weight", (s.experts, s.hidden))
        m.tensor("input_linear.weight", (s.experts, 2 * s.inner, s.hidden), stacked=True)
        m.tensor("output_linear.weight", (s.experts, s.hidden, s.inner), stacked=True)
    shared = t.size("shared_intermediate_size")
    place.under("shared_mlp").linear("input_linear", 2 * shared, s.hidden)
    place.under("shared_mlp").linear("output_linear", s.hidden, shared)


def kimi_linear(b: Builder, prefix: str = "model.", head: str = "lm_head") -> None:
    """Kimi-Linear: delta attention (KDA) in most layers, MLA in those that the config lists (from 1)."""
    s, t = Sizes(b.source), b.source.text
    ends(b, prefix, head, s)
    at, inner = f"{prefix}layers.{{}}", t.inner("linear_attn_config")
    full = {n - 1 for n in (inner.integers("full_attn_layers") or [] if inner else [])}
    place = b.at(at, s.all)
    for name in ("input_layernorm", "post_attention_layernorm"):
        place.norm(name, s.hidden)
    mla.attention(b.at(at, [n for n in s.all if n in full]).under("self_attn"), s)
    if inner is not None:
        heads, dim = inner.size("num_heads"), inner.size("head_dim")
        kernel = inner.size("short_conv_kernel_size") or 4
        kda(b.at(at, [n for n in s.all if n not in full]).under("self_attn"), s.hidden, heads, dim, kernel)
    sparse = set(sparse_layers(t, s.layers, s.experts))
    b.at(at, [n for n in s.all if n not in sparse]).under("mlp").mlp(s.hidden, s.inner)
    m = b.at(at, sorted(sparse)).under("block_sparse_moe")
    m.tensor("gate.weight", (s.experts, s.hidden))
    m.tensor("gate.e_score_correction_bias", (s.experts,), "F32")
    kimi_experts(m, s)
    if s.shared:
        m.under("shared_experts").mlp(s.hidden, s.expert_inner * s.shared)


def kimi_experts(m: Place, s: Sizes) -> None:
    """Kimi-K3's experts work in a narrower space, between two projections that all share."""
    narrow = s.text.size("routed_expert_hidden_size") or s.hidden
    if narrow != s.hidden:
        m.linear("routed_expert_down_proj", narrow, s.hidden)
        m.linear("routed_expert_up_proj", s.hidden, narrow)
    m.each_expert("experts", s.experts).mlp(narrow, s.expert_inner, ("w1", "w3", "w2"))


def kimi_k3(b: Builder) -> None:
    """Kimi-K3: the same under a vision tower."""
    from ullage.models.towers import kimi_vision

    kimi_linear(b, "language_model.model.", "language_model.lm_head")
    kimi_vision(b)


def kda(a: Place, hidden: int, heads: int, dim: int, kernel: int) -> None:
    width = heads * dim
    for name in ("q", "k", "v"):
        a.linear(f"{name}_proj", width, hidden)
        a.tensor(f"{name}_conv1d.weight", (width, 1, kernel))
    a.tensor("A_log", (1, 1, heads, 1), "F32")
    a.tensor("dt_bias", (width,), "F32")
    for name in ("f", "g"):
        a.linear(f"{name}_a_proj", dim, hidden)
        a.linear(f"{name}_b_proj", width, dim)
    a.linear("b_proj", heads, hidden)
    a.norm("o_norm", dim)
    a.linear("o_proj", hidden, width)


def lfm2(b: Builder) -> None:
    """LFM2: short convolutions in most layers, attention with query and key norms in the others."""
    s, t = Sizes(b.source), b.source.text
    at, kinds = "model.layers.{}", t.texts("layer_types") or []
    listed = set(t.integers("full_attn_idxs") or [])
    full = [n for n in s.all if (kinds[n] == "full_attention" if n < len(kinds) else n in listed)]
    top = b.at("model")
    embedding(top, s)
    top.norm("embedding_norm", s.hidden)
    if not s.source.tied:
        output(b.at(""), "lm_head", s)
    place = b.at(at, s.all)
    place.norm("operator_norm", s.hidden)
    place.norm("ffn_norm", s.hidden)
    a = b.at(at, full).under("self_attn")
    for name, out in (("q_proj", s.heads), ("k_proj", s.kv_heads), ("v_proj", s.kv_heads)):
        a.linear(name, out * s.head_dim, s.hidden)
    a.linear("out_proj", s.hidden, s.heads * s.head_dim)
    a.norm("q_layernorm", s.head_dim)
    a.norm("k_layernorm", s.head_dim)
    c = b.at(at, [n for n in s.all if n not in set(full)]).under("conv")
    c.tensor("conv.weight", (s.hidden, 1, t.size("conv_L_cache") or 3))
    c.linear("in_proj", 3 * s.hidden, s.hidden)
    c.linear("out_proj", s.hidden, s.hidden)
    place.under("feed_forward").mlp(s.hidden, _lfm2_inner(s), ("w1", "w3", "w2"))


def _lfm2_inner(s: Sizes) -> int:
    """block_auto_adjust_ff_dim: two thirds of the stated width, rounded up to block_multiple_of."""
    t = s.text
    inner = t.size("block_ff_dim", "intermediate_size")
    if t.flag("block_auto_adjust_ff_dim") is False:
        return inner
    inner = int(2 * inner / 3)
    inner = int((t.number("block_ffn_dim_multiplier") or 1.0) * inner)
    step = t.size("block_multiple_of") or 256
    return step * -(-inner // step)
