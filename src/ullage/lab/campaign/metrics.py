"""Metrics by their standard names, with unit and direction, and where each benchmark keeps them."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from ullage.core import tables

Kind = Literal["vllm", "sglang", "guidellm"]
#: what {p} stands for, and the same in GuideLLM's summaries
POINTS = {"mean": "mean", "median": "median", "p90": "percentiles.p90", "p95": "percentiles.p95",
          "p99": "percentiles.p99"}  # fmt: skip


class Metric(Struct, frozen=True, forbid_unknown_fields=True):
    """One figure of a benchmark. ``vllm``, ``sglang``, ``guidellm`` are JSON paths, tried in turn."""

    name: str
    unit: str
    better: Literal["higher", "lower"]
    text: str
    vllm: tuple[str, ...] = ()
    sglang: tuple[str, ...] = ()
    guidellm: tuple[str, ...] = ()

    def paths(self, kind: Kind) -> tuple[str, ...]:
        found: tuple[str, ...] = getattr(self, kind)
        return found


class _Table(Struct, frozen=True, forbid_unknown_fields=True):
    metric: tuple[Metric, ...]


@cache
def standard() -> dict[str, Metric]:
    """Every metric by its name."""
    rows = tables.load("ullage.lab.campaign", "metrics.toml", _Table).metric
    return {each.name: each for row in rows for each in _unfolded(row)}


def _unfolded(row: Metric) -> Iterable[Metric]:
    if "{p}" not in row.name:
        yield row
        return
    for point, summary in POINTS.items():

        def put(paths: tuple[str, ...], p: str = point, g: str = summary) -> tuple[str, ...]:
            return tuple(path.replace("{p}", p).replace("{g}", g) for path in paths)

        yield replace(
            row, name=row.name.replace("{p}", point), text=f"{row.text}, {point}",
            vllm=put(row.vllm), sglang=put(row.sglang), guidellm=put(row.guidellm),
        )  # fmt: skip


def find(name: str) -> Metric | None:
    return standard().get(name)


def near(name: str, own: Iterable[str] = ()) -> list[str]:
    """Names like ``name``, the benchmark's own first."""
    from difflib import get_close_matches

    return get_close_matches(name, [*own, *standard()], n=3)
