"""Large decoders of 2026 whose layers are not all alike: MiniMax-M3, MiMo-V2, Step-3.5 and 3.7, Laguna,
Inkling, LongCat.

Read: sglang 0.5.23 (models/minimax_m3.py, mimo_v2.py, step3p5.py, longcat_flash.py), transformers 5.24.0.
"""

from __future__ import annotations

from collections.abc import Sequence

from ullage.models.builder import Builder, Place
from ullage.models.decoder import Sizes, embedding, ends, norms, output, sparse_layers
from ullage.models.latent import attention as latent_attention
from ullage.models.towers import plain_tower


def minimax_m3(b: Builder) -> None:
    """MiniMax-M3: grouped heads with an index of four heads and one key in the sparse layers; experts after the
    first three dense layers; a CLIP tower where there is one."""
    s, t = Sizes(b.source), b.source.text
    prefix = "language_model.model." if t is not b.source.top else "model."
    ends(b, prefix, "lm_head", s)
    at = f"{prefix}layers.{{}}"
    norms(b.at(at, s.all), s)
    a = b.at(at, s.all).under("self_attn")
    _heads(a, s, s.heads, s.kv_heads, s.head_dim, s.head_dim)
    for name in ("q_norm", "k_norm"):
        a.norm(name, s.head_dim)
    inner = t.inner("sparse_attention_config")
    marks = (inner.integers("sparse_attention_freq") if inner else None) or []
    width, heads = (inner.size("sparse_index_dim"), inner.size("sparse_num_index_heads")) if inner else (0, 0)
    index = b.at(at, [n for n in s.all if n < len(marks) and marks[n]]).under("self_attn")
    if width:
        index.linear("index_q_proj", (heads or 4) * width, s.hidden)
        index.linear("index_k_proj", width, s.hidden)
        index.norm("index_q_norm", width)
        index.norm("index_k_norm", width)
    sparse = set(sparse_layers(t, s.layers, s.experts))
    dense = b.at(at, [n for n in s.all if n not in sparse]).under("mlp")
    dense.mlp(s.hidden, t.size("dense_intermediate_size") or s.inner)
    m = b.at(at, sorted(sparse)).under("block_sparse_moe")
    m.tensor("gate.weight", (s.experts, s.hidden), "F32")
    m.tensor("e_score_correction_bias", (s.experts,), "F32")
    m.each_expert("experts", s.experts).mlp(s.hidden, s.expert_inner, ("w1", "w3", "w2"))
    shared = t.size("shared_intermediate_size")
    if shared:
        m.under("shared_experts").mlp(s.hidden, shared * max(1, s.shared))
    plain_tower(b, "vision_tower", "multi_modal_projector")


def mimo_v2(b: Builder) -> None:
    """MiMo-V2: sliding layers with KV heads of their own and sinks, values narrower than keys, experts after
    the
    first layer, and dense MTP layers with sliding attention."""
    s, t = Sizes(b.source), b.source.text
    ends(b, "model.", "lm_head", s)
    at = "model.layers.{}"
    norms(b.at(at, s.all), s)
    marks = t.integers("hybrid_layer_pattern") or [0 if n == 0 or n % 6 == 5 else 1 for n in s.all]
    sliding = [n for n in s.all if n < len(marks) and marks[n]]
    full = b.at(at, [n for n in s.all if n not in set(sliding)]).under("self_attn")
    _heads(full, s, s.heads, s.kv_heads, s.head_dim, s.v_head_dim)
    own = _sliding_heads(s)
    _heads(b.at(at, sliding).under("self_attn"), s, *own)
    b.at(at, sliding).under("self_attn").tensor("sinks", (own[0],))
    sparse = set(sparse_layers(t, s.layers, s.experts) or range(1, s.layers))
    b.at(at, [n for n in s.all if n not in sparse]).under("mlp").mlp(s.hidden, s.inner)
    m = b.at(at, sorted(sparse)).under("mlp")
    m.tensor("gate.weight", (s.experts, s.hidden), s.source.fact("router"))
    m.tensor("gate.e_score_correction_bias", (s.experts,), "F32")
    m.each_expert("experts", s.experts).mlp(s.hidden, s.expert_inner)
    count = min(t.size("num_nextn_predict_layers"), 8)
    after = b.at("model.mtp.layers.{}", range(count))
    norms(after, s)
    _heads(after.under("self_attn"), s, *own)
    after.under("mlp").mlp(s.hidden, s.inner)
    after.linear("eh_proj", s.hidden, 2 * s.hidden, plain=True)


def _sliding_heads(s: Sizes) -> tuple[int, int, int, int]:
    """(heads, KV heads, key width, value width) of the sliding layers."""
    t = s.text
    dim = t.size("swa_head_dim") or s.head_dim
    return (
        t.size("swa_num_attention_heads") or s.heads, t.size("swa_num_key_value_heads") or s.kv_heads, dim,
        t.size("swa_v_head_dim") or s.v_head_dim,
    )  # fmt: skip


