"""Blocks, tokens and concurrency that a KV budget gives, and whether one request of the full length fits.

Sources: vLLM, v1/core/kv_cache_utils.py (0.8.5 to 0.32.0) and v1/core/kv_cache_planning.py (0.33.0).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct
from packaging.version import Version

from ullage.core.versions import Rules
from ullage.engines.vllm.kv_groups import Group, UnequalPages, block_bytes, groups
from ullage.engines.vllm.kv_specs import Cache, Spec, cdiv, request_blocks


class Worker(Struct, frozen=True):
    """One pipeline stage: its layers' specs, its part of each group, and its KV budget in bytes."""

    specs: tuple[Spec, ...]
    layout: tuple[Group, ...]
    budget: int


class KvPlan(Struct, frozen=True):
    """What the engine makes of a budget. ``needed`` and ``available`` are those of the first worker that fails
    the fit check (else of the first); ``fits`` says whether one request of ``length`` does.

    ``tokens`` is the figure that the release prints; it is a capacity only where all layers are of one kind or
    the release is 0.20.1 or later. ``fitted`` is the estimated or auto-fitted length, 0 if not even one token fits.
    """

    fits: bool
    length: int
    blocks: int = 0
    tokens: int = 0
    concurrency: float = 0.0
    needed: int = 0
    available: int = 0
    fitted: int = 0
    block_bytes: int = 0
    layout: tuple[Group, ...] = ()
    error: str = ""


def plan(
    stages: Sequence[Sequence[Spec]], budgets: Sequence[int], length: int, cache: Cache,
    release: Version | None = None, *, auto_fit: bool = False,
) -> KvPlan:  # fmt: skip
    """The engine's plan for stages with their budgets; one budget serves all stages.

    num_blocks = the smallest over stages of budget // bytes of a block.
    """
    try:
        workers = make_workers(stages, budgets, cache, release)
    except UnequalPages as error:
        return REFUSED.at(release)(stages, budgets, length, cache, str(error))
    if not workers or not any(worker.layout for worker in workers):
        return KvPlan(True, length, blocks=1, fitted=length)
    failed = [worker for worker in workers if not has_room(worker, cache, release)]
    if failed:
        first = failed[0]
        return KvPlan(False, length, available=check_bytes(first, cache, release), layout=first.layout,
                      block_bytes=block_bytes(first.layout), error="no memory for the cache blocks")  # fmt: skip
    if auto_fit:
        length = min(longest(worker, length, cache, release) for worker in fit_scope(workers, release))
        if length <= 0:
            return KvPlan(False, 0, layout=workers[0].layout, error="not even one token fits")
    return sized(workers, length, cache, release)


REFUSED: Rules[[Sequence[Sequence[Spec]], Sequence[int], int, Cache, str], KvPlan] = Rules("refused")


@REFUSED.since("≤0.8.0", source="vllm 0.11.0, get_kv_cache_configs: the fit check comes before the grouping")
def after_the_check(
    stages: Sequence[Sequence[Spec]], budgets: Sequence[int], length: int, cache: Cache, error: str
) -> KvPlan:
    """Pages cannot be unified; a budget that is too small is reported first."""
    release = Version("0.8.0")
    workers = [
        Worker(tuple(stage), (), budgets[min(i, len(budgets) - 1)]) for i, stage in enumerate(stages)
    ]  # fmt: skip
    for worker in workers:
        needed = sum_of_layers(worker, cache, length, release)
        if needed > worker.budget:
            fits = bisect(lambda n, w=worker: sum_of_layers(w, cache, n, release) <= w.budget, length)  # type: ignore[misc]
            return KvPlan(False, length, needed=needed, available=worker.budget, fitted=fits, error=error)
    return KvPlan(False, length, error=error)


@REFUSED.since("0.14.0", source="vllm 0.14.0, get_kv_cache_configs: the grouping comes first")
def before_the_check(
    stages: Sequence[Sequence[Spec]], budgets: Sequence[int], length: int, cache: Cache, error: str
) -> KvPlan:
    """Pages cannot be unified."""
    return KvPlan(False, length, error=error)


