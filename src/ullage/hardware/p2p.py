"""``nvidia-smi topo -p2p r|w|n`` -> which pairs of GPUs the driver lets copy directly."""

from __future__ import annotations

import re

from msgspec import Struct

#: what the cells mean, as nvidia-smi's own legend tells it
MEANINGS = {
    "OK": "allowed", "CNS": "the chipset does not support it", "GNS": "the GPU does not support it",
    "TNS": "the topology does not support it", "NS": "not supported", "DR": "disabled in the driver's registry",
    "U": "unknown",
}  # fmt: skip
_MOST = 256
_GPU = re.compile(r"GPU(\d{1,3})")
_CELL = re.compile(r"X|OK|CNS|GNS|TNS|NS|DR|U")
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Pair(Struct, frozen=True):
    """Two GPUs by their numbers, what the matrix says of them, and its line (from 1)."""

    one: int
    other: int
    says: str
    line: int


def parse(text: str) -> tuple[Pair, ...]:
    """Each pair once; none where the text holds no matrix. Never raises."""
    columns: list[int] = []
    found: list[Pair] = []
    for number, line in enumerate(text.splitlines()[:4096], 1):
        words = _ANSI.sub("", line).split()[: _MOST + 1]
        if not columns:
            if words and all(_GPU.fullmatch(word) for word in words):
                columns = [int(word[3:]) for word in words]
            continue
        row = _GPU.fullmatch(words[0]) if words else None
        cells = words[1:]
        if row is None or len(cells) != len(columns) or not all(map(_CELL.fullmatch, cells)):
            continue
        one = int(row[1])
        found += [Pair(one, other, says, number) for other, says in zip(columns, cells, strict=True)
                  if one < other and says != "X"]  # fmt: skip
    return tuple({(pair.one, pair.other): pair for pair in reversed(found)}.values())[::-1]


def refused(pairs: tuple[Pair, ...]) -> tuple[Pair, ...]:
    """The pairs that may not copy directly."""
    return tuple(pair for pair in pairs if pair.says != "OK")
