"""NCCL's own choice of algorithm and protocol, by its own cost model (tuner.toml names the sources).

The choice is followed because it explains steps in measurements (1 MiB reduced faster than 512 KiB); the times
of the model are NCCL's guesses, which ``allreduce`` replaces by fits to measurements.
"""

from __future__ import annotations

from functools import cache
from math import log2
from typing import Literal

from msgspec import Struct
from packaging.version import Version

from ullage.comm.collectives import Kind
from ullage.core.tables import load
from ullage.core.versions import parse_release

Algorithm = Literal["Tree", "Ring", "NVLS"]
Protocol = Literal["LL", "LL128", "Simple"]
ALGORITHMS: tuple[Algorithm, ...] = ("Tree", "Ring", "NVLS")
PROTOCOLS: tuple[Protocol, ...] = ("LL", "LL128", "Simple")
Link = Literal["nvlink", "pci", "net"]
_FUNCTIONS: dict[str, str] = {
    "all_reduce": "allreduce", "all_gather": "allgather", "reduce_scatter": "reducescatter",
    "broadcast": "broadcast",
}  # fmt: skip


class _Base(Struct, frozen=True, forbid_unknown_fields=True):
    since: str
    tree: tuple[float, float, float]
    ring: tuple[float, float, float]
    source: str


class _Hop(Struct, frozen=True, forbid_unknown_fields=True):
    since: str
    link: Link
    tree: tuple[float, float, float]
    ring: tuple[float, float, float]
    nvls: float
    source: str


class _Generation(Struct, frozen=True, forbid_unknown_fields=True):
    since: str
    least_capability: tuple[int, int]
    ll_max: float
    ll128_per_channel: float
    nvls_efficiency: float
    source: str


class _Corrections(Struct, frozen=True, forbid_unknown_fields=True):
    ll: list[float]
    ll128: list[float]
    simple: list[float]
    source: str


class _Table(Struct, frozen=True, forbid_unknown_fields=True):
    base: list[_Base]
    hop: list[_Hop]
    generation: list[_Generation]
    tree_correction: _Corrections


class Group(Struct, frozen=True):
    """What NCCL's model is asked about. ``ring_gbs`` is the bus bandwidth of the rings that its search finds
    (channels x bandwidth of each), ``channels`` their number. ``nvls``: multicast works and is not off.
    ``algorithms`` and ``protocols``: the texts of NCCL_ALGO and NCCL_PROTO."""

    ranks: int
    link: Link
    capability: tuple[int, int]
    ring_gbs: float
    channels: int = 16
    nodes: int = 1
    nvls: bool = False
    release: Version | None = None
    algorithms: str = ""
    protocols: str = ""


class Choice(Struct, frozen=True):
    """What NCCL takes for a size, and its own model's figures: latency in us, algorithm bandwidth in GB/s."""

    algorithm: Algorithm
    protocol: Protocol
    model_us: float
    latency_us: float
    gbs: float


def num_steps(kind: Kind, ranks: int) -> int:
    """Steps of a ring: 2 (n - 1) for an all-reduce, n - 1 for its halves."""
    if kind == "all_reduce":
        return 2 * (ranks - 1)
    return ranks - 1 if kind in ("all_gather", "reduce_scatter") else ranks


def choose(kind: Kind, num_bytes: int, group: Group) -> Choice:
    """The pair of least time by NCCL's model; Ring with Simple where NCCL_ALGO and NCCL_PROTO leave nothing."""
    found = [choice for a in ALGORITHMS for p in PROTOCOLS if (choice := _timed(kind, num_bytes, group, a, p))]
    if not found:
        return Choice("Ring", "Simple", 0.0, *_ring(kind, group, "Simple"))
    return min(found, key=lambda choice: choice.model_us)


def latency_us(kind: Kind, group: Group, algorithm: Algorithm, protocol: Protocol) -> float:
    """The latency term of NCCL's model for a pair."""
    return (_tree if algorithm == "Tree" else _ring if algorithm == "Ring" else _nvls)(kind, group, protocol)[0]


def enabled(text: str, function: str, names: tuple[str, ...]) -> dict[str, bool]:
    """What NCCL_ALGO or NCCL_PROTO leaves for a function: "Ring,Tree", "^LL", "allreduce:tree;..."."""
    on = dict.fromkeys(names, True)
    for number, part in enumerate(text[:1000].split(";")):
        prefix, colon, listed = part.rpartition(":")
        if not listed.strip() or (number and not colon):
            continue
        if colon and prefix.strip().lower() != function:
            continue
        without = listed.strip().startswith("^")
        words = {word.strip().lower() for word in listed.strip().lstrip("^").split(",")}
        on = {name: (name.lower() in words) is not without for name in names}
    return on


