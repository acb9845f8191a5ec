"""Which rows are best: in an order, or none better in everything (the Pareto front), a table at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from ullage.core.errors import InputError
from ullage.sweep.table import Table, joined

Array = NDArray[Any]
#: a larger front tells nobody anything
MOST_POINTS = 10_000


class Key(Struct, frozen=True):
    """A column to order by: the larger the better for an objective, the smaller first for an order; ``turned``
    by a dash in front."""

    column: str
    turned: bool = False


def keys(texts: Sequence[str], option: str) -> tuple[Key, ...]:
    """ "-kv_tokens,num_gpus" as keys. Raises InputError for an empty one."""
    names = [name.strip() for text in texts for name in text.split(",")]
    if any(not name.strip("-+") or len(name) > 80 for name in names):
        raise InputError("names no column", where=option, hint=f"such as {option} kv_tokens,-num_gpus")
    return tuple(Key(name.lstrip("-+").replace("-", "_"), name.startswith("-")) for name in names)


def check(keys: Sequence[Key], table: Table, option: str, *, numbers: bool) -> None:
    """Raises InputError where a key is no column, or one of words where numbers are needed."""
    for key in keys:
        if key.column not in table.columns or (numbers and key.column in table.words):
            there = [name for name in table.columns if not (numbers and name in table.words)]
            raise InputError(
                f"there is no column {key.column}", where=option, hint=f"there are {', '.join(there)}"
            )


def _values(key: Key, table: Table) -> Array:
    """Numbers of which the smaller come first; unknown ones last."""
    values = table.columns[key.column].astype(float)
    values = -values if key.turned else values
    return np.where(np.isnan(values), np.inf, values)


class Best:
    """The first ``limit`` rows in an order."""

    def __init__(self, keys: Sequence[Key], limit: int) -> None:
        self.keys = keys
        self.limit = limit
        self.table: Table | None = None
        self.worst = np.inf

    def add(self, table: Table) -> None:
        if self.table is not None and len(self.table) >= self.limit and self.keys:
            table = table.pick(_values(self.keys[0], table) <= self.worst)
        if not self.keys and self.table is not None and len(self.table) >= self.limit:
            return
        if len(table) or self.table is None:
            self.table = self._first(joined(self.table, table))
            if self.keys and len(self.table) >= self.limit:
                self.worst = float(_values(self.keys[0], self.table)[-1])

    def _first(self, table: Table) -> Table:
        if not self.keys:
            return table.pick(np.arange(min(self.limit, len(table))))
        order = np.lexsort([_values(key, table) for key in reversed(self.keys)])
        return table.pick(order[: self.limit])


class Front:
    """The rows that start and that none other beats in every objective; of equals the first."""

    def __init__(self, objectives: Sequence[Key]) -> None:
        self.objectives = [Key(key.column, not key.turned) for key in objectives]
        self.table: Table | None = None

    def add(self, table: Table) -> None:
        known = [~np.isinf(_values(key, table)) for key in self.objectives]
        table = table.pick(table.is_word("verdict", "starts") & np.logical_and.reduce(known))
        if len(table) == 0 and self.table is not None:
            return
        together = joined(self.table, table)
        costs = np.stack([_values(key, together) for key in self.objectives], axis=1)
        self.table = together.pick(front(costs))
        if len(self.table) > MOST_POINTS:
            raise InputError(f"the front has more than {MOST_POINTS:,} rows", where="--pareto",
                             hint="fewer objectives, or a --where")  # fmt: skip


def front(costs: Array) -> Array:
    """The places of the rows of ``costs`` that no other row is at most equal to in every column; of equal rows
    the first. Sorted by the columns."""
    order = np.lexsort([*reversed(costs.T)])
    if costs.shape[1] <= 2:
        last = costs[order, -1]
        least = np.minimum.accumulate(np.concatenate([[np.inf], last[:-1]]))
        return np.asarray(order[(last < least) | (np.arange(len(last)) == 0)])
    kept: list[int] = []
    while len(order):
        best = order[0]
        kept.append(int(best))
        if len(kept) > MOST_POINTS:
            break
        order = order[np.any(costs[order] < costs[best], axis=1)]
    return np.array(kept, dtype=np.int64)
