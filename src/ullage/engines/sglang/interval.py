"""The fractions that work, from both sides: low from the weights, high from what must fit beside the pool."""

from __future__ import annotations

import re
from math import ceil, floor

from ullage.core.deployment import Deployment, Interval
from ullage.core.patterns import lazy
from ullage.core.run import Failure, Run
from ullage.core.units import GIB, MIB, Band
from ullage.engines.sglang.implied import fraction, planned_factor
from ullage.engines.sglang.known import Known, known
from ullage.engines.sglang.pool import budget_for, mm_reserved_bytes
from ullage.engines.sglang.room import Room, by_rules, default_fraction, observed
from ullage.engines.sglang.vision import for_vision

FLAG = "--mem-fraction-static"
EMPTY = "stuck-between-two-fractions"
#: a pool of fewer tokens takes no request at all (tp_worker: "Memory pool size is too small")
LEAST_TOKENS = 6
#: the allocator's words; the scheduler's "Out of memory even after retracting" is about its own tokens
_OOM = lazy(
    r"(?:CUDA|HIP|XPU|NPU|driver)[\w ]*(?:error)?:? out of memory|OutOfMemoryError|Tried to allocate", re.I
)
#: the engine's words for a budget that leaves no pool
_NO_POOL = lazy(r"Please try to increase --mem-fraction-static|leave no GPU memory for the KV cache")
#: with less of the card than this to share between pool and the rest, the middle is as good as any
_NARROW = 0.03


def interval(run: Run | None, deployment: Deployment) -> Interval:
    """Values of ``--mem-fraction-static`` that work; None where a side is not known.

    At or below ``low`` no pool is left: 1 - (free - reserved - the least pool) / total. Above ``high`` the low
    estimate of what must fit beside the pool does not (without a run: the likely one): 1 - least / total.
    ``recommended`` is prudent.
    """
    base = known(deployment)
    if base.total is None or base.free is None or base.total.low < MIB or base.free.low > base.total.high:
        return Interval(FLAG)
    low, low_because = _low(base)
    if _refused_above(run, base, low):
        return Interval(FLAG)
    room = observed(run, base) or by_rules(base, low)
    if room is None:
        return Interval(FLAG, low=low, low_because=low_because)
    # a plan has nothing but estimates: what likely fits; a log's own figures: what surely does not
    beside = room.least if run is not None else max(room.least, room.start.value + room.serving.low)
    high = floor(min(0.99, 1 - beside / base.total.value) * 1000) / 1000
    low, high = _as_seen(run, base, low, high)
    high, because, wanted = _below_failure(run, base, high, room.because)
    prudent = _kept(run, base, room, _prudent(base, room, low))
    best = _at_its_own_pool(base, low, high, recommended(low, high, min(wanted, prudent)))
    low, high, best = _as_typed(base, low, high, best)
    return Interval(FLAG, low, high, best, low_because, because, EMPTY)


def _as_typed(base: Known, low: float, high: float, best: float | None) -> tuple[float, float, float | None]:
    """The bounds as they are typed, where the arguments' own pass scales a fraction before it is in force."""
    factor = planned_factor(base)
    if factor == 1.0:
        return low, high, best
    low, high = ceil(low / factor * 10_000) / 10_000, floor(min(0.99, high / factor) * 1000) / 1000
    return low, high, None if best is None or low >= high else min(high, 0.95, round(best / factor, 2))


def _refused_above(run: Run | None, base: Known, low: float) -> bool:
    """True if the launch had no pool although its fraction lies above ``low``: another term, or a rank that is
    not shown, decides, and these figures bound nothing."""
    f, _ = fraction(base)
    if run is None or f is None or f.value <= low + 0.002:
        return False
    return any(_NO_POOL.search(f"{failure.text} {failure.message}") for failure in run.all(Failure))


def _at_its_own_pool(base: Known, low: float, high: float, best: float | None) -> float | None:
    """``best``, lowered where the larger pool that it makes needs more beside it (tables, uncounted drafts)."""
    f = base.settings.mem_fraction_static
    if best is None or f is None or best <= max(f, low + 0.02):
        return best
    room = by_rules(base, low, best)
    return recommended(low, high, min(best, _prudent(base, room, low))) if room is not None else best


