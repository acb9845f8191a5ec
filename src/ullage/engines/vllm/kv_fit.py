"""Whether one request of a length fits a worker's budget, as each release counts it, and the longest that does.

Sources: vLLM, v1/core/kv_cache_utils.py (0.8.5 to 0.32.0) and v1/core/kv_cache_planning.py (0.33.0).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct
from packaging.version import Version

from ullage.core.versions import Rules
from ullage.engines.vllm.kv_blocks import Group, block_bytes, charged_bytes
from ullage.engines.vllm.kv_need import request_blocks
from ullage.engines.vllm.kv_specs import Cache, Spec


class Worker(Struct, frozen=True):
    """One pipeline stage: its layers' specs, its part of each group, and its KV budget in bytes."""

    specs: tuple[Spec, ...]
    layout: tuple[Group, ...]
    budget: int


NULL_BLOCK: Rules[[Sequence[Group]], int] = Rules("null_block")


@NULL_BLOCK.since("≤0.8.0", source="vllm 0.28.0, get_kv_cache_configs")
def nothing_held_back(layout: Sequence[Group]) -> int:
    """Bytes that the fit check leaves out: none, although block 0 is never given to a request."""
    return 0


@NULL_BLOCK.since("0.29.0", source="vllm 0.29.0 to 0.33.0, get_kv_cache_configs, check_memory")
def one_block(layout: Sequence[Group]) -> int:
    """Bytes that the fit check leaves out: one block."""
    return block_bytes(layout)


def check_bytes(worker: Worker, cache: Cache, release: Version | None) -> int:
    """The budget that the fit check compares with, and that its message prints."""
    return worker.budget - (NULL_BLOCK.at(release)(worker.layout) if worker.layout else 0)


def has_room(worker: Worker, cache: Cache, release: Version | None) -> bool:
    return not worker.layout or check_bytes(worker, cache, release) > 0


NEEDED: Rules[[Worker, Cache, int, Version | None], int] = Rules("needed")


@NEEDED.since("≤0.7.0", source="vllm 0.8.5 to 0.13.0, max_memory_usage_bytes")
def sum_of_layers(worker: Worker, cache: Cache, length: int, release: Version | None) -> int:
    """Bytes for one request: the need of each layer by itself, summed over the worker's layers.

    The specs are those that the layers declare: windows count as windows even with the hybrid manager off.
    """
    return sum(request_blocks(spec, cache, length, release) * spec.page_bytes for spec in worker.specs)


@NEEDED.since("0.14.0", source="vllm 0.14.0 to 0.18.1, _max_memory_usage_bytes_from_groups")
def first_group_only(worker: Worker, cache: Cache, length: int, release: Version | None) -> int:
    """group size * page * blocks of the *first* group: too lenient for hybrid models."""
    lead = worker.layout[0]
    widest = max(len(group.layers) for group in worker.layout)
    if len(worker.layout) == 1 and lead.mixed:
        return lead.page_bytes * lead.blocks(cache, length, release)
    return widest * lead.lead.page_bytes * lead.blocks(cache, length, release)


@NEEDED.since("0.19.0", source="vllm 0.19.0 to 0.33.0, _max_memory_usage_bytes_from_groups")
def sum_of_groups(worker: Worker, cache: Cache, length: int, release: Version | None) -> int:
    """bytes of a block * sum over groups of the blocks of one request."""
    return charged_bytes(worker.layout) * sum(group.blocks(cache, length, release) for group in worker.layout)


def needed_bytes(worker: Worker, cache: Cache, length: int, release: Version | None) -> int:
    """Bytes of KV cache that one request of ``length`` tokens needs on this worker, as the release counts
    them."""
    return NEEDED.at(release)(worker, cache, length, release) if worker.layout else 0


FIT_SCOPE: Rules[[Sequence[Worker]], Sequence[Worker]] = Rules("fit_scope")


@FIT_SCOPE.since("≤0.8.0", source="vllm 0.8.5 to 0.13.0, check_enough_kv_cache_memory")
@FIT_SCOPE.since("0.17.0", source="vllm 0.17.1 to 0.33.0, _project_kv_cache_groups_to_worker")
def each_worker(workers: Sequence[Worker]) -> Sequence[Worker]:
    """Every worker is checked with its own layers and its own budget."""
    return [worker for worker in workers if worker.layout]


@FIT_SCOPE.since("0.14.0", source="vllm 0.14.0 to 0.16.0, get_kv_cache_configs")
def whole_model(workers: Sequence[Worker]) -> Sequence[Worker]:
    """The smallest budget is checked against the layers of the whole model: overcounts with pipeline stages."""
    if len(workers) < 2:
        return workers
    parts = zip(*(worker.layout for worker in workers), strict=True)
    whole = [
        Group(sum((g.layers for g in part), ()), sum((g.specs for g in part), ()), part[0].lead)
        for part in parts
    ]
    specs = tuple(spec for worker in workers for spec in worker.specs)
    return [Worker(specs, tuple(whole), min(worker.budget for worker in workers))]


def fit_scope(workers: Sequence[Worker], release: Version | None) -> Sequence[Worker]:
    return FIT_SCOPE.at(release)(workers)


def longest(worker: Worker, length: int, cache: Cache, release: Version | None) -> int:
    """The largest length up to ``length`` whose need fits the worker's budget; 0 if not even one token does."""
    room = check_bytes(worker, cache, release)
    return bisect(lambda tokens: needed_bytes(worker, cache, tokens, release) <= room, length)


def bisect(holds: Callable[[int], bool], most: int) -> int:
    """The largest n in 1..most for which ``holds`` (true up to a limit), else 0."""
    if most < 1 or not holds(1):
        return 0
    low, high = 1, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low
