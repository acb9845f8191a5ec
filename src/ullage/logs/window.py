"""Some lines of a log by their numbers, whatever its size: for faces that show the log beside its evidence."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from functools import lru_cache
from itertools import islice
from pathlib import Path

from msgspec import Struct

from ullage.core.secrets import masked
from ullage.logs.source import CHUNK_BYTES, open_source

#: characters of a line that are shown; a line can be as long as the file
LONGEST_LINE = 2000
KEPT_BYTES = 2 * LONGEST_LINE
#: lines of one window
MOST_LINES = 2000


class Window(Struct, frozen=True):
    """Lines ``first`` and on (counted from 1), as text; ``total`` lines in the whole log."""

    first: int
    lines: tuple[str, ...]
    total: int


class _Index(Struct, frozen=True):
    """How many lines have ended before each chunk, and in all; ``total`` counts an unfinished one too."""

    ended: tuple[int, ...]
    total: int
    packed: bool


def window(path: str, first: int, count: int) -> Window:
    """At most ``count`` lines of a log from line ``first`` on. Raises InputError where it cannot be read."""
    open_source(path)
    info = Path(path).stat()
    index = _index(path, info.st_size, info.st_mtime_ns)
    first = max(1, min(first, index.total))
    chunk = max(0, bisect_left(index.ended, first - 1) - 1)
    found = _lines(path, index, chunk, first - 1 - index.ended[chunk], max(0, min(count, MOST_LINES)))
    return Window(first, tuple(found), index.total)


@lru_cache(maxsize=16)
def _index(path: str, _size: int, _mtime_ns: int) -> _Index:
    ended, counts, last = 0, [0], b"\n"
    for chunk in open_source(path).chunks():
        ended += chunk.count(b"\n")
        counts.append(ended)
        last = chunk[-1:] or last
    with Path(path).open("rb") as stream:
        packed = stream.read(2) in (b"\x1f\x8b", b"\x28\xb5", b"\xff\xfe", b"\xfe\xff")
    return _Index(tuple(counts), ended + (last != b"\n"), packed)


def _chunks(path: str, index: _Index, start: int) -> Iterator[bytes]:
    """The chunks from number ``start`` on: a plain file is entered there, a packed one is read up to there."""
    if index.packed:
        yield from islice(open_source(path).chunks(), start, None)
        return
    with Path(path).open("rb") as stream:
        stream.seek(start * CHUNK_BYTES)
        while chunk := stream.read(CHUNK_BYTES):
            yield chunk


def _lines(path: str, index: _Index, start: int, skip: int, count: int) -> Iterator[str]:
    """``count`` lines after the next ``skip`` line ends."""
    line, length = b"", 0
    for chunk in _chunks(path, index, start):
        for piece in _pieces(chunk):
            if count <= 0:
                return
            whole = piece.endswith(b"\n")
            if skip:
                skip -= whole
                continue
            length += len(piece)
            if len(line) < KEPT_BYTES:
                line += piece[: KEPT_BYTES - len(line)]
            if whole:
                yield _shown(line, length - 1)
                line, length, count = b"", 0, count - 1
    if length and count > 0:
        yield _shown(line, length)


def _pieces(chunk: bytes) -> Iterator[bytes]:
    """A chunk cut behind each line feed (``splitlines`` would cut at others too)."""
    at = 0
    while (end := chunk.find(b"\n", at)) >= 0:
        yield chunk[at : end + 1]
        at = end + 1
    if at < len(chunk):
        yield chunk[at:]


def _shown(line: bytes, length: int) -> str:
    last = line.rstrip(b"\r\n").rpartition(b"\r")[2]  # of a progress bar what a terminal shows last
    text = masked(last.decode("utf-8", "replace"))
    return text if length <= KEPT_BYTES else f"{text[:LONGEST_LINE]} … ({length:,} bytes in this line)"
