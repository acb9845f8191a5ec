"""Sizes that must divide by the number of ranks: heads, widths, FP8 blocks. Both engines have these from
Megatron and from DeepSeek's block format; which groups of ranks share what, each engine says by itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ullage.core.model import Model

_BLOCK = re.compile(r"fp8 block (\d{1,5})x(\d{1,5})")


def uneven(model: Model, *, attn_tp: int, mlp_tp: int, expert_tp: int) -> Iterator[str]:
    """A sentence for each size of ``model`` that its ranks cannot share evenly.

    ``attn_tp`` ranks share the heads, ``mlp_tp`` a dense layer, ``expert_tp`` one expert (1: it is whole).
    """
    if model.num_heads and model.num_heads % attn_tp:
        yield f"{model.num_heads} attention heads do not divide by {attn_tp} ranks"
    for heads in sorted({layer.kv_heads for layer in model.layers if layer.kv_heads}):
        if heads % attn_tp and attn_tp % heads:
            yield f"{heads} KV heads and {attn_tp} ranks: neither divides the other"
    for name, width, ways in (
        ("intermediate size", _dense(model), mlp_tp),
        ("experts' intermediate size", model.moe_intermediate_size if model.num_experts else 0, expert_tp),
    ):
        if width and width % ways:
            yield f"the {name} of {width} does not divide by {ways} ranks"
        elif width and ways > 1 and (block := _block(model)) and (width // ways) % block:
            yield (
                f"the {name} {width} / {ways} = {width // ways} is no multiple of the FP8 block of {block}:"
                " a weight's scales would be cut"
            )


def _dense(model: Model) -> int:
    """Width of a dense layer, of models that have one for certain."""
    return model.intermediate_size if not model.num_experts or model.is_mla else 0


def _block(model: Model) -> int:
    """Rows of one scale of an FP8 checkpoint; 0 without blocks."""
    found = _BLOCK.search(model.quantization or "")
    return int(found[1]) if found else 0
