"""Files to runs: reads the logs once and finds out whose they are."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import BinaryIO

from msgspec import Struct
from msgspec.structs import replace

from ullage import engines
from ullage.core.errors import InputError
from ullage.core.run import Event, Failure, Line, Ready, Run, Served, Stage, Stopped, Trace
from ullage.core.secrets import masked
from ullage.engines.base import Engine, Reader
from ullage.logs import lines as log_lines

Progress = Callable[[int, int | None], None]


class Log(Struct, frozen=True):
    """What was read: the engine (None: no known one), its runs, and what the reader had to say."""

    engine: Engine | None
    runs: tuple[Run, ...]
    num_lines: int
    num_bytes: int
    notes: tuple[str, ...]
    command: str | None = None


#: A launch as a shell prints it (`set -x`, a prompt, a script's echo): variables may stand in front.
_COMMAND = re.compile(
    r"^(?:\++ |\S{0,60}[$#>] |(?:Command|command|CMD|cmd|Running|Executing|Launching)[^:]{0,20}: ?)?"
    r"(?P<command>(?:(?:env |export )?[A-Z_][A-Z0-9_]*=\S* +)*(?:\S*python[\d.]* +-m +)?"
    r"(?:sglang\.launch_server|sglang +serve|vllm +serve|vllm\.entrypoints\.\S+)\b.*)$"
)
_HEAD_LINES = 2000


def read(
    paths: Sequence[str],
    *,
    engine: str | None = None,
    stdin: BinaryIO | None = None,
    progress: Progress | None = None,
) -> Log:
    """Read ``paths`` ("-": stdin) as one log. ``engine`` is the one that the command names: it decides only
    where the log does not. Raises InputError for a file that cannot be read at all."""
    reader = log_lines.read(paths, engines.literals(), stdin=stdin, progress=progress)
    readers = {name: engines.get(name).reader() for name in engines.NAMES}
    mentions = dict.fromkeys(engines.NAMES, 0)
    traced = dict.fromkeys(engines.NAMES, 0)
    command: str | None = None
    for number, raw in enumerate(reader):
        line = _safe(raw)
        if command is None and number < _HEAD_LINES and line.trace is None:
            command = _command(line.text)
        for name, engine_reader in readers.items():
            engine_reader.feed(line)
            mentions[name] += _mentions(line, name)
        if (owner := _outermost(line)) is not None:
            traced[owner] += 1
    runs = {name: tuple(each.finish()) for name, each in readers.items()}
    chosen = _choose(runs, traced, mentions, engine)
    kept = runs[chosen] if chosen else ()
    return Log(
        engines.get(chosen) if chosen else None,
        kept,
        reader.num_lines,
        reader.num_bytes,
        tuple(reader.notes),
        command,
    )


def _safe(line: Line) -> Line:
    """The line without the secrets that it holds."""
    text, trace = masked(line.text), _safe_trace(line.trace)
    return line if text is line.text and trace is line.trace else replace(line, text=text, trace=trace)


def _safe_trace(trace: Trace | None) -> Trace | None:
    if trace is None:
        return None
    message, cause = masked(trace.message), _safe_trace(trace.cause)
    if message is trace.message and cause is trace.cause:
        return trace
    return replace(trace, message=message, cause=cause)


def _command(text: str) -> str | None:
    """The launch command that a line holds, if it is one."""
    found = _COMMAND.match(text) if "sglang" in text or "vllm" in text else None
    return found["command"] if found is not None and " " in found["command"].strip() else None


def _mentions(line: Line, name: str) -> int:
    """How often a line speaks of an engine by name, in its text or its frames."""
    frames = line.trace.frames if line.trace else ()
    return (name in line.text.lower()) + sum(f"{name}/" in frame.file for frame in frames)


def _outermost(line: Line) -> str | None:
    """The engine whose code a traceback entered first: one engine may call another's layers."""
    for frame in line.trace.frames if line.trace else ():
        for name in engines.NAMES:
            if f"{name}/" in frame.file:
                return name
    return None


def _choose(
    runs: dict[str, tuple[Run, ...]], traced: dict[str, int], mentions: dict[str, int], hint: str | None
) -> str | None:
    """The engine whose events and tracebacks the log holds (the banner of a library is one event); on a tie the
    one it mentions, then the one of the command."""
    scores = {
        name: sum(_own(event) for run in found for event in run.events) + 4 * traced[name]
        for name, found in runs.items()
    }
    best = max(scores.values(), default=0)
    tied = [name for name, score in scores.items() if score == best]
    if len(tied) == 1 and best > 0:
        return tied[0]
    named = max(mentions.values(), default=0)
    if named and (mine := [name for name in tied if mentions[name] == named]) and len(mine) == 1:
        return mine[0]
    return hint if hint in engines.NAMES else (tied[0] if best > 0 else None)


def _own(event: Event) -> int:
    """Stage lines and figures tell an engine surely. What the web server prints is any engine's, and so is a
    failure; one that a row knows (its kind is no exception's name) tells a little more."""
    if isinstance(event, Failure):
        return 1 if event.kind[:1].isupper() else 2
    if isinstance(event, Ready | Served | Stopped) or (isinstance(event, Stage) and event.name == "http-up"):
        return 1
    return 3


def pick(log: Log, index: int | None) -> Run:
    """The run to explain: the chosen one, else the last that got anywhere. Raises InputError for a number
    that the log does not have."""
    if index is None:
        return next((run for run in reversed(log.runs) if len(run.events) > 1), log.runs[-1])
    for run in log.runs:
        if run.index == (index - 1 if index > 0 else run.of + index):
            return run
    raise InputError(
        f"the log holds {log.runs[-1].of} run(s), not a run {index}", hint="count from 1, or from -1 backwards"
    )


__all__ = ["Log", "Reader", "pick", "read"]
