"""Decoders of compressed attention: DeepSeek-V4. One latent a token, compressors in most layers, an index in
some.

Read: sglang 0.5.23, models/deepseek_v4.py, layers/attention/dsv4/compressor.py and indexer.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from ullage.models.builder import Builder, Place
from ullage.models.decoder import Sizes, embedding, output


def deepseek_v4(b: Builder) -> None:
    """DeepSeek-V4: hyper-connections around each layer, experts in FP4 or FP8, one MTP layer."""
    s = Sizes(b.source)
    top = b.at("model")
    embedding(top, s)
    top.norm("norm", s.hidden)
    output(b.at(""), "lm_head", s)
    ratios = b.source.text.integers("compress_ratios") or []
    _layers(b, s, s.all, ratios)
    count = min(b.source.text.size("num_nextn_predict_layers"), 4)
    if count:
        after = range(s.layers, s.layers + count)
        _layers(b, s, after, ratios)
        place = b.at("model.layers.{}", after)
        place.linear("e_proj", s.hidden, s.hidden)
        place.linear("h_proj", s.hidden, s.hidden)
        for name in ("enorm", "hnorm", "norm"):
            place.norm(name, s.hidden)


def _layers(b: Builder, s: Sizes, numbers: Sequence[int], ratios: Sequence[int]) -> None:
    at, streams = "model.layers.{}", b.source.text.size("hc_mult") or 4
    place = b.at(at, numbers)
    place.norm("attn_norm", s.hidden)
    place.norm("ffn_norm", s.hidden)
    for name in ("hc_attn_fn", "hc_ffn_fn"):
        place.tensor(name, ((2 + streams) * streams, streams * s.hidden), "F32")
    _attention(place.under("attn"), s)
    _compressor(
        b.at(at, [n for n in numbers if _ratio(ratios, n) > 4]).under("attn.compressor"), s, s.head_dim, 1
    )
    indexed = b.at(at, [n for n in numbers if _ratio(ratios, n) == 4])
    _compressor(indexed.under("attn.compressor"), s, s.head_dim, 2)
    _indexer(indexed.under("attn.indexer"), s)
    _experts(place.under("ffn"), s)


def _ratio(ratios: Sequence[int], layer: int) -> int:
    return ratios[layer] if layer < len(ratios) else 0


def _attention(a: Place, s: Sizes) -> None:
    """The output goes through ``o_groups`` low-rank matrices, one for each group of heads."""
    t = s.text
    query, groups, rank = t.size("q_lora_rank"), max(1, t.size("o_groups")), t.size("o_lora_rank")
    a.linear("wq_a", query, s.hidden)
    a.linear("wkv", s.head_dim, s.hidden)
    a.norm("q_norm", query)
    a.norm("kv_norm", s.head_dim)
    a.linear("wq_b", s.heads * s.head_dim, query)
    a.linear("wo_a", groups * rank, s.heads * s.head_dim // groups)
    a.linear("wo_b", s.hidden, groups * rank)
    a.tensor("attn_sink", (s.heads,), "F32")


def _compressor(place: Place, s: Sizes, dim: int, overlap: int) -> None:
    """Keys and gates of the compressed tokens, whole on every rank; twice as wide where windows overlap."""
    place.linear("wkv_gate", 2 * overlap * dim, s.hidden, plain=True)
    place.norm("norm", dim, dtype="F32")


def _indexer(place: Place, s: Sizes) -> None:
    heads, dim = s.text.size("index_n_heads"), s.text.size("index_head_dim")
    place.linear("wq_b", heads * dim, s.text.size("q_lora_rank"))
    place.linear("weights_proj", heads, s.hidden, plain=True)
    _compressor(place.under("compressor"), s, dim, 2)


def _experts(m: Place, s: Sizes) -> None:
    m.tensor("gate.weight", (s.experts, s.hidden))
    routed, h, f = m.each_expert("experts", s.experts), s.hidden, s.expert_inner
    if s.text.text("expert_dtype") == "fp4":
        for name, out, into in (("w1", f, h), ("w3", f, h), ("w2", h, f)):
            routed.tensor(f"{name}.weight", (out, into // 2), "I8")
            routed.tensor(f"{name}.weight_scale", (out, into // 32), "F8_E8M0")
    else:
        routed.mlp(h, f, ("w1", "w3", "w2"))
    if s.shared:
        m.under("shared_experts").mlp(h, f * s.shared, ("w1", "w3", "w2"))
