"""A start that says nothing for long: what every rank last did, and where its processes stand (py-spy)."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from ullage.core.run import Phase
from ullage.lab import proc_table
from ullage.lab.proc_table import Started

#: seconds for one dump, and how many processes are dumped
DUMP_S, MOST_DUMPS = 20.0, 64
_MOST_BYTES = 1 << 20


class Hang(Struct, frozen=True):
    """``silent_s``: seconds without a line. ``ranks``: rank -> (seconds since its last line, that line).
    ``stacks``: the file with the dumps, None where py-spy is not installed."""

    phase: Phase | None
    silent_s: float
    ranks: dict[str, tuple[float, str]]
    stacks: str | None = None
    processes: int = 0


def hang(
    phase: Phase | None, silent_s: float, last: Mapping[str, tuple[float, str]], elapsed_s: float,
    found: Sequence[Started], stacks: Path, program: str,
) -> Hang:  # fmt: skip
    """What is known of a start that hangs; writes the stacks of its processes to ``stacks``."""
    ranks = {label: (max(0.0, elapsed_s - at), text) for label, (at, text) in sorted(last.items())}
    if len(ranks) > 1:
        ranks.pop("", None)
    dumped = dump(found, stacks, program)
    return Hang(phase, silent_s, ranks, str(stacks) if dumped else None, len(found))


def dump(found: Sequence[Started], to: Path, program: str) -> bool:
    """Append the Python stacks of the processes to ``to``; False where there is no py-spy, or no answer."""
    tool = py_spy(program)
    if tool is None:
        return False
    parts = [_stack(tool, process) for process in found[:MOST_DUMPS]]
    text = b"\n".join(part for part in parts if part)
    if not text:
        return False
    try:
        with to.open("ab") as stream:
            stream.write(text)
    except OSError:
        return False
    return True


def py_spy(program: str) -> str | None:
    """py-spy on the PATH, or beside the server's own program."""
    found = shutil.which("py-spy")
    beside = Path(program).parent / "py-spy"
    return found or (str(beside) if "/" in program and os.access(beside, os.X_OK) else None)


def _stack(tool: str, process: Started) -> bytes:
    if not proc_table.alive(process):
        return b""
    row = proc_table.entry(process.pid)
    head = f"== process {process.pid} ({row.name if row else '?'})\n".encode()
    with suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(
            [tool, "dump", "--nonblocking", "--pid", str(process.pid)], stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=DUMP_S, check=False,
        )  # fmt: skip
        return head + done.stdout[:_MOST_BYTES]
    return head + b"no answer\n"
