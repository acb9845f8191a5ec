"""Which values of gpu_memory_utilization start, from both sides."""

from __future__ import annotations

import math

from ullage.core.deployment import Deployment, Interval
from ullage.core.ledger import Entry
from ullage.core.run import Failure, Run
from ullage.core.units import GIB, Band
from ullage.engines.vllm.beside import beside as beside_share
from ullage.engines.vllm.outside import before_baseline
from ullage.engines.vllm.peak import sampler_bytes
from ullage.engines.vllm.pool import bytes_per_token, kv_plans
from ullage.engines.vllm.readings import printed, smallest
from ullage.engines.vllm.settings import Settings, settings
from ullage.engines.vllm.terms import Terms, terms
from ullage.engines.vllm.verdict import load_check

FLAG = "gpu_memory_utilization"
#: stages in which the pool already has its memory
AFTER_POOL = ("graph_capture", "warmup", "serving")
#: the least by which a share that failed is lowered, of the card
STEP = 0.005
#: engineers of vLLM recommend 0.90 to 0.95: lazily made workspaces, NCCL and fragments need the rest
PRUDENT = 0.95
#: what a host needs of a memory that it shares with its GPU
HOST_PART = 0.10


def interval(run: Run | None, deployment: Deployment) -> Interval:
    """low: the share at which one request of max_model_len just fits; high: the largest share beside which
    graphs and workspaces still have room in what was free at the start.

    low = (U x T - pool + needed) / T; high = (free at start - what lies beside the share) / T
    """
    deployment = printed(deployment)
    s = settings(deployment)
    t = terms(deployment, s)
    low, low_because = lower(deployment, s, t)
    high, high_because = upper(deployment, s)
    if run is None and (check := load_check(deployment, t)) is not None and check[2] == "fails":
        low, low_because = max(low or 0.0, 1.0), "loading the weights takes more than the whole GPU"
        return Interval(FLAG, low, min(high or 0.0, low), None, low_because, high_because, check[1])
    margin = 0.005 if "free_at_start_gib" in deployment.readings else 0.03
    if shares_memory(deployment):
        margin = HOST_PART  # the host lives in the same memory, and takes more of it later
    if run is not None:
        if low is not None and low >= s.utilization and past_the_pool(run, deployment):
            low, low_because = None, ""  # it passed this check: what it needs is not what is known of it
        elif low is not None and high is not None and low >= high and not seen_weights(t):
            low, low_because = None, ""  # an estimate of the weights proves no launch impossible
        limit, because = observed_limit(run, deployment, s)
        if limit is not None and (high is None or limit < high):
            high, high_because, margin = limit, because, 0.015  # what was missing is a lower limit
        elif started(run) and high is not None and high < s.utilization <= 1:
            high, high_because = s.utilization, f"the run started with {s.utilization:g}"
    best = recommended(low, high, s, margin)
    if run is not None and started(run) and high is not None and (low or 0.0) < s.utilization <= high:
        best = s.utilization
    return Interval(FLAG, low, high, best, low_because, high_because)


def shares_memory(deployment: Deployment) -> bool:
    gpu = deployment.machine.gpu if deployment.machine else None
    return gpu is not None and gpu.unified_memory


def started(run: Run) -> bool:
    """True if the run got past its pool, and no failure is seen."""
    return run.reached in ("kv_pool", *AFTER_POOL) and not any(not f.cascade for f in run.failures)


def seen_weights(t: Terms) -> bool:
    """True if the log shows the weights, or the pool that they left."""
    printed_pool = t.pool is not None and t.pool.certainty == "observed"
    return printed_pool or any(term.stage == "weights" and term.certainty == "observed" for term in t.held)


def past_the_pool(run: Run, deployment: Deployment) -> bool:
    """True if the pool of this run passed its checks: it was announced, or a later stage was reached."""
    later = run.reached in AFTER_POOL or any(f.at in AFTER_POOL for f in run.failures)
    refused = any(f.at == "kv_pool" and not f.cascade for f in run.failures)
    return later or started(run) or ("kv_tokens" in deployment.readings and not refused)


def observed_limit(run: Run, deployment: Deployment, s: Settings) -> tuple[float | None, str]:
    """The share less what was missing, where this run ran out of memory after its pool was made.

    missing = tried - free; in the sampler warm-up also the buffers that would have followed.
    """
    failure = next((f for f in run.failures if not f.cascade and f.at in AFTER_POOL and _is_oom(f)), None)
    if failure is None or s.total is None or s.total.value <= 0:
        return None, ""
    tried, free = (deployment.reading(name) for name in ("oom_alloc_gib", "oom_free_gib"))
    seen = (tried.value - free.value) * GIB if tried and free else 0.0
    missing = max(STEP * s.total.value, seen)
    model = deployment.model
    if failure.kind == "sampler-warmup-oom" and model is not None and model.vocab_size:
        rows = min(s.max_num_seqs, s.max_num_batched_tokens)
        missing += max(
            0.0, sampler_bytes(rows, model.vocab_size, s.release).value - 2 * rows * model.vocab_size * 4
        )
    told = f"at least {missing / GIB:.2f} GiB were missing"
    if missing <= STEP * s.total.value:
        told = "the memory beside the pool did not suffice"
    return max(0.0, s.utilization - missing / s.total.value), (
        f"with {s.utilization:g} {told} ({failure.source})"
    )


