"""The ledger of each rank: what a log shows stage by stage, and the rules where it shows nothing.

The engine prints what is free after each stage. A stage takes the drop between two such figures; what is known
of it by name (pool sizes, graphs, the request table) is taken out, the rest keeps the stage's own name. So the
entries of a start that ran to its end add up to what was really taken.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from ullage.core.deployment import Reading
from ullage.core.ledger import Entry, Ledger
from ullage.core.run import PHASES, Phase
from ullage.core.units import GIB, MIB, Band
from ullage.engines.sglang.known import Known, less, rank_readings
from ullage.engines.sglang.pool import Pool

Readings = dict[str, Reading]
#: what is free after each stage, in the order of a start: figure, stage, what a drop without a name is called
STAGES: tuple[tuple[str, Phase, str], ...] = (
    ("free_after_kv_pool_gib", "kv_pool", "request table and the like"),
    ("free_before_graphs_gib", "kv_pool", "attention workspaces"),
    ("free_after_graphs_gib", "graph_capture", "graphs, not named"),
    ("free_at_ready_gib", "warmup", "draft and warm-up"),
)
#: printed sizes by the stage in whose drop they lie
PRINTED: tuple[tuple[str, Phase, str, str], ...] = (
    ("k_gib", "kv_pool", "K cache", "free_after_kv_pool_gib"),
    ("v_gib", "kv_pool", "V cache", "free_after_kv_pool_gib"),
    ("swa_k_gib", "kv_pool", "K cache, windows", "free_after_kv_pool_gib"),
    ("swa_v_gib", "kv_pool", "V cache, windows", "free_after_kv_pool_gib"),
    ("kv_gib", "kv_pool", "KV cache", "free_after_kv_pool_gib"),
    ("swa_kv_gib", "kv_pool", "KV cache, windows", "free_after_kv_pool_gib"),
    ("mamba_conv_gib", "kv_pool", "convolution state", "free_after_kv_pool_gib"),
    ("mamba_ssm_gib", "kv_pool", "recurrent state", "free_after_kv_pool_gib"),
    ("mamba_intermediate_ssm_gib", "kv_pool", "recurrent state of drafts", "free_after_kv_pool_gib"),
    ("mamba_intermediate_conv_gib", "kv_pool", "convolution state of drafts", "free_after_kv_pool_gib"),
    ("graphs_gib", "graph_capture", "CUDA graphs", "free_after_graphs_gib"),
    ("draft_weights_gib", "weights", "draft weights", "free_at_ready_gib"),
    ("draft_k_gib", "kv_pool", "draft K cache", "free_at_ready_gib"),
    ("draft_v_gib", "kv_pool", "draft V cache", "free_at_ready_gib"),
    ("draft_kv_gib", "kv_pool", "draft KV cache", "free_at_ready_gib"),
    ("draft_graphs_gib", "graph_capture", "draft CUDA graphs", "free_at_ready_gib"),
)
#: entries that lie between the weights and the end of the pool, taken out of that drop where they are exact
_IN_THE_POOLS_STAGE = ("req_to_token", "LoRA buffers")
#: a drop below this is rounding of the printed figures
LEAST = 25 * MIB


def ledgers(base: Known, pool: Pool | None, beside: tuple[Entry, ...], rule: str) -> tuple[Ledger, ...]:
    """One ledger a rank: entries + left = what was free before the weights."""
    ranks = rank_readings(base.deployment).items()
    made = (_ledger(base, rank, readings, pool, beside, rule) for rank, readings in ranks)
    return tuple(ledger for ledger in made if ledger is not None)


def _ledger(
    base: Known, rank: str, readings: Readings, pool: Pool | None, beside: tuple[Entry, ...], rule: str
) -> Ledger | None:
    before = readings.get("free_before_weights_gib")
    total = before.value.value * GIB if before is not None else base.total.value if base.total else 0
    if not total:
        return None
    weights = _all([_weights(base, readings, total)])
    printed = _all(observed(readings, stage, label, name) for name, stage, label, _ in _shown(readings))
    beside = (*base.before_pool, *beside)
    rests = _rests(readings, beside)
    reached = {entry.stage for entry in (*printed, *rests)}
    rules = _by_rule(base, readings, pool, beside, rule, reached)
    entries = sorted((*weights, *printed, *rests, *rules), key=lambda entry: PHASES.index(entry.stage))
    return Ledger(rank, round(total), tuple(entries), before.source if before else base.total_source)


def _shown(readings: Readings) -> list[tuple[str, Phase, str, str]]:
    """Printed sizes without those that are sums of others."""
    halves = "k_gib" in readings and "v_gib" in readings
    return [row for row in PRINTED if row[0] in readings and not (halves and row[0] == "kv_gib")]


def observed(readings: Readings, stage: Phase, label: str, name: str) -> Entry | None:
    """The printed size ``name`` as an entry; None where it is not printed, or another process freed more."""
    found = readings.get(name)
    band = found.value.band.scaled(GIB) if found is not None else None
    if found is None or band is None or band.high < 0:
        return None
    return Entry(stage, label, round(band.value), round(band.low), round(band.high), "observed", found.source)


def _all(entries: Iterable[Entry | None]) -> list[Entry]:
    return [entry for entry in entries if entry is not None]


def _weights(base: Known, readings: Readings, total: float) -> Entry | None:
    printed = observed(readings, "weights", "weights", "weights_gib")
    before, after = readings.get("free_before_weights_gib"), readings.get("free_after_weights_gib")
    if printed is not None:
        return replace(printed, source=_lines(before, readings["weights_gib"]))
    if after is None:
        return _weights_by_rule(base, total)
    whole = before.value.band.scaled(GIB) if before is not None else base.total or Band(total, total, total)
    used = less(whole, after.value.band.scaled(GIB))
    if used.high < 0:
        return None  # another process freed memory meanwhile
    low, high, source = round(used.low), round(used.high), _lines(before, after)
    known = before is not None or high - low < 64 * MIB
    return Entry(
        "weights", "weights", round(used.value), low, high, "observed" if known else "estimated", source
    )


def _lines(*readings: Reading | None) -> str:
    return ", ".join(dict.fromkeys(reading.source for reading in readings if reading is not None))


def _weights_by_rule(base: Known, total: float) -> Entry | None:
    if base.free is None or base.total is None:
        return None
    used = less(Band(total, total, total), base.free)
    for entry in base.before_pool:
        used = Band(used.value - entry.bytes, used.low - entry.low, used.high - entry.high)
    low, high = max(0, round(used.low)), round(used.high)
    return Entry("weights", "weights", round(used.value), low, high, "estimated", base.free_source)


def _rests(readings: Readings, beside: tuple[Entry, ...]) -> list[Entry]:
    """What each stage took beyond the sizes that are printed for it."""
    found: list[Entry] = []
    before, passed = readings.get("free_after_weights_gib"), list[str]()
    for name, stage, label in STAGES:
        passed.append(name)
        after = readings.get(name)
        if after is None:
            continue
        if before is not None:
            found += _rest(readings, before, after, passed, stage, label, beside)
        before, passed = after, []
    return found


def _rest(
    readings: Readings, before: Reading, after: Reading, passed: list[str], stage: Phase, label: str,
    beside: tuple[Entry, ...],
) -> list[Entry]:  # fmt: skip
    """What lies between two printed figures; ``passed``: the stages between them, the last one included."""
    drop = less(before.value.band.scaled(GIB), after.value.band.scaled(GIB))
    named = [row for row in _shown(readings) if row[3] in passed]
    for size in _all(observed(readings, stage_, label_, name) for name, stage_, label_, _ in named):
        drop = less(drop, Band(size.bytes, size.low, size.high))
    pool = "free_after_kv_pool_gib" in passed
    known = [e for e in beside if e.name in _IN_THE_POOLS_STAGE and e.low == e.high] if pool else []
    if pool and not any(row[1] == "kv_pool" for row in named):
        stage, label, known = "kv_pool", "KV pool and request table", []
    elif len(passed) > 1:
        label = "tables, workspaces and the like" if pool else label
    entries: list[Entry] = []
    for entry in known:
        if entry.bytes <= drop.high:
            entries.append(entry)
            drop = less(drop, Band(entry.bytes, entry.bytes, entry.bytes))
    if drop.value > LEAST:
        low, high = max(0, round(drop.low)), round(drop.high)
        entries.append(Entry(stage, label, round(drop.value), low, high, "observed", _lines(before, after)))
    return entries


def _by_rule(
    base: Known,
    readings: Readings,
    pool: Pool | None,
    beside: tuple[Entry, ...],
    rule: str,
    reached: set[Phase],
) -> list[Entry]:
    """The pool and what stands beside it by the rules, for stages that the log does not show."""
    if pool is None or pool.tokens <= 0:
        return []
    found: list[Entry] = []
    if "kv_pool" not in reached and "free_after_kv_pool_gib" not in readings:
        found.append(_cache(base, pool, rule))
        if pool.state_bytes:
            found.append(Entry.exact("kv_pool", "recurrent state", round(pool.state_bytes), rule))
    shown = {"graph_capture"} & reached or ({"graph_capture"} if _past_graphs(readings) else set())
    for entry in beside:
        if entry.name == "draft KV, not budgeted" and _draft_printed(readings):
            continue
        if entry.name == "draft weights" and "draft_weights_gib" in readings:
            continue
        before_graphs = entry.stage == "kv_pool" and not _past_pool(readings, entry.name)
        graphs = entry.stage == "graph_capture" and not shown
        later = entry.stage in ("warmup", "serving") and not _past_graphs(readings)
        if before_graphs or graphs or later:
            found.append(entry)
    return found


def _cache(base: Known, pool: Pool, rule: str) -> Entry:
    """The token pool by the rule: as exact as the free memory that it starts from."""
    size, free = pool.kv_bytes, base.free
    if free is None or free.high - free.low < 64 * MIB:
        return Entry.exact("kv_pool", "KV cache", size, rule)
    low, high = max(0, round(size - free.value + free.low)), round(size + free.high - free.value)
    return Entry("kv_pool", "KV cache", size, low, high, "estimated", rule)


def _draft_printed(readings: Readings) -> bool:
    return any(name in readings for name in ("draft_k_gib", "draft_kv_gib"))


def _past_graphs(readings: Readings) -> bool:
    return "free_after_graphs_gib" in readings or "free_at_ready_gib" in readings


def _past_pool(readings: Readings, name: str) -> bool:
    """True if a printed figure already holds the entry: the request table in the pool's drop, workspaces in the
    one before the graphs."""
    figure = "free_after_kv_pool_gib" if name == "req_to_token" else "free_before_graphs_gib"
    return figure in readings or _past_graphs(readings)
