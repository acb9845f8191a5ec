"""Draft heads: EAGLE and EAGLE-3, with attention of keys and values or latent."""

from __future__ import annotations

from ullage.models.builder import Builder, Place
from ullage.models.decoder import Sizes, attention
from ullage.models.fields import Fields
from ullage.models.latent import attention as latent_attention


def eagle(b: Builder) -> None:
    """EAGLE: some decoder layers, a matrix that joins embedding and hidden state, mostly an own embedding."""
    s = Sizes(b.source)
    place = b.at("layers.{}", s.all)
    attention(place, s)
    place.under("mlp").mlp(s.hidden, s.inner)
    b.at("layers.{}", s.all[1:]).norm("input_layernorm", s.hidden)
    place.norm("post_attention_layernorm", s.hidden)
    bias = s.text.flag("bias")
    b.at("").linear("fc", s.hidden, 2 * s.hidden, bias=bool(bias))
    if s.source.holds("own_embedding", True):
        b.at("").tensor("embed_tokens.weight", (s.vocabulary, s.hidden))


def eagle3(b: Builder) -> None:
    """EAGLE-3: ``fc`` joins three hidden states; queries, keys and values read 2 x hidden; a smaller head.

    Whether a head brings its own embedding or output matrix its config does not say.
    """
    s = Sizes(b.source)
    top, h = b.at(""), s.hidden
    top.linear("fc", h, _taps(s.text) * (s.text.size("target_hidden_size") or h))
    place = b.at("midlayer")
    a = place.under("self_attn")
    if s.text.size("kv_lora_rank"):
        latent_attention(a, s, into=2 * h)
    else:
        _attention(a, s)
    place.under("mlp").mlp(h, s.inner)
    for name in ("hidden_norm", "input_layernorm", "post_attention_layernorm"):
        place.norm(name, h)
    top.norm("norm", h)
    extra = s.source.facts.get("extra_norms")
    for n in range(extra if isinstance(extra, int) else 0):
        top.norm(f"fc_norm.{n}", h)
    _ends(top, s)


def _attention(a: Place, s: Sizes) -> None:
    bias = bool(s.text.flag("attention_bias"))
    for name, heads in (("q_proj", s.heads), ("k_proj", s.kv_heads), ("v_proj", s.kv_heads)):
        a.linear(name, heads * s.head_dim, 2 * s.hidden, bias=bias)
    a.linear("o_proj", s.hidden, s.heads * s.head_dim)


def _taps(text: Fields) -> int:
    """Hidden states of the target that the head reads: three unless listed."""
    inner = text.inner("eagle_config")
    listed = (inner.integers("eagle_aux_hidden_state_layer_ids") if inner else None) or text.integers(
        "eagle_aux_hidden_state_layer_ids"
    )
    return len(listed) if listed else 3


def _ends(top: Place, s: Sizes) -> None:
    drafted = s.text.size("draft_vocab_size") or s.vocabulary
    if not s.source.holds("no_head"):
        top.linear("lm_head", drafted, s.hidden, plain=True)
    if s.source.holds("own_embedding"):
        top.tensor("embed_tokens.weight", (s.vocabulary, s.hidden))
    if drafted != s.vocabulary:
        top.tensor("d2t", (drafted,), "I64")
        top.tensor("t2d", (s.vocabulary,), "BOOL")
