"""Python tracebacks, joined from the lines of one process, in whatever shape a log has left them.

An ``OpenTrace`` is fed with the texts of one process and says of each whether it belongs to the traceback.
It reads chains ("direct cause of", "during handling of"), exception groups, caret lines, source lines, messages
of many lines, tracebacks without beginning or end, and a lone exception line.
"""

from __future__ import annotations

import re
from collections import deque

from ullage.core.run import Frame, Trace
from ullage.logs.prefixes import own_starts

FIRST_FRAMES, LAST_FRAMES = 20, 60
MAX_MESSAGE_LINES, MAX_MESSAGE, MAX_CHAIN = 80, 16 << 10, 16

BEGINS = "Traceback (most recent call last)"
_CHAINS = (
    "During handling of the above exception, another exception occurred",
    "The above exception was the direct cause of the following exception",
)
_FRAME = re.compile(
    r'\s*File "(?P<file>[^"]{1,1024})", line (?P<line>\d{1,9})(?:, in (?P<function>.{1,300})|\s*$)'
)
_FAULT = re.compile(r'\s*File "[^"]*", line \d+ in |(?:Current thread|Thread) 0x')  # faulthandler, py-spy
_NAME = r"(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*"
_KNOWN = (
    r"(?:[A-Za-z_]\w*\.)*(?:[A-Z]\w*(?:Error|Exception|Interrupt|Exit|OutOfResources|Timeout|Cancelled|Failure)"
    r"|Exception|SystemExit|OutOfResources|StopIteration|ExceptionGroup|BaseExceptionGroup)"
)
#: a line that is an exception wherever it stands
_ALONE = re.compile(rf"(?P<name>{_KNOWN})(?P<of>\([A-Z]\w*\))?(?::(?: (?P<message>.*))?|\s*)")
#: a line that is one below frames
_BELOW = re.compile(rf"(?P<name>{_NAME})(?P<of>\([A-Z]\w*\))?: (?P<message>.*)")
_BAR = re.compile(r"\d%\|| \[\d\d:\d\d<|it/s\]|s/it\]|\?it/s")


def is_frame(text: str) -> bool:
    return 'File "' in text and _FRAME.match(text) is not None


def is_bar(text: str) -> bool:
    return _BAR.search(text) is not None


def exception_of(text: str, *, below_frames: bool = False) -> tuple[str, str] | None:
    """Name and message where ``text`` is the exception line of a traceback."""
    if not text or not (text[0].isalpha() or text[0] == "_"):
        return None
    match = _ALONE.fullmatch(text) or (_BELOW.fullmatch(text) if below_frames else None)
    if match is None:
        return None
    return match["name"] + (match["of"] or ""), match["message"] or ""


class _Segment:
    """One exception of a chain while it is read."""

    def __init__(self) -> None:
        self.first: list[Frame] = []
        self.last: deque[Frame] = deque(maxlen=LAST_FRAMES)
        self.exception = ""
        self.message: list[str] = []
        self.size = 0
        self.inner = False

    def add_frame(self, frame: Frame) -> None:
        (self.first if len(self.first) < FIRST_FRAMES else self.last).append(frame)

    def add_message(self, text: str) -> None:
        if len(self.message) < MAX_MESSAGE_LINES and self.size < MAX_MESSAGE:
            self.message.append(text[:MAX_MESSAGE])
            self.size += len(text)

    def trace(self, cause: Trace | None) -> Trace:
        message = "\n".join(self.message).rstrip()
        return Trace((*self.first, *self.last), self.exception, message, cause)


