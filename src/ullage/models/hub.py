"""A model's config.json and safetensors headers from a hub, kept in ullage's own cache. Never its weights."""

from __future__ import annotations

import io
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ullage.core.errors import InputError, UllageError
from ullage.models import hub_places as places
from ullage.models.headers import read_header
from ullage.models.load import MOST_CONFIG_BYTES, MOST_INDEX_BYTES, index_names

if TYPE_CHECKING:
    from ullage.models.hub_http import Limits, Session

#: a branch moves: what was read of it is asked for again after this many seconds; a commit stays
FRESH_S = 7 * 86400
NUM_CONNECTIONS = 4
MOST_SHARDS = 2000
#: all headers of a model; those of Kimi-K2.5, with 208,550 tensors, take 30 MB
MOST_HEADERS_BYTES = 256 << 20
#: a header-only copy is as long as the file it stands for, in holes; longer than this is no shard
MOST_FILE_BYTES = 1 << 40
_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_SIDE = "hf_quant_config.json"
_ORIGIN = "origin.txt"
#: ending of what is not complete yet, so that nobody takes some shards for all
_PART = ".part"


def _silent(_: str) -> None:
    pass


def fetch(
    model: str, *, revision: str | None = None, online: bool = True, note: Callable[[str], None] = _silent,
    limits: Limits | None = None,
) -> Path | None:  # fmt: skip
    """A folder that from_directory can read, from ullage's cache or, ``online``, from the hub; None where the
    hub cannot be reached, and ``note`` is told why.

    Raises InputError for what is no id, for a model that is gated or not there, and for nonsense in its files.
    """
    if not places.is_hub_id(model):
        raise InputError(f"not the id of a model on a hub: {model[:80]!r}", hint="write owner/name")
    wanted = places.revision_of(revision)
    folder = places.own_folder(model, wanted)
    kept = folder if (folder / "config.json").is_file() else None
    if kept and (places.is_commit(wanted) or time.time() - kept.stat().st_mtime < FRESH_S):
        return kept
    if not online or places.offline():
        return kept
    found = _Visit(model, wanted, folder).run(limits, note)
    return found or kept


def source(folder: Path, model: str) -> str:
    """What a fetched folder is a copy of, in words."""
    try:
        origin = (folder / _ORIGIN).read_text(errors="replace")[:200].split()
    except OSError:
        origin = []
    return f"hub: {model} at {' '.join(origin)}" if origin else f"hub: {model}"