def _heads(a: Place, s: Sizes, heads: int, kv_heads: int, dim: int, value_dim: int) -> None:
    a.linear("q_proj", heads * dim, s.hidden)
    a.linear("k_proj", kv_heads * dim, s.hidden)
    a.linear("v_proj", kv_heads * value_dim, s.hidden)
    a.linear("o_proj", s.hidden, heads * value_dim)


def step(b: Builder) -> None:
    """Step-3.5 and 3.7, Laguna: gates head by head, more query heads in the sliding layers, one shared
    expert."""
    s, t = Sizes(b.source), b.source.text
    ends(b, "model.", "lm_head", s)
    at = "model.layers.{}"
    norms(b.at(at, s.all), s)
    for heads, numbers in _by_heads(s).items():
        a = b.at(at, numbers).under("self_attn")
        _heads(a, s, heads, s.kv_heads, s.head_dim, s.head_dim)
        a.linear("g_proj", heads, s.hidden)
        a.norm("q_norm", s.head_dim)
        a.norm("k_norm", s.head_dim)
    sparse = set(sparse_layers(t, s.layers, s.experts))
    b.at(at, [n for n in s.all if n not in sparse]).under("mlp").mlp(s.hidden, s.inner)
    m = b.at(at, sorted(sparse)).under("mlp")
    m.tensor("gate.weight", (s.experts, s.hidden))
    m.each_expert("experts", s.experts).mlp(s.hidden, s.expert_inner)
    shared = t.size("share_expert_dim", "shared_expert_intermediate_size")
    if shared:
        m.under("shared_expert").mlp(s.hidden, shared)


def _by_heads(s: Sizes) -> dict[int, list[int]]:
    """Query heads -> the layers that have so many."""
    t = s.text
    other = t.inner("attention_other_setting")
    wide = t.size("num_sliding_attention_heads") or (other.size("num_attention_heads") if other else 0)
    listed, kinds = t.integers("num_attention_heads_per_layer") or [], t.texts("layer_types") or []
    found: dict[int, list[int]] = {}
    for n in s.all:
        sliding = n < len(kinds) and kinds[n] == "sliding_attention"
        heads = listed[n] if n < len(listed) else wide if wide and sliding else s.heads
        found.setdefault(heads, []).append(n)
    return found


def inkling(b: Builder) -> None:
    """Inkling: sliding layers with KV heads of their own, two shared experts, dense first layers."""
    s, t = Sizes(b.source), b.source.text
    ends(b, "model.", "lm_head", s)
    at = "model.layers.{}"
    norms(b.at(at, s.all), s)
    local = set(t.integers("local_layer_ids") or [n for n in s.all if n % 6 != 5])
    _heads(
        b.at(at, [n for n in s.all if n not in local]).under("self_attn"),
        s,
        s.heads,
        s.kv_heads,
        s.head_dim,
        s.head_dim,
    )
    heads, kv_heads, dim, _ = _sliding_heads(s)
    _heads(b.at(at, sorted(local)).under("self_attn"), s, heads, kv_heads, dim, dim)
    first = t.size("dense_mlp_idx")
    b.at(at, range(min(first, s.layers))).under("mlp").mlp(
        s.hidden, t.size("dense_intermediate_size") or s.inner
    )
    m = b.at(at, range(min(first, s.layers), s.layers)).under("mlp")
    m.tensor("gate.weight", (s.experts, s.hidden))
    m.each_expert("experts", s.experts).mlp(s.hidden, t.size("moe_intermediate_size") or s.inner)
    if s.shared:
        m.under("shared_experts").mlp(s.hidden, (t.size("moe_intermediate_size") or s.inner) * s.shared)


def longcat_flash(b: Builder) -> None:
    """LongCat-Flash: each layer has two MLA blocks, two dense MLPs and one set of experts, some of which are
    nothing but an identity."""
    s, t = Sizes(b.source), b.source.text
    count = t.size("num_layers", "num_hidden_layers")
    numbers: Sequence[int] = range(min(count, 4096))
    embedding(b.at("model"), s)
    b.at("model").norm("norm", s.hidden)
    output(b.at(""), "lm_head", s)
    place = b.at("model.layers.{}", numbers)
    for n in range(2):
        place.norm(f"input_layernorm.{n}", s.hidden)
        place.norm(f"post_attention_layernorm.{n}", s.hidden)
        latent_attention(place.under(f"self_attn.{n}"), s)
        place.under(f"mlps.{n}").mlp(s.hidden, t.size("ffn_hidden_size") or s.inner)
    m = place.under("mlp")
    m.tensor("router.classifier.weight", (s.experts + t.size("zero_expert_num"), s.hidden), "F32")
    m.each_expert("experts", s.experts).mlp(s.hidden, t.size("expert_ffn_hidden_size") or s.expert_inner)
