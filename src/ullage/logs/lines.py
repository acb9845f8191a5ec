"""Text to Lines: files or stdin of one run in, messages with rank, time, level and joined tracebacks out.

Never raises on content; what was cut, skipped or unreadable is said in ``LineReader.notes``.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import BinaryIO

from ullage.core.run import Line
from ullage.core.run import Source as Place
from ullage.logs.join import Joiner
from ullage.logs.neighbourhoods import Block
from ullage.logs.prefixes import NOBODY, Peeler, Piece
from ullage.logs.scan import HALF_LINE, MAX_LINE, Scan, shortened
from ullage.logs.source import Source, open_source
from ullage.logs.trace import is_bar

Progress = Callable[[int, int | None], None]
TRY_LINES = 200  # a file has timestamps if one of its first lines has
_MAX_PARTIAL = 64
_NOT_TEXT = bytes(b for b in range(256) if b >= 127 or (b < 32 and b not in b"\t\n\r\x1b"))
_GLUED = re.compile(
    r"(?<=.)(?=\[20\d\d-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:\.\d+)?(?: [A-Z_]*[A-Z]P\d+)*\] )"
    r"|(?<=.)(?<!\) )(?=\([A-Z][\w. =-]* pid=\d+\) (?:INFO|WARNING|ERROR|DEBUG|CRITICAL) \d\d-\d\d \d\d:)"
    r"|(?<=.)(?<!\) )(?=(?:INFO|WARNING|ERROR|DEBUG|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d \[?[\w./-]+:\d+\])"
)


def read(
    paths: Sequence[str | Path],
    literals: Sequence[bytes] = (),
    *,
    stdin: BinaryIO | None = None,
    progress: Progress | None = None,
) -> LineReader:
    """The Lines of one run's files ("-": stdin), in order. Raises InputError where one cannot be opened.

    Several files are merged by time where each has timestamps (one file a rank or node), else read one after
    another. Of a file of more than 32 MiB the middle is searched for ``literals`` only: see ``scan.py``.
    """
    names = [str(path) for path in paths]
    return LineReader([open_source(name, stdin) for name in dict.fromkeys(names)], literals, progress)


def lines_of(text: str, file: str = "log") -> list[Line]:
    """The Lines of a text, as ``read`` would give them for a file of that name."""
    reader = _FileReader(file)
    blocks = [Block(1, text.encode("utf-8", "surrogateescape"))] if text else []
    return list(chain(reader.lines(blocks), reader.close()))


class LineReader:
    """The Lines of one run, once. ``num_lines`` and ``num_bytes`` count what was read so far (physical lines,
    unpacked bytes); ``notes`` is complete after iteration."""

    def __init__(self, sources: Sequence[Source], literals: Sequence[bytes], progress: Progress | None) -> None:
        self._sources = sources
        self._scans = [Scan(source.name, source.chunks(), literals) for source in sources]
        self._readers = [_FileReader(source.name) for source in sources]
        self._progress = progress
        sizes = [source.size for source in sources]
        self._total = None if None in sizes else sum(size or 0 for size in sizes)

    @property
    def num_lines(self) -> int:
        return sum(scan.num_lines for scan in self._scans)

    @property
    def num_bytes(self) -> int:
        return sum(scan.num_bytes for scan in self._scans)

    @property
    def notes(self) -> list[str]:
        found: list[str] = []
        for source, scan, reader in zip(self._sources, self._scans, self._readers, strict=True):
            found += [*source.notes, *scan.notes(), *reader.notes()]
            if cut := scan.num_cut + reader.num_cut:
                lines = "1 line was" if cut == 1 else f"{cut:,} lines were"
                found.append(f"{source.name}: {lines} longer than {MAX_LINE >> 10} KiB and cut")
        return found

    def __iter__(self) -> Iterator[Line]:
        files = [self._file(i) for i in range(len(self._sources))]
        if len(files) == 1:
            yield from files[0]
            return
        first = [list(islice(file, TRY_LINES)) for file in files]
        whole = [chain(lines, file) for lines, file in zip(first, files, strict=True)]
        if all(any(line.time is not None for line in lines) for lines in first):
            for _, line in heapq.merge(*(_timed(lines) for lines in whole), key=lambda pair: pair[0]):
                yield line
        else:
            yield from chain.from_iterable(whole)

    def _file(self, index: int) -> Iterator[Line]:
        reader = self._readers[index]
        yield from reader.lines(self._reported(self._scans[index].blocks()))
        yield from reader.close()

    def _reported(self, blocks: Iterable[Block]) -> Iterator[Block]:
        for block in blocks:
            if self._progress is not None:
                self._progress(sum(source.done for source in self._sources), self._total)
            yield block


def _timed(lines: Iterable[Line]) -> Iterator[tuple[float, Line]]:
    """Each line with the latest time seen so far in its file."""
    latest = float("-inf")
    for line in lines:
        if line.time is not None and line.time > latest:
            latest = line.time
        yield latest, line


class _FileReader:
    """Blocks of whole physical lines to Lines, for one file."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._peeler = Peeler()
        self._joiner = Joiner()
        self._partial: dict[str, tuple[Piece, list[str]]] = {}
        self.num_cut = 0
        self._number = self._bytes = self._not_text = 0

    def notes(self) -> list[str]:
        if not self._not_text:
            return []
        share = max(1, round(100 * self._not_text / max(1, self._bytes)))
        return [f"{self._file}: {share} % of the bytes are not text"]

    def lines(self, blocks: Iterable[Block]) -> Iterator[Line]:
        joiner, peeler, file = self._joiner, self._peeler, self._file
        for block in blocks:
            data = block.data.removesuffix(b"\n")
            for number, raw in enumerate(data.split(b"\n"), block.line):
                self._number = number
                for piece in self._pieces(peeler, self._text(raw)):
                    place = Place(file, number)
                    if joiner.idle(piece):
                        yield Line(piece.text, place, *piece[1:5])
                    else:
                        joiner.feed(piece, place)
                        yield from joiner.ready()

    def hurry(self) -> Iterator[Line]:
        """The lines that need not wait; see Joiner."""
        yield from self._joiner.hurry()

    def close(self) -> Iterator[Line]:
        for piece, parts in self._partial.values():
            self._joiner.feed(piece._replace(text="".join(parts)), Place(self._file, self._number))
        self._partial.clear()
        yield from self._joiner.close()

    def _text(self, raw: bytes) -> str:
        self._bytes += len(raw)
        if len(raw) > MAX_LINE:
            self.num_cut += b"\r" not in raw[-HALF_LINE:]
            raw = shortened(raw)
        try:
            text = raw.decode()
        except UnicodeDecodeError:
            text = raw.decode(errors="backslashreplace")
            self._not_text += len(raw) - len(raw.translate(None, _NOT_TEXT))
        if "\0" in text:
            self._not_text += text.count("\0")
            text = text.replace("\0", "")
        return text

    def _pieces(self, peeler: Peeler, text: str) -> Iterator[Piece]:
        """The messages in one physical line."""
        for piece in peeler.pieces(text):
            for whole in self._whole(piece):
                inner = whole.text
                if "\r" in inner or "[20" in inner or " pid=" in inner or (".py:" in inner and not whole.head):
                    yield from _parts(peeler, whole)
                else:
                    yield whole

    def _whole(self, piece: Piece) -> Iterable[Piece]:
        """CRI splits long lines: the parts of one stream are put together again."""
        if not piece.partial and not self._partial:
            return (piece,)
        before = self._partial.pop(piece.stream, None)
        if piece.partial:
            first, parts = before or (piece, [])
            if len(parts) < _MAX_PARTIAL:
                parts.append(piece.text)
            self._partial[piece.stream] = (first, parts)
            return ()
        if before is None:
            return (piece,)
        return (before[0]._replace(text="".join([*before[1], piece.text])[:MAX_LINE]),)


def _parts(peeler: Peeler, piece: Piece) -> list[Piece]:
    """A progress bar overwrites itself by carriage returns, and what other processes print meanwhile is glued
    to it: each message on its own, of several bars the last. What has no prefix keeps that of the line."""
    found: list[Piece] = []
    for i, text in enumerate(t for part in piece.text.split("\r") for t in _GLUED.split(part)):
        own = [piece._replace(text=text)] if i == 0 else peeler.pieces(text)
        for part in own:
            if part.time is None or not part.stream:
                part = part._replace(time=part.time or piece.time, stream=part.stream or piece.stream)
            if part.rank == NOBODY:
                part = part._replace(rank=piece.rank)
            if found and _overwritten(found[-1].text, part):
                found.pop()
            if part.text.strip():
                found.append(part)
    return found or [piece._replace(text="")]


def _overwritten(before: str, part: Piece) -> bool:
    """True if ``before`` is a bar that ``part`` redraws, or what VLLM_LOGGING_PREFIX puts before a head."""
    if is_bar(part.text) and is_bar(before):
        return True
    free = len(before) <= 64 and before[-1] in " ])}>|:-" and not is_bar(before)
    return free and part.head and part.where is not None
