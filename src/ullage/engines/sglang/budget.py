"""The engine's arithmetic for one deployment: ``budget`` and its ledgers.

The terms are in the modules beside it: cells (bytes per token), windows and recurrent (hybrids), speculative,
pool (tokens), slack (what must fit beside the pool), defaults. Readings come first; a rule speaks only
where nothing was read.
"""

from __future__ import annotations

from msgspec import Struct

from ullage.core.deployment import Budget, Deployment, Verdict, likely
from ullage.core.ledger import Entry
from ullage.core.run import Phase
from ullage.core.units import GIB, Band
from ullage.engines.sglang.drafts import NAME, draft_entry, loads_draft_first
from ullage.engines.sglang.implied import bytes_per_token, fraction, modelled
from ullage.engines.sglang.known import Known, add, known, less, over, times
from ullage.engines.sglang.ledgers import ledgers
from ullage.engines.sglang.pool import POOL, Pool, mm_reserved_bytes, size_pool
from ullage.engines.sglang.slack import at_start, beside_the_pool, total_of
from ullage.engines.sglang.speculative import uncharged_draft_bytes

#: graphs and tables are known roughly: only where they hardly fit at all is the start called unsure
LEAST_CHANCE = 0.2
RULE = "sglang, model_runner / kv_cache_configurator: available - pre_model_load * (1 - mem_fraction_static)"


class Sized(Struct, frozen=True):
    """The pool at the middle of the bands, and at their ends."""

    middle: Pool
    low: Pool
    high: Pool

    @property
    def tokens(self) -> Band:
        """Slots of recurrent state are whole: a larger budget can leave a few tokens less."""
        ends = (self.middle.tokens, self.low.tokens, self.high.tokens)
        return Band(self.middle.tokens, min(ends), max(ends))

    @property
    def kv_bytes(self) -> Band:
        """Bytes that the tokens take, the recurrent state not counted."""
        ends = (self.middle.kv_bytes, self.low.kv_bytes, self.high.kv_bytes)
        return Band(self.middle.kv_bytes, min(ends), max(ends))


def budget(deployment: Deployment) -> Budget:
    """The engine's own arithmetic for ``deployment``: will a token fit, how many do, and what is where.

    pool = free after the weights - total x (1 - mem_fraction_static); tokens = pool // bytes per token.
    """
    base = known(deployment)
    f, source = fraction(base)
    missing = _missing(base, f)
    if f is None or base.total is None or base.free is None:
        return Budget(
            missing=missing,
            rule=RULE,
            bytes_per_token=bytes_per_token(base),
            ledgers=ledgers(base, None, (), RULE),
        )
    pool = pool_of(base, f)
    sized = _sized(base, pool)
    tokens = sized.tokens if sized else _tokens_by_log(base, pool)
    entries = free_slack(base, sized.middle) if sized else ()
    middle = sized.middle if sized else None
    verdict, at, cause = _verdict(base, pool, tokens, sized, _left(base, f, entries))
    return Budget(
        verdict=verdict, fails_at=at, cause=cause,
        formula=formula(base, f, pool), rule=f"{RULE}; mem_fraction_static: {source}",
        pool_bytes=pool, kv_bytes=sized.kv_bytes if sized else None, kv_tokens=tokens,
        bytes_per_token=bytes_per_token(base),
        ledgers=ledgers(base, middle, entries, RULE), missing=missing, warnings=_warnings(base, middle),
        reserve=_reserve(base, f),
    )  # fmt: skip


def _reserve(base: Known, f: Band) -> Entry | None:
    """total x (1 - f): what the fraction keeps out of weights and pool."""
    held = slack_bytes(base, f)
    if held is None or base.total is None:
        return None
    name, source = f"reserved at {f.value:.4g}", f"{base.total.value / GIB:.2f} x (1 - {f.value:.4g})"
    return Entry("kv_pool", name, round(held.value), round(held.low), round(held.high), "exact", source)


def pool_of(base: Known, f: Band) -> Band:
    """Bytes for the pool, with the limits that the printed figures allow."""
    assert base.free is not None and base.total is not None
    rule, reserved = POOL.at(base.settings.release), mm_reserved_bytes(base.model, base.settings)

    def at(free: float, total: float, share: float) -> float:
        return rule(free, total, share) - reserved

    # what is free is worked out from the total where nothing is printed: both are off in the same direction
    together = base.read("free_after_weights_gib") is None and base.read("free_before_weights_gib") is None
    low, high = (base.total.low, base.total.high) if together else (base.total.high, base.total.low)
    return Band(
        at(base.free.value, base.total.value, f.value),
        at(base.free.low, low, f.low),
        at(base.free.high, high, f.high),
    )


