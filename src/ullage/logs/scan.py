"""Chunks of bytes to blocks of whole lines; of a long log only the places that matter.

Behind the first ``EVERY_LINE`` and before the last chunk, a run of routine lines (statistics under load,
requests, blank lines) is represented by its first line: a server prints hundreds of thousands of them. Of a log
longer than ``WHOLE`` only these come through: the first ``HEAD``, the last ``TAIL``, and between them the
neighbourhoods of lines that hold a phrase (see neighbourhoods.py). At most ``MIDDLE`` of them
from the beginning of the middle and as many from its end are kept, so that a million tracebacks take bounded
memory and time.

These limits are in bytes; a line counts for at least ``LINE_BYTES``, since short lines cost time too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from ullage.logs.neighbourhoods import Block, Neighbourhoods
from ullage.logs.search import routine_run, search_for

MAX_LINE = 64 << 10
HALF_LINE = MAX_LINE // 2
WHOLE = 32 << 20
HEAD = 8 << 20
TAIL = 1 << 20
MIDDLE = 8 << 20
EVERY_LINE = 256 << 10


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
        blocks = map(self._block, self._whole_lines())
        held: deque[Block] = deque()
        weight = 0
        for block in blocks:
            weight += block.weight
            if weight <= EVERY_LINE:
                yield block
                continue
            held.append(block)
            if weight > WHOLE:
                yield from self._long(held, blocks)
                return
        yield from _thinned(held)

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

    def _long(self, held: deque[Block], rest: Iterator[Block]) -> Iterator[Block]:
        """The head, the middle, searched, and the tail."""
        head = 0
        while held and head < HEAD:
            block = held.popleft()
            head += block.weight
            yield from _without_routine(block)
        middle = Neighbourhoods(search_for(self._literals))
        ring: deque[Block] = deque()
        shown = ringed = 0
        for searched in _all_but_tail(held, rest):
            for block in middle.feed(searched):
                if shown < MIDDLE:
                    shown += block.weight
                    yield block
                    continue
                ring.append(block)
                ringed += block.weight
                while ringed > MIDDLE and len(ring) > 1:
                    lost = ring.popleft()
                    ringed -= lost.weight
                    self._left_out += lost.data.count(b"\n")
        yield from ring
        yield from _thinned(held)


def _thinned(blocks: deque[Block]) -> Iterator[Block]:
    """The blocks without their routine lines, but for the last block, which is whole."""
    while blocks:
        block = blocks.popleft()
        yield from _without_routine(block) if blocks else (block,)


def _all_but_tail(held: deque[Block], rest: Iterator[Block]) -> Iterator[Block]:
    """The blocks of ``held`` and ``rest`` in order, but for the last ``TAIL``: these stay in ``held``."""
    weights = deque(block.weight for block in held)
    weight = sum(weights)
    while True:
        while held and weight - weights[0] >= TAIL:
            weight -= weights.popleft()
            yield held.popleft()
        following = next(rest, None)
        if following is None:
            return
        held.append(following)
        weights.append(following.weight)
        weight += weights[-1]


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
