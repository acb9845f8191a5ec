"""What stands in front of a message, taken off: containers, collectors, launchers, process names, engine heads.

The forms are rows of ``prefixes.toml``; the first row that fits at the beginning of what is left is taken off,
until none fits. JSON-lines wrappers are opened on the way.
"""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple

import msgspec
from msgspec import Struct

from ullage.core.run import Rank
from ullage.core.tables import load
from ullage.logs.clock import Clock

MAX_PEELED = 8
ANSI = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[PX^_][^\x1b]*\x1b\\|[ -/]*[0-~]|)"
)
#: colour codes whose escape character was lost on the way through a clipboard
_BARE_COLOUR = re.compile(r"(?<!u001b)\[(?:0;0|0|1|1;\d\d|[39]\d)m")
#: Ray's mark behind a line that several workers printed
_REPEATED = re.compile(r" \[repeated \d+x across (?:all nodes|cluster)\].*$")
_RANKS = re.compile(r"(?:^| )(DP|PP|TP|EP)(\d{1,6})\b")  # not the 1 of "MOE_DP1"
_PROCESS_RANKS = re.compile(r"[ _](DP|PP|TP|EP)(\d{1,6})(?=$|[ _])")
_WORLD = re.compile(r"rank=(\d{1,6})")
_LEVELS = {"I": "INFO", "W": "WARNING", "E": "ERROR", "F": "CRITICAL", "D": "DEBUG", "V": "DEBUG"}


class PrefixRow(Struct, frozen=True, forbid_unknown_fields=True):
    """One form of prefix; the groups of ``pattern`` are explained at the top of prefixes.toml."""

    name: str
    first: str
    pattern: str
    head: bool = False
    sure: bool = True


class OwnRow(Struct, frozen=True, forbid_unknown_fields=True):
    """Beginnings of lines that are statements of their own even without a prefix."""

    starts: list[str]


class RoutineRow(Struct, frozen=True, forbid_unknown_fields=True):
    """A line that a server prints over and over, its newline included."""

    name: str
    pattern: str


class PrefixTable(Struct, frozen=True, forbid_unknown_fields=True):
    prefix: list[PrefixRow]
    level: list[PrefixRow]
    own: list[OwnRow]
    routine: list[RoutineRow]


class Form(NamedTuple):
    """A row made ready: the compiled pattern and whether it is a head, needs proof, or is a mere level."""

    name: str
    match: re.Pattern[str]
    head: bool
    sure: bool


@cache
def table() -> PrefixTable:
    found: PrefixTable = load("ullage.logs", "prefixes.toml", PrefixTable)
    return found


@cache
def _forms() -> tuple[dict[str, tuple[Form, ...]], dict[str, tuple[Form, ...]]]:
    """The rows by the character that a line begins with: all of them, and the mere levels."""
    prefixes = _by_first(table().prefix + table().level)
    return prefixes, _by_first(table().level)


def _by_first(rows: list[PrefixRow]) -> dict[str, tuple[Form, ...]]:
    found: dict[str, tuple[Form, ...]] = {}
    for row in rows:
        form = Form(row.name, re.compile(row.pattern), row.head, row.sure)
        for character in row.first:
            found[character] = (*found.get(character, ()), form)
    return found


@cache
def own_starts() -> tuple[str, ...]:
    return tuple(start for row in table().own for start in row.starts)


class Piece(NamedTuple):
    """A message with what its prefixes said. ``head`` tells that the engine's own head stood in front;
    ``partial`` that its end is in the next piece of the same stream."""

    text: str
    time: float | None
    rank: Rank
    level: str | None
    where: str | None
    head: bool
    stream: str
    partial: bool


NOBODY = Rank()


@cache
def _rank(process: str, pid: str, ranks: str, world: str, gpu: str) -> Rank:
    """The rank behind the groups of a prefix. A global rank and a device number name the process only:
    which tensor-parallel rank they are depends on the sizes of the other groups."""
    found = _RANKS.findall(ranks) if ranks else _PROCESS_RANKS.findall(process)
    numbers = {name.lower(): int(n) for name, n in found}
    if (world_rank := _WORLD.search(process)) is not None:
        numbers["tp"] = int(world_rank[1])  # vLLM 0.6.5 to 0.10.0: "VllmWorker rank=3", before workers knew PP
    name = process or (f"rank{int(world)}" if world else f"cuda:{gpu}" if gpu else "")
    return Rank(process=name, pid=int(pid) if pid else None, **numbers)


