"""A launch command and the settings to vary, to the rows that are asked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from ullage.core.errors import InputError
from ullage.planning.plan import Asked
from ullage.sweep import space
from ullage.sweep.axes import Axis
from ullage.sweep.groups import Setting, check_readings, setting
from ullage.sweep.order import Best, Front, Key, check
from ullage.sweep.planner import Planner
from ullage.sweep.space import Block
from ullage.sweep.table import Table
from ullage.sweep.where import Where
from ullage.sweep.write import Writer

#: configurations of one sweep
MOST_ROWS = 200_000_000
#: from so many on it pays to find the best order first
LARGE = 20_000
#: what comes first where nothing else is asked for
BY_TOKENS = (Key("verdict"), Key("kv_tokens", turned=True))


class Wanted(Struct, frozen=True):
    """What a sweep is to give. ``random``: so many rows drawn instead of every point. ``writer`` takes every
    row that matches; with an order, a front or a limit only those."""

    over: tuple[Axis, ...]
    random: int | None = None
    seed: int = 0
    where: tuple[Where, ...] = ()
    pareto: tuple[Key, ...] = ()
    sort: tuple[Key, ...] = ()
    limit: int | None = None
    shown: int = 20
    writer: Writer | None = None


class Found(Struct, frozen=True):
    """The rows kept. ``verdicts`` counts those that match; ``followed`` is how many plans were made singly."""

    rows: Table
    num_rows: int
    num_matching: int
    verdicts: dict[str, int]
    followed: int
    settings: tuple[Setting, ...]


Progress = Callable[[int, int], None]


def sweep(asked: Asked, wanted: Wanted, progress: Progress | None = None) -> Found:
    """Plan the whole space. Raises InputError and CommandError for what cannot be read, or is too large."""
    settings = _settings(asked, wanted.over)
    rows = _num_rows(wanted)
    discrete = [s for s in settings if not s.numeric]
    planner = Planner(asked, discrete, [s for s in settings if s.numeric])
    if rows >= LARGE:
        planner.numeric = planner.scout()
    keep = Front(wanted.pareto) if wanted.pareto else _best(wanted)
    verdicts: Counter[str] = Counter()
    done = 0
    for block in _blocks(discrete, planner.numeric, wanted):
        table = planner.plan(block)
        if done == 0:
            check(wanted.sort, table, "--sort", numbers=False)
            check(wanted.pareto, table, "--pareto", numbers=True)
        done += len(table)
        table = _matching(table, wanted.where)
        _count(verdicts, table)
        keep.add(table)
        if wanted.writer is not None and _everything(wanted):
            wanted.writer.add(table)
        if progress is not None:
            progress(done, rows)
    assert keep.table is not None, "a space has at least one point"
    kept = _in_order(keep.table, wanted)
    if wanted.writer is not None and not _everything(wanted):
        wanted.writer.add(kept)
    return Found(kept, done, sum(verdicts.values()), dict(verdicts), planner.followed, tuple(settings))


def _settings(asked: Asked, over: Sequence[Axis]) -> list[Setting]:
    if not over:
        raise InputError("nothing is varied", where="sweep", hint="--over mem-fraction-static=0.5:0.95:0.01")
    settings = [setting(asked, axis) for axis in over]
    twice = [name for name, times in Counter(s.name for s in settings).items() if times > 1]
    if twice:
        raise InputError(f"{twice[0]} is varied twice", where="--over")
    check_readings(asked, settings)
    return settings


def _num_rows(wanted: Wanted) -> int:
    points = space.size(wanted.over)
    rows = points if wanted.random is None else wanted.random
    if rows > MOST_ROWS:
        raise InputError(
            f"{rows:,} configurations are more than {MOST_ROWS:,}", where="sweep",
            hint="--random 1000000 draws that many of them; or fewer values",
        )  # fmt: skip
    return rows


def _blocks(discrete: Sequence[Setting], numeric: Sequence[Setting], wanted: Wanted) -> Iterator[Block]:
    """The space, with the numeric axes by the engine's names."""
    named = [replace(s.axis, name=s.name) for s in numeric]
    others = [s.axis for s in discrete]
    if wanted.random is None:
        return space.grid(others, named)
    return space.drawn(others, named, wanted.random, wanted.seed)


def _best(wanted: Wanted) -> Best:
    return Best(wanted.sort or BY_TOKENS, wanted.limit if wanted.limit is not None else wanted.shown)


def _everything(wanted: Wanted) -> bool:
    return not wanted.pareto and not wanted.sort and wanted.limit is None


def _matching(table: Table, where: Sequence[Where]) -> Table:
    if not where:
        return table
    return table.pick(np.logical_and.reduce([condition.holds(table) for condition in where]))


def _count(verdicts: Counter[str], table: Table) -> None:
    labels = table.words["verdict"]
    for place, times in enumerate(np.bincount(table.columns["verdict"], minlength=len(labels)).tolist()):
        verdicts[labels[place]] += times


def _in_order(table: Table, wanted: Wanted) -> Table:
    if not wanted.pareto:
        return table
    best = Best(wanted.sort, wanted.limit if wanted.limit is not None else len(table))
    best.add(table)
    assert best.table is not None
    return best.table