def formula(base: Known, f: Band, pool: Band) -> str:
    """The rule with its numbers: "21.78 - 94.08 x (1 - 0.55) = -20.56 GiB"."""
    assert base.free is not None and base.total is not None
    reserved = mm_reserved_bytes(base.model, base.settings)
    held = f" - {reserved / GIB:.2f}" if reserved else ""
    left = f"{base.free.value / GIB:.2f} - {base.total.value / GIB:.2f} x (1 - {f.value:.4g}){held}"
    return f"{left} = {pool.value / GIB:.2f} GiB"


def _missing(base: Known, f: Band | None) -> tuple[str, ...]:
    needs = {
        "mem_fraction_static": f is None,
        "free_before_weights_gib": base.total is None,
        "free_after_weights_gib": base.free is None,
        "model": base.model is None,
    }
    return tuple(name for name, lacks in needs.items() if lacks)


def _sized(base: Known, pool: Band) -> Sized | None:
    """The pool by the model's shapes; None where they are not known or not modelled."""
    model, s = base.model, base.settings
    if model is None or not modelled(base):
        return None
    middle, low, high = (size_pool(model, s, b) for b in (pool.value, pool.low, pool.high))
    return Sized(middle, low, high) if middle.cell_bytes > 0 else None


def _tokens_by_log(base: Known, pool: Band) -> Band | None:
    """Tokens by the bytes that the log shows for one; recurrent state that it shows is not theirs."""
    size = bytes_per_token(base)
    state = [band for name in ("mamba_ssm_gib", "mamba_conv_gib") if (band := base.read(name)) is not None]
    found = over(less(pool, add(*state)) if state else pool, size) if size is not None else None
    limit = base.settings.max_total_tokens
    if found is None or limit is None:
        return found
    return Band(min(found.value, limit), min(found.low, limit), min(found.high, limit))


def free_slack(base: Known, pool: Pool) -> tuple[Entry, ...]:
    """What must fit beside ``pool``, each with its limits; observed stages replace the estimates."""
    if base.model is None:
        return ()
    context = base.read("context_len")
    entries = beside_the_pool(base.model, base.settings, pool, int(context.value) if context else None)
    draft = late_draft(base)
    return (draft, *entries) if draft is not None else entries


def late_draft(base: Known) -> Entry | None:
    """The draft's weights where they are loaded after the pool (..0.5.13): out of the slack."""
    if loads_draft_first(base.settings):
        return None
    band, source = base.read("draft_weights_gib"), base.source("draft_weights_gib")
    if band is None or not base.settings.speculative:
        return draft_entry(base.deployment, base.settings, base.model)
    return Entry("kv_pool", NAME, round(band.value), round(band.low), round(band.high), "estimated", source)


def slack_bytes(base: Known, f: Band) -> Band | None:
    """total x (1 - f): what the pool leaves for everything else."""
    return times(base.total, Band(1 - f.value, 1 - f.high, 1 - f.low)) if base.total is not None else None


def _left(base: Known, f: Band, entries: tuple[Entry, ...]) -> Band | None:
    """Slack that is left once the server answers; negative: it runs out of memory before."""
    slack = slack_bytes(base, f)
    if slack is None or not entries:
        return None
    low, value, high = total_of(at_start(entries))
    return less(slack, Band(value, low, high))


Outcome = tuple[Verdict, Phase | None, str | None]


def _verdict(base: Known, pool: Band, tokens: Band | None, sized: Sized | None, left: Band | None) -> Outcome:
    """The engine's checks in their order, each with the odds that its figures leave."""
    if base.free is not None and likely(base.free.chance_above(0)) == "fails":
        return "fails", "weights", "weights-exceed-gpu"
    positive = likely(pool.chance_above(0))
    if positive == "fails":
        return "fails", "kv_pool", "budget-below-weights"
    if sized is not None and sized.middle.mamba_slots is not None and sized.middle.mamba_slots <= 0:
        return "fails", "kv_pool", "hybrid-state-floor-exceeds-budget"
    some = likely(tokens.chance_above(0.5)) if tokens is not None else positive
    if some == "fails":
        return "fails", "kv_pool", "budget-below-weights"
    if "unsure" in (positive, some):
        return "unsure", None, None
    if base.total is not None and left is not None and left.high < -GIB / 4:
        return "fails", "graph_capture", "graph-capture-oom"
    if left is not None and left.chance_above(0) < LEAST_CHANCE:
        return "unsure", None, None
    return "starts", None, None


def _warnings(base: Known, pool: Pool | None) -> tuple[str, ...]:
    s, found = base.settings, []
    if pool is not None and pool.stored_bytes > pool.cell_bytes * 1.005:
        ratio = pool.stored_bytes / pool.cell_bytes
        found.append(f"the pool stores {ratio:.3f} times what this release budgets for a token")
    if s.max_total_tokens is not None and pool is not None and s.max_total_tokens > pool.profiled_tokens:
        found.append("--max-total-tokens is above what the budget holds and has no effect")
    if base.model is not None and uncharged_draft_bytes(base.model, s, 1 << 20):
        found.append("the draft's KV is not counted in the budget of this release: it comes out of the slack")
    return tuple(found)