def _is_oom(failure: Failure) -> bool:
    text = f"{failure.text} {failure.message} {failure.trace.text if failure.trace else ''}"
    words = ("out of memory", "failed to cuda calloc", "failed to cuda malloc")
    return any(word in text.lower() for word in words) or failure.kind == "sampler-warmup-oom"


def needed_bytes(deployment: Deployment, s: Settings, t: Terms) -> tuple[float, str]:
    """(bytes that the pool must have, what they are for): one request of max_model_len where its need is
    known."""
    shown = deployment.reading("needed_kv_gib")
    length = f"one request of {s.max_model_len:,} tokens" if s.max_model_len else "one request"
    if shown is not None:
        return shown.value * GIB, length
    times, pool = deployment.reading("max_concurrency"), smallest(deployment, "kv_gib")
    if times is not None and pool is not None and times.value > 0 and s.core == "V1":
        return pool.value.value * GIB / times.value, length
    if not s.length_given:
        return 0.0, "a first block of cache (the length is not known)"
    plans = kv_plans(deployment, s, Band(1 << 50, 1 << 50, 1 << 50))
    if plans is not None and not s.auto_fit:
        block = plans[0].block_bytes
        return float(plans[0].needed + block), length
    token = bytes_per_token(deployment, s)
    if token is not None and s.max_model_len and not s.auto_fit:
        return token.value * s.max_model_len, length
    return 0.0, "a first block of cache"


def lower(deployment: Deployment, s: Settings, t: Terms) -> tuple[float | None, str]:
    if s.kv_bytes:
        return (
            0.0,
            "the pool is pinned by --kv-cache-memory-bytes: the share only bounds the check at the start",
        )
    if t.pool is None or t.requested is None or t.total is None or t.total.band.value <= 0:
        return None, "unknown: " + ", ".join(t.missing or ("the GPU's total memory",))
    need, what = needed_bytes(deployment, s, t)
    held = t.requested.band.value - t.pool.band.value
    wanted = f", {need / GIB:.2f} GiB for {what}" if need else ""
    return (held + need) / t.total.band.value, (
        f"{held / GIB:.2f} GiB for weights and the profile{wanted}, of {t.total.band.value / GIB:.2f} GiB"
    )


def upper(deployment: Deployment, s: Settings) -> tuple[float | None, str]:
    if s.total is None or s.total.value <= 0:
        return None, "unknown: the GPU's total memory"
    free = smallest(deployment, "free_at_start_gib")
    have = free.value.value * GIB if free else s.total.value - before_baseline(s).value
    origin = f"free at start ({free.source})" if free else "free at start by estimate"
    beside = beside_share(deployment, s)
    taken = sum(entry.bytes for entry in beside)
    names = ", ".join(f"{entry.name} {entry.bytes / GIB:.2f}" for entry in beside if entry.bytes)
    text = f"{have / GIB:.2f} GiB {origin}" + (
        f", less what lies beside the share: {names} GiB" if names else ""
    )
    return max(0.0, min(1.0, (have - taken) / s.total.value)), text


def recommended(low: float | None, high: float | None, s: Settings, margin: float = 0.005) -> float | None:
    """The largest share in steps of 0.01 that keeps ``margin`` to the upper limit (half a percent; 3 % where
    free memory is not known, 1.5 % below a share that failed, a tenth on memory shared with the host); never
    above PRUDENT unless less does not start; None where none starts."""
    if low is None:
        return None
    if high is None:
        default = s.utilization
        return default if default > low else None
    if low >= high:
        return None
    best = math.floor((high - margin) * 100 + 1e-9) / 100
    best = min(best, max(PRUDENT, math.ceil((low + 0.01) * 100) / 100))
    if best > low:
        return round(best, 2)
    middle = round((low + high) / 2, 4)
    return middle if low < middle <= high else None


def shortage(deployment: Deployment, entries: list[Entry] | None = None) -> Band | None:
    """Bytes by which free memory falls short of the share and what lies beside it; positive: it does not fit.

    None where the share or the total is unknown. For causes that look at what came after the pool.
    """
    deployment = printed(deployment)
    s = settings(deployment)
    t = terms(deployment, s)
    if s.total is None or t.requested is None:
        return None
    free = smallest(deployment, "free_at_start_gib")
    have = free.value.band.scaled(GIB) if free else _minus(s.total, before_baseline(s))
    for entry in entries if entries is not None else beside_share(deployment, s):
        have = _minus(have, Band(entry.bytes, entry.low, entry.high))
    left = _minus(have, t.requested.band)
    return Band(-left.value, -left.high, -left.low)


def _minus(a: Band, b: Band) -> Band:
    return Band(a.value - b.value, a.low - b.high, a.high - b.low)
