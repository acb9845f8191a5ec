"""Decoders of attention with keys and values, dense or with experts: Llama, Qwen, Gemma, Mistral, GLM, gpt-oss,
..."""

from __future__ import annotations

from collections.abc import Sequence

from ullage.models.builder import GATED, UNGATED, Builder, Place, Source
from ullage.models.fields import MOST_LAYERS, Fields
from ullage.models.layers import HEADS, KV_HEADS

#: model types whose attention reads queries, keys and values with a bias (classes of transformers)
_QKV_BIAS = {
    "qwen", "qwen2", "qwen2_moe", "qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text", "phi",
    "qwen2_audio", "starcoder2", "gpt_neox", "qwen2_5_omni_text",
}  # fmt: skip
#: ... and normalise queries and keys head by head
_QK_NORM = {
    "qwen3", "qwen3_moe", "qwen3_vl", "qwen3_vl_moe", "qwen3_vl_text", "qwen3_vl_moe_text", "gemma3",
    "gemma3_text",
    "qwen3_omni_moe_text", "hunyuan_v1_moe", "hunyuan_v1_dense", "hy_v3",
}  # fmt: skip
_SANDWICH = {"gemma2", "gemma3", "gemma3_text", "gemma4", "gemma4_text"}
_UNGATED = {"opt", "phi", "nemotron", "starcoder2", "gpt_neox", "falcon", "apertus"}


class Sizes:
    """The sizes of a decoder, read once."""

    def __init__(self, source: Source) -> None:
        t = source.text
        self.text, self.kind, self.source = t, source.kind, source
        self.hidden = t.size("hidden_size", "n_embd", "d_model", "dim")
        self.layers = t.integer("num_hidden_layers", "n_layer", "num_layers", "n_layers", most=MOST_LAYERS) or 0
        self.heads = t.size(*HEADS)
        self.kv_heads = t.size(*KV_HEADS) or self.heads
        self.head_dim = t.size("head_dim", "attention_head_dim") or self.hidden // max(1, self.heads)
        self.v_head_dim = t.size("v_head_dim") or self.head_dim
        self.inner = inner_size(t)
        self.vocabulary = t.size("vocab_size", "padded_vocab_size")
        self.experts = t.size("n_routed_experts", "num_local_experts", "num_experts", "moe_num_experts")
        self.expert_inner = t.size("moe_intermediate_size", "expert_ffn_hidden_size") or self.inner
        self.shared = t.size(
            "n_shared_experts", "num_shared_experts", "moe_num_shared_experts", "num_shared_expert"
        )

    @property
    def all(self) -> range:
        return range(self.layers)


def inner_size(t: Fields) -> int:
    """Width of the dense MLP; the largest where it is given layer by layer."""
    name, value = t.get("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size", "intermediate_size_mlp")
    return max(t.integers(name) or [0]) if isinstance(value, list) else t.size(name)


def sparse_layers(t: Fields, count: int, experts: int) -> tuple[int, ...]:
    """The layers with experts: after the first dense ones, every n-th, or those that a list names."""
    if not experts:
        return ()
    kinds = t.texts("mlp_layer_types")
    if kinds and len(kinds) >= count:
        return tuple(n for n in range(count) if kinds[n] == "sparse")
    listed = t.get("moe_layer_freq")[1]
    if isinstance(listed, list):
        flags = t.integers("moe_layer_freq") or []
        return tuple(n for n in range(count) if n < len(flags) and flags[n])
    first = t.size("first_k_dense_replace", "moe_layer_start_index")
    every = t.integer("moe_layer_freq", "decoder_sparse_step", "interleave_moe_layer_step") or 1
    late = t.has("decoder_sparse_step", "interleave_moe_layer_step")  # (n + 1) % step == 0, else n % step == 0
    dense = set(t.integers("mlp_only_layers") or [])
    return tuple(n for n in range(first, count) if (n + late) % every == 0 and n not in dense)


def ends(b: Builder, prefix: str, head: str, s: Sizes, norm: str = "norm") -> None:
    """Embedding, final norm, and the head unless it is the embedding once more."""
    place = b.at(prefix.rstrip("."))
    dtype = s.source.fact("norms")
    embedding(place, s)
    place.norm(norm, s.hidden, dtype=dtype, bias=s.kind in ("phi", "opt"))
    if not s.source.tied or s.source.holds("redundant_head"):
        output(b.at(""), head, s, bias=s.kind == "phi")


def embedding(place: Place, s: Sizes, name: str = "embed_tokens") -> None:
    gguf = s.source.storage.gguf
    if gguf:
        place.linear(name, s.vocabulary, s.hidden)
    else:
        place.tensor(f"{name}.weight", (s.vocabulary, s.hidden))


def output(place: Place, name: str, s: Sizes, *, bias: bool = False) -> None:
    if s.source.storage.gguf:
        place.tensor(f"{name}.weight", (s.vocabulary, s.hidden), _gguf_head(s.source))
    else:
        place.linear(name, s.vocabulary, s.hidden, bias=bias, plain=True)


