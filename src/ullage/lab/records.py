"""The record of every run: a folder each, readable whenever ullage was killed.

::

    $ULLAGE_HOME/runs/<name>/          or $XDG_DATA_HOME/ullage/runs/<name>/ (~/.local/share/ullage/...)
        record.json     Record: replaced as a whole (written beside it, fsync, rename)
        traces.json     how its processes are found again (processes.Traces), while it goes on
        server.log      what the server printed, secrets masked
        events.jsonl    stages, figures and what ullage did, a line each; a torn last line is skipped
        gpu.jsonl       memory of the GPUs (gpu_samples), where there are any
        lock            held (flock) by the ullage that runs it: free means that one is gone

A record says "running" until it is finished; one that says so and whose lock is free was left by a killed
ullage: ``reap`` (lab/reap.py) ends what is left of it.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from ullage.core.secrets import masked
from ullage.lab.durable import StoreError, append, decoded, encoded, lines, replace_file, store_error
from ullage.lab.processes import Traces

#: ``refused``: the preflight said no; ``doomed``: stopped early for a figure that cannot work; ``stopped``:
#: somebody asked it to end; ``ended``: it ended by itself with code 0; ``abandoned``: ullage was killed;
#: ``lost``: the connection to its machine was lost
Outcome = Literal[
    "running", "refused", "doomed", "crashed", "hang", "stopped", "ended", "abandoned", "lost"
]  # fmt: skip
SCHEMA = "ullage.run/1"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class Record(Struct, frozen=True, kw_only=True):
    """What is kept of a run. Times are seconds since 1970 (``_at``) or since the start (``_s``).

    ``plan`` and ``diagnosis`` are the objects of ``plan --json`` and ``why --json``; ``stages`` maps a phase to
    the seconds after which it began; ``command_key`` is alike for runs of the same command in the same place.
    ``exit_code`` is the server's (128 + N where signal N ended it).
    """

    schema: str = SCHEMA
    id: str
    name: str
    command: str
    command_key: str = ""
    engine: str | None = None
    version: str | None = None
    where: str = "here"
    cwd: str | None = None
    environment: dict[str, str] = {}
    versions: dict[str, str] = {}
    hardware: dict[str, Any] = {}
    plan: dict[str, Any] | None = None
    created_at: float = 0.0
    started_at: float | None = None
    ready_s: float | None = None
    answered_s: float | None = None
    ended_at: float | None = None
    stages: dict[str, float] = {}
    outcome: Outcome = "running"
    exit_code: int | None = None
    why: str = ""
    diagnosis: dict[str, Any] | None = None
    observed: dict[str, float] = {}
    container: str | None = None
    notes: tuple[str, ...] = ()
    labels: dict[str, str] = {}


class Event(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line of events.jsonl. ``at_s`` is in seconds since the start of the run."""

    at_s: float
    kind: str
    phase: str | None = None
    name: str = ""
    value: float | None = None
    rank: str = ""
    text: str = ""


