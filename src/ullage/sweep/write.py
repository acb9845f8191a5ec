"""Rows to a CSV or Parquet file, a table at a time. The file appears when it is whole."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ullage.core.errors import InputError
from ullage.sweep.table import Table


class Writer(Protocol):
    def add(self, table: Table) -> None: ...


@contextmanager
def to_file(path: str, *, parquet: bool) -> Iterator[Writer]:
    """A writer of a new file. Raises InputError where ``path`` exists, or cannot be written."""
    goal = Path(path)
    part = goal.with_name(f".{goal.name}.{os.getpid()}.part")
    if goal.exists():
        raise InputError("exists already", where=path, hint="name a new file")
    try:
        with _parquet(part) if parquet else _csv(part) as writer:
            yield writer
        part.rename(goal)
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror or error}", where=path) from error
    finally:
        part.unlink(missing_ok=True)


class _Csv:
    def __init__(self, stream: Any) -> None:
        self.rows = csv.writer(stream, lineterminator="\n")
        self.begun = False

    def add(self, table: Table) -> None:
        if not self.begun:
            self.rows.writerow(table.columns)
            self.begun = True
        self.rows.writerows(zip(*(_texts(table, name) for name in table.columns), strict=True))


def _texts(table: Table, name: str) -> list[Any]:
    if name in table.words:
        return list(table.texts(name).tolist())
    column = table.columns[name]
    if column.dtype.kind != "f":
        return list(column.tolist())
    whole = bool(np.all(np.isnan(column) | (column == np.floor(column))))
    if whole:
        return [None if value != value else int(value) for value in column.tolist()]
    return [None if value != value else float(f"{value:.12g}") for value in column.tolist()]


@contextmanager
def _csv(path: Path) -> Iterator[Writer]:
    with path.open("x", newline="", encoding="utf-8") as stream:
        yield _Csv(stream)


class _Parquet:
    def __init__(self, arrow: Any, parquet: Any, path: Path) -> None:
        self.arrow, self.parquet, self.path = arrow, parquet, path
        self.file: Any = None

    def add(self, table: Table) -> None:
        arrays = {name: self._array(table, name) for name in table.columns}
        found = self.arrow.table(arrays)
        if self.file is None:
            self.file = self.parquet.ParquetWriter(self.path, found.schema)
        self.file.write_table(found)

    def _array(self, table: Table, name: str) -> Any:
        if name in table.words:
            return self.arrow.array(table.texts(name), type=self.arrow.string())
        column = table.columns[name]
        if column.dtype.kind != "f":
            return self.arrow.array(column, type=self.arrow.int64())
        return self.arrow.array(column, type=self.arrow.float64(), from_pandas=True)

    def close(self) -> None:
        if self.file is not None:
            self.file.close()


@contextmanager
def _parquet(path: Path) -> Iterator[Writer]:
    try:
        import pyarrow  # type: ignore[import-untyped]
        from pyarrow import parquet
    except ModuleNotFoundError as error:
        raise InputError("needs pyarrow", where="--parquet", hint="pip install 'ullage[sweep]'") from error
    writer = _Parquet(pyarrow, parquet, path)
    try:
        yield writer
    finally:
        writer.close()