def _gguf_head(source: Source) -> str:
    from ullage.models.stored import gguf_type

    return gguf_type(source.storage.gguf, "head", 0, 1)


def causal(b: Builder, prefix: str = "model.", head: str = "lm_head") -> None:
    """A decoder of plain attention, dense or with experts in some of its layers."""
    s = Sizes(b.source)
    ends(b, prefix, head, s)
    layers(b, f"{prefix}layers.{{}}", s, s.all)
    nextn(b, prefix, s)


def layers(b: Builder, prefix: str, s: Sizes, numbers: Sequence[int]) -> None:
    place = b.at(prefix, numbers)
    norms(place, s)
    attention(place, s)
    sparse = set(sparse_layers(s.text, max([*numbers, s.layers - 1]) + 1, s.experts))
    dense = b.at(prefix, [n for n in numbers if n not in sparse])
    dense.under("mlp").mlp(
        s.hidden, s.inner, _mlp_names(s), bias=bool(s.text.flag("mlp_bias")) or s.kind == "phi"
    )
    experts(b.at(prefix, [n for n in numbers if n in sparse]), s)


def _mlp_names(s: Sizes) -> Sequence[str]:
    if s.kind == "phi":
        return ("fc1", "fc2")
    return UNGATED if s.kind in _UNGATED else GATED


def norms(place: Place, s: Sizes) -> None:
    names = ["input_layernorm", *([] if s.kind == "phi" else ["post_attention_layernorm"])]
    if s.kind in _SANDWICH:
        names += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
    for name in names:
        place.norm(name, s.hidden, bias=s.kind == "phi", dtype=s.source.fact("norms"))


def attention(place: Place, s: Sizes, name: str = "self_attn") -> None:
    """Queries, keys, values, output; with biases, norms and sinks where the type has them."""
    a, t = place.under(name), s.text
    if s.kind == "phi3":
        a.linear("qkv_proj", (s.heads + 2 * s.kv_heads) * s.head_dim, s.hidden)
        a.linear("o_proj", s.hidden, s.heads * s.head_dim)
        return
    stated = t.flag("attention_bias", "qkv_bias")
    bias = s.kind in _QKV_BIAS if stated is None else stated
    wide = 2 if gated(s) else 1
    for part, out in (
        ("q_proj", s.heads * s.head_dim * wide), ("k_proj", s.kv_heads * s.head_dim),
        ("v_proj", s.kv_heads * s.v_head_dim),
    ):  # fmt: skip
        a.linear(part, out, s.hidden, bias=bias)
    out_bias = (bool(stated) and s.kind in ("llama", "gpt_oss")) or s.kind == "phi"
    a.linear("dense" if s.kind == "phi" else "o_proj", s.hidden, s.heads * s.v_head_dim, bias=out_bias)
    _query_norms(a, s)
    if s.kind == "gpt_oss":
        a.tensor("sinks", (s.heads,))


def gated(s: Sizes) -> bool:
    """True if the query projection also makes an output gate (Qwen3-Next, Qwen3.5)."""
    return s.kind.startswith(("qwen3_next", "qwen3_5")) and s.text.flag("attn_output_gate") is not False


def _query_norms(a: Place, s: Sizes) -> None:
    if s.kind.startswith("minimax_m2"):
        a.norm("q_norm", s.heads * s.head_dim)
        a.norm("k_norm", s.kv_heads * s.head_dim)
    elif (
        s.kind in _QK_NORM
        or gated(s)
        or (s.text.flag("use_qk_norm") and s.kind not in ("llama4", "llama4_text"))
    ):
        a.norm("q_norm", s.head_dim)
        a.norm("k_norm", s.head_dim)


def experts(place: Place, s: Sizes) -> None:
    """Router, experts and shared experts, by the names of the type."""
    if s.kind == "mixtral" or s.kind.startswith("minimax"):
        _block_sparse(place, s)
    elif s.kind == "gpt_oss":
        _gpt_oss(place.under("mlp"), s)
    else:
        _mlp_experts(place.under("mlp"), s)


def _block_sparse(place: Place, s: Sizes) -> None:
    m = place.under("block_sparse_moe")
    m.tensor(
        "gate.weight", (s.experts, s.hidden), None if s.kind == "mixtral" else s.source.fact("router") or "F32"
    )
    if s.kind != "mixtral":
        m.tensor("e_score_correction_bias", (s.experts,), "F32")
    m.each_expert("experts", s.experts).mlp(s.hidden, s.expert_inner, ("w1", "w3", "w2"))


