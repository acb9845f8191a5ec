"""Measured times of collectives, from ``comm bench`` or nccl-tests: they replace the model where they speak."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import exp, log
from typing import Literal

from msgspec import Struct

from ullage.comm.allreduce import timed
from ullage.comm.collectives import Collective, Kind
from ullage.comm.links import Links, links_of
from ullage.core.machine import Machine
from ullage.core.units import Band, tokens_text

SCHEMA = "ullage.comm/1"
Mode = Literal["graph", "eager", "nccl-tests"]
#: beyond the sizes measured by more than this factor a measurement says nothing
BEYOND = 2.0
#: what a figure without a spread may be off by, from run to run on one host
SPREAD = 0.10
#: within this share of the fit lie 85 % of the public figures of like hosts: what is shown as theirs
LIKE = 0.15
#: how many times slower than like hosts is an outlier
OUTLIER = 1.8


class Point(Struct, frozen=True):
    """One size: the median (nccl-tests: the mean) in us, its least and greatest where known. ``wrong``:
    elements that came out wrong."""

    bytes: int
    us: float
    low_us: float | None = None
    high_us: float | None = None
    in_place_us: float | None = None
    wrong: int | None = None

    @property
    def band(self) -> Band:
        low = self.low_us if self.low_us is not None else self.us * (1 - SPREAD)
        high = self.high_us if self.high_us is not None else self.us * (1 + SPREAD)
        return Band(self.us, min(low, self.us), max(high, self.us))


class Measurement(Struct, frozen=True):
    """Sizes measured in one set of processes. ``environment`` holds the NCCL variables that were set for it.

    ``backend`` is torch's ("nccl"; "gloo" tests the path and says nothing of GPUs). ``via`` is the transport of
    the NCCL log where it was seen. ``failed`` says in one line why there are no points. ``source``: where from.
    """

    kind: Kind
    ranks: int
    backend: str
    mode: Mode
    points: tuple[Point, ...] = ()
    environment: dict[str, str] = {}
    dtype: str = "bfloat16"
    gpu: str = ""
    nodes: int = 1
    nccl: str = ""
    torch: str = ""
    via: str = ""
    when: str = ""
    source: str = ""
    failed: str = ""
    notes: tuple[str, ...] = ()

    @property
    def settings_text(self) -> str:
        """The variables as one types them; "as NCCL chooses" where there are none."""
        return " ".join(f"{name}={value}" for name, value in sorted(self.environment.items())) or (
            "as NCCL chooses" if self.backend == "nccl" else "no settings"
        )

    def at(self, num_bytes: int) -> Band | None:
        """Microseconds at a size: between two points by their logarithms; None far outside of them."""
        points = sorted(self.points, key=lambda p: p.bytes)
        if not points or not points[0].bytes / BEYOND <= num_bytes <= points[-1].bytes * BEYOND:
            return None
        if num_bytes <= points[0].bytes:
            return points[0].band
        for before, after in pairwise(points):
            if num_bytes <= after.bytes:
                return _between(before, after, num_bytes)
        last = points[-1]
        return last.band.scaled(num_bytes / last.bytes)


class File(Struct, frozen=True):
    """What ``comm bench`` and ``comm import`` write: measurements of one machine."""

    measurements: tuple[Measurement, ...]
    schema: str = SCHEMA


class Outlier(Struct, frozen=True):
    """A size that took much longer than on like hosts; ``text`` says what to look at."""

    measurement: Measurement
    point: Point
    expected: Band
    text: str


def best(
    found: Sequence[Measurement], collective: Collective, *, gpu: str = "", modes: Sequence[Mode] = (
        "graph", "nccl-tests", "eager",
    ),
) -> tuple[Measurement, Band] | None:  # fmt: skip
    """The fastest measurement that speaks of a collective, in the first of ``modes`` that has any."""
    for mode in modes:
        fitting = [
            (one, band) for one in found
            if one.mode == mode and speaks_of(one, collective, gpu) and (band := one.at(collective.bytes))
        ]  # fmt: skip
        if fitting:
            return min(fitting, key=lambda pair: pair[1].value)
    return None


def current(
    found: Sequence[Measurement], collective: Collective, environment: dict[str, str], *, gpu: str = ""
) -> tuple[Measurement, Band] | None:
    """The measurement taken with the launch's own NCCL variables; None where there is none."""
    own = {name: value for name, value in environment.items() if name.startswith("NCCL_")}
    return best([one for one in found if one.environment == own], collective, gpu=gpu)


