"""Decoders of latent attention (MLA): DeepSeek V2 to V3.2, Kimi-K2, GLM-5, and their MTP layers."""

from __future__ import annotations

from collections.abc import Sequence

from ullage.models.builder import Builder, Place
from ullage.models.decoder import Sizes, embedding, nextn_extras, output, sparse_layers

#: types that route with a correction bias (noaux_tc) where their published config leaves it out
_NOAUX = ("deepseek_v3", "kimi_k2", "glm_moe_dsa", "deepseek_v32", "glm4_moe_lite", "kimi_linear")


def latent(b: Builder, prefix: str = "model.", head: str = "lm_head") -> None:
    """An MLA decoder with fine-grained experts after its first dense layers, and its MTP layers."""
    s = Sizes(b.source)
    place = b.at(prefix.rstrip("."))
    embedding(place, s)
    place.norm("norm", s.hidden, dtype=s.source.fact("norms"))
    if not s.source.tied:
        output(b.at(""), head, s)
    at = f"{prefix}layers.{{}}"
    sparse = set(sparse_layers(s.text, s.layers, s.experts))
    layer(b, at, s, s.all)
    b.at(at, [n for n in s.all if n not in sparse]).under("mlp").mlp(s.hidden, s.inner)
    experts(b.at(at, sorted(sparse)), s)
    _nextn(b, at, s)


def layer(b: Builder, prefix: str, s: Sizes, numbers: Sequence[int]) -> None:
    """The attention and norms of some layers."""
    place, dtype = b.at(prefix, numbers), s.source.fact("norms")
    for name in ("input_layernorm", "post_attention_layernorm"):
        place.norm(name, s.hidden, dtype=dtype)
    attention(place.under("self_attn"), s)
    if s.text.size("index_n_heads") and s.text.size("index_head_dim"):
        kinds = s.text.texts("indexer_types") or []
        own = [n for n in numbers if not (n < len(kinds) and kinds[n] == "shared")]
        indexer(b.at(prefix, own).under("self_attn.indexer"), s)


def attention(a: Place, s: Sizes, *, into: int | None = None) -> None:
    """The projections of MLA; ``into`` is what the first of them read (an EAGLE-3 head's read 2 x hidden)."""
    t, h, dtype = s.text, into or s.hidden, s.source.fact("norms")
    rank, rope, nope = t.size("kv_lora_rank"), t.size("qk_rope_head_dim"), t.size("qk_nope_head_dim")
    value, q_rank = t.size("v_head_dim"), t.size("q_lora_rank")
    if q_rank:
        a.linear("q_a_proj", q_rank, h)
        a.norm("q_a_layernorm", q_rank, dtype=dtype)
        a.linear("q_b_proj", s.heads * (nope + rope), q_rank)
    else:
        a.linear("q_proj", s.heads * (nope + rope), h)
    a.linear("kv_a_proj_with_mqa", rank + rope, h)
    a.norm("kv_a_layernorm", rank, dtype=dtype)
    a.linear("kv_b_proj", s.heads * (nope + value), rank)
    a.linear("o_proj", s.hidden, s.heads * value)


def indexer(place: Place, s: Sizes) -> None:
    """The index of sparse attention (DSA): always whole on each rank."""
    heads, dim = s.text.size("index_n_heads"), s.text.size("index_head_dim")
    place.norm("k_norm", dim, bias=True, dtype=s.source.fact("norms"))
    place.tensor("weights_proj.weight", (heads, s.hidden))
    place.linear("wk", dim, s.hidden)
    place.linear("wq_b", heads * dim, s.text.size("q_lora_rank"))


def experts(place: Place, s: Sizes) -> None:
    m = place.under("mlp")
    m.tensor("gate.weight", (s.experts, s.hidden))
    method = s.text.text("topk_method")
    if method == "noaux_tc" or (method is None and s.kind.startswith(_NOAUX)):
        m.tensor("gate.e_score_correction_bias", (s.experts,), "F32")
    m.each_expert("experts", s.experts).mlp(s.hidden, s.expert_inner)
    if s.shared:
        m.under("shared_experts").mlp(s.hidden, s.expert_inner * s.shared)


def _nextn(b: Builder, at: str, s: Sizes) -> None:
    count = min(s.text.size("num_nextn_predict_layers"), 16)
    if not count:
        return
    numbers = range(s.layers, s.layers + count)
    layer(b, at, s, numbers)
    experts(b.at(at, numbers), s)
    nextn_extras(b.at(at, numbers), s, own=s.source.holds("mtp_embedding", s.kind != "glm_moe_dsa"))
