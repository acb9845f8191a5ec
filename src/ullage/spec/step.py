"""One step in time: Work and rows to entries, in microseconds. Pure functions of numbers and nouns.

Each matrix costs reading it and multiplying with it, which overlap (roofline); kernels' own time, collectives
and the host come on top. Efficiencies and overheads are data (constants.toml).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal

from msgspec import Struct

from ullage.core.ledger import Certainty
from ullage.core.timing import TimeEntry, TimeStage
from ullage.core.units import Band
from ullage.spec.acceptance import Width
from ullage.spec.constants import Constant, Peak, Runtime
from ullage.spec.profit import distinct_experts, independent_rows
from ullage.spec.work import Arithmetic, Cache, Experts, Matrices, Work

#: what errors are shared between entries: all reads of weights are wrong by one factor
FACTORS = ("weights", "experts", "routing", "kv", "collectives", "launch", "host", "draft")


class Call(Struct, frozen=True):
    """Collectives of one kind in a pass: ``count`` of ``bytes`` each, ``us`` one of them."""

    stage: TimeStage
    name: str
    count: int
    bytes: int
    us: Band
    source: str
    certainty: Certainty = "estimated"


#: the collectives of a pass: (rows through the target, requests in it, width of a round or None) -> calls
Calls = Callable[[int, int, "Width | None"], Sequence[Call]]


class Graphs(Struct, frozen=True):
    """The largest decode passes that are captured as CUDA graphs: by ``rows`` of tokens or by ``requests``, as
    the engine counts. None: no limit of this kind; 0: nothing is captured."""

    rows: int | None = None
    requests: int | None = None

    def hold(self, rows: int, requests: int) -> bool:
        return (self.rows is None or rows <= self.rows) and (self.requests is None or requests <= self.requests)


class Costs(Struct, frozen=True):
    """All that turns Work into time on one machine with one engine."""

    peak: Peak
    runtime: Runtime
    constant: dict[str, Constant]
    calls: Calls
    graphs: Graphs

    def value(self, name: str) -> float:
        return self.constant[name].value


class Round(Struct, frozen=True):
    """What is asked: ``batch`` requests at ``context`` tokens; with ``width`` a round of speculation, with
    ``draft`` the work of one draft forward."""

    batch: int
    context: int
    width: Width | None = None
    draft: Work | None = None

    @property
    def rows(self) -> int:
        return self.batch * (self.width.verify_rows if self.width else 1)


def entries(work: Work, asked: Round, costs: Costs) -> tuple[TimeEntry, ...]:
    """Every entry of one decode step, or of one round of drafting and verifying."""
    found = [*_forward(work, asked, costs), *_collectives(asked, costs), *_launch(work, asked, costs)]
    found += _host(asked, costs)
    if asked.width is not None:
        found += _draft(asked, asked.width, costs)
    return tuple(entry for entry in found if entry.microseconds > 0)


class Routing(Struct, frozen=True):
    """How far tokens draw their experts by themselves: 1 is random, 0 is all alike; ``between`` requests and
    ``within`` one."""

    between: float
    within: float


def routing(costs: Costs, side: Literal["low", "value", "high"] = "value") -> Routing:
    between, within = costs.constant["requests_independence"], costs.constant["tokens_independence"]
    return Routing(getattr(between, side), getattr(within, side))


def touched(experts: Experts, asked: Round, routing: Routing) -> float:
    """Distinct experts of one layer that a pass reads, over all ranks."""
    each = asked.width.verify_rows if asked.width else 1
    rows = independent_rows(asked.batch, each, routing.between, routing.within)
    return distinct_experts(experts.num, experts.per_token, rows)


def roofline_us(read_us: float, operations: float, arithmetic: Arithmetic, costs: Costs) -> float:
    """What reading and multiplying take together: (read^p + multiply^p)^(1/p). They overlap, but not wholly: p
    is 1 where one waits for the other and grows without end where they hide each other (the larger of both)."""
    flops = costs.peak.flops_per_us(arithmetic)
    if not flops or operations <= 0:
        return read_us
    power = costs.value("roofline_power")
    multiply_us = operations / (flops * costs.value("compute_efficiency"))
    largest = max(read_us, multiply_us)
    share: float = ((read_us / largest) ** power + (multiply_us / largest) ** power) ** (1.0 / power)
    return largest * share


def matrix_us(item: Matrices, rows: int, costs: Costs) -> float:
    """Reading the matrices and multiplying ``rows`` rows with them."""
    read = item.bytes / (costs.peak.bytes_per_us * costs.value("weights_efficiency"))
    return roofline_us(read, 2.0 * item.params * rows, item.arithmetic, costs)


def experts_us(item: Experts, asked: Round, costs: Costs, routing: Routing) -> float:
    """Reading the experts that are touched and multiplying with them."""
    share = touched(item, asked, routing) / item.num if item.num else 0.0
    read = item.bytes * share / (costs.peak.bytes_per_us * costs.value("experts_efficiency"))
    each = item.params * item.per_token / item.num if item.num else 0.0
    return roofline_us(read, 2.0 * each * asked.rows, item.arithmetic, costs)


def cache_us(item: Cache, asked: Round, costs: Costs) -> float:
    """Reading the cache, once a request or once a row, and multiplying with it. A recurrent state is read once
    and written after each row, so that it can be taken back to the last accepted one."""
    tokens = item.tokens(asked.context)
    reads = asked.batch if item.shared else asked.rows
    num_bytes = reads * item.bytes_per_token * tokens + (asked.batch + asked.rows) * item.state_bytes
    read = num_bytes / (costs.peak.bytes_per_us * costs.value("kv_efficiency"))
    return roofline_us(read, asked.rows * tokens * item.flops_per_token, "bf16", costs)


# --- the entries --------------------------------------------------------------------------------------------


def _forward(work: Work, asked: Round, costs: Costs) -> Iterator[TimeEntry]:
    for item in work.matrices:
        us = matrix_us(item, asked.rows, costs)
        yield _entry(
            "target", item.name, us, costs.constant["weights_efficiency"], "weights", _read(item.bytes, costs)
        )
    if work.experts is not None:
        yield from _experts(work.experts, asked, costs)
    for cache in work.caches:
        us = cache_us(cache, asked, costs)
        why = f"{asked.batch} x {cache.tokens(asked.context):,} tokens of {cache.layers} layers"
        yield _entry("target", cache.name, us, costs.constant["kv_efficiency"], "kv", why)


def _experts(item: Experts, asked: Round, costs: Costs) -> Iterator[TimeEntry]:
    """The routed experts: those of one row, and what further rows add. How much these overlap is less certain
    than how fast experts are read."""
    speed = costs.constant["experts_efficiency"]
    first = experts_us(item, Round(1, asked.context), costs, routing(costs))
    why = f"{item.per_token} of {item.num} experts in each of {item.layers} layers"
    yield _entry("target", "routed experts of one row", first, speed, "experts", why)
    more, low, high = (
        max(0.0, experts_us(item, asked, costs, routing(costs, side)) - first)
        for side in ("value", "low", "high")
    )
    number = touched(item, asked, routing(costs))
    why = f"{number:.1f} of {item.num} experts a layer for {asked.rows} rows"
    low, high = min(low, more) * speed.value / speed.high, max(high, more) * speed.value / speed.low
    yield TimeEntry("target", "routed experts of further rows", more, low, high, "estimated", why, "routing")


def _collectives(asked: Round, costs: Costs) -> Iterator[TimeEntry]:
    for call in costs.calls(asked.rows, asked.batch, asked.width):
        us = call.us.scaled(call.count)
        kib = call.bytes / 1024
        why = f"{call.count} x {kib:,.4g} KiB at {call.us.value:,.0f} µs ({call.source})"
        yield TimeEntry(call.stage, call.name, us.value, us.low, us.high, call.certainty, why, "collectives")


def kernels_us(work: Work, costs: Costs) -> float:
    """What the kernels of a pass take at the least, whatever they read."""
    run = costs.runtime
    extra = work.moe_layers * run.moe_layer_us + work.latent_layers * run.latent_layer_us
    return work.layers * run.layer_us + extra


def _launch(work: Work, asked: Round, costs: Costs) -> Iterator[TimeEntry]:
    """Kernels' own time; outside a CUDA graph the host must launch each, and the GPU waits for it."""
    band, run = costs.constant["launch_band"], costs.runtime
    inside = kernels_us(work, costs)
    each = inside / max(1, work.layers)
    why = f"{work.layers} layers of {each:.0f} µs at the least ({run.engine} in constants.toml)"
    yield _entry("target", "kernels' own time", inside, band, "launch", why)
    if not costs.graphs.hold(asked.rows, asked.batch):
        busy = inside + sum(e.microseconds for e in _forward(work, asked, costs))
        waited = max(0.0, (work.layers + work.moe_layers) * run.eager_layer_us - busy)
        why = f"the host launches a layer in {run.eager_layer_us:.0f} µs, and the GPU waits"
        yield _entry("target", "launches without a CUDA graph", waited, band, "launch", why)


