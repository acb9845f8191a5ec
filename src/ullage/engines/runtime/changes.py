"""Candidate changes, each asked of the engine's own arithmetic before it is shown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from msgspec.structs import replace

from ullage.core.deployment import Budget, Deployment, Reading
from ullage.core.finding import Change, How, Prediction
from ullage.core.launch import Arg
from ullage.core.units import Band, Measured

Scalar = str | int | float | bool

#: Readings that are inputs of a budget; the others (pool, tokens, what is free after it) are its results and
#: no longer true once a setting changes.
INPUTS = frozenset({
    "free_before_weights_gib", "free_after_weights_gib", "weights_gib", "draft_weights_gib",
    "total_gib", "free_at_start_gib", "peak_activation_gib", "non_torch_gib", "graph_estimate_gib",
    "consumed_gib", "rest_gib", "bytes_per_token", "context_len", "max_concurrency_len", "max_len",
})  # fmt: skip

#: What another layout or format of the weights changes of the readings.
_WEIGHTS = frozenset({"free_after_weights_gib", "weights_gib", "draft_weights_gib", "bytes_per_token"})
#: Settings after whose change a reading is no longer true.
UNDOES: dict[str, frozenset[str]] = {
    **dict.fromkeys(
        ("tp_size", "pp_size", "dp_size", "ep_size", "enable_dp_attention", "quantization"), _WEIGHTS
    ),
    **dict.fromkeys(("tensor_parallel_size", "pipeline_parallel_size"), frozenset({"consumed_gib", *_WEIGHTS})),
    "kv_cache_dtype": frozenset({"bytes_per_token"}),
    "context_length": frozenset({"context_len"}),
    "max_model_len": frozenset({"max_concurrency_len", "max_len", "needed_kv_gib"}),
    "max_num_seqs": frozenset({"peak_activation_gib", "graph_estimate_gib", "rest_gib"}),
    "max_num_batched_tokens": frozenset({"peak_activation_gib", "rest_gib"}),
    "enforce_eager": frozenset({"graph_estimate_gib"}),
}


class Budgeting(Protocol):
    """An engine, as far as a change asks it."""

    def budget(self, deployment: Deployment) -> Budget: ...


def changed(deployment: Deployment, base: Budget, settings: Mapping[str, Scalar]) -> Deployment:
    """The deployment with other settings; only those readings stay that are still true then. The bytes per
    token that the log shows stay as a reading of their own."""
    undone = frozenset[str]().union(*(UNDOES.get(name, frozenset()) for name in settings))
    kept = _still_true(deployment.readings, undone)
    by_rank = {rank: _still_true(own, undone) for rank, own in deployment.by_rank.items()}
    known = base.bytes_per_token
    if known is not None and "bytes_per_token" not in undone:
        kept.setdefault("bytes_per_token", _reading("bytes_per_token", known))
    args = {name: Arg(value, "given") for name, value in settings.items()}
    return replace(deployment.with_args(**args), readings=kept, by_rank=by_rank)


def _still_true(readings: Mapping[str, Reading], undone: frozenset[str]) -> dict[str, Reading]:
    """The readings that are inputs of a budget, without those that a change makes untrue."""
    return {
        name: reading
        for name, reading in readings.items()
        if (plain := name.removesuffix("_min")) in INPUTS and plain not in undone
    }


def _reading(name: str, band: Band) -> Reading:
    return Reading(name, Measured(band.value, band.high - band.low), "figures of the log")


def prediction(budget: Budget, note: str = "") -> Prediction:
    """What a budget says, in the words of a prediction."""
    tokens, pool = budget.kv_tokens, budget.pool_bytes
    starts = budget.verdict != "fails"
    return Prediction(
        budget.verdict,
        int(tokens.value) if tokens is not None and starts else None,
        int(pool.value) if pool is not None else None,
        note,
    )


def check(
    engine: Budgeting,
    deployment: Deployment,
    settings: Mapping[str, Scalar],
    why: str,
    *,
    certainty: How = "likely",
    note: str = "",
) -> Change:
    """A change of ``settings`` (engine's names, with underscores) with what the engine's rule says of it.

    The flags are shown as they are typed: "--mem-fraction-static".
    """
    planned = changed(deployment, engine.budget(deployment), settings)
    after = engine.budget(planned)
    flags = {f"--{name.replace('_', '-')}": value for name, value in settings.items()}
    known = after.verdict != "unsure" or after.pool_bytes is not None
    said = prediction(after, note) if known else None
    return Change(flags, why, _capped(said, planned, after) if said else None, certainty)


def _capped(said: Prediction, planned: Deployment, budget: Budget) -> Prediction:
    """A pool that a limit of tokens keeps below its budget takes only what these tokens need."""
    limit, each = planned.launch.integer("max_total_tokens"), budget.bytes_per_token
    if limit is None or each is None or said.kv_tokens is None or said.kv_bytes is None:
        return said
    return replace(said, kv_bytes=min(said.kv_bytes, round(said.kv_tokens * each.value)))
