"""Lines of a log that is still being written: bytes as they come, Lines as soon as they are whole."""

from __future__ import annotations

from collections.abc import Iterator

from ullage.core.run import Line
from ullage.logs.lines import _FileReader
from ullage.logs.neighbourhoods import Block
from ullage.logs.scan import MAX_LINE, shortened


class Follower:
    """Fed with pieces of a log, gives the Lines that they complete. A carriage return ends a line too, so that
    a progress bar is seen while it moves. A traceback comes out once a line behind it has shown that it is
    whole, or at ``close``."""

    def __init__(self, name: str = "log") -> None:
        self._reader = _FileReader(name)
        self._number = 1
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[Line]:
        data = (self._rest + data).replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        end = data.rfind(b"\n") + 1
        self._rest = shortened(data[end:]) if len(data) - end > MAX_LINE else data[end:]
        if end:
            yield from self._lines(data[:end])

    def close(self) -> Iterator[Line]:
        """What is left: the last line without an end, an open traceback."""
        if self._rest:
            rest, self._rest = self._rest, b""
            yield from self._lines(rest)
        yield from self._reader.close()

    def _lines(self, data: bytes) -> Iterator[Line]:
        block = Block(self._number, data)
        self._number += data.count(b"\n")
        yield from self._reader.lines([block])
        yield from self._reader.hurry()