def _host(asked: Round, costs: Costs) -> Iterator[TimeEntry]:
    band, run = costs.constant["host_band"], costs.runtime
    us = run.host_us + run.host_row_us * asked.batch
    yield _entry("round", "scheduler and sampler", us, band, "host", _each(run.host_us, run.host_row_us))
    if asked.width is not None:
        us = run.round_us + run.round_row_us * asked.batch
        yield _entry(
            "round", "choosing and cutting back", us, band, "host", _each(run.round_us, run.round_row_us)
        )


def _each(step_us: float, row_us: float) -> str:
    return f"{step_us:.0f} µs and {row_us:.0f} for each request (constants.toml)"


def _draft(asked: Round, width: Width, costs: Costs) -> Iterator[TimeEntry]:
    """Draft forwards: reading the draft model, and what a forward takes at the least."""
    if not width.forwards or asked.draft is None:
        return
    band, run, draft = costs.constant["draft_band"], costs.runtime, asked.draft
    step = Round(asked.batch * max(1, width.topk), asked.context)
    read = sum(matrix_us(item, step.rows, costs) for item in draft.matrices)
    read += sum(cache_us(item, Round(asked.batch, asked.context), costs) for item in draft.caches)
    if draft.experts is not None:
        read += experts_us(draft.experts, step, costs, routing(costs))
    name = f"{width.forwards} draft forward{'s' if width.forwards > 1 else ''}"
    yield _entry(
        "draft", f"{name}: reads", width.forwards * read, band, "draft", _read(draft.read_bytes, costs)
    )
    captured = costs.graphs.hold(asked.rows, asked.batch)
    least = (run.draft_us if captured else run.eager_draft_us) + kernels_us(draft, costs)
    why = f"{least:.0f} µs a forward at the least ({run.engine} in constants.toml)"
    yield _entry("draft", f"{name}: kernels", width.forwards * least, band, "draft", why)


def _entry(stage: TimeStage, name: str, us: float, limits: Constant, factor: str, source: str) -> TimeEntry:
    """An estimated entry; an efficiency's high limit is the time's low one, a band's are its own."""
    if limits.name.endswith("_efficiency"):
        low, high = us * limits.value / limits.high, us * limits.value / limits.low
    else:
        low, high = us * limits.low, us * limits.high
    return TimeEntry(stage, name, us, low, high, "estimated", source, factor)


def _read(num_bytes: float, costs: Costs) -> str:
    share = costs.constant["weights_efficiency"].value
    return f"{num_bytes / 1e9:.3g} GB at {share:.0%} of {costs.peak.bandwidth_gbs:,.0f} GB/s"
