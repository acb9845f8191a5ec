"""The lines around a phrase: ``BEFORE`` lines before it, and after it as long as a traceback goes on."""

from __future__ import annotations

import re
from typing import NamedTuple

from ullage.logs.search import Search

LINE_BYTES = 100
BEFORE = 2
MAX_AFTER = 1000  # eight ranks print their tracebacks at once
MAX_FOREIGN = 8


class Block(NamedTuple):
    """Whole physical lines; ``line`` is the number of the first, from 1."""

    line: int
    data: bytes

    @property
    def weight(self) -> int:
        return max(len(self.data), LINE_BYTES * self.data.count(b"\n"))


_TRACE_LIKE = re.compile(
    rb'(?m:    |File "|Error|Exception|\^\^|Traceback|^(?![\[({\d]|INFO|DEBUG|WARN|\S+ +\| ))'
)


class Neighbourhoods:
    """The lines around phrases, over the pieces of a log. ``_after`` counts the lines that an open
    neighbourhood may still take, ``_foreign`` those since the last one that looked like a traceback's."""

    def __init__(self, search: Search) -> None:
        self._search = search
        self._after = 0
        self._foreign = 0
        self._before: Block | None = None

    def feed(self, block: Block) -> list[Block]:
        found = self._search.find(block.data)
        if found is None:
            self._after, self._before = 0, None
            return [block]
        if not found and not self._after:
            self._before = _last_lines(block)
            return []
        return self._cut(block, found)

    def _cut(self, block: Block, hits: list[int]) -> list[Block]:
        data, spans, index, position = block.data, [], 0, 0
        result: list[Block] = []
        if self._after:
            position, index = self._extend(data, 0, hits, 0)
            spans.append((0, position))
        while index < len(hits):
            start = _lines_before(data, hits[index])
            if start == 0 and position == 0 and self._before is not None:
                result.append(self._before)
            end = data.find(b"\n", hits[index]) + 1 or len(data)
            self._after, self._foreign = MAX_AFTER, 0
            end, index = self._extend(data, end, hits, index + 1)
            spans.append((max(start, position), end))
            position = end
        self._before = None if position == len(data) else _last_lines(block, position)
        return result + _blocks(block, spans)

    def _extend(self, data: bytes, position: int, hits: list[int], index: int) -> tuple[int, int]:
        """Where the open neighbourhood ends from ``position`` on, and the first hit behind it."""
        while position < len(data):
            end = data.find(b"\n", position) + 1 or len(data)
            hit = index < len(hits) and hits[index] < end
            while index < len(hits) and hits[index] < end:
                index += 1
            if hit:
                self._after, self._foreign = MAX_AFTER, 0
            elif _TRACE_LIKE.search(data, position, end):
                self._foreign = 0
            else:
                self._foreign += 1
            self._after -= 1
            position = end
            if self._after <= 0 or self._foreign >= MAX_FOREIGN:
                self._after = 0
                break
        return position, index


def _lines_before(data: bytes, hit: int) -> int:
    start = data.rfind(b"\n", 0, hit) + 1
    for _ in range(BEFORE):
        start = data.rfind(b"\n", 0, max(start - 1, 0)) + 1
    return start


def _last_lines(block: Block, after: int = 0) -> Block | None:
    """The last ``BEFORE`` lines of a block behind the offset ``after``; the block ends with a line break."""
    start = max(_lines_before(block.data, len(block.data) - 1 or 1), after)
    start = block.data.find(b"\n", start) + 1 if start > after else start
    count = block.data.count(b"\n", start)
    if not 0 < count <= BEFORE:
        return None
    return Block(block.line + block.data.count(b"\n", 0, start), block.data[start:])


def _blocks(block: Block, spans: list[tuple[int, int]]) -> list[Block]:
    found, line, position = [], block.line, 0
    for start, end in spans:
        line += block.data.count(b"\n", position, start)
        position = start
        if end > start:
            found.append(Block(line, block.data[start:end]))
    return found
