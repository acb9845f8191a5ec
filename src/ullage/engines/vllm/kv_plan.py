"""Blocks, tokens and concurrency that a KV budget gives, and whether one request of the full length fits.

Sources: vLLM, v1/core/kv_cache_utils.py (0.8.5 to 0.32.0) and v1/core/kv_cache_planning.py (0.33.0).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from msgspec import Struct
from packaging.version import Version

from ullage.core.versions import Rules
from ullage.engines.vllm.kv_blocks import Group, block_bytes
from ullage.engines.vllm.kv_fit import (
    Worker,
    bisect,
    check_bytes,
    fit_scope,
    has_room,
    longest,
    needed_bytes,
    sum_of_layers,
)
from ullage.engines.vllm.kv_groups import UnequalPages, groups
from ullage.engines.vllm.kv_specs import Cache, Spec, cdiv


class KvPlan(Struct, frozen=True):
    """What the engine makes of a budget. ``needed`` and ``available`` are those of the first worker that fails
    the fit check (else of the first); ``fits`` says whether one request of ``length`` does.

    ``tokens`` is the figure that the release prints; it is a capacity only where all layers are of one kind or
    the release is 0.20.1 or later. ``fitted`` is the estimated or auto-fitted length, 0 if not even one
    token fits.
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
    if not any(worker.layout and block_bytes(worker.layout) for worker in workers):
        return KvPlan(True, length, blocks=1, fitted=length)
    failed = [worker for worker in workers if not has_room(worker, cache, release)]
    if failed:
        first = failed[0]
        return KvPlan(
            False, length, available=check_bytes(first, cache, release), layout=first.layout,
            block_bytes=block_bytes(first.layout), error="no memory for the cache blocks",
        )  # fmt: skip
    if auto_fit:
        length = min(longest(worker, length, cache, release) for worker in fit_scope(workers, release))
        if length <= 0:
            return KvPlan(False, 0, layout=workers[0].layout, error="not even one token fits")
    return sized(workers, length, cache, release)


REFUSED: Rules[[Sequence[Sequence[Spec]], Sequence[int], int, Cache, str], KvPlan] = Rules("refused")


def _holds(worker: Worker, cache: Cache, release: Version | None, length: int) -> bool:
    return sum_of_layers(worker, cache, length, release) <= worker.budget


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
            fits = bisect(partial(_holds, worker, cache, release), length)
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
    layout = next(worker.layout for worker in workers if worker.layout)
    share = CONCURRENCY_BLOCKS.at(release)(layout, cache, length, release)
    concurrency = blocks / share if share else 0.0
    tokens = PRINTED_TOKENS.at(release)(blocks, layout, cache, concurrency, length)
    return KvPlan(
        not short, length, blocks, tokens, concurrency,
        needed_bytes(worker, cache, length, release), check_bytes(worker, cache, release),
        longest(worker, length, cache, release) if short else length, block_bytes(worker.layout), layout,
    )  # fmt: skip


def make_workers(
    stages: Sequence[Sequence[Spec]], budgets: Sequence[int], cache: Cache, release: Version | None
) -> list[Worker]:
    """One worker a stage. Groups are formed on the whole model (0.11.0+; before, on each stage) and cut to
    stages."""
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
