"""Prometheus text (an engine's /metrics) to what it says of speculation: counters and gauges, no more."""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import isfinite

from msgspec import Struct

from ullage.core.errors import InputError

#: more lines than any server exports
MOST_LINES = 1_000_000
_LINE = re.compile(
    r"(?P<name>[A-Za-z_:][\w:]{0,120})(?:\{(?P<labels>[^}]{0,4000})\})?\s+(?P<value>[-+\w.]{1,40})"
)
_POSITION = re.compile(r'(?:^|,)\s*position="(\d{1,3})"')


class Sample(Struct, frozen=True):
    name: str
    value: float
    position: int | None = None


class Scrape(Struct, frozen=True):
    """The figures of one scrape. Counters are summed over labels (ranks, models); gauges averaged over those
    that are not 0 (a rank that has not decoded shows 0). ``positions``: accepted tokens by position."""

    counters: dict[str, float] = {}
    gauges: dict[str, tuple[float, ...]] = {}
    positions: dict[int, float] = {}
    engine: str | None = None

    def gauge(self, name: str) -> float | None:
        found = [value for value in self.gauges.get(name, ()) if value > 0]
        return sum(found) / len(found) if found else None

    def since(self, before: Scrape) -> Scrape:
        """What was counted between two scrapes. Raises InputError where the later one counts less."""
        counters = {name: value - before.counters.get(name, 0.0) for name, value in self.counters.items()}
        positions = {at: value - before.positions.get(at, 0.0) for at, value in self.positions.items()}
        if any(value < 0 for value in (*counters.values(), *positions.values())):
            raise InputError(
                "the second scrape counts less than the first", where="--metrics",
                hint="give the earlier scrape first; a restart of the server begins at 0",
            )  # fmt: skip
        return Scrape(counters, self.gauges, positions, self.engine)


def read(text: str, where: str) -> Scrape:
    """The scrape in ``text``. Raises InputError where no line of it is about speculation."""
    counters: dict[str, float] = {}
    gauges: dict[str, list[float]] = {}
    positions: dict[int, float] = {}
    engine = None
    for sample in _samples(text):
        prefix, _, name = sample.name.partition(":")
        if "spec_" not in name or not prefix:
            continue
        engine = prefix if prefix.isidentifier() else engine
        name = name.removesuffix("_total")
        if sample.position is not None:
            positions[sample.position] = positions.get(sample.position, 0.0) + sample.value
        counters[name] = counters.get(name, 0.0) + sample.value
        gauges.setdefault(name, []).append(sample.value)
    if engine is None:
        raise InputError(
            "holds no metric of speculation",
            where=where,
            hint="expected lines such as vllm:spec_decode_num_drafts_total",
        )
    return Scrape(counters, {name: tuple(values) for name, values in gauges.items()}, positions, engine)


def _samples(text: str) -> Iterator[Sample]:
    for number, line in enumerate(text.splitlines()):
        if number >= MOST_LINES:
            return
        match = _LINE.match(line.strip()) if line and not line.startswith("#") else None
        if match is None:
            continue
        try:
            value = float(match["value"])
        except ValueError:
            continue
        if isfinite(value):
            position = _POSITION.search(match["labels"] or "")
            yield Sample(match["name"], value, int(position[1]) if position else None)
