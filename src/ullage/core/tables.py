"""TOML to structs, strictly: an unknown key or a wrong type names the file and the row."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import TypeVar

import msgspec

from ullage.core.errors import TableError

T = TypeVar("T")


@cache
def load(package: str, name: str, kind: type[T]) -> T:
    """The data file ``name`` of ``package`` as ``kind``. Raises TableError where it breaks its schema."""
    return decode(files(package) / name, kind)


def decode(path: Traversable, kind: type[T]) -> T:
    try:
        return msgspec.toml.decode(path.read_bytes(), type=kind)
    except (msgspec.ValidationError, msgspec.DecodeError, OSError) as error:
        raise TableError(str(error), where=path.name) from error
