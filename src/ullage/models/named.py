"""Groups of tensors from the names, types and shapes in safetensors headers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from ullage.core.model import TensorGroup
from ullage.models.headers import Tensor
from ullage.models.parts import part_of

_EXPERT = re.compile(r"\.experts\.(\d+)\.")
_LAYERED = re.compile(r"(?:^|\.)(?:layers|blocks|h|block|layer|blk|deepstack_merger_list)\.(\d+)\.")
_Key = tuple[str, str, tuple[int, ...]]


def groups_of_headers(headers: Iterable[tuple[str, Tensor]]) -> tuple[TensorGroup, ...]:
    """The groups that ``tensors.groups`` would make from a config, from what a header names."""
    gathered = Gathered()
    gathered.add(headers)
    return gathered.groups()


class Gathered:
    """Tensors of several headers, counted by pattern, type, shape and layer."""

    def __init__(self) -> None:
        self._found: dict[_Key, dict[int, int]] = {}

    def add(self, headers: Iterable[tuple[str, Tensor]]) -> None:
        for name, tensor in headers:
            pattern, layer = _pattern(name)
            layers = self._found.setdefault((pattern, tensor.dtype, tensor.shape), {})
            layers[layer] = layers.get(layer, 0) + 1

    def groups(self) -> tuple[TensorGroup, ...]:
        return tuple(group for key, layers in self._found.items() for group in _of_layers(key, layers))


def _pattern(name: str) -> tuple[str, int]:
    """("model.layers.{}.mlp.experts.{}.w1.weight", 3): the layer's number, -1 for none."""
    name, layer = name[:512], -1
    found = _LAYERED.search(name)
    if found:
        layer = int(found[1][:6])
        name = f"{name[: found.start(1)]}{{}}{name[found.end(1) :]}"
    expert = _EXPERT.search(name)
    return (f"{name[: expert.start(1)]}{{}}{name[expert.end(1) :]}" if expert else name), layer


def _of_layers(key: _Key, layers: dict[int, int]) -> Iterator[TensorGroup]:
    pattern, dtype, shape = key
    part = part_of(pattern)
    expert = ".experts.{}." in pattern
    by_count: dict[int, list[int]] = {}
    for layer, number in layers.items():
        by_count.setdefault(number, []).append(layer)
    stacked = part.part == "experts" and not expert and len(shape) > 1
    for number, numbers in by_count.items():
        kept = () if numbers == [-1] else tuple(sorted(numbers))
        yield TensorGroup(pattern, dtype, shape, part.part, part.split, kept, number if expert else 0, stacked)
