"""What a killed ullage left behind: ended at the next start, and said."""

from __future__ import annotations

import time
from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from ullage.lab import processes
from ullage.lab.durable import StoreError
from ullage.lab.processes import Ended
from ullage.lab.records import Event, Folder, Record, Store, locked

#: seconds that an abandoned server gets to end by itself
GRACE_S = 5.0
#: ends what of a run is not a process of this machine (a container, another machine); what it did, or None
Elsewhere = Callable[[Folder, Record], str | None]


class Reaped(Struct, frozen=True):
    """One run that was left behind. ``elsewhere`` says what was ended beyond this machine's processes."""

    name: str
    ended: Ended
    elsewhere: str | None = None

    @property
    def text(self) -> str:
        """For people, one line."""
        parts = [f"{len(self.ended.found)} processes ended"] if self.ended.found else []
        if self.ended.left:
            parts.append(f"{len(self.ended.left)} could not be ended: {_pids(self.ended)}")
        parts += [f"port {port} is still held" for port in self.ended.ports_held]
        parts += [self.elsewhere] if self.elsewhere else []
        done = ", ".join(parts) or "nothing of it was left"
        return f"{self.name} was abandoned when its ullage was killed: {done}"


def reap(store: Store, elsewhere: Elsewhere | None = None, grace_s: float = GRACE_S) -> list[Reaped]:
    """End what killed ullages left behind, and finish their records. A run whose ullage lives is not touched;
    one that could not be ended wholly is tried again at the next start."""
    found = []
    for folder in store.folders():
        record = folder.read()
        if record is None:
            _unfinished(folder)
        elif record.outcome == "running" or _left(record):
            with locked(folder) as mine:
                record = folder.read() if mine else None
                if record is not None and (record.outcome == "running" or _left(record)):
                    found.append(_reap(folder, record, elsewhere, grace_s))
    return found


def _left(record: Record) -> bool:
    """True if the run is over but for what could not be ended."""
    return record.labels.get("left") == "yes"


def _unfinished(folder: Folder) -> None:
    """A folder without record: killed before anything was started. Removed once nobody can be at it."""
    try:
        if time.time() - folder.path.stat().st_mtime > 60:
            folder.remove()
    except (OSError, StoreError):
        pass


def _reap(folder: Folder, record: Record, elsewhere: Elsewhere | None, grace_s: float) -> Reaped:
    traces = folder.traces()
    ended = processes.end(traces, grace_s) if traces is not None else Ended()
    beyond = elsewhere(folder, record) if elsewhere is not None else None
    reaped = Reaped(record.name, ended, beyond)
    labels = {**record.labels, "left": "yes" if ended.left else "no"}
    again = record.outcome != "running"
    folder.add_events([Event(at_s=_since(record), kind="reaped", text=reaped.text)])
    folder.write(replace(
        record, labels=labels, outcome=record.outcome if again else "abandoned",
        ended_at=record.ended_at or _last_sign(folder),
        why=record.why or "ullage was killed while it ran", notes=(*record.notes, reaped.text),
    ))  # fmt: skip
    return reaped


def _since(record: Record) -> float:
    return round(time.time() - (record.started_at or record.created_at), 3)


def _last_sign(folder: Folder) -> float:
    """When the run was last heard of, in seconds since 1970."""
    try:
        return folder.log.stat().st_mtime
    except OSError:
        return time.time()


def _pids(ended: Ended) -> str:
    return ", ".join(str(process.pid) for process in ended.left)
