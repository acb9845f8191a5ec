"""How much of a checkpoint one rank holds: the arithmetic of sharding that both engines share.

What is cut, and by how many ranks, each engine says by itself (its weights.py); how a cut divides a tensor is
the same in both, since both have it from Megatron.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from math import prod

from msgspec import Struct

from ullage.core.model import TensorGroup
from ullage.models.stored import size_of

VISION = ("vision", "vision attention", "projector")


class Cuts(Struct, frozen=True):
    """Ranks that share each part of the model, and how experts are spread.

    ``ways`` by part ("attention", "mlp", ...; ``default`` for the rest). ``expert_ranks`` hold whole experts,
    ``expert_ways`` share each of them; ``redundant`` experts are kept in addition, over all ranks.
    """

    ways: Mapping[str, int]
    default: int = 1
    kv_heads: int = 0
    expert_ranks: int = 1
    expert_ways: int = 1
    redundant: int = 0
    vocabulary_step: int = 64

    def of(self, part: str) -> int:
        return max(1, self.ways.get(part, self.default))


class Stage(Struct, frozen=True):
    """One pipeline stage: its layers, and whether it is the first and the last."""

    first_layer: int
    end_layer: int
    first: bool = True
    last: bool = True

    @property
    def num_layers(self) -> int:
        return self.end_layer - self.first_layer


def stages(sizes: Iterable[int]) -> list[Stage]:
    """The stages that hold this many layers each."""
    counts, found, start = list(sizes), [], 0
    for index, count in enumerate(counts):
        found.append(Stage(start, start + count, index == 0, index == len(counts) - 1))
        start += count
    return found


def is_mtp(group: TensorGroup, num_layers: int) -> bool:
    """True if every tensor of the group belongs to a layer for multi-token prediction."""
    if group.name.startswith("mtp."):
        return True
    return bool(group.layers) and group.part not in VISION and min(group.layers) >= num_layers > 0


def held(group: TensorGroup, stage: Stage, num_layers: int, *, tied: bool) -> int:
    """In how many layers of ``stage`` the group stands; 0 or 1 for one that stands in none.

    The embedding and the vision tower are on the first stage, the final norm and the head on the last; a tied
    embedding is on both.
    """
    if group.part in VISION:
        return max(1, len(group.layers)) if stage.first else 0
    if group.layers:
        return _within(group.layers, stage.first_layer, min(stage.end_layer, num_layers))
    if group.part == "embedding":
        return int(stage.first or (tied and stage.last))
    return int(stage.last)


@lru_cache(maxsize=1024)
def _within(layers: tuple[int, ...], first: int, end: int) -> int:
    return sum(1 for n in layers if first <= n < end)


def one(group: TensorGroup, cuts: Cuts) -> int:
    """Bytes that a rank holds of one tensor of the group (of all its experts together)."""
    if group.part == "experts":
        return _experts(group, cuts)
    whole = prod(group.shape)
    ways = cuts.of(group.part)
    if ways == 1 or group.split == "whole" or not group.shape:
        return size_of(group.dtype, _padded(group, cuts, whole))
    if group.split == "kv_heads" and cuts.kv_heads:
        ways = min(ways, cuts.kv_heads)
    if group.split == "rows" and group.shape[-1] == 1:
        ways = 1  # one scale a row: every rank has all rows
    return size_of(group.dtype, -(-_padded(group, cuts, whole) // ways))


def _padded(group: TensorGroup, cuts: Cuts, whole: int) -> int:
    """Elements with the vocabulary rounded up to a multiple of 64, and to one of the ranks that share it."""
    if group.split != "vocabulary" or len(group.shape) != 2:
        return whole
    step, ways = cuts.vocabulary_step, cuts.of(group.part)
    rows = -(-group.shape[0] // step) * step
    return -(-rows // ways) * ways * group.shape[1]


def _experts(group: TensorGroup, cuts: Cuts) -> int:
    count = group.experts or (group.shape[0] if group.stacked and group.shape else 1)
    each = prod(group.shape[1:] if group.stacked else group.shape)
    ranks = max(1, cuts.expert_ranks)
    local = -(-(count + cuts.redundant) // ranks)
    cut = group.split != "whole" and not (group.split == "rows" and group.shape and group.shape[-1] == 1)
    ways = max(1, cuts.expert_ways) if cut and group.shape else 1
    return local * size_of(group.dtype, -(-each // ways))


#: a group's bytes changed by what the engine does on loading (padding, repacking): None leaves them
Change = Callable[[TensorGroup], int | None]


def parts(
    groups: Iterable[TensorGroup],
    cuts: Cuts,
    stage: Stage,
    num_layers: int,
    *,
    tied: bool = False,
    mtp: bool = False,
    change: Change | None = None,
) -> dict[str, int]:
    """Bytes of one rank of ``stage`` by part, without what loading adds. MTP layers count only with ``mtp``,
    and then they alone."""
    found: dict[str, int] = {}
    for group in groups:
        if is_mtp(group, num_layers):
            times = max(1, len(group.layers)) if mtp and stage.last else 0
        elif mtp:
            times = (
                _within(group.layers, num_layers, 1 << 30) if group.layers and group.part not in VISION else 0
            )
        else:
            times = held(group, stage, num_layers, tied=tied)
        if not times or (tied and group.part == "head"):
            continue
        changed = change(group) if change is not None else None
        each = one(group, cuts) if changed is None else changed
        part = group.part if not mtp or group.part in ("embedding", "head") else "MTP"
        found[part] = found.get(part, 0) + times * each
    return found


def repacked(groups: Iterable[TensorGroup], cuts: Cuts) -> int:
    """Bytes of the largest tensor that is rewritten on loading: gate and up of all experts of one layer, where
    they are quantised; 0 where nothing is."""
    by_layer: dict[int, int] = {}
    for group in groups:
        if group.part == "experts" and group.split == "columns" and group.dtype not in ("BF16", "F16", "F32"):
            layer = group.layers[-1] if group.layers else 0
            by_layer[layer] = by_layer.get(layer, 0) + one(group, cuts)
    return max(by_layer.values(), default=0)
