"""TOML to structs, strictly: an unknown key or a wrong type names the file and the row.

A large table may have a compiled twin beside it, the same content as JSON, which loads a hundred times as fast. The
twin carries the digest of the TOML that it was made from; where the TOML has changed since, it is not used.
"""

from __future__ import annotations

from functools import cache
from hashlib import blake2b
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import TypeVar

import msgspec

from ullage.core.errors import TableError

T = TypeVar("T")


@cache
def load(package: str, name: str, kind: type[T]) -> T:
    """The data file ``name`` of ``package`` as ``kind``. Raises TableError where it breaks its schema."""
    folder = files(package)
    twin = folder / f"{name.removesuffix('.toml')}.json"
    return decode(folder / name, kind, twin if twin.is_file() else None)


def decode(path: Traversable, kind: type[T], twin: Traversable | None = None) -> T:
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
    return blake2b(source, digest_size=16).hexdigest().encode()