class _Visit:
    """One attempt to bring a model here. Files gather in a folder beside the final one, which then takes its
    name: so the final one is always whole, and a visit cut short goes on where the last one ended."""

    def __init__(self, model: str, revision: str, folder: Path) -> None:
        self.model = model
        self.revision = revision
        self.folder = folder
        self.num_bytes = 0

    def run(self, limits: Limits | None, note: Callable[[str], None]) -> Path | None:
        """Do it in threads that may be left behind: nothing else ends a name server that does not answer."""
        from ullage.models.hub_http import Limits, NoAnswerError, Session

        limits = limits or Limits()
        session = Session(places.endpoint(), places.token(), limits)
        staging: list[Path] = []
        failed: list[UllageError] = []
        thread = _started(lambda: self._bring(session, staging), failed)
        try:
            if _connected(session, thread, limits.connect_s):
                thread.join(max(0.0, session.left_s()))
            late = thread.is_alive()
        finally:
            session.close()
        if not late and not failed:
            return self._finished(staging[0])
        error = NoAnswerError("too slow", where=session.host) if late else failed[0]
        if not isinstance(error, NoAnswerError):
            raise error
        note(f"the hub could not be asked for {self.model}: {error.line}")
        return staging[0] if staging else None

    def _bring(self, session: Session, staging: list[Path]) -> None:
        """Fill the staging folder; it is told as soon as it holds enough to plan with: the configuration."""
        config = session.file(self.model, self.revision, "config.json", MOST_CONFIG_BYTES)
        if config is None:
            raise InputError(
                "no such model, or none with a config.json", where=f"{self.model} on the hub",
                hint="compare its spelling, or pass --model-dir",
            )  # fmt: skip
        _object(config.data, f"{self.model}/config.json")
        commit = config.commit if config.commit and places.is_commit(config.commit) else None
        folder = self.folder.with_name(f".{commit or self.folder.name}{_PART}")
        self.revision = commit or self.revision
        side = session.file(self.model, self.revision, _SIDE, MOST_CONFIG_BYTES)
        if side is not None:
            _object(side.data, f"{self.model}/{_SIDE}")
            _write(folder / _SIDE, side.data)
        _write(folder / _ORIGIN, f"{session.host} {self.revision[:12]}".encode())
        _write(folder / "config.json", config.data)
        staging.append(folder)
        self._headers(session, folder)

    def _headers(self, session: Session, folder: Path) -> None:
        """The header of every shard of the index; without one, of the only file, if there is any."""
        index = session.file(self.model, self.revision, _INDEX, MOST_INDEX_BYTES)
        if index is None:
            self._header(session, folder, _SINGLE, optional=True)
            return
        names = index_names(index.data, f"{self.model}/{_INDEX}")
        if len(names) > MOST_SHARDS or not all(name.endswith(".safetensors") for name in names):
            raise InputError("names more, or other, than safetensors files", where=f"{self.model}/{_INDEX}")
        todo = [name for name in reversed(names) if not (folder / f"{name}{_PART}").is_file()]
        failed: list[UllageError] = []
        threads = [
            _started(lambda: self._some(session, folder, todo, failed), failed) for _ in range(NUM_CONNECTIONS)
        ]
        for thread in threads:
            thread.join()
        if failed:
            raise failed[0]
        _write(folder / f"{_INDEX}{_PART}", index.data)

    def _some(self, session: Session, folder: Path, todo: list[str], failed: list[UllageError]) -> None:
        while not failed:
            try:
                name = todo.pop()
            except IndexError:
                return
            self._header(session, folder, name)

    def _header(self, session: Session, folder: Path, name: str, *, optional: bool = False) -> None:
        body = session.header(self.model, self.revision, name)
        where = f"{self.model}/{name}"
        if body is None:
            if optional:
                return
            raise InputError("the index names it, and the hub has it not", where=where)
        self.num_bytes += len(body.data)
        if self.num_bytes > MOST_HEADERS_BYTES:
            raise InputError(f"the headers take more than {MOST_HEADERS_BYTES} bytes", where=self.model)
        tensors = read_header(io.BytesIO(body.data), where)
        end = len(body.data) + max((tensor.data_offsets[1] for tensor in tensors.values()), default=0)
        _write(folder / f"{name}{_PART}", body.data, body.size or end)

    def _finished(self, staging: Path) -> Path:
        """The whole copy under its own name. Another ullage may have been faster: then it is that one's."""
        for path in list(staging.glob(f"*{_PART}")):
            with suppress(FileNotFoundError):
                path.rename(path.with_name(path.name.removesuffix(_PART)))
        if not _whole(staging):
            return self._faster()
        old = self.folder.with_name(f".{self.folder.name}.{os.getpid()}.old")
        try:
            if self.folder.exists():
                self.folder.rename(old)
            staging.rename(self.folder)
            os.utime(self.folder)
        except OSError:
            return self._faster()
        finally:
            shutil.rmtree(old, ignore_errors=True)
        return self.folder

    def _faster(self) -> Path:
        if not (self.folder / "config.json").is_file():
            raise InputError("another process has changed it; try again", where=str(self.folder))
        return self.folder


def _whole(folder: Path) -> bool:
    """True if every file of the index, where there is one, has come."""
    index = folder / _INDEX
    try:
        names = index_names(index.read_bytes(), str(index)) if index.is_file() else []
    except OSError:
        return False
    return (folder / "config.json").is_file() and all((folder / name).is_file() for name in names)


def _started(work: Callable[[], None], failed: list[UllageError]) -> threading.Thread:
    """A thread that is never waited for at the end, and leaves its error in ``failed``."""

    def guarded() -> None:
        try:
            work()
        except UllageError as error:
            failed.append(error)
        except Exception as error:  # a thread has nobody to raise to; what it was stands in the message
            failed.append(InputError(f"the hub's answer cannot be read: {type(error).__name__}"))

    thread = threading.Thread(target=guarded, daemon=True)
    thread.start()
    return thread


def _connected(session: Session, thread: threading.Thread, connect_s: float) -> bool:
    """True once a connection stands or the thread has ended; False where the time to connect is over."""
    end = time.monotonic() + connect_s
    while thread.is_alive() and time.monotonic() < end:
        if session.connected.wait(0.02):
            return True
    return session.connected.is_set() or not thread.is_alive()


def _object(data: bytes, where: str) -> None:
    try:
        msgspec.json.decode(data, type=dict[str, object])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"not a JSON object: {error}", where=where) from error


def _write(path: Path, data: bytes, size: int | None = None) -> None:
    """Write a file at once or not at all, as long as ``size`` where that is more: the rest is a hole."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".tmp")
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(data)
                if size is not None and len(data) < size <= MOST_FILE_BYTES:
                    with suppress(OSError):
                        stream.truncate(size)
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise _unwritable(path, error) from error


def _unwritable(path: Path, error: OSError) -> InputError:
    return InputError(
        f"the cache cannot be written: {error.strerror}", where=str(path.parent), hint="set XDG_CACHE_HOME"
    )
