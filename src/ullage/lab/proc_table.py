"""The processes of this machine as Linux lists them (/proc): whose child, group and session, since when."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

PROC = Path("/proc")
_PIPE = re.compile(r"pipe:\[(\d{1,20})\]")
#: an environment larger than this is not read further (the kernel allows a few MiB)
_MOST_ENVIRON = 4 << 20


class Started(Struct, frozen=True, order=True):
    """One process for good: a pid alone is given to others later, a pid with its start time is not.

    ``ticks`` is the start in clock ticks since boot (field 22 of /proc/PID/stat).
    """

    pid: int
    ticks: int


class Entry(Struct, frozen=True):
    """One row of the table. ``state`` is the letter of /proc/PID/stat: "Z" is dead and not yet collected."""

    process: Started
    parent: int
    group: int
    session: int
    state: str
    name: str

    @property
    def pid(self) -> int:
        return self.process.pid


def boot_id() -> str:
    """What differs from boot to boot: pids and start times mean nothing across it."""
    with suppress(OSError):
        return (PROC / "sys/kernel/random/boot_id").read_text().strip()
    return ""


def entry(pid: int) -> Entry | None:
    """The row of ``pid``; None where there is no such process."""
    try:
        text = (PROC / str(pid) / "stat").read_bytes()
    except (OSError, ValueError):
        return None
    name = text[text.find(b"(") + 1 : text.rfind(b")")]
    fields = text[text.rfind(b")") + 2 :].split()
    if len(fields) < 20:
        return None
    state, parent, group, session = fields[:4]
    ticks = int(fields[19])
    return Entry(
        Started(pid, ticks), int(parent), int(group), int(session), state.decode("ascii", "replace"),
        name.decode("utf-8", "replace"),
    )  # fmt: skip


def table() -> dict[int, Entry]:
    """Every process that is alive; those that only wait to be collected are left out."""
    found: dict[int, Entry] = {}
    with suppress(OSError):
        for folder in PROC.iterdir():
            if (
                folder.name.isdecimal()
                and (row := entry(int(folder.name))) is not None
                and row.state not in "ZX"
            ):
                found[row.pid] = row
    return found


def started(pid: int) -> Started | None:
    """The process that has ``pid`` now, dead or alive."""
    row = entry(pid)
    return row.process if row else None


def alive(process: Started) -> bool:
    row = entry(process.pid)
    return row is not None and row.process == process and row.state not in "ZX"


def has_variable(pid: int, name: str, value: str) -> bool:
    """True if the process was started with the variable. A process that renames itself (setproctitle)
    overwrites its list, and another user's cannot be read: False then."""
    try:
        with (PROC / str(pid) / "environ").open("rb") as stream:
            text = stream.read(_MOST_ENVIRON)
    except OSError:
        return False
    return f"{name}={value}".encode() in text.split(b"\0")


def pipes_of(pid: int) -> set[int]:
    """Inodes of the pipes that are the process's stdout and stderr."""
    found = set()
    for number in ("1", "2"):
        with suppress(OSError):
            link = _PIPE.fullmatch(str((PROC / str(pid) / "fd" / number).readlink()))
            if link is not None:
                found.add(int(link[1]))
    return found


def descendants(rows: dict[int, Entry], roots: Iterable[int]) -> set[int]:
    """``roots`` and everything that they started, as far as the parents are still alive."""
    children: dict[int, list[int]] = {}
    for row in rows.values():
        children.setdefault(row.parent, []).append(row.pid)
    found: set[int] = set()
    waiting = [pid for pid in roots if pid in rows]
    while waiting:
        pid = waiting.pop()
        if pid not in found:
            found.add(pid)
            waiting += children.get(pid, [])
    return found


def ancestors(rows: dict[int, Entry], pid: int) -> set[int]:
    """``pid`` and those that it descends from."""
    found: set[int] = set()
    while pid in rows and pid not in found:
        found.add(pid)
        pid = rows[pid].parent
    return found
