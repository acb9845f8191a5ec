"""Pieces to Lines: each process's traceback is joined to the line that opens it.

Order: Lines come out in the order of their first physical line. While a traceback is open, the lines of
other processes that follow it are held back, at most ``MAX_HELD`` lines and ``MAX_HELD_BYTES``; beyond that
the oldest open traceback is closed as it stands.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterator

from ullage.core.run import Line, Source
from ullage.logs.prefixes import Piece
from ullage.logs.trace import BEGINS, OpenTrace, exception_of, is_bar, is_frame

MAX_HELD = 500
MAX_HELD_BYTES = 8 << 20
MAX_NESTED = 16
_MAY_HEAD = ("ERROR", "CRITICAL", "WARNING")
_Key = tuple[Hashable, ...]


class _Slot:
    """A line that waits for its turn: done, waiting for its record's traceback, or with an open one."""

    __slots__ = ("done", "key", "open", "piece", "source", "where")

    def __init__(self, piece: Piece, source: Source) -> None:
        self.piece = piece
        self.source = source
        self.open: OpenTrace | None = None
        self.done = True
        self.key: _Key = ()
        self.where: str | None = None

    def line(self) -> Line:
        text, time, rank, level, where, *_ = self.piece
        if self.open is None:
            return Line(text, self.source, time, rank, level, where)
        trace = self.open.trace()
        if not (trace.frames or trace.exception):
            return Line(text, self.source, time, rank, level, where)
        if trace.exception and text.lstrip(" |+").startswith((BEGINS, "Exception Group", 'File "')):
            text = trace.text.split("\n", 1)[0]
        return Line(text, self.source, time, rank, level, where, trace)