def speaks_of(one: Measurement, collective: Collective, gpu: str = "") -> bool:
    """Same kind and ranks, on the same GPU where both name one; gloo never speaks of GPUs."""
    if one.backend == "gloo" or one.failed or one.kind != collective.kind or one.ranks != collective.ranks:
        return False
    return not (gpu and one.gpu) or _same_gpu(gpu, one.gpu)


def outliers(found: Sequence[Measurement], links: Links) -> list[Outlier]:
    """Sizes that took OUTLIER times longer than healthy hosts like this one, at most one a measurement."""
    result = []
    for one in found:
        if one.backend == "gloo":
            continue
        slow = [(p, expected) for p in one.points if (expected := _expected(one, p, links)) is not None]
        if slow:
            point, expected = max(slow, key=lambda pair: pair[0].us / pair[1].value)
            result.append(Outlier(one, point, expected, _advice(one, point, expected, links)))
    return result


def _expected(one: Measurement, point: Point, links: Links) -> Band | None:
    """What like hosts take, where the point is far above it."""
    from msgspec.structs import replace

    from ullage.comm.allreduce import Settings

    like = links if links.nvlink else replace(links, fabric="pcie", p2p=True)
    collective = Collective(one.kind, 1, point.bytes, one.ranks, "")
    band = timed(collective, like, "nccl", Settings(eager=one.mode == "eager")).band
    return band if point.us > OUTLIER * band.high or point.us > 2 * OUTLIER * band.value else None


def _advice(one: Measurement, point: Point, expected: Band, links: Links) -> str:
    text = (
        f"{_us(point.us)} here against {expected.value * (1 - LIKE):.0f}-{expected.value * (1 + LIKE):.0f} µs"
        f" on like hosts"
        f" ({tokens_text(point.bytes)} bytes, {one.ranks} ranks, {one.settings_text})"
    )
    if links.nvlink:
        return f"{text}: see whether the NCCL log says `via P2P`, and nvidia-smi nvlink --status"
    if "NCCL_P2P_LEVEL" in one.environment:
        return f"{text}: look for ACS, the IOMMU and BAR1 (ullage check), or give NCCL a graph file"
    return f"{text}: look at `via SHM` in the NCCL log, try NCCL_P2P_LEVEL=SYS"


def _between(before: Point, after: Point, num_bytes: int) -> Band:
    if after.bytes == before.bytes:
        return after.band
    share = log(num_bytes / before.bytes) / log(after.bytes / before.bytes)

    def mixed(a: float, b: float) -> float:
        return exp(log(a) * (1 - share) + log(b) * share) if a > 0 and b > 0 else a * (1 - share) + b * share

    a, b = before.band, after.band
    return Band(mixed(a.value, b.value), mixed(a.low, b.low), mixed(a.high, b.high))


def _same_gpu(a: str, b: str) -> bool:
    words = [{w for w in name.lower().split() if w not in ("nvidia", "amd", "geforce")} for name in (a, b)]
    return bool(words[0] & words[1]) and (words[0] <= words[1] or words[1] <= words[0])


def _us(value: float) -> str:
    return f"{value:.0f} µs" if value >= 10 else f"{value:.1f} µs"


def outliers_of_measured(
    found: Sequence[Measurement], machine_of: Callable[[str], Machine | None]
) -> list[Outlier]:
    """What is out of line among measurements that name their own GPU (``machine_of``: name -> Machine)."""
    result: list[Outlier] = []
    for one in found:
        machine = machine_of(one.gpu) if one.gpu and one.backend != "gloo" else None
        if machine is not None:
            result += outliers([one], links_of(machine, one.ranks // max(1, one.nodes), nodes=one.nodes))
    return result
