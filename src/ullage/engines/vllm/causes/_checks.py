"""Changes asked of vLLM's own budget: what the log shows stays true, and what still fails is not offered."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping

from msgspec.structs import replace

from ullage.core.deployment import Budget, Deployment, Reading
from ullage.core.finding import Case, Change, How, Prediction
from ullage.core.units import Measured
from ullage.engines.runtime.changes import Scalar, changed, prediction
from ullage.engines.vllm import interval
from ullage.engines.vllm.causes import _case as shown
from ullage.engines.vllm.pool import kv_plans
from ullage.engines.vllm.readings import printed
from ullage.engines.vllm.settings import Settings, settings
from ullage.engines.vllm.terms import terms

SHARE = "--gpu-memory-utilization"
#: settings that can only make the pool larger when they are lowered: what the log printed is a lower limit
_KEEP_POOL = frozenset({
    "max_num_seqs", "max_num_batched_tokens", "max_model_len", "kv_cache_dtype", "enforce_eager",
    "max_cudagraph_capture_size",
})  # fmt: skip
#: how far weights that are divided over more ranks may be off an even split
_SPLIT = 0.06


def in_force(case: Case) -> Settings:
    """The settings of the launch as given, printed, or chosen by the release."""
    return settings(printed(case.deployment))


def checked(
    case: Case, change: Mapping[str, Scalar], why: str, *, certainty: How = "likely", note: str = ""
) -> Change:
    """A change with what the engine's own budget says of it; without a prediction where it cannot be asked."""
    from ullage.engines import get

    engine, flags = get("vllm"), {f"--{name.replace('_', '-')}": value for name, value in change.items()}
    planned = _planned(case, change, engine.budget(closed(case)))
    after = engine.budget(planned) if planned is not None else Budget()
    known = after.verdict != "unsure" or after.pool_bytes is not None
    said = _surer(case, change, prediction(after, note)) if known else None
    return Change(flags, why, said, certainty)


def _planned(case: Case, change: Mapping[str, Scalar], base: Budget) -> Deployment | None:
    """The deployment after the change; None where nothing known tells what it needs."""
    planned = changed(closed(case), base, change)
    if "tensor_parallel_size" in change:
        return _wider(case, planned, change["tensor_parallel_size"])
    pool = _pool_kept(case, change)
    if pool is None:
        return planned
    reading = Reading("kv_gib", Measured(pool, 0.01), "as the log shows")
    return replace(planned, readings={**planned.readings, "kv_gib": reading}, by_rank={})


def _pool_kept(case: Case, change: Mapping[str, Scalar]) -> float | None:
    """GiB of the printed pool where the change cannot make it smaller: at least so much stays."""
    pool = shown.smallest(case, "kv_gib")
    if pool is None or pool.value <= 0 or not change.keys() <= _KEEP_POOL:
        return None
    estimate = shown.figure(case, "graph_estimate_gib")
    gained = "enforce_eager" in change and estimate is not None and in_force(case).subtracts_graphs
    return pool.value + (estimate.value if gained and estimate is not None else 0.0)


def _wider(case: Case, planned: Deployment, size: Scalar) -> Deployment | None:
    """More ranks: the printed weights divided over them, the rest of the profile as it is on each."""
    weights, now = shown.figure(case, "weights_gib"), in_force(case).cache.tp
    if weights is None or not isinstance(size, int) or size <= 0:
        return planned.without("rest_gib") if case.deployment.model is not None else None
    part = weights.value * now / size * (1 + _SPLIT / 2)
    reading = Reading("weights_gib", Measured(part, 2 * _SPLIT * part), f"{weights.source}, divided")
    return replace(planned, readings={**planned.readings, "weights_gib": reading}, by_rank={})


def _surer(case: Case, change: Mapping[str, Scalar], said: Prediction) -> Prediction:
    """ "starts" where the pool is positive and the share lies above what one request needs by the log."""
    share, bounds = change.get("gpu_memory_utilization"), case.interval
    if said.verdict != "unsure" or not isinstance(share, float) or bounds is None or bounds.low is None:
        return said
    enough = "one request of" in bounds.low_because and share > bounds.low
    return replace(said, verdict="starts") if enough else said


