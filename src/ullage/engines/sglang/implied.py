"""What the readings of one start imply: pool, bytes per token, and the fraction by the rule turned round.

f = 1 - (free after the weights - pool) / total. Two printed decimals are a band of 0.005 GiB around each.
"""

from __future__ import annotations

from ullage.core.units import GIB, Band
from ullage.engines.sglang.cells import is_recurrent
from ullage.engines.sglang.known import Known, add, less, over, times
from ullage.engines.sglang.pool import max_num_reqs, mm_reserved_bytes, size_pool
from ullage.engines.sglang.settings import Settings, at_least
from ullage.engines.sglang.slack import request_table
from ullage.engines.sglang.speculative import extra_slots
from ullage.engines.sglang.vision import argument_factor, runtime_factor


def modelled(base: Known) -> bool:
    """True where the pool follows from the model's shapes."""
    return base.model is not None and bool(base.model.layers)


def bytes_per_token(base: Known) -> Band | None:
    """Bytes of one token: the printed pool sizes by the printed tokens, else the model's cell."""
    stored, tokens = kv_read(base), base.read("kv_tokens")
    if stored is not None and tokens is not None and tokens.value > 0 and base.read("swa_tokens") is None:
        rows = tokens.value + base.settings.page
        return Band(stored.value / rows, stored.low / rows, stored.high / tokens.value)
    if base.model is None or not modelled(base):
        return base.read("bytes_per_token")
    cell = size_pool(base.model, base.settings, GIB).cell_bytes
    return Band(cell, cell, cell) if cell > 0 else None


def kv_read(base: Known) -> Band | None:
    """Bytes of the printed pool: K + V, or the one size of MLA; of both sub-pools where there are two."""
    parts = [base.read(name) for name in ("k_gib", "v_gib", "swa_k_gib", "swa_v_gib")]
    found = [part for part in parts if part is not None]
    if len(found) >= 2:
        return add(*found)
    one, windows = base.read("kv_gib"), base.read("swa_kv_gib")
    return add(one, windows) if one is not None and windows is not None else one


