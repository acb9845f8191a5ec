"""The terms of vLLM's KV budget on one rank: as printed, else by the release's rule or as an estimate.

budget = U x T - weights - activation peak - non-torch memory - graph estimate (from 0.20.0)
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from ullage.core.deployment import Deployment, Reading
from ullage.core.ledger import Certainty
from ullage.core.units import GIB, Band, Measured
from ullage.core.versions import Rules
from ullage.engines.vllm import peak
from ullage.engines.vllm.graphs import estimated_graphs
from ullage.engines.vllm.options import since
from ullage.engines.vllm.readings import Term, printed, read, smallest
from ullage.engines.vllm.settings import Settings, settings
from ullage.engines.vllm.weights_terms import weights_terms

REQUESTED: Rules[[float, float], float] = Rules("requested")


@REQUESTED.since("≤0.6.0", source="vllm 0.13.0, v1/worker/gpu_worker.py, init_device")
def share_of_total(total_bytes: float, utilization: float) -> float:
    """Bytes that the engine may use of a device: U x T. A share of the total, not of what is free."""
    return total_bytes * utilization


@REQUESTED.since("0.14.0", source="vllm 0.14.0, v1/worker/utils.py, request_memory")
def share_rounded_up(total_bytes: float, utilization: float) -> float:
    """The same, rounded up to a whole byte."""
    return math.ceil(total_bytes * utilization)


class Terms(Struct, frozen=True):
    """The whole sum. ``pool`` is None where a term is unknown; ``missing`` names it."""

    total: Term | None
    requested: Term | None
    held: tuple[Term, ...]
    pool: Term | None
    missing: tuple[str, ...] = ()


def terms(deployment: Deployment, s: Settings, rank: str | None = None) -> Terms:
    """The terms of the budget on ``rank`` (None: on the deciding one)."""
    total = total_term(s, deployment)
    requested = requested_term(deployment, s, total)
    pool = pool_term(deployment, s, rank)
    held = held_terms(deployment, s, requested, pool, rank)
    lacking = tuple(
        name for name, known in (
            ("the GPU's total memory", requested), ("the weights' size", named(held, "weights")),
        )
        if known is None
    )  # fmt: skip
    if pool is None and requested is not None and not lacking:
        band = difference(requested.band, [term.band for term in held])
        exact = all(term.certainty == "observed" for term in (requested, *held))
        pool = Term("kv_pool", "KV pool", band, "exact" if exact else "estimated", rule(s))
    return Terms(total, requested, held, pool, lacking if pool is None else ())


def difference(whole: Band, parts: Sequence[Band]) -> Band:
    """``whole`` less ``parts``, whose errors have nothing to do with each other: the sides add as squares. Of
    68 public pools 91 % lie inside."""
    value = whole.value - sum(part.value for part in parts)
    down = math.hypot(whole.value - whole.low, *(part.high - part.value for part in parts))
    up = math.hypot(whole.high - whole.value, *(part.value - part.low for part in parts))
    return Band(value, value - down, value + up)


def total_term(s: Settings, deployment: Deployment) -> Term | None:
    if s.total is None:
        return None
    reading = deployment.readings.get("total_gib")
    gpu = deployment.machine.gpu if deployment.machine else None
    source = reading.source if reading else gpu.source or gpu.name if gpu else ""
    return Term("init", "total", s.total, "observed" if reading else "estimated", source)


def requested_term(deployment: Deployment, s: Settings, total: Term | None) -> Term | None:
    """U x T. A printed value is used while the share is the one it was printed for."""
    shown = deployment.readings.get("requested_gib")
    printed_share = deployment.readings.get("gpu_memory_utilization")
    same = (
        printed_share is None
        or not s.utilization_given
        or abs(printed_share.value.value - s.utilization) < 6e-3
    )
    if shown is not None and same:
        return Term("init", "requested share", shown.value.band.scaled(GIB), "observed", shown.source)
    if total is None:
        return None
    share = REQUESTED.at(s.release)
    band = Band(*(share(value, s.utilization) for value in (total.band.value, total.band.low, total.band.high)))
    return Term(
        "init", "requested share", band, "exact" if total.certainty == "observed" else "estimated", total.source
    )


def pool_term(deployment: Deployment, s: Settings, rank: str | None) -> Term | None:
    """The printed KV budget, or the pinned one (kv_cache_memory_bytes, 0.10.2+: replaces the whole sum)."""
    if s.kv_bytes is not None and s.kv_bytes > 0:
        return Term(
            "kv_pool", "KV pool", Band(s.kv_bytes, s.kv_bytes, s.kv_bytes), "exact", "--kv-cache-memory-bytes"
        )
    shown = deployment.by_rank.get(rank, {}).get("kv_gib") if rank else None
    if shown is None and _prints_terms_only(deployment, rank):
        return None
    shown = shown or smallest(deployment, "kv_gib")
    if shown is None:
        return None
    return Term("kv_pool", "KV pool", shown.value.band.scaled(GIB), "observed", shown.source)


def _prints_terms_only(deployment: Deployment, rank: str | None) -> bool:
    """True if the rank whose terms are used prints them but no pool: from 0.11.1 only the first local rank
    does, and the budget of the others follows from their own terms."""
    peak_of = deployment.readings.get("peak_activation_gib")
    if peak_of is None:
        return False
    for label, own in deployment.by_rank.items():
        mine = own.get("peak_activation_gib")
        if (
            rank == label if rank else mine is not None and mine.source == peak_of.source
        ) and "kv_gib" not in own:
            names = ("weights_gib", "non_torch_gib", "peak_activation_gib")
            return "consumed_gib" in own or all(name in own for name in names)
    return False


def held_terms(
    deployment: Deployment, s: Settings, requested: Term | None, pool: Term | None, rank: str | None
) -> tuple[Term, ...]:
    """Weights, activation peak, non-torch memory and graph estimate, in the order of the engine's sum.

    Where the pool is printed and terms are not, what is left of the share stands as one remainder.
    """
    graphs = graph_term(deployment, s, rank)
    weights, other = weights_terms(deployment, s, rank)
    activation = read(deployment, "peak_activation_gib", "profile", "activation peak", rank)
    seen = other is not None and other.certainty == "observed" and other.band.value != 0
    label = "activation peak" if seen else "activation peak and non-torch"
    rest = read(deployment, "rest_gib", "profile", label, rank)
    known = [
        term
        for term in (weights, activation, other, graphs)
        if term is not None and term.certainty == "observed"
    ]
    unknown = activation is None or other is None or other.certainty != "observed"
    if rest is not None:
        own = (
            graphs if graphs is not None and graphs.certainty == "observed" else None
        )  # else it is in the rest
        return tuple(term for term in (weights, rest, other if seen else None, own) if term is not None)
    if pool is not None and pool.certainty == "observed" and requested is not None:
        if unknown:
            return (*known, remainder(requested, known, pool))
        graphs = graphs_subtracted(requested, [t for t in known if t is not graphs], pool, graphs)
    if activation is None:
        band = peak.activation_peak(deployment, s)
        if band is None:
            band = Band(1.5 * GIB, 0.2 * GIB, 6 * GIB)
        activation = Term(
            "profile", "activation peak", band, "estimated", "sampler and transformer pass of the profile"
        )
    return tuple(term for term in (weights, activation, other, graphs) if term is not None)


def graphs_subtracted(requested: Term, known: Sequence[Term], pool: Term, graphs: Term | None) -> Term | None:
    """What the printed pool shows was taken off for graphs: nothing where share and terms give it without.

    An estimate may be printed and yet not be subtracted; where it is only expected, the printed pool tells it.
    """
    left = remainder(requested, known, pool).band
    if abs(left.value) < 0.05 * GIB:
        return None
    if graphs is None or graphs.certainty == "observed":
        return graphs
    return (
        replace(graphs, band=left, certainty="exact", source="share - printed terms - pool")
        if left.value > 0
        else None
    )


def with_rest(deployment: Deployment) -> Deployment:
    """The deployment with what its share, weights and pool leave for the profile as a reading of its own.

    "rest_gib" stays true when the share changes, while the pool it came from does not: a what-if then need not
    estimate the activation peak. A change of max_num_seqs or max_num_batched_tokens makes it untrue.
    """
    known = printed(deployment)
    rest = named(terms(known, settings(known)).held, "activation peak")
    if rest is None or "pool" not in rest.source or "rest_gib" in deployment.readings:
        return deployment
    band = rest.band.scaled(1 / GIB)
    reading = Reading("rest_gib", Measured(band.value, band.high - band.low), rest.source)
    return replace(deployment, readings={**deployment.readings, "rest_gib": reading})


def remainder(requested: Term, known: Sequence[Term], pool: Term) -> Term:
    """What is left of the share once the printed terms and the pool are taken off."""
    parts = [*known, pool]
    band = Band(
        requested.band.value - sum(term.band.value for term in parts),
        requested.band.low - sum(term.band.high for term in parts),
        requested.band.high - sum(term.band.low for term in parts),
    )
    certainty: Certainty = "estimated" if requested.certainty == "estimated" else "exact"
    if not any(term.name.startswith("weights") for term in known):
        return Term("weights", "weights and profile", band, certainty, "share - pool")
    peaked = any(term.name == "activation peak" for term in known)
    whole = any(term.name == "non-torch" for term in known)
    name = "activation peak" if whole else "activation peak and non-torch"
    name = "non-torch and rounding" if peaked else name
    return Term("profile", name, band, certainty, "share - printed terms - pool")


def graph_term(deployment: Deployment, s: Settings, rank: str | None) -> Term | None:
    """The graph estimate where the release subtracts it."""
    if not s.subtracts_graphs:
        return None
    shown = read(deployment, "graph_estimate_gib", "profile", "graph estimate", rank)
    if shown is not None:
        return shown
    return Term(
        "profile",
        "graph estimate",
        estimated_graphs(s, deployment.model),
        "estimated",
        "graphs in public logs",
    )


def named(held: Sequence[Term], name: str) -> Term | None:
    return next((term for term in held if term.name.startswith(name)), None)


def formula(s: Settings, t: Terms) -> str:
    """The sum with its numbers: "0.95 x 79.19 - 13.64 - 2.87 - 0.25 = 58.47 GiB"."""
    if s.kv_bytes:
        return f"pinned by --kv-cache-memory-bytes: {s.kv_bytes / GIB:.2f} GiB"
    if t.requested is None:
        return ""
    requested = f"{t.requested.band.value / GIB:.2f}"
    if t.total is not None and abs(t.total.band.value * s.utilization - t.requested.band.value) < 0.02 * GIB:
        requested = f"{s.utilization:g} x {t.total.band.value / GIB:.2f}"
    parts = [f"{term.band.value / GIB:.2f}" for term in t.held if abs(term.band.value) >= 0.005 * GIB]
    result = f" = {t.pool.band.value / GIB:.2f} GiB" if t.pool else ""
    return f"{' - '.join([requested, *parts])}{result}".replace("- -", "+ ")


def rule(s: Settings) -> str:
    """The rule in words, with the release it is of."""
    held = "weights - activation peak - non-torch"
    if since(s.release, "0.27.0"):
        held = "(free at start - free after the profile) - transient peak"
    graphs = " - graph estimate" if s.subtracts_graphs else ""
    return f"vLLM {s.release or 'newest rules'} {s.core}: gpu_memory_utilization x total - {held}{graphs}"
