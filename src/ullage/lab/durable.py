"""Files that a kill or a full disk leaves whole: replaced at once, or a line appended."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import msgspec

from ullage.core.errors import UllageError

T = TypeVar("T")
#: a file of a record that is read, and a line of one; more is some other file
MOST_BYTES = 64 << 20


class StoreError(UllageError):
    """The folder of records cannot be written or read."""


def replace_file(path: Path, data: bytes, *, sync: bool = True) -> None:
    """``data`` instead of what ``path`` held, whole or not at all. Raises StoreError."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(3)}")
    try:
        handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            _write_all(handle, data)
            if sync:
                os.fsync(handle)
        finally:
            os.close(handle)
        beside.replace(path)
        if sync:
            _sync_folder(path.parent)
    except OSError as error:
        with suppress(OSError):
            beside.unlink()
        raise store_error(path, error) from error


def append(path: Path, data: bytes) -> None:
    """``data`` at the end of ``path``. Raises OSError."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        _write_all(handle, data)
    finally:
        os.close(handle)


def _write_all(handle: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(handle, view) :]


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def lines(path: Path, kind: type[T]) -> Iterator[T]:
    """The objects of a file of JSON lines; what is torn or of another kind is skipped. Raises OSError."""
    with _opened(path) as stream:
        while line := stream.readline(MOST_BYTES):
            with suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                yield msgspec.json.decode(line, type=kind)


def decoded(path: Path, kind: type[T]) -> T | None:
    """The object that ``path`` holds; None where it is none of that kind."""
    with suppress(OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError), _opened(path) as stream:
        if os.fstat(stream.fileno()).st_size <= MOST_BYTES:
            return msgspec.json.decode(stream.read(MOST_BYTES), type=kind)
    return None


def encoded(found: Any) -> bytes:
    """``found`` as JSON; what is no UTF-8 (a variable of the environment may hold any bytes) becomes "?"."""
    try:
        return msgspec.json.encode(found)
    except UnicodeEncodeError:
        return msgspec.json.encode(_readable(msgspec.to_builtins(found)))


def _readable(found: Any) -> Any:
    if isinstance(found, str):
        return found.encode("utf-8", "replace").decode()
    if isinstance(found, dict):
        return {_readable(key): _readable(value) for key, value in found.items()}
    return [_readable(each) for each in found] if isinstance(found, (list, tuple)) else found


def _opened(path: Path) -> BinaryIO:
    """``path`` for reading. Raises OSError where it is no plain file: a device, or a pipe without a writer."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "is no plain file")
    return os.fdopen(handle, "rb")


def store_error(path: Path, error: OSError) -> StoreError:
    """Why nothing can be kept there, and what would help."""
    reason = error.strerror or str(error)
    full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    hint = "make room there" if full else "set ULLAGE_HOME to a folder that can be written"
    return StoreError(f"the record of the run cannot be kept: {reason}", where=str(path), hint=hint)
