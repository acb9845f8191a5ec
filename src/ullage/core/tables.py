"""TOML to structs, strictly: an unknown key or a wrong type names the file and the row.

A large table may have a compiled twin beside it, the same content as JSON, which loads a hundred times as fast.
The twin carries the digest of the TOML that it was made from; where the TOML has changed since, it is not used.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec

from ullage.core.errors import TableError

T = TypeVar("T")


class Readable(Protocol):
    """A file, of whatever kind."""

    @property
    def name(self) -> str: ...
    def read_bytes(self) -> bytes: ...


@cache
def folder_of(package: str) -> Path:
    """The folder of a package's files: importlib.resources says the same, but takes longer than a plan."""
    return Path(import_module(package).__file__ or "").parent


@cache
def load(package: str, name: str, kind: type[T]) -> T:
    """The data file ``name`` of ``package`` as ``kind``. Raises TableError where it breaks its schema."""
    folder = folder_of(package)
    twin = folder / f"{name.removesuffix('.toml')}.json"
    return decode(folder / name, kind, twin if twin.is_file() else None)


def decode(path: Readable, kind: type[T], twin: Readable | None = None) -> T:
    """``path`` as ``kind``, by its compiled twin where that is up to date."""
    try:
        source = path.read_bytes()
        digest, _, content = twin.read_bytes().partition(b"\n") if twin is not None else (b"", b"", b"")
        if content and digest == _digest(source):
            return msgspec.json.decode(content, type=kind)
        return msgspec.toml.decode(source, type=kind)
    except (msgspec.ValidationError, msgspec.DecodeError, OSError) as error:
        raise TableError(str(error), where=path.name) from error


def compiled(source: bytes) -> bytes:
    """The compiled twin of a TOML file: a line with its digest, then its content as JSON."""
    return _digest(source) + b"\n" + msgspec.json.encode(msgspec.toml.decode(source))


def _digest(source: bytes) -> bytes:
    try:
        from _blake2 import blake2b  # hashlib would load OpenSSL first
    except ImportError:
        from hashlib import blake2b
    return blake2b(source, digest_size=16).hexdigest().encode()