def capped(base: Known) -> bool:
    """True where a limit, not the budget, decides the pool: the inversion would then say too little.

    --max-total-tokens, unless the log says that the profiled value is used instead; and pools of a round number
    of tokens, which a budget does not make but for once in a thousand (SGLANG_CI_SMALL_KV_SIZE, ..0.5.6).
    """
    limit, tokens = base.settings.max_total_tokens, base.read("kv_tokens")
    if base.read("profiled_tokens") is not None:
        return False
    if tokens is not None and tokens.value % (1024 * max(1, base.settings.page // 16)) == 0:
        return True
    return limit is not None and (tokens is None or tokens.value >= limit - base.settings.page)


def pool_read(base: Known) -> tuple[Band, str] | None:
    """Bytes that the budget paid for, as printed: K + V, recurrent state, and the draft's where charged."""
    stored = kv_read(base)
    if base.model is not None and is_recurrent(base.model) and base.read("mamba_ssm_gib") is None:
        return None
    names = ["k_gib", "v_gib", "kv_gib", "swa_k_gib", "swa_v_gib", "swa_kv_gib"]
    if stored is None:
        return _pool_by_tokens(base)
    parts = [stored]
    charged = ["mamba_conv_gib", "mamba_ssm_gib", "mamba_intermediate_ssm_gib", "mamba_intermediate_conv_gib"]
    if at_least(base.settings.release, "0.5.14"):
        charged += ["draft_k_gib", "draft_v_gib", "draft_kv_gib"]
    parts += [band for name in charged if (band := base.read(name)) is not None]
    return add(*parts), base.source(*names, *charged)


def _pool_by_tokens(base: Known) -> tuple[Band, str] | None:
    tokens, size = base.read("kv_tokens"), bytes_per_token(base)
    if tokens is None or size is None or base.settings.speculative:
        return None
    # a pool of n tokens came from a budget of n .. n + 1 pages
    page = base.settings.page
    return times(Band(tokens.value, tokens.low, tokens.high + page), size), base.source("kv_tokens")


def fraction_by_pool(base: Known) -> tuple[Band, str] | None:
    """f = 1 - (free - pool) / total; from 0.5.18 on a multimodal model's reservation counts as pool."""
    pool = pool_read(base)
    free = base.read("free_after_weights_gib")
    if pool is None or free is None or base.free is None or base.total is None or capped(base):
        return None
    if base.settings.speculative and not at_least(base.settings.release, "0.5.7"):
        pool = _without_extra_slots(base, pool)
    paid = add(pool[0], _exactly(mm_reserved_bytes(base.model, base.settings)))
    share = over(less(base.free, paid), base.total)
    if share is None or not share.high < 1:
        return None
    basis = (
        f"1 - ({base.free.value / GIB:.2f} - {paid.value / GIB:.2f}) / {base.total.value / GIB:.2f}"
        f" ({base.free_source}, {pool[1]})"
    )
    return _one_less(share), basis


def _without_extra_slots(base: Known, pool: tuple[Band, str]) -> tuple[Band, str]:
    """Slots for drafts in flight, 0.4.3.post3..0.5.6.post2, are beyond the budget."""
    s, size = base.settings, bytes_per_token(base)
    if size is None or not s.max_running_requests:
        return pool
    beyond = times(size, _exactly(extra_slots(s, s.max_running_requests)))
    return less(pool[0], beyond), pool[1]


def fraction_by_rest(base: Known) -> tuple[Band, str] | None:
    """Where no pool is printed: total (1 - f) = free after the pool + req_to_token, within the allocator's
    rounding (0 .. 0.35 GiB)."""
    rest, model, s = base.read("free_after_kv_pool_gib"), base.model, base.settings
    if rest is None or base.total is None or base.total.value <= 0 or capped(base):
        return None
    table = _request_table(base, s)
    held = add(rest, _exactly(table), Band(0.1 * GIB, 0, 0.35 * GIB if model is not None else 2.4 * GIB))
    share = over(held, base.total)
    if share is None or not share.high < 1:
        return None
    basis = (
        f"1 - ({rest.value / GIB:.2f} + {(held.value - rest.value) / GIB:.2f}) / {base.total.value / GIB:.2f}"
        f" ({base.source('free_after_kv_pool_gib')}): free after the pool and its request table"
    )
    return _one_less(share), basis


def _request_table(base: Known, s: Settings) -> int:
    model, tokens = base.model, base.read("kv_tokens")
    context = s.context_length or (model.max_context if model else None) or 0
    requests = base.read("max_running_requests")
    rows = (
        int(requests.value) if requests else max_num_reqs(s, int(tokens.value) if tokens else 0, context, None)
    )
    entry = request_table(s, rows, context)
    return entry.bytes if entry is not None else 0


def _exactly(value: float) -> Band:
    return Band(value, value, value)


def _one_less(band: Band) -> Band:
    return Band(1 - band.value, 1 - band.high, 1 - band.low)


def fraction(base: Known) -> tuple[Band | None, str]:
    """mem_fraction_static in force, with where it is from: typed or printed, else implied by the pool that was
    made, else the release's default."""
    printed = base.deployment.readings.get("mem_fraction_static")
    factor = runtime_factor(base.model, base.settings) * planned_factor(base)
    if base.given.mem_fraction_static is not None:
        arg = base.deployment.launch.args.get("mem_fraction_static")
        return _exactly(base.given.mem_fraction_static * factor), arg.source if arg and arg.source else "launch"
    if printed is not None:
        return printed.value.band.scaled(factor), printed.source
    implied, f_default = fraction_by_pool(base) or fraction_by_rest(base), base.settings.mem_fraction_static
    if implied is not None and not _holds(implied[0], f_default, factor):
        return roundest(implied[0]), implied[1]
    release = base.deployment.launch.release
    if f_default is None or (release is None and not _is_plan(base)):
        return None, ""
    return _exactly(f_default * factor), f"default of {base.deployment.launch.version or 'the newest release'}"


def planned_factor(base: Known) -> float:
    """What the arguments' own pass will multiply the fraction with; 1 once a log shows what came of it."""
    if not _is_plan(base) or base.deployment.readings:
        return 1.0
    return argument_factor(base.model, base.settings, given=base.given.mem_fraction_static is not None)


def _is_plan(base: Known) -> bool:
    """True for a command alone: the newest rules answer where no release is named. A log has a release of its
    own, known or not."""
    return base.deployment.launch.command is not None and not base.deployment.by_rank


def _holds(band: Band, fraction: float | None, factor: float) -> bool:
    return fraction is not None and band.low <= fraction * factor <= band.high


def roundest(band: Band) -> Band:
    """The same band with the roundest number in it as its value: people type 0.88, not 0.879996."""
    for decimals in (2, 3, 4):
        value = round(band.value, decimals)
        if band.low <= value <= band.high:
            return Band(value, band.low, band.high)
    return band