def _timed(kind: Kind, num_bytes: int, group: Group, a: Algorithm, p: Protocol) -> Choice | None:
    if not _allowed(kind, group, a, p):
        return None
    latency, gbs = (_tree if a == "Tree" else _ring if a == "Ring" else _nvls)(kind, group, p)
    if gbs <= 0:
        return None
    if a == "Tree":
        gbs *= _correction(p, num_bytes)
    return Choice(a, p, latency + num_bytes / (1000 * gbs), latency, gbs)


def _allowed(kind: Kind, group: Group, a: Algorithm, p: Protocol) -> bool:
    function = _FUNCTIONS.get(kind, "")
    if not enabled(group.algorithms, function, ALGORITHMS)[a] or (a == "Tree" and kind != "all_reduce"):
        return False
    if a == "NVLS" and (p != "Simple" or not group.nvls or kind == "broadcast"):
        return False
    named = "ll128" in group.protocols.lower() and "^" not in group.protocols
    if p == "LL128" and group.link != "nvlink" and not named:
        return False  # off outside NVLink unless NCCL_PROTO names it
    return enabled(group.protocols, function, PROTOCOLS)[p]


def _ring(kind: Kind, group: Group, p: Protocol) -> tuple[float, float]:
    at, generation = PROTOCOLS.index(p), _generation(group)
    steps = num_steps(kind, group.ranks)
    hop = _hop(group, "nvlink" if group.link == "nvlink" else "pci").ring[at]
    between = 0 if group.nodes == 1 else (2 if kind == "all_reduce" else 1) * (group.nodes - 1)
    latency = _base(group).ring[at] + (steps - between) * hop + between * _hop(group, "net").ring[at]
    bus = {
        "LL": min(generation.ll_max, group.ring_gbs * 0.5),
        "LL128": min(group.ring_gbs * 0.92, group.channels * generation.ll128_per_channel),
        "Simple": group.ring_gbs,
    }[p]
    if kind in ("all_gather", "reduce_scatter"):
        return latency, bus * group.ranks / max(1, group.ranks - 1)
    return latency, bus * group.ranks / max(1, steps)


def _tree(kind: Kind, group: Group, p: Protocol) -> tuple[float, float]:
    at, generation = PROTOCOLS.index(p), _generation(group)
    hop = _hop(group, "nvlink" if group.link == "nvlink" else "pci").tree[at]
    inner = group.ranks // group.nodes - 1
    latency = _base(group).tree[at] + 2 * (inner * hop + int(log2(group.nodes)) * _hop(group, "net").tree[at])
    bus = group.ring_gbs * 0.92
    if p == "LL":
        bus = min(bus / 3.8, generation.ll_max)
    elif p == "LL128":
        bus = min(bus * 7 / 9, group.channels * generation.ll128_per_channel)
    return latency, bus * 0.5


def _nvls(kind: Kind, group: Group, p: Protocol) -> tuple[float, float]:
    """One trip through the switch (NVLS): its latency is the hop's alone."""
    generation = _generation(group)
    share = (group.channels - 1) / group.channels if group.channels > 1 else 0.0
    bus = group.ring_gbs * generation.nvls_efficiency * share
    if kind == "all_reduce":
        return _hop(group, "nvlink").nvls, 2 * bus * group.ranks / max(1, num_steps(kind, group.ranks))
    return _hop(group, "nvlink").nvls, bus


def _correction(p: Protocol, num_bytes: int) -> float:
    table = _table().tree_correction
    factors = {"LL": table.ll, "LL128": table.ll128, "Simple": table.simple}[p]
    at = int(log2(num_bytes >> 6)) if num_bytes >= 64 else -1
    return factors[at] if 0 <= at < len(factors) else 1.0


@cache
def _table() -> _Table:
    table: _Table = load("ullage.comm", "tuner.toml", _Table)
    return table


def _since(since: str, release: Version | None) -> bool:
    first = parse_release(since)
    return release is None or first is None or release >= first


def _base(group: Group) -> _Base:
    return [row for row in _table().base if _since(row.since, group.release)][-1]


def _hop(group: Group, link: Link) -> _Hop:
    rows = [row for row in _table().hop if row.link == link]
    return [row for row in rows if _since(row.since, group.release) or row is rows[0]][-1]


def _generation(group: Group) -> _Generation:
    rows = [row for row in _table().generation if row.least_capability <= group.capability]
    return ([row for row in rows if _since(row.since, group.release)] or rows or _table().generation[:1])[-1]