class Joiner:
    """Fed with the pieces of one file in order; ``ready()`` yields the Lines whose turn has come."""

    def __init__(self) -> None:
        self._held: deque[_Slot] = deque()
        self._bytes = 0
        self._loose: dict[str, list[_Slot]] = {}  # no prefix: by stream, the latest opened last
        self._owned: dict[_Key, _Slot] = {}  # prefixed: the one open record of each process

    def feed(self, piece: Piece, source: Source) -> None:
        slot = _Slot(piece, source)
        if not self._absorbed(slot):
            self._held.append(slot)
            self._bytes += len(piece.text)

    def idle(self, piece: Piece) -> bool:
        """True where ``piece`` is a plain line and nothing is open: it may pass without being fed."""
        if self._held or self._owned or self._loose:
            return False
        return not (_opens(piece.text) or (piece.where is not None and piece.level in _MAY_HEAD))

    def ready(self) -> Iterator[Line]:
        held = self._held
        while held:
            if not held[0].done:
                if len(held) <= MAX_HELD and self._bytes <= MAX_HELD_BYTES:
                    return
                self._close(held[0])
            slot = held.popleft()
            self._bytes -= len(slot.piece.text)
            yield slot.line()

    def hurry(self) -> Iterator[Line]:
        """What can go before its turn is sure: records that wait for a traceback of which nothing has come. For
        a log that is followed while it is written."""
        for slot in list(self._held):
            if not slot.done and slot.open is None:
                self._close(slot)
        yield from self.ready()

    def close(self) -> Iterator[Line]:
        for slot in list(self._held):
            self._close(slot)
        yield from self.ready()

    def _close(self, slot: _Slot) -> None:
        slot.done = True
        if self._owned.get(slot.key) is slot:
            del self._owned[slot.key]
            return
        loose = self._loose.get(slot.piece.stream, [])
        if slot in loose:
            loose.remove(slot)
        if not loose:
            self._loose.pop(slot.piece.stream, None)

    def _absorbed(self, slot: _Slot) -> bool:
        """True if the slot's text went into an open traceback. Else the slot may itself have become one."""
        piece = slot.piece
        rank = piece.rank
        owner: _Key = (piece.stream, rank.process, rank.pid) if rank.process or rank.pid else ()
        if piece.head and piece.where is not None:
            return self._record(slot, owner)
        if piece.head:
            self._end_complete(piece, owner)
        elif owner:
            return self._of_process(slot, owner)
        else:
            return self._of_nobody(slot)
        self._open(slot, owner)
        return False

    def _record(self, slot: _Slot, owner: _Key) -> bool:
        """A line with a whole vLLM head: it belongs to the record before it if file and line number agree."""
        self._end_complete(slot.piece, ())
        stderr = self._owned.get(owner)
        if stderr is not None and stderr.open is not None and stderr.open.complete:
            self._close(stderr)
        key: _Key = (slot.piece.stream, *owner, "record")
        before, text = self._owned.get(key), slot.piece.text
        if before is not None:
            same = before.where == slot.piece.where
            if same and before.open is None and text.startswith(BEGINS):
                before.open = OpenTrace(prefixed=True)
            if same and before.open is not None and before.open.feed(text):
                return True
            self._close(before)
        if _opens(text):
            self._start(slot, prefixed=True)
        elif slot.piece.level not in _MAY_HEAD:
            return False
        slot.done, slot.key, slot.where = False, key, slot.piece.where
        self._owned[key] = slot
        return False

    def _of_process(self, slot: _Slot, owner: _Key) -> bool:
        """A line with the prefix of its process, but no head."""
        before = self._owned.get(owner)
        if before is not None and before.open is not None:
            if before.open.feed(slot.piece.text):
                return True
            if before.open.complete or _opens(slot.piece.text):
                self._close(before)
        self._open(slot, owner)
        return False

    def _of_nobody(self, slot: _Slot) -> bool:
        """A line without any prefix: it goes to the latest open traceback that takes it."""
        text = slot.piece.text
        loose = self._loose.get(slot.piece.stream, [])
        unfinished = [s for s in loose if s.open is not None and not s.open.complete]
        if unfinished and exception_of(text) and loose[-1] is not unfinished[-1]:
            loose = [*loose, unfinished[-1]]
        for candidate in reversed(loose):
            if candidate.open is not None and candidate.open.feed(text):
                return True
        self._end_complete(slot.piece, ())
        self._open(slot, ())
        return False

    def _end_complete(self, piece: Piece, owner: _Key) -> None:
        """Closes what a line of another record shows to be over: whole tracebacks without prefix in this
        stream, and those of its own rank or process, whole or not."""
        for slot in list(self._loose.get(piece.stream, ())):
            own = piece.head and piece.rank.label != "" and slot.piece.rank == piece.rank
            if slot.open is None or slot.open.complete or own:
                self._close(slot)
        if owner and (before := self._owned.get(owner)) is not None:
            self._close(before)

    def _open(self, slot: _Slot, owner: _Key) -> None:
        if not _opens(slot.piece.text):
            return
        self._start(slot, prefixed=bool(owner))
        slot.done = False
        if owner:
            if (before := self._owned.get(owner)) is not None:
                self._close(before)
            slot.key = owner
            self._owned[owner] = slot
            return
        loose = self._loose.setdefault(slot.piece.stream, [])
        loose.append(slot)
        if len(loose) > MAX_NESTED:
            self._close(loose[0])

    def _start(self, slot: _Slot, *, prefixed: bool) -> None:
        text = slot.piece.text
        if BEGINS in text and not text.lstrip().startswith("+ "):
            slot.open = OpenTrace(prefixed=prefixed)
        else:
            slot.open = OpenTrace(prefixed=prefixed, lone=exception_of(text) is not None)
            slot.open.feed(text)


def _opens(text: str) -> bool:
    """True if a traceback can begin with ``text``: its head, a frame (the head is lost) or an exception."""
    if not text:
        return False
    if text[0] in " \t":
        return is_frame(text) or text.lstrip().startswith((BEGINS, "+ Exception Group " + BEGINS))
    name = text.split(":", 1)[0]
    if " " not in name:
        return exception_of(text) is not None
    return BEGINS in text and not is_bar(text[: text.index(BEGINS)])
