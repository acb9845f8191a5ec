"""Recurrent state: the Mamba, linear-attention and short-convolution shapes of a config.json."""

from __future__ import annotations

from collections.abc import Callable

from ullage.core.model import LinearState
from ullage.models.fields import Fields


def recurrent_state(fields: Fields) -> LinearState | None:
    """The state of one recurrent layer; None where the config does not tell its shape.

    Shapes as in vLLM 0.16.0 mamba_utils and SGLang 0.5.9 mamba cache parameters.
    """
    for read in _READERS:
        state = read(fields)
        if state is not None:
            return state
    return None


def _delta_net(fields: Fields) -> LinearState | None:
    """Gated delta net (Qwen3-Next, Qwen3.5): queries, keys and values share one convolution."""
    if not fields.has("linear_num_value_heads"):
        return None
    key_heads, heads = fields.size("linear_num_key_heads"), fields.size("linear_num_value_heads")
    key_dim, value_dim = fields.size("linear_key_head_dim"), fields.size("linear_value_head_dim")
    return LinearState(
        "gdn",
        conv_dim=2 * key_heads * key_dim + heads * value_dim,
        kernel=fields.size("linear_conv_kernel_dim"),
        num_heads=heads,
        head_dim=value_dim,
        state_size=key_dim,
        num_groups=key_heads,
        inner_size=heads * value_dim,
        dtype=_state_dtype(fields),
    )


def _kimi_delta(fields: Fields) -> LinearState | None:
    """KDA (Kimi-Linear, Kimi-K3, GLM-5.3): a convolution each for q, k and v."""
    inner = fields.inner("linear_attn_config")
    heads = (inner and inner.integer("num_heads")) or fields.integer("linear_num_heads")
    head_dim = (inner and inner.integer("head_dim")) or fields.integer("linear_head_dim")
    kernel = (inner and inner.integer("short_conv_kernel_size")) or fields.integer("linear_conv_kernel_dim")
    if not (heads and head_dim and kernel):
        return None
    size = heads * head_dim
    return LinearState(
        "kda", 3 * size, kernel, heads, head_dim, head_dim, inner_size=size, dtype=_state_dtype(fields)
    )


def _mamba2(fields: Fields) -> LinearState | None:
    """Mamba-2 (Nemotron-H, Granite-4-H, Bamba, Falcon-H1, Zamba2)."""
    heads = fields.integer("mamba_num_heads", "mamba_n_heads", "n_mamba_heads")
    if not heads:
        return None
    expanded = fields.size("mamba_expand", "expand") * fields.size("hidden_size")
    inner = fields.integer("mamba_d_ssm") or expanded
    dim = (
        None
        if fields.get("mamba_d_head")[1] == "auto"
        else fields.integer("mamba_head_dim", "mamba_d_head", "mamba_headdim")
    )
    head_dim = dim or inner // heads
    groups = fields.size("n_groups", "mamba_n_groups", "mamba_ngroups")
    size = fields.size("ssm_state_size", "mamba_d_state")
    return LinearState(
        "mamba2",
        conv_dim=heads * head_dim + 2 * groups * size,
        kernel=fields.size("conv_kernel", "mamba_d_conv"),
        num_heads=heads,
        head_dim=head_dim,
        state_size=size,
        num_groups=groups,
        inner_size=heads * head_dim,
        dtype=_state_dtype(fields),
    )


def _mamba1(fields: Fields) -> LinearState | None:
    """Mamba-1 (Jamba): each of the expand x hidden_size channels is a head of width 1."""
    expand, size = fields.integer("mamba_expand", "expand"), fields.integer("mamba_d_state", "state_size")
    inner = (expand or 0) * fields.size("hidden_size")
    if not inner or not size:
        return None
    kernel = fields.size("mamba_d_conv", "conv_kernel")
    return LinearState("mamba1", inner, kernel, inner, 1, size, inner_size=inner, dtype=_state_dtype(fields))


def _short_conv(fields: Fields) -> LinearState | None:
    """LFM2: a gated convolution of hidden_size channels and no recurrent state."""
    kernel = fields.integer("conv_L_cache")
    if not kernel:
        return None
    return LinearState("short_conv", fields.size("conv_dim", "hidden_size"), kernel, 0, 0, 0)


def _lightning(fields: Fields) -> LinearState | None:
    """Lightning attention (MiniMax-Text-01): a head_dim x head_dim state for each query head."""
    if not fields.has("attn_type_list", "linear_attn_alpha_factor", "layernorm_linear_attention_alpha"):
        return None
    heads = fields.size("num_attention_heads")
    dim = fields.integer("head_dim") or (fields.size("hidden_size") // heads if heads else 0)
    return (
        LinearState("lightning", 0, 1, heads, dim, dim, dtype=_state_dtype(fields)) if heads and dim else None
    )


def _state_dtype(fields: Fields) -> str | None:
    return fields.text("mamba_ssm_dtype", "mamba_ssm_cache_dtype")


_READERS: tuple[Callable[[Fields], LinearState | None], ...] = (
    _delta_net, _short_conv, _mamba2, _kimi_delta, _lightning, _mamba1,
)  # fmt: skip
