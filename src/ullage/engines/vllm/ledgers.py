"""Where the bytes of each rank's GPU go, stage by stage."""

from __future__ import annotations

from msgspec.structs import replace

from ullage.core.deployment import Deployment
from ullage.core.ledger import Entry, Ledger
from ullage.core.units import Band
from ullage.engines.vllm.beside import graphs_entry, workspaces
from ullage.engines.vllm.outside import before_baseline
from ullage.engines.vllm.readings import Term, read
from ullage.engines.vllm.settings import Settings
from ullage.engines.vllm.terms import Terms, named, terms
from ullage.engines.vllm.weights import draft_weights, lora_slots


def ledgers(deployment: Deployment, s: Settings, t: Terms) -> tuple[Ledger, ...]:
    """One ledger a rank that showed figures, else one for the deciding rank."""
    known = t.pool is not None or named(t.held, "weights") is not None or taken(deployment)
    if t.total is None or not known:
        return ()  # what the rules expect of a rank without weights and pool says nothing
    ranks = list(deployment.by_rank) or [""]
    return tuple(ledger(deployment, s, rank) for rank in ranks[:256])


def fitted(entries: list[Entry], total: int) -> list[Entry]:
    """The entries; what is only estimated beside a printed pool is scaled to the room that the others leave."""
    if not any(entry.stage == "kv_pool" and entry.certainty == "observed" for entry in entries):
        return entries
    loose = [entry for entry in entries if entry.certainty == "estimated" and entry.stage != "weights"]
    room = max(0, total - sum(entry.bytes for entry in entries if entry not in loose))
    wanted = sum(entry.bytes for entry in loose)
    if wanted <= room:
        return entries

    def scaled(entry: Entry) -> Entry:
        size = entry.bytes * room // wanted
        return replace(entry, bytes=size, low=min(entry.low, size), high=min(entry.high, max(size, room)))

    return [scaled(entry) if entry in loose else entry for entry in entries]


def taken(deployment: Deployment) -> bool:
    """True if the log shows how much of the card was in use before the start."""
    return "free_at_start_gib" in deployment.readings


def ledger(deployment: Deployment, s: Settings, rank: str) -> Ledger:
    """Where the bytes of one rank's GPU go: baseline, weights, profile, pool, graphs; the rest is left."""
    t = terms(deployment, s, rank or None)
    size = read(deployment, "total_gib", "init", "total", rank) or t.total
    entries = [baseline(deployment, s, size, rank)]
    entries += [
        entry for term in t.held if term.band.value or term.band.high for entry in parted(term, deployment)
    ]
    if t.pool is not None and t.pool.band.value > 0:
        entries.append(t.pool.entry)
    entries += graphs_left(deployment, s, t) + workspaces(deployment, s)
    total = int(size.band.value) if size else 0
    return Ledger(rank, total, tuple(fitted(entries, total) if t.pool is not None else entries))


def parted(term: Term, deployment: Deployment) -> list[Entry]:
    """A term as entries: an estimate of the weights parted into the target's, a draft's, and LoRA's slots
    (max_loras x max_lora_rank for each linear layer), all of which "Model loading took" counts."""
    if term.name != "weights" or term.certainty != "estimated":
        return [term.entry]
    beside = (("draft weights", draft_weights(deployment)), ("LoRA slots", lora_slots(deployment)))
    own = [
        Term("weights", name, band, "estimated", "tensors by the sharding rules").entry
        for name, band in beside if band is not None and 0 < band.value < term.band.value
    ]  # fmt: skip
    rest = term.entry
    for entry in own:
        rest = replace(
            rest, bytes=rest.bytes - entry.bytes, low=max(0, rest.low - entry.low), high=rest.high - entry.high
        )
    sound = rest.low <= rest.bytes <= rest.high
    return [rest, *own] if sound else [term.entry]


def baseline(deployment: Deployment, s: Settings, total: Term | None, rank: str) -> Entry:
    """What was taken before the engine looked: total - free at start where both are printed."""
    free = read(deployment, "free_at_start_gib", "init", "free at start", rank)
    if free is not None and total is not None and total.certainty == "observed":
        band = Band(
            total.band.value - free.band.value, total.band.low - free.band.high, total.band.high - free.band.low
        )
        return Term("init", "taken before the start", band, "observed", free.source).entry
    return Term("init", "CUDA context and communicators", before_baseline(s), "estimated", "public logs").entry


def graphs_left(deployment: Deployment, s: Settings, t: Terms) -> list[Entry]:
    """CUDA graphs as captured, less what the estimate already reserved in the share."""
    entry = graphs_entry(deployment, s)
    reserved = named(t.held, "graph estimate")
    if reserved is None:
        return [entry] if entry.high > 0 else []
    beyond = entry.bytes - int(reserved.band.value)
    if entry.certainty != "observed" or beyond <= 0:
        return []
    return [replace(entry, name="CUDA graphs beyond the estimate", bytes=beyond, low=beyond, high=beyond)]