def closed(case: Case) -> Deployment:
    """The deployment with the term of the budget that no line prints, so that a change keeps it.

    share x total - weights - pool - graph estimate = activation peak and non-torch, as one reading; where the
    weights are not printed either, all of it is one reading. The printed pool then follows from its terms.
    """
    deployment = case.deployment
    total = getattr(shown.figure(case, "total_gib"), "value", None) or shown.machine_total(case)
    pool = shown.smallest(case, "kv_gib")
    if total is None or pool is None or in_force(case).kv_bytes:
        return deployment
    requested = shown.figure(case, "requested_gib")
    share = requested.value if requested is not None else shown.utilization(case) * total
    weights = shown.figure(case, "weights_gib", "consumed_gib")
    estimate = shown.figure(case, "graph_estimate_gib") if in_force(case).subtracts_graphs else None
    rest = share - pool.value - (estimate.value if estimate is not None else 0.0)
    parts = {"total_gib": total, "rest_gib": rest - weights.value} if weights is not None else {
        "total_gib": total, "consumed_gib": rest, "rest_gib": 0.0
    }  # fmt: skip
    source = "share x total - weights - pool - printed terms"
    readings = {name: Reading(name, Measured(value, 0.02), source) for name, value in parts.items()}
    readings["total_gib"] = deployment.readings.get("total_gib", readings["total_gib"])
    within = {"non_torch_gib", "peak_activation_gib"}  # they are in the rest
    within |= {"consumed_gib"} if "weights_gib" in deployment.readings else set()
    kept = deployment.without(*within)
    return replace(kept, readings={**kept.readings, **readings}, by_rank={})


def settled(case: Case, changes: Iterable[Change]) -> Iterator[Change]:
    """The changes worth offering: no share outside the interval that starts, none that the formula says fails.

    A failure that rests on weights that are only estimated proves nothing: it is not shown as a prediction.
    """
    for change in changes:
        one = _inside(case, change)
        if one is None:
            continue
        if one.predicted is None or one.predicted.verdict != "fails":
            yield one
        elif not _weighed(case):
            yield replace(one, predicted=None)


def _inside(case: Case, change: Change) -> Change | None:
    """The change with its share lowered into the interval; None where that leaves less than is needed."""
    share, bounds = change.change.get(SHARE), case.interval
    if not isinstance(share, float) or bounds is None or bounds.high is None or bounds.empty:
        return change
    if len(change.change) > 1 or share <= bounds.high:
        return change
    lower = math.floor(bounds.high * 100 + 1e-9) / 100
    if (bounds.low is not None and lower <= bounds.low) or lower < 0.05:
        return None
    again = checked(case, {"gpu_memory_utilization": lower}, change.why, certainty=change.certainty)
    return again if change.predicted is not None else replace(again, predicted=None)


def _weighed(case: Case) -> bool:
    """True if the log shows the weights, or the pool that they left."""
    return any(shown.figure(case, name) is not None for name in ("weights_gib", "consumed_gib", "kv_gib"))


def fewer_tokens(case: Case, why: str, part: int = 2, certainty: How = "likely") -> Iterator[Change]:
    """A smaller max_num_batched_tokens, where that is allowed and smaller than what is in force.

    Without chunked prefill the engine refuses a batch smaller than max_model_len (config/scheduler.py).
    """
    s = in_force(case)
    lower = 1 << max(0, int(math.log2(max(1, s.max_num_batched_tokens // part))))
    if case.deployment.launch.get("enable_chunked_prefill") is False:
        yield Change(
            {"--enable-chunked-prefill": True}, "long prompts in pieces: shorter steps", None, certainty
        )
    elif lower >= max(512, min(s.max_num_seqs, 2048)) and lower < s.max_num_batched_tokens:
        yield Change({"--max-num-batched-tokens": lower}, why, None, certainty)


def shorter_beside(case: Case, why: str, share: float | None = None) -> Iterator[Change]:
    """The longest max_model_len that the pool holds, by the layers of the model or by what one request needs;
    with ``share`` that of the pool which another share leaves."""
    s = in_force(case)
    other = {"gpu_memory_utilization": share} if share is not None else {}
    length = _held(case, other, s) // 1024 * 1024
    if s.max_model_len and not s.auto_fit and 0 < length < s.max_model_len:
        yield checked(case, {**other, "max_model_len": length}, why)


def _held(case: Case, other: Mapping[str, Scalar], s: Settings) -> int:
    """Tokens of the longest request that the pool holds after a change; 0 where it is not known."""
    from ullage.engines import get

    engine, now = get("vllm"), printed(case.deployment)
    planned = printed(changed(closed(case), engine.budget(closed(case)), other))
    pool = engine.budget(planned).pool_bytes
    if pool is None or pool.value <= 0:
        return 0
    plans = kv_plans(planned, settings(planned), pool)
    if plans is not None:
        return plans[1].fitted
    need = interval.needed_bytes(now, s, terms(now, s))[0]
    return int((s.max_model_len or 0) * pool.low / need) if need else 0
