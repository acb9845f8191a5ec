"""Tensors that the ranks cannot share evenly, in the engines' own words: widths, quantisation blocks, experts.

Counted on the checkpoint's tensors, so that it holds for every type of model and every quantised form. Both
engines have the sentences from Megatron (divide) and from DeepSeek's block format.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from ullage.core.model import Model, TensorGroup
from ullage.engines.runtime.shards import VISION, Cuts

_BLOCK = re.compile(r"fp8 block (\d{1,5})x(\d{1,5})")
_WEIGHT = (".weight", ".weight_packed")


def uneven_tensors(groups: Iterable[TensorGroup], model: Model, cuts: Cuts) -> Iterator[str]:
    """A sentence for each size that does not divide, each once."""
    yield from dict.fromkeys(_sentences(groups, model, cuts))


def _sentences(groups: Iterable[TensorGroup], model: Model, cuts: Cuts) -> Iterator[str]:
    block = _block(model)
    for group in groups:
        if group.split not in ("columns", "rows") or group.part in VISION or not group.name.endswith(_WEIGHT):
            continue
        if len(group.shape) - group.stacked != 2:
            continue
        routed = group.part == "experts"
        ways = cuts.expert_ways if routed else cuts.of(group.part)
        size = _cut_size(group)
        if ways <= 1:
            continue
        if size % ways:
            yield f"{size} is not divisible by {ways}"
        elif block and group.dtype == "F8_E4M3" and (size // ways) % block:
            yield _block_sentence(size // ways, block, routed, group.split == "rows")


def _cut_size(group: TensorGroup) -> int:
    """The dimension that is cut, in values: 8 lie in an int32 of packed ones, 2 in a byte."""
    if group.split == "columns":
        return group.shape[-2]
    return group.shape[-1] * ({"I32": 8, "U8": 2}.get(group.dtype, 1) if group.name.endswith("packed") else 1)


def _block_sentence(each: int, block: int, routed: bool, rows: bool) -> str:
    if routed:
        what = "The input_size of down's weight" if rows else "The output_size of gate's and up's weight"
    else:
        what = "Weight input_size_per_partition" if rows else "Weight output_partition_size"
    return f"{what} = {each} is not divisible by weight quantization block_{'k' if rows else 'n'} = {block}."


def _block(model: Model) -> int:
    found = _BLOCK.search(model.quantization or "")
    return int(found[1]) if found else 0


def uneven_experts(model: Model, cuts: Cuts) -> Iterator[str]:
    """Whole experts must divide by the ranks that hold them."""
    experts, ranks = model.num_experts + cuts.redundant, cuts.expert_ranks
    if model.num_experts and ranks > 1 and experts % ranks:
        yield f"{experts} experts do not divide by {ranks} expert-parallel ranks"