def _gpt_oss(m: Place, s: Sizes) -> None:
    """One tensor for all experts of a layer; in MXFP4 32 values share a byte of scale."""
    e, h, f = s.experts, s.hidden, s.inner
    m.tensor("router.weight", (e, h))
    m.tensor("router.bias", (e,))
    x = m.under("experts")
    x.tensor("gate_up_proj_bias", (e, 2 * f), stacked=True)
    x.tensor("down_proj_bias", (e, h), stacked=True)
    if s.source.storage.method != "mxfp4":
        x.tensor("gate_up_proj", (e, h, 2 * f), stacked=True)
        x.tensor("down_proj", (e, f, h), stacked=True)
        return
    for name, rows, into in (("gate_up_proj", 2 * f, h), ("down_proj", h, f)):
        x.tensor(f"{name}_blocks", (e, rows, into // 32, 16), "U8", stacked=True)
        x.tensor(f"{name}_scales", (e, rows, into // 32), "U8", stacked=True)


def _mlp_experts(m: Place, s: Sizes) -> None:
    """Qwen, GLM, MiMo: mlp.gate, mlp.experts, and shared ones under the type's own name."""
    h = s.hidden
    m.tensor("gate.weight", (s.experts, h), s.source.fact("router"))
    if s.kind.startswith(("glm4_moe", "mimo")) or s.text.text("topk_method") == "noaux_tc":
        m.tensor("gate.e_score_correction_bias", (s.experts,), "F32")
    routed(m, s, stacked=s.kind.startswith(("qwen3_vl", "qwen3_5")))
    if s.shared:
        m.under("shared_experts").mlp(h, s.expert_inner * s.shared)
    single = s.text.size("shared_expert_intermediate_size")
    if single:
        m.under("shared_expert").mlp(h, single)
        m.tensor("shared_expert_gate.weight", (1, h))


def routed(m: Place, s: Sizes, *, stacked: bool) -> None:
    """The routed experts: one by one, or stacked where the type does so and nothing is quantised."""
    e, h, f = s.experts, s.hidden, s.expert_inner
    if not stacked or not s.source.storage.plain:
        m.each_expert("experts", e).mlp(h, f)
        return
    first = s.kind.startswith("qwen3_5")  # rows first: (experts, 2f, h); Qwen3-VL keeps (experts, h, 2f)
    m.tensor("experts.gate_up_proj", (e, 2 * f, h) if first else (e, h, 2 * f), stacked=True)
    m.tensor("experts.down_proj", (e, h, f) if first else (e, f, h), stacked=True)


def nextn(b: Builder, prefix: str, s: Sizes) -> None:
    """Multi-token-prediction layers after the last one: GLM-4.5 and its like."""
    count = s.text.size("num_nextn_predict_layers") if s.kind.startswith("glm4_moe") else 0
    if not count:
        return
    numbers = range(s.layers, s.layers + min(count, 16))
    layers(b, f"{prefix}layers.{{}}", s, numbers)
    nextn_extras(b.at(f"{prefix}layers.{{}}", numbers), s, own=s.source.holds("mtp_embedding", True))


def nextn_extras(place: Place, s: Sizes, *, own: bool) -> None:
    """What an MTP layer has beside a decoder layer: the joining matrix, norms, and maybe its own ends."""
    dtype = s.source.fact("norms")
    place.linear("eh_proj", s.hidden, 2 * s.hidden, plain=True)
    for name in ("enorm", "hnorm", "shared_head.norm"):
        place.norm(name, s.hidden, dtype=dtype)
    if own:
        place.tensor("embed_tokens.weight", (s.vocabulary, s.hidden))
        place.linear("shared_head.head", s.vocabulary, s.hidden, plain=not s.source.holds("mtp_head_quantised"))


def phi3(b: Builder) -> None:
    """Phi-3 and 4: queries, keys and values in one matrix, gate and up in another."""
    s = Sizes(b.source)
    ends(b, "model.", "lm_head", s)
    place = b.at("model.layers.{}", s.all)
    norms(place, s)
    attention(place, s)
    m = place.under("mlp")
    m.linear("gate_up_proj", 2 * s.inner, s.hidden)
    m.linear("down_proj", s.hidden, s.inner)


def opt(b: Builder) -> None:
    """OPT: learned positions, biases everywhere."""
    s = Sizes(b.source)
    bias = s.text.flag("enable_bias") is not False
    place = b.at("model.decoder")
    place.tensor("embed_tokens.weight", (s.vocabulary, s.text.size("word_embed_proj_dim") or s.hidden))
    place.tensor("embed_positions.weight", (s.text.size("max_position_embeddings") + 2, s.hidden))
    place.norm("final_layer_norm", s.hidden, bias=True)
    layer = b.at("model.decoder.layers.{}", s.all)
    for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
        layer.linear(f"self_attn.{name}", s.hidden, s.hidden, bias=bias)
    layer.norm("self_attn_layer_norm", s.hidden, bias=True)
    layer.linear("fc1", s.inner, s.hidden, bias=bias)
    layer.linear("fc2", s.hidden, s.inner, bias=bias)
    layer.norm("final_layer_norm", s.hidden, bias=True)
