"""A run on the screen: the server's output as it comes, a live view of the start below, what ullage says."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence
from typing import Any, BinaryIO, TextIO

from ullage.core.plain import visible
from ullage.core.report import Diagnosis, Plan
from ullage.core.units import duration_text, gib_text
from ullage.lab.health import Hang
from ullage.lab.records import Record
from ullage.lab.view import Stage, View
from ullage.render import plan_text, stages

_MARKS = {"done": "✓", "open": "…", "to come": " "}
#: columns of a bar, and the fewest of a screen on which a view is drawn
BAR, LEAST_WIDTH, LEAST_HEIGHT = 24, 50, 12


class RunScreen:
    """What ``ullage run`` shows. The server's output goes to ``out`` and ``err`` byte for byte; everything
    of ullage goes to stderr. On a terminal a live view stands below the output: it is taken away before more
    output is written and drawn again once a line is whole."""

    def __init__(self, out: BinaryIO, err: BinaryIO, words: TextIO, *, live: bool) -> None:
        self._streams = {1: out, 2: err}
        self._words = words
        self._live = live
        self._lock = threading.RLock()
        self._drawn = 0
        self._lines: list[str] = []
        self._whole = True
        self._quiet: BinaryIO | None = None

    # the server's output, from the pump's thread

    def show(self, stream: int, data: bytes) -> None:
        with self._lock:
            self._erase()
            _write(self._streams[stream], data)
            self._whole = data.endswith(b"\n")
            self._draw()

    # the live view

    def view(self, view: View | None) -> None:
        if not self._live:
            return
        # a terminal that is held (Ctrl-S) holds whoever shows the output, and must not hold us
        if not self._lock.acquire(timeout=-1 if view is None else 0.05):
            return
        try:
            self._erase()
            self._lines = lines_of(view, *_size(self._words)) if view is not None else []
            self._draw()
        finally:
            self._lock.release()

    def _draw(self) -> None:
        if self._lines and self._whole:
            self._words.write("".join(f"{line}\n" for line in self._lines))
            self._words.flush()
            self._drawn = len(self._lines)

    def _erase(self) -> None:
        if self._drawn:
            self._words.write(f"\x1b[{self._drawn}A\x1b[0J")
            self._words.flush()
            self._drawn = 0

    # what ullage says

    def say(self, text: str) -> None:
        with self._lock:
            self._erase()
            if not self._whole:
                self._words.write("\n")
                self._whole = True
            self._words.write(f"ullage: {' '.join(text.split())}\n")
            self._words.flush()
            self._draw()

    def planned(self, plan: Plan) -> None:
        """The whole plan where it will not start, else its verdict in a line."""
        if plan.verdict == "fails":
            plan_text.plan(plan, self._words)
            self._words.write("\n")
            return
        self.say(f"preflight: {plan_text.summary(plan)}")

    def hang(self, found: Hang) -> None:
        stage = f" in the stage {stages.NAMES[found.phase]!r}" if found.phase else ""
        self.say(f"nothing was printed for {duration_text(found.silent_s)}{stage}, and it is not ready")
        for rank, (ago, last) in found.ranks.items():
            self.say(f"  {rank or 'the server'} last, {duration_text(ago)} ago: {last}")
        if found.stacks:
            self.say(f"  stacks of its {found.processes} processes: {found.stacks}")
        else:
            self.say("  install py-spy to see where its processes stand")

    def diagnosed(self, found: Diagnosis) -> None:
        from rich.console import Console

        from ullage.render import text

        self._words.write("\n")
        colour = None if self._words.isatty() and "NO_COLOR" not in os.environ else True
        text.why(found, Console(
            file=self._words, highlight=False, no_color=colour, width=_size(self._words)[0]
        ))  # fmt: skip
        self._words.flush()

    # for the record

    def plan_object(self, plan: Plan) -> dict[str, Any]:
        from ullage.render import plan_json

        return plan_json.plan_object(plan)

    def why_object(self, found: Diagnosis) -> dict[str, Any]:
        from ullage.render import json

        return json.why_object(found)


def _write(stream: BinaryIO, data: bytes) -> None:
    """All of it, past any buffer: what cannot be written must not be tried again at the end."""
    raw = getattr(stream, "raw", stream)
    rest = memoryview(data)
    while rest:
        rest = rest[raw.write(rest) or 0 :]


def _size(stream: TextIO) -> tuple[int, int]:
    """Columns and rows; into a pipe as wide as text reads well."""
    try:
        size = os.get_terminal_size(stream.fileno())
        return size.columns, size.lines
    except (OSError, ValueError):
        columns = os.environ.get("COLUMNS", "")
        return (int(columns) if columns.isdigit() else 100), 40


def lines_of(view: View, width: int = 100, height: int = 40) -> list[str]:
    """The view as lines, with colour; none where the screen is too small for it."""
    if width < LEAST_WIDTH or height < LEAST_HEIGHT:
        return []
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 1), show_edge=False, pad_edge=False)
    for heading in ("", "stage", "", "", "time", "predicted", "observed"):
        justify: Any = "right" if heading in ("predicted", "observed") else "left"
        table.add_column(heading, no_wrap=True, header_style="dim", justify=justify)
    for stage in view.stages:
        table.add_row(*_row(stage))
    console = Console(width=width - 1, force_terminal=True, no_color="NO_COLOR" in os.environ, highlight=False)
    with console.capture() as captured:
        console.print(Text(_head(view), style="bold"), no_wrap=True, overflow="ellipsis")
        console.print(table)
    return captured.get().rstrip("\n").split("\n")


def _row(stage: Stage) -> Sequence[Any]:
    from rich.progress_bar import ProgressBar

    fraction = stage.fraction
    bar: Any = ""
    if stage.state == "open":
        bar = ProgressBar(total=1.0, completed=fraction or 0.0, width=BAR, pulse=fraction is None)
    count = f"{stage.done}/{stage.total}" if stage.total and stage.state != "to come" else ""
    time = duration_text(stage.seconds) if stage.seconds is not None else ""
    if stage.usual_s and stage.state != "done":
        time = f"{time} of ~{duration_text(stage.usual_s)}".strip()
    return (
        _MARKS[stage.state], stages.NAMES[stage.phase], bar, count, time, _gib(stage.predicted_bytes),
        _gib(stage.observed_bytes),
    )  # fmt: skip


def _gib(size: int | None) -> str:
    return gib_text(size) if size else ""


def _head(view: View) -> str:
    left = f", about {duration_text(view.left_s)} left" if view.left_s is not None else ""
    return f"── starting for {duration_text(view.elapsed_s)}{left} "


# records


def runs(records: Sequence[Record], stream: TextIO | None = None) -> None:
    """A line a run, the newest last."""
    out = stream or sys.stdout
    if not records:
        out.write("no runs yet: ullage run -- LAUNCH COMMAND\n")
        return
    rows = [("name", "when", "outcome", "ready", "code", "engine", "command"), *map(_cells, records)]
    widths = [max(map(len, column)) for column in list(zip(*rows, strict=True))[:-1]]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        line = visible("  ".join([*cells, row[-1]]))
        out.write(f"{line[: _size(out)[0]] if out.isatty() else line}\n")


def _cells(record: Record) -> tuple[str, ...]:
    return (
        record.name, when(record.created_at), outcome(record),
        duration_text(record.ready_s) if record.ready_s is not None else "",
        "" if record.exit_code is None else str(record.exit_code),
        " ".join(filter(None, (record.engine, record.version))), " ".join(record.command.split()),
    )  # fmt: skip


def when(seconds: float) -> str:
    from datetime import datetime

    try:
        return datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, OSError, ValueError):  # a record that somebody wrote by hand
        return "unknown"


def outcome(record: Record) -> str:
    """The outcome, with the cause where one was found."""
    cause = (record.diagnosis or {}).get("cause")
    return f"{record.outcome}: {cause}" if cause and cause != "none" else record.outcome


def shown(record: Record, log: str, stream: TextIO | None = None) -> None:
    """Everything of one run but its whole plan and diagnosis."""
    out = stream or sys.stdout
    for name, value in facts(record, log):
        if value:
            out.write(f"{name:<15} {visible(value)}\n")


def facts(record: Record, log: str) -> list[tuple[str, str]]:
    """What is kept of a run, in words; empty where it is not known."""
    return [
        ("run", record.name), ("command", " ".join(record.command.split())), ("where", record.where),
        ("began", when(record.created_at)), ("outcome", outcome(record)), ("why", record.why),
        ("exit code", "" if record.exit_code is None else str(record.exit_code)),
        ("ready after", duration_text(record.ready_s) if record.ready_s is not None else ""),
        ("answered after", duration_text(record.answered_s) if record.answered_s is not None else ""),
        ("planned", str((record.plan or {}).get("verdict") or "")),
        ("stages", ", ".join(f"{phase} at {duration_text(at)}" for phase, at in record.stages.items())),
        ("observed", ", ".join(f"{name} {value:g}" for name, value in sorted(record.observed.items()))),
        ("versions", ", ".join(f"{name} {value}" for name, value in sorted(record.versions.items()))),
        ("environment", ", ".join(f"{name}={value}" for name, value in sorted(record.environment.items()))),
        *(("note", note) for note in record.notes), ("log", log),
    ]  # fmt: skip
