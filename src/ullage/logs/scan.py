"""Chunks of bytes to blocks of whole lines; of a long log only the places that matter.

Behind the first ``EVERY_LINE_BYTES`` and before the last chunk, a run of routine lines (statistics under load,
requests) is represented by its first line: a server prints hundreds of thousands of them. Of a log longer than
``WHOLE_BYTES`` only these come through: the first ``HEAD_BYTES``, the last ``TAIL_BYTES``, and between them the
neighbourhoods of lines that hold a phrase: ``BEFORE`` lines before it, and after it as long as a traceback goes
on. At most ``MIDDLE_BYTES`` of them from the beginning of the middle and as many from its end are kept, so that a
million tracebacks take bounded memory and time.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from ullage.logs.search import Search, routine_run, search_for

MAX_LINE = 64 << 10
HALF_LINE = MAX_LINE // 2
WHOLE_BYTES = 32 << 20
HEAD_BYTES = 8 << 20
TAIL_BYTES = 1 << 20
MIDDLE_BYTES = 8 << 20
EVERY_LINE_BYTES = 256 << 10
BEFORE = 2
MAX_AFTER = 1000  # eight ranks print their tracebacks at once
MAX_FOREIGN = 8


class Block(NamedTuple):
    """Whole physical lines; ``line`` is the number of the first, from 1."""

    line: int
    data: bytes


def shortened(line: bytes) -> bytes:
    """At most ``MAX_LINE`` bytes of a long line: its head, and what the last carriage returns left of a
    progress bar that overwrote itself."""
    at = line.find(b"\r", len(line) - HALF_LINE) if len(line) > MAX_LINE else -1
    return line[:MAX_LINE] if at < 0 else line[:HALF_LINE] + line[at:]


class Scan:
    """The blocks of one log. ``num_lines`` and ``num_bytes`` count what was read so far, shown or not."""

    def __init__(self, name: str, chunks: Iterable[bytes], literals: Sequence[bytes]) -> None:
        self._name = name
        self._chunks = chunks
        self._literals = literals
        self.num_cut = 0
        self._left_out = 0
        self.num_lines = 0
        self.num_bytes = 0

    def notes(self) -> list[str]:
        found = []
        if self._left_out:
            found.append(
                f"{self._name}: {self._left_out:,} lines near known phrases were left out: there are too many"
            )
        return found

    def blocks(self) -> Iterator[Block]:
        pieces = self._whole_lines()
        held: deque[bytes] = deque()
        size = 0
        for piece in pieces:
            size += len(piece)
            if size <= EVERY_LINE_BYTES:
                yield self._block(piece)
                continue
            held.append(piece)
            if size > WHOLE_BYTES:
                yield from self._long(held, pieces)
                return
        yield from self._thinned(held)

    def _thinned(self, pieces: deque[bytes]) -> Iterator[Block]:
        while pieces:
            block = self._block(pieces.popleft())
            yield from _without_routine(block) if pieces else (block,)

    def _block(self, piece: bytes) -> Block:
        block = Block(self.num_lines + 1, piece)
        self.num_lines += piece.count(b"\n") + (not piece.endswith(b"\n"))
        return block

    def _whole_lines(self) -> Iterator[bytes]:
        """Chunks, cut at line ends; a line longer than ``MAX_LINE`` loses its tail, in bounded memory."""
        carry, skipping = b"", False
        for chunk in self._chunks:
            self.num_bytes += len(chunk)
            if skipping:
                at = chunk.find(b"\n")
                if at < 0:
                    continue
                chunk, skipping = chunk[at + 1 :], False
            end = chunk.rfind(b"\n") + 1
            if end:
                yield carry + chunk[:end]
                carry = chunk[end:]
            else:
                carry += chunk
            if len(carry) > MAX_LINE and b"\r" in carry[HALF_LINE:]:
                carry = shortened(carry)
            elif len(carry) > MAX_LINE:
                self.num_cut += 1
                yield carry[:MAX_LINE] + b"\n"
                carry, skipping = b"", True
        if carry:
            yield carry

    def _long(self, held: deque[bytes], rest: Iterator[bytes]) -> Iterator[Block]:
        """The head, the middle, searched, and the tail."""
        head = 0
        while head < HEAD_BYTES:
            piece = held.popleft()
            head += len(piece)
            yield from _without_routine(self._block(piece))
        middle = _Neighbourhoods(search_for(self._literals))
        ring: deque[Block] = deque()
        shown = ringed = 0
        for piece in _all_but_tail(held, rest):
            for block in middle.feed(self._block(piece)):
                if shown < MIDDLE_BYTES:
                    shown += len(block.data)
                    yield block
                    continue
                ring.append(block)
                ringed += len(block.data)
                while ringed > MIDDLE_BYTES and len(ring) > 1:
                    lost = ring.popleft().data
                    ringed -= len(lost)
                    self._left_out += lost.count(b"\n")
        yield from ring
        yield from self._thinned(held)


def _all_but_tail(held: deque[bytes], rest: Iterator[bytes]) -> Iterator[bytes]:
    """The pieces of ``held`` and ``rest`` in order, but for the last ``TAIL_BYTES``: these stay in ``held``."""
    size = sum(map(len, held))
    while True:
        while held and size - len(held[0]) >= TAIL_BYTES:
            piece = held.popleft()
            size -= len(piece)
            yield piece
        following = next(rest, None)
        if following is None:
            return
        held.append(following)
        size += len(following)


def _without_routine(block: Block) -> Iterator[Block]:
    """The block without its runs of routine lines, but for the first line of each run."""
    line, position = block.line, 0
    for run in routine_run().finditer(block.data):
        first_end = block.data.index(b"\n", run.start()) + 1
        if first_end == run.end():
            continue
        yield Block(line, block.data[position:first_end])
        line += block.data.count(b"\n", position, run.end())
        position = run.end()
    if position < len(block.data):
        yield Block(line, block.data[position:])


_TRACE_LIKE = re.compile(
    rb'(?m:    |File "|Error|Exception|\^\^|Traceback|^(?![\[({\d]|INFO|DEBUG|WARN|\S+ +\| ))'
)


class _Neighbourhoods:
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