def _low(base: Known) -> tuple[float, str]:
    """The share of the GPU that is taken before the pool, plus the smallest pool that is of any use."""
    assert base.total is not None and base.free is not None
    reserved = mm_reserved_bytes(base.model, base.settings)
    least = budget_for(base.model, base.settings, LEAST_TOKENS) if base.model and base.model.layers else 0
    low = 1 - (base.free.value - reserved - least) / base.total.value
    held = (base.total.value - base.free.value) / GIB
    text = f"the weights hold {held:.2f} of {base.total.value / GIB:.2f} GiB ({base.free_source})"
    return ceil(low * 10_000 - 1e-6) / 10_000, text


def _as_seen(run: Run | None, base: Known, low: float, high: float) -> tuple[float, float]:
    """A launch that made its pool, or that became ready, shows that its own fraction lies within."""
    f, _ = fraction(base)
    if run is None or f is None:
        return low, high
    made, ready = (base.read("kv_tokens") is not None), run.ready is not None
    low = min(low, floor(f.value * 10_000 - 1) / 10_000) if made and low >= f.value else low
    return low, max(high, min(0.99, f.value)) if ready and not out_of_memory_later(run) else high


def _prudent(base: Known, room: Room, low: float) -> float:
    """A fraction with room to spare: the engine's own default for this card, not below what leaves the high
    estimate free, nor above what leaves the likely one. The default of a multimodal model is lower by a factor
    that may leave no pool: then the one before it."""
    assert base.total is not None
    total = base.total.value
    careful, likely = 1 - room.most / total, 1 - room.likely(total) / total
    plain = default_fraction(base)
    lowered = for_vision(plain, base.model, base.settings) if plain is not None else None
    own = lowered if lowered is not None and lowered > low + 2 * _NARROW else plain
    return max(careful, min(likely, own if own is not None else (careful + likely) / 2))


def _kept(run: Run | None, base: Known, room: Room, prudent: float) -> float:
    """``prudent``, or the fraction of a launch that became ready with it and has room to spare."""
    f, _ = fraction(base)
    serves = run is not None and (run.ready is not None or run.reached == "serving")
    if run is None or not serves or f is None or base.total is None or out_of_memory_later(run):
        return prudent
    spare = f.value <= 1 - room.likely(base.total.value) / base.total.value
    return max(prudent, f.value) if spare else prudent


def recommended(low: float, high: float, wanted: float) -> float | None:
    """``wanted`` where it lies inside with a pool worth having; else well inside; None where nothing is."""
    if low >= high:
        return None
    value = round(min(wanted, high), 2)
    if low + _NARROW <= value <= high:
        return value
    middle = round(low + min((high - low) * 0.6, 2 * _NARROW), 3)
    return middle if low < middle <= high else high


# from this log


def _below_failure(run: Run | None, base: Known, high: float, because: str) -> tuple[float, str, float]:
    """A launch that ran out of memory after its pool shows that its fraction was too large: the bound lies
    below it, at least by what the failed allocation lacked; the value to try by half as much again."""
    f, _ = fraction(base)
    if run is None or f is None or base.total is None or not out_of_memory_later(run):
        return high, because, 1.0
    lacking = _lacking(base)
    bound = floor((f.value - max(lacking / base.total.value, 0.001)) * 1000) / 1000
    wanted = f.value - max(1.5 * lacking / base.total.value, 0.03)
    if bound >= high:
        return high, because, wanted
    short = f", {lacking / GIB:.2f} GiB short" if lacking else ""
    return bound, f"at {f.value:g} this launch ran out of memory after its pool{short}", wanted


def out_of_memory_later(run: Run) -> bool:
    """True if a rank ran out of GPU memory once the pool was there."""
    return any(_is_oom(failure) for failure in run.all(Failure) if not failure.cascade)


def _is_oom(failure: Failure) -> bool:
    late = failure.at in ("graph_capture", "warmup", "serving") or (failure.at == "kv_pool" and failure.trace)
    words = f"{failure.text} {failure.message}"
    return bool(late) and _OOM.search(words) is not None and "try to increase" not in words.lower()


def _lacking(base: Known) -> float:
    """Bytes by which the failed allocation missed, as far as the message tells."""
    wanted, free = _either(base, "oom_alloc"), _either(base, "oom_free")
    return max(0.0, wanted.value - (free.value if free else 0)) if wanted is not None else 0.0


def _either(base: Known, name: str) -> Band | None:
    small = base.deployment.reading(f"{name}_mib")
    return base.read(f"{name}_gib") or (small.scaled(MIB) if small is not None else None)
