"""Decoders with hyper-connections around recurrent and indexed layers: Qwen4-Exp (Qwen3.8-Flash-Next),
GLM-5-Next
(GLM-5.3-Flash).

Read: transformers 5.24.0 (models/qwen4_exp, models/glm5_next), sglang 0.5.23 (models/qwen4_exp.py).
"""

from __future__ import annotations

from ullage.models import latent
from ullage.models.builder import Builder
from ullage.models.decoder import Sizes, attention, ends, sparse_layers
from ullage.models.decoder import experts as mlp_experts
from ullage.models.hybrid import delta_net, kda, linear_layers
from ullage.models.towers import plain_tower, qwen_vision


def qwen4_exp(b: Builder) -> None:
    """Gated delta nets and indexed attention, low-rank hyper-connections, experts in every layer.

    The n-gram table beside it (51 B parameters) is not counted: both engines keep it on the host.
    """
    s, t = Sizes(b.source), b.source.text
    prefix = "model.language_model."
    ends(b, prefix, "lm_head", s)
    at = f"{prefix}layers.{{}}"
    linear = linear_layers(s)
    place = b.at(at, s.all)
    for name in ("input_layernorm", "post_attention_layernorm"):
        place.norm(name, s.hidden)
    delta_net(b.at(at, linear).under("linear_attn"), s)
    full = b.at(at, [n for n in s.all if n not in set(linear)])
    attention(full, s)
    heads, width = t.size("indexer_n_heads"), t.size("indexer_head_dim")
    if heads and width:
        keys = (heads + max(1, t.size("indexer_kv_heads"))) * width
        full.under("self_attn.indexer").linear("index_qk_proj", keys, s.hidden)
    mlp_experts(place, s)
    streams, rank = max(1, t.size("hc_count")), t.size("hc_lowrank")
    for name in ("attn_hyper_connection", "mlp_hyper_connection"):
        h = place.under(name)
        h.linear("input_mix_weight_down", rank, streams * s.hidden, plain=True)
        h.linear("input_mix_weight_up", streams * s.hidden, rank, plain=True)
        h.linear("block_inject_weight", streams, streams * s.hidden, plain=True)
    _mtp(b, s)
    qwen_vision(b, "model.visual")


def _mtp(b: Builder, s: Sizes) -> None:
    count = min(s.text.size("mtp_num_hidden_layers"), 4)
    if not count:
        return
    b.at("mtp").linear("fc", s.hidden, 2 * s.hidden, plain=True)
    place = b.at("mtp.layers.{}", range(count))
    attention(place, s)
    mlp_experts(place, s)


def glm5_next(b: Builder) -> None:
    """KDA and, in every fourth layer, MLA without rotary keys under a pooled index; experts after three dense
    layers; one MTP layer."""
    s, t = Sizes(b.source), b.source.text
    prefix = "model.language_model."
    ends(b, prefix, "lm_head", s)
    at = f"{prefix}layers.{{}}"
    linear = linear_layers(s)
    _glm_layer(b, at, s, linear, [n for n in s.all if n not in set(linear)])
    sparse = set(sparse_layers(t, s.layers, s.experts) if t.has("mlp_layer_types") else range(3, s.layers))
    b.at(at, [n for n in s.all if n not in sparse]).under("mlp").mlp(s.hidden, s.inner)
    latent.experts(b.at(at, sorted(sparse)), s)
    count = min(t.size("num_nextn_predict_layers"), 4)
    if count:
        after = range(s.layers, s.layers + count)
        _glm_layer(b, at, s, [], list(after))
        latent.experts(b.at(at, after), s)
        b.at(at, after).linear("eh_proj", s.hidden, 2 * s.hidden, plain=True)
    plain_tower(b, "model.visual", "model.visual.merger", gated=True)


def _glm_layer(b: Builder, at: str, s: Sizes, linear: list[int], full: list[int]) -> None:
    place = b.at(at, [*linear, *full])
    for name in ("input_layernorm", "post_attention_layernorm"):
        place.norm(name, s.hidden)
    streams = max(1, s.text.size("hc_mult") or 4)
    for name in ("hc_attn_fn", "hc_ffn_fn"):
        place.tensor(name, ((2 + streams) * streams, streams * s.hidden), "F32")
    inner = s.text.inner("linear_attn_config") or s.text
    heads, dim = inner.size("num_heads", "linear_num_heads"), inner.size("head_dim", "linear_head_dim")
    kda(b.at(at, linear).under("self_attn"), s.hidden, heads, dim, inner.size("short_conv_kernel_size") or 4)
    latent.attention(b.at(at, full).under("self_attn"), s)
    latent.indexer(b.at(at, full).under("self_attn.indexer"), s)