class OpenTrace:
    """A traceback that is being read. ``prefixed``: each of its lines carries the prefix of its process, so
    that what follows the exception under the same prefix is surely its message. ``lone``: it began with an
    exception line, so that the next exception line begins another."""

    def __init__(self, *, prefixed: bool, lone: bool = False) -> None:
        self.prefixed = prefixed
        self.lone = lone
        self.segments: deque[_Segment] = deque(maxlen=MAX_CHAIN)
        self.segments.append(_Segment())
        self.chained = False
        self.blank = False
        self.grouped = False

    @property
    def complete(self) -> bool:
        """True once the exception line of the last segment was read."""
        return bool(self.segments[-1].exception)

    def trace(self) -> Trace:
        """The chain so far. Segments in the order of the log: the first is the root, except that Ray and
        exception groups print the outer exception first."""
        done: Trace | None = None
        for segment in self.segments:
            if not (segment.first or segment.exception):
                continue
            if segment.inner and done is not None:
                done = _under(done, segment.trace(None))
            else:
                done = segment.trace(done)
        return done or Trace()

    def feed(self, text: str) -> bool:
        """True if ``text`` belongs to this traceback (and is now part of it)."""
        if self.grouped or (text.lstrip().startswith("+ ") and BEGINS in text):
            text = self._ungrouped(text)
        segment = self.segments[-1]
        stripped = text.strip()
        if not stripped:
            return self._blank(segment)
        if text.startswith(_CHAINS) or stripped.startswith(_CHAINS):
            self.chained = True
            return True
        if stripped.startswith((BEGINS, "Exception Group " + BEGINS)):
            return self._begin(segment)
        if 'File "' in text and (frame := _FRAME.match(text)) is not None:
            return self._frame(segment, frame)
        if segment.exception:
            return self._message(segment, text)
        return self._below(segment, text)

    def _ungrouped(self, text: str) -> str:
        """The text inside the bars of an exception group."""
        self.grouped = True
        stripped = text.lstrip()
        if stripped.startswith("| "):
            return stripped[2:]
        if stripped.startswith(("+-", "|")):
            return ""
        return stripped[2:] if stripped.startswith("+ ") else text

    def _next(self, *, inner: bool = False) -> _Segment:
        segment = _Segment()
        segment.inner = inner
        self.segments.append(segment)
        self.chained = self.blank = False
        return segment

    def _begin(self, segment: _Segment) -> bool:
        if self.chained:
            self._next()
            return True
        if self.grouped and segment.exception:
            self._next(inner=True)
            return True
        return not segment.exception and not segment.first

    def _frame(self, segment: _Segment, found: re.Match[str]) -> bool:
        if segment.exception:
            ray = segment.exception.startswith("ray.")
            if not (self.chained or ray):
                return False
            segment = self._next(inner=ray and not self.chained)
        elif self.chained:
            segment = self._next()
        segment.add_frame(Frame(found["file"], int(found["line"]), (found["function"] or "").strip()))
        return True

    def _blank(self, segment: _Segment) -> bool:
        if self.prefixed or segment.exception or self.chained:
            self.blank = bool(segment.exception)
            return True
        return False

    def _below(self, segment: _Segment, text: str) -> bool:
        """A line among the frames: source, carets, "[Previous line repeated ...]", or the exception."""
        if _FAULT.match(text):
            return False
        if text[0] in " \t" or text.startswith("[Previous line repeated"):
            return True
        found = exception_of(text, below_frames=not text.startswith(own_starts()) and not is_bar(text))
        if found is None:
            return False
        segment.exception, message = found
        segment.add_message(message)
        return True

    def _message(self, segment: _Segment, text: str) -> bool:
        """A line after the exception: more of its message, or the next exception of a shortened chain."""
        found = exception_of(text)
        ends_open = bool(segment.message) and segment.message[-1].rstrip().endswith(":")
        if found is not None and (self.chained or not (ends_open or self.blank)):
            if self.lone and not self.chained:
                return False
            segment = self._next()
            segment.exception, message = found
            segment.add_message(message)
            return True
        if (self.blank and not self.prefixed) or text.startswith(own_starts()) or is_bar(text):
            return False
        if not self.prefixed and len(segment.message) >= MAX_MESSAGE_LINES:
            return False
        if self.blank:
            segment.add_message("")
            self.blank = False
        segment.add_message(text)
        return True


def _under(outer: Trace, root: Trace) -> Trace:
    """``outer`` with ``root`` put under the end of its chain; the first inner exception wins."""
    if outer.cause is not None:
        return outer
    return Trace(outer.frames, outer.exception, outer.message, root)
