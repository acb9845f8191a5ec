"""Rows with their answers: columns of numbers, and of words as numbers of a list."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass
class Table:
    """``columns`` are of one length; a column of ``words`` holds places in its list, -1 where there is none.
    Unknown numbers are NaN."""

    columns: dict[str, Array]
    words: Mapping[str, list[str]]

    def __len__(self) -> int:
        return next((len(column) for column in self.columns.values()), 0)

    def pick(self, rows: Array) -> Table:
        """The rows for which a mask is true, or those at given places."""
        return Table({name: column[rows] for name, column in self.columns.items()}, self.words)

    def is_word(self, name: str, word: str) -> Array:
        """Where column ``name`` holds ``word``."""
        known = self.words[name]
        place = known.index(word) if word in known else -2
        return np.asarray(self.columns[name] == place)

    def texts(self, name: str) -> Array:
        """A column of words as objects (None where there is none)."""
        labels = np.array([*self.words[name], None], dtype=object)
        return np.asarray(labels[self.columns[name]])

    def rows(self) -> list[dict[str, Any]]:
        """As dictionaries of plain values: for few rows."""
        lists: dict[str, list[Any]] = {}
        for name, column in self.columns.items():
            if name in self.words:
                lists[name] = self.texts(name).tolist()
            else:
                lists[name] = [None if value != value else value for value in column.tolist()]
        return [dict(zip(lists, values, strict=True)) for values in zip(*lists.values(), strict=True)]


def joined(first: Table | None, second: Table) -> Table:
    """The rows of both, one after the other."""
    if first is None:
        return second
    columns = {name: np.concatenate([first.columns[name], second.columns[name]]) for name in second.columns}
    return Table(columns, second.words)
