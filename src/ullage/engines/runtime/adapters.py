"""LoRA adapters: the slots that both engines set aside beside the layers that adapters may change."""

from __future__ import annotations

from collections.abc import Iterable

from ullage.core.model import TensorGroup
from ullage.engines.runtime.shards import Cuts, Stage

_TARGETS = ("attention", "mlp")
_VALUES = {"I32": 8, "U8": 2}


def lora_bytes(groups: Iterable[TensorGroup], cuts: Cuts, stage: Stage, slots: int, rank: int) -> int:
    """Bytes of ``slots`` adapters of ``rank`` on one rank: 2 x rank x (inputs + outputs) for each linear layer
    of attention and dense MLP; a cut of the outputs cuts B, one of the inputs cuts A.

    vllm 0.16.0, lora/layers (create_lora_weights); sglang 0.5.9, lora/mem_pool.py.
    """
    total = 0
    for group in groups:
        if group.part not in _TARGETS or len(group.shape) != 2 or not _is_weight(group.name):
            continue
        out, into = group.shape[0], group.shape[1] * _VALUES.get(group.dtype, 1)
        ways = cuts.of(group.part)
        if group.split == "kv_heads" and cuts.kv_heads:
            ways = min(ways, cuts.kv_heads)
        size = into + out // ways if group.split in ("columns", "kv_heads") else into // ways + out
        inside = sum(1 for n in group.layers if stage.first_layer <= n < stage.end_layer)
        total += inside * slots * rank * size * 2
    return total


def _is_weight(name: str) -> bool:
    return name.endswith(("_proj.weight", "_proj.weight_packed", "_proj.qweight"))