class Peeler:
    """Takes the prefixes off the lines of one log; remembers which doubtful forms the log has proved to use."""

    def __init__(self) -> None:
        self.clock = Clock()
        self._forms, self._levels = _forms()
        self._proved: set[str] = set()

    def pieces(self, line: str) -> list[Piece]:
        """The messages in ``line``: one, or several where a JSON value holds line breaks."""
        if "\x1b" in line:
            line = ANSI.sub("", line)
        if "0m" in line:
            line = _BARE_COLOUR.sub("", line)
        if "[repeated " in line:
            line = _REPEATED.sub("", line)
        groups: dict[str, str] = {}
        head, rest = self._peel(line.rstrip("\r"), groups)
        texts = [rest]
        if not head and rest[:1] == "{" and rest[-1:] == "}":
            opened = _unwrapped(rest, groups)
            texts = [rest] if opened is None else opened.rstrip("\n").split("\n")
        return [self._piece(text, dict(groups), head) for text in texts]

    def _piece(self, text: str, groups: dict[str, str], head: bool) -> Piece:
        if "json" in groups:
            if "\x1b" in text:
                text = ANSI.sub("", text)
            head, text = self._peel(text.rstrip("\r"), groups)
        if not groups:
            return Piece(text, None, NOBODY, None, None, False, "", False)
        get = groups.get
        stamp, level = get("time"), get("level")
        rank = _rank(get("process", ""), get("pid", ""), get("ranks", ""), get("rank", ""), get("gpu", ""))
        return Piece(
            text, self.clock.seconds(stamp) if stamp else None, rank,
            _LEVELS.get(level, level.upper()) if level else None,
            get("where"), head, get("stream", ""), get("partial") == "P",
        )  # fmt: skip

    def _peel(self, text: str, groups: dict[str, str]) -> tuple[bool, str]:
        """Takes every prefix off ``text``, putting its groups into ``groups``; the first timestamp and the
        last of everything else count. Returns whether an engine's head was among them, and the rest."""
        forms, head = self._forms, False
        for _ in range(MAX_PEELED):
            for form in forms.get(text[:1], ()):
                if (match := form.match.match(text)) is None:
                    continue
                if not form.sure and not self._believes(form, text[match.end() :]):
                    continue
                for name, value in match.groupdict().items():
                    if value is not None and (name != "time" or name not in groups):
                        groups[name] = value
                text = text[match.end() :]
                break
            else:
                break
            if form.head:
                head, forms = True, self._levels
        return head, text

    def _believes(self, form: Form, rest: str) -> bool:
        """True if a doubtful form is proved: by what follows it here, or earlier in this log."""
        if form.name in self._proved:
            return True
        followed = any(f.sure and f.match.match(rest) for f in self._forms.get(rest[:1], ()))
        if followed or rest.startswith("Traceback (most recent call last)"):
            self._proved.add(form.name)
            return True
        return False


_TEXT_KEYS = ("log", "message", "msg", "textPayload", "short_message", "MESSAGE", "line", "body", "event")
_TIME_KEYS = ("time", "timestamp", "@timestamp", "ts", "date")
_LEVEL_KEYS = ("level", "severity", "levelname")
_TRACE_KEYS = ("exc_info", "exception", "stack_trace", "stacktrace", "exc_text")
_DOCKER_SPLITS_AT = 16_000  # docker's json-file cuts at 16 KiB; a part that is not the last has no line break
_STREAM_KEYS = ("pod", "container_name", "container", "pod_name", "host", "hostname")


def _unwrapped(line: str, groups: dict[str, str], depth: int = 3) -> str | None:
    """The message in a JSON line, opened up to three times; None where ``line`` is none."""
    try:
        record = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if not isinstance(record, dict):
        return None
    text = next((record[key] for key in _TEXT_KEYS if isinstance(record.get(key), str | dict)), None)
    while isinstance(text, dict):
        text = next((text[key] for key in _TEXT_KEYS if isinstance(text.get(key), str)), None)
    if text is None:
        return None
    groups["json"] = "1"
    for name, keys in (("time", _TIME_KEYS), ("level", _LEVEL_KEYS), ("stream", _STREAM_KEYS)):
        value = next((record[key] for key in keys if isinstance(record.get(key), str)), None)
        if value is not None and name not in groups:
            groups[name] = value
    if "stream" in record and len(text) >= _DOCKER_SPLITS_AT and not text.endswith("\n"):
        groups["partial"] = "P"
    text += "".join("\n" + record[key] for key in _TRACE_KEYS if isinstance(record.get(key), str))
    inner = text.strip()
    if depth > 1 and inner[:1] == "{" and inner[-1:] == "}":
        return _unwrapped(inner, groups, depth - 1) or text
    return str(text)