def sized(workers: Sequence[Worker], length: int, cache: Cache, release: Version | None) -> KvPlan:
    """The plan for a fixed length: the fit check of each worker, then blocks, tokens and concurrency."""
    checked = fit_scope(workers, release)
    short = [w for w in checked if needed_bytes(w, cache, length, release) > check_bytes(w, cache, release)]
    worker = (short or checked)[0]
    blocks = min(w.budget // block_bytes(w.layout) for w in workers if w.layout and block_bytes(w.layout))
    if cache.num_gpu_blocks_override is not None:
        blocks = cache.num_gpu_blocks_override
    layout = workers[0].layout
    share = CONCURRENCY_BLOCKS.at(release)(layout, cache, length, release)
    concurrency = blocks / share if share else 0.0
    return KvPlan(
        not short, length, blocks, PRINTED_TOKENS.at(release)(blocks, layout, cache, concurrency, length), concurrency,
        needed_bytes(worker, cache, length, release), check_bytes(worker, cache, release),
        longest(worker, length, cache, release) if short else length, block_bytes(worker.layout), layout,
    )  # fmt: skip


def make_workers(
    stages: Sequence[Sequence[Spec]], budgets: Sequence[int], cache: Cache, release: Version | None
) -> list[Worker]:
    """One worker a stage. Groups are formed on the whole model (0.11.0+; before, on each stage) and cut to stages."""
    budgets = [budgets[min(i, len(budgets) - 1)] for i in range(len(stages))]
    whole = [spec for stage in stages for spec in stage]
    shared = groups(whole, cache, release) if WHOLE_MODEL_GROUPS.at(release)() else None
    out, start = [], 0
    for stage, budget in zip(stages, budgets, strict=True):
        end = start + len(stage)
        if shared is None:
            layout = groups(stage, cache, release)
        else:
            layout = [group.on(start, end) for group in shared] if len(stages) > 1 else list(shared)
        overridden = cache.num_gpu_blocks_override
        if overridden is not None and OVERRIDE_FIRST.at(release)():
            budget = overridden * block_bytes(layout)
        out.append(Worker(tuple(stage), tuple(layout), budget))
        start = end
    return out


WHOLE_MODEL_GROUPS: Rules[[], bool] = Rules("whole_model_groups")
OVERRIDE_FIRST: Rules[[], bool] = Rules("override_first")


@WHOLE_MODEL_GROUPS.since("≤0.8.0", source="vllm 0.10.2, v1/core/kv_cache_utils.py, get_kv_cache_config")
@OVERRIDE_FIRST.since(
    "≤0.8.0", source="vllm 0.20.0, may_override_num_blocks: replaces the count after the check"
)
def no() -> bool:
    return False


@WHOLE_MODEL_GROUPS.since("0.11.0", source="vllm 0.11.0, v1/core/kv_cache_utils.py, get_kv_cache_configs")
@OVERRIDE_FIRST.since(
    "0.20.1", source="vllm 0.20.1, get_kv_cache_configs: replaces the budget before the check"
)
def yes() -> bool:
    return True


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
    """Bytes for one request: the need of each layer by itself, summed over the worker's layers."""
    layers = CHECKED_SPECS.at(release)(worker)
    return sum(request_blocks(spec, cache, length, release) * spec.page_bytes for spec in layers)


CHECKED_SPECS: Rules[[Worker], Sequence[Spec]] = Rules("checked_specs")


@CHECKED_SPECS.since(
    "≤0.7.0", source="vllm 0.9.1, get_kv_cache_config: checked before the hybrid specs are unified"
)
def as_declared(worker: Worker) -> Sequence[Spec]:
    """The specs as the layers declare them."""
    return worker.specs


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
    return block_bytes(worker.layout) * sum(group.blocks(cache, length, release) for group in worker.layout)


def needed_bytes(worker: Worker, cache: Cache, length: int, release: Version | None) -> int:
    """Bytes of KV cache that one request of ``length`` tokens needs on this worker, as the release counts them."""
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


CONCURRENCY_BLOCKS: Rules[[Sequence[Group], Cache, int, Version | None], int] = Rules("concurrency_blocks")


@CONCURRENCY_BLOCKS.since("≤0.8.0", source="vllm 0.9.1 to 0.26.0, get_max_concurrency_for_kv_cache_config")
def by_bytes(layout: Sequence[Group], cache: Cache, length: int, release: Version | None) -> int:
    """Blocks of one request: cdiv(sum over groups of its bytes, page of the first group)."""
    pages = [group.page_bytes if group.mixed else group.lead.page_bytes for group in layout]
    needed = sum(g.blocks(cache, length, release) * page for g, page in zip(layout, pages, strict=True))
    return cdiv(needed, pages[0]) if layout and pages[0] else 0


@CONCURRENCY_BLOCKS.since("0.27.0", source="vllm 0.27.1 to 0.33.0, get_max_concurrency_for_kv_cache_config")
def by_blocks(layout: Sequence[Group], cache: Cache, length: int, release: Version | None) -> int:
    """Blocks of one request: the sum over groups, since all draw from one pool."""
    return sum(group.blocks(cache, length, release) for group in layout)


PRINTED_TOKENS: Rules[[int, Sequence[Group], Cache, float, int], int] = Rules("printed_tokens")


@PRINTED_TOKENS.since("≤0.8.0", source="vllm 0.8.5 to 0.20.0, _report_kv_cache_config")
def blocks_by_groups(
    blocks: int, layout: Sequence[Group], cache: Cache, concurrency: float, length: int
) -> int:
    """num_blocks // groups * smallest block * dcp: not a capacity where a model has several kinds of layers."""
    return blocks // len(layout) * min(group.lead.block_size for group in layout) * cache.dcp


@PRINTED_TOKENS.since("0.20.1", source="vllm 0.20.1 to 0.33.0, get_kv_cache_capacity")
def requests_by_length(
    blocks: int, layout: Sequence[Group], cache: Cache, concurrency: float, length: int
) -> int:
    """int(max_concurrency * max_model_len)."""
    return int(concurrency * length)