class Folder:
    """The folder of one run. Writing raises StoreError with one clear line; reading a torn one does not."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: int | None = None

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def log(self) -> Path:
        return self.path / "server.log"

    @property
    def gpu_samples(self) -> Path:
        return self.path / "gpu.jsonl"

    # the lock

    def lock(self) -> bool:
        """Take the lock until ``unlock`` or the end of this process; False where another one has it."""
        import fcntl

        try:
            handle = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise store_error(self.path, error) from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(handle)
            return False
        self._lock = handle
        return True

    def unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    @property
    def locked(self) -> bool:
        """True while some ullage runs it (this one included)."""
        if self._lock is not None:
            return True
        probe = Folder(self.path)
        try:
            taken = probe.lock()
        except StoreError:
            return False
        probe.unlock()
        return not taken

    # what is kept

    def write(self, record: Record) -> None:
        replace_file(self.path / "record.json", msgspec.json.format(encoded(record), indent=1))

    def read(self) -> Record | None:
        """The record; None where there is none yet, or it is none of ours."""
        return decoded(self.path / "record.json", Record)

    def record(self) -> Record:
        """The record. Raises StoreError where it cannot be read."""
        found = self.read()
        if found is None:
            raise StoreError("cannot be read as the record of a run", where=str(self.path / "record.json"),
                             hint=f"ullage runs rm {self.name} removes it")  # fmt: skip
        return found

    def keep_traces(self, traces: Traces) -> None:
        """Keep how the processes are found; a full disk does not stop a run that goes on."""
        with suppress(StoreError):
            replace_file(self.path / "traces.json", msgspec.json.encode(traces), sync=False)

    def traces(self) -> Traces | None:
        return decoded(self.path / "traces.json", Traces)

    def add_events(self, events: Iterable[Event]) -> None:
        """Append; a full disk does not stop a run that goes on."""
        safe = (msgspec.structs.replace(event, text=masked(event.text)) for event in events)
        data = b"".join(encoded(event) + b"\n" for event in safe)
        with suppress(OSError):
            append(self.path / "events.jsonl", data)

    def events(self) -> list[Event]:
        with suppress(OSError):
            return list(lines(self.path / "events.jsonl", Event))
        return []

    def remove(self) -> None:
        """Remove the run. Raises StoreError while it goes on."""
        if self.locked:
            raise StoreError("still runs", where=self.name, hint="stop it first")
        try:
            shutil.rmtree(self.path)
        except OSError as error:
            raise store_error(self.path, error) from error


class Store:
    """All runs. ``root`` is the folder that holds their folders; it is made when the first is."""

    def __init__(self, root: Path | None = None) -> None:
        self.root = root or default_root() / "runs"

    def create(self, base: str, name: str | None = None) -> Folder:
        """A new folder, locked: ``name``, or one made of ``base`` (a model's name), date and time. Raises
        StoreError where it cannot be made or the name is taken."""
        if name is not None and not _NAME.fullmatch(name):
            raise StoreError(
                "is no name for a run", where=name[:60], hint="letters, digits, . _ - (at most 100)"
            )
        for candidate in [name] if name else _names(base):
            path = self.root / candidate
            try:
                self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
                path.mkdir(mode=0o700)
            except FileExistsError as error:
                if name:
                    raise StoreError("there is a run of that name already", where=name) from error
                continue
            except OSError as error:
                raise store_error(self.root, error) from error
            folder = Folder(path)
            while not folder.lock():
                time.sleep(0.01)  # somebody who lists the runs looks whether it is taken
            return folder
        raise StoreError("no free name for a run", where=str(self.root))

    def folders(self) -> list[Folder]:
        """Every run's folder, in order of name."""
        try:
            found = sorted(entry.name for entry in os.scandir(self.root) if entry.is_dir(follow_symlinks=False))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise store_error(self.root, error) from error
        return [Folder(self.root / name) for name in found if _NAME.fullmatch(name)]

    def records(self) -> list[tuple[Folder, Record]]:
        """Every run with a record, the oldest first."""
        found = [(folder, record) for folder in self.folders() if (record := folder.read()) is not None]
        return sorted(found, key=lambda pair: (pair[1].created_at, pair[1].name))

    def get(self, name: str) -> Folder:
        """The run called ``name``; "last" is the newest. Raises StoreError with near names where none is."""
        found = self.find(name)
        if found is not None:
            return found
        from difflib import get_close_matches

        near = ", ".join(get_close_matches(name, [folder.name for folder in self.folders()], n=3))
        raise StoreError(
            "there is no run of that name", where=name[:100], hint=f"near: {near}" if near else "ullage runs"
        )

    def find(self, name: str) -> Folder | None:
        if name == "last":
            records = self.records()
            return records[-1][0] if records else None
        if not _NAME.fullmatch(name) or not (self.root / name / "record.json").is_file():
            return None
        return Folder(self.root / name)


def default_root() -> Path:
    """$ULLAGE_HOME, else $XDG_DATA_HOME/ullage, else ~/.local/share/ullage."""
    if home := os.environ.get("ULLAGE_HOME"):
        try:
            return Path(home).expanduser().absolute()
        except RuntimeError as error:
            raise StoreError("names a home folder that is not there", where=f"ULLAGE_HOME={home[:60]}",
                             hint="a whole path") from error  # fmt: skip
    data = os.environ.get("XDG_DATA_HOME")
    try:
        return (Path(data) if data else Path.home() / ".local" / "share") / "ullage"
    except RuntimeError as error:
        raise StoreError("no home folder to keep runs in", where="~", hint="set ULLAGE_HOME") from error


def log_of(name: str, store: Store | None = None) -> str:
    """What ``why`` and ``diff`` are given -> the log to read: a file as it is, a run's name as its log."""
    if name == "-" or "/" in name or Path(name).exists():
        return name
    with suppress(StoreError):
        found = (store or Store()).find(name)
        if found is not None:
            return str(found.log)
    return name


def new_id() -> str:
    """An id that no other run has, on any machine."""
    return secrets.token_hex(8)


def _names(base: str) -> Iterator[str]:
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", base.rpartition("/")[2]).strip("-._")[:40] or "run"
    date = time.strftime("%m%d-%H%M%S")
    yield f"{stem}-{date}"
    yield from (f"{stem}-{date}-{n}" for n in range(2, 1000))


@contextmanager
def locked(folder: Folder) -> Iterator[bool]:
    """The folder's lock for a while; False where another ullage has it."""
    taken = folder.lock()
    try:
        yield taken
    finally:
        if taken:
            folder.unlock()
