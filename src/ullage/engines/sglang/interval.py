"""The fractions that start, from both sides: low from the weights, high from what must fit beside the pool."""

from __future__ import annotations

from math import ceil, floor

from msgspec import Struct

from ullage.core.deployment import Deployment, Interval
from ullage.core.ledger import Entry
from ullage.core.run import Failure, Run
from ullage.core.units import GIB, MIB, Band
from ullage.engines.sglang.budget import free_slack
from ullage.engines.sglang.implied import fraction
from ullage.engines.sglang.known import Known, known
from ullage.engines.sglang.pool import Pool, budget_for, mm_reserved_bytes, pool_bytes, size_pool
from ullage.engines.sglang.slack import at_start, total_of

FLAG = "--mem-fraction-static"
#: a pool of fewer tokens takes no request at all (tp_worker: "Memory pool size is too small")
LEAST_TOKENS = 6


class Beside(Struct, frozen=True):
    """Bytes that must stay free of the pool: until the server answers, and with a full prefill chunk."""

    start: float
    serving: float
    because: str


def interval(run: Run | None, deployment: Deployment) -> Interval:
    """Values of ``--mem-fraction-static`` that start: low < value <= high; None where a side is not known.

    low = 1 - (free - reserved - the least pool) / total; high = 1 - (what must fit beside the pool) / total.
    """
    base = known(deployment)
    if base.total is None or base.free is None or base.total.low < MIB:
        return Interval(FLAG)
    low, low_because = _low(base)
    beside = observed(run, base) or by_rules(base, low)
    if beside is None:
        return Interval(FLAG, low=low, low_because=low_because)
    high = floor(min(0.99, 1 - beside.start / base.total.value) * 1000) / 1000
    high, because = _below_failure(run, base, high, beside.because)
    wanted = 1 - (beside.start + beside.serving) / base.total.value
    return Interval(FLAG, low, high, recommended(low, high, wanted), low_because, because)


def _low(base: Known) -> tuple[float, str]:
    """The share of the GPU that is taken before the pool, plus the smallest pool that is of any use."""
    assert base.total is not None and base.free is not None
    reserved = mm_reserved_bytes(base.model, base.settings)
    least = budget_for(base.model, base.settings, LEAST_TOKENS) if base.model and base.model.layers else 0
    low = 1 - (base.free.value - reserved - least) / base.total.value
    held = (base.total.value - base.free.value) / GIB
    text = f"the weights hold {held:.2f} of {base.total.value / GIB:.2f} GiB ({base.free_source})"
    return ceil(low * 10_000 - 1e-6) / 10_000, text


def recommended(low: float, high: float, wanted: float) -> float | None:
    """A value inside: with room for a full prefill chunk where there is any, else the middle; None if empty."""
    if low >= high:
        return None
    value = floor(min(wanted, high, 0.97) * 100) / 100
    if value > low + (high - low) * 0.1:
        return value
    middle = round(low + (high - low) * 0.6, 3)
    return middle if low < middle <= high else high


# from this log


def observed(run: Run | None, base: Known) -> Beside | None:
    """What this very launch took after its pool, by its stages: total (1 - f) less what was free in the end.

    Only for a launch that got past its graphs; what came after is no part of it.
    """
    if run is None or base.total is None:
        return None
    end = base.read("free_at_ready_gib") or base.read("free_after_graphs_gib")
    share, _ = fraction(base)
    if end is None or share is None:
        return None
    taken = base.total.value * (1 - share.value) - end.value
    if taken < 0:
        return None  # more was free in the end than the rule leaves: the fraction is not what it seems
    names = ("free_at_ready_gib", "free_after_graphs_gib")
    text = f"this launch took {taken / GIB:.2f} GiB beside its pool until it was up ({base.source(*names)})"
    return Beside(taken, _activations(base, share.value), text)


def _below_failure(run: Run | None, base: Known, high: float, because: str) -> tuple[float, str]:
    """A launch that ran out of memory after its pool shows that its fraction was too large: the bound lies
    below it, at least by what the failed allocation lacked."""
    f, _ = fraction(base)
    if run is None or f is None or base.total is None or not out_of_memory_later(run):
        return high, because
    lacking = _lacking(base)
    bound = floor((f.value - max(lacking / base.total.value, 0.001)) * 1000) / 1000
    if bound >= high:
        return high, because
    return bound, f"at {f.value:g} this launch ran out of memory after its pool, {lacking / GIB:.2f} GiB short"


def out_of_memory_later(run: Run) -> bool:
    """True if a rank ran out of GPU memory once the pool was there."""
    return any(_is_oom(failure) for failure in run.all(Failure) if not failure.cascade)


def _is_oom(failure: Failure) -> bool:
    late = failure.at in ("graph_capture", "warmup", "serving") or (failure.at == "kv_pool" and failure.trace)
    words = f"{failure.text} {failure.message}".lower()
    return bool(late) and "out of memory" in words and "try to increase" not in words


def _lacking(base: Known) -> float:
    """Bytes by which the failed allocation missed, as far as the message tells."""
    wanted, free = _either(base, "oom_alloc"), _either(base, "oom_free")
    return max(0.0, wanted.value - (free.value if free else 0)) if wanted is not None else 0.0


def _either(base: Known, name: str) -> Band | None:
    small = base.deployment.reading(f"{name}_mib")
    return base.read(f"{name}_gib") or (small.scaled(MIB) if small is not None else None)


# by the rules


def by_rules(base: Known, low: float) -> Beside | None:
    """What must fit beside the pool by section slack; the request table depends on the pool, and so on the
    fraction: worked out at the smallest useful one."""
    pool = _pool_at(base, max(low + 0.02, base.settings.mem_fraction_static or 0))
    if pool is None or base.total is None:
        return None
    entries = free_slack(base, pool)
    low_bytes, value, _ = total_of(at_start(entries))
    start = (low_bytes + value) / 2
    names = ", ".join(e.name for e in sorted(at_start(entries), key=lambda e: -e.bytes)[:3])
    text = f"about {start / GIB:.2f} GiB must fit beside the pool ({names}), estimated"
    return Beside(start, _serving(entries) + (value - start), text)


def _pool_at(base: Known, f: float) -> Pool | None:
    if base.model is None or not base.model.layers or base.total is None or base.free is None:
        return None
    reserved = mm_reserved_bytes(base.model, base.settings)
    return size_pool(base.model, base.settings, pool_bytes(base.free.value, base.total.value, f, reserved))


def _serving(entries: tuple[Entry, ...]) -> float:
    return sum(e.bytes for e in entries if e.stage == "serving")


def _activations(base: Known, f: float) -> float:
    pool = _pool_at(base, f)
    return _serving(free_slack(base, pool)) if pool is not None else 1.0 * GIB
