"""The formula turned round: what a log's figures imply where it does not say it, each with its band.

f = 1 - (free_after_weights - pool) / total. Two decimals of GiB are a band of 0.005 around each.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from ullage.core.deployment import Deployment, Inferred
from ullage.core.run import Run
from ullage.core.units import GIB, Band
from ullage.engines.sglang.cells import DTYPES_TO_TRY, cell_size, kv_dtype
from ullage.engines.sglang.compressed import is_compressed
from ullage.engines.sglang.implied import bytes_per_token, fraction_by_pool, fraction_by_rest, kv_read, modelled
from ullage.engines.sglang.known import Known, add, known, less, over
from ullage.engines.sglang.settings import Settings
from ullage.engines.sglang.vision import runtime_factor


def infer(run: Run, deployment: Deployment) -> dict[str, Inferred]:
    """What the figures of ``run`` imply, by name; nothing that the log says itself."""
    base = known(deployment)
    found = [*_sizes(base), *_fraction(base), *_shape(run, base)]
    return {inferred.name: inferred for inferred in found}


def _inferred(name: str, band: Band, basis: str, scale: float = 1.0) -> Inferred:
    return Inferred(name, band.value / scale, band.low / scale, band.high / scale, basis)


def _sizes(base: Known) -> Iterator[Inferred]:
    after, before = base.read("free_after_weights_gib"), base.read("free_before_weights_gib")
    used = base.read("weights_gib")
    if before is None and after is not None and used is not None:
        basis = f"free after the weights + their use ({base.source('free_after_weights_gib', 'weights_gib')})"
        yield _inferred("free_before_weights_gib", add(after, used), basis, GIB)
    if used is None and after is not None and before is not None:
        basis = f"{before.value / GIB:.2f} - {after.value / GIB:.2f} ({base.source('free_after_weights_gib')})"
        yield _inferred("weights_gib", less(before, after), basis, GIB)
    if base.total is not None and base.free is not None and after is not None:
        share = over(less(base.total, base.free), base.total)
        if share is not None and share.low > 0:
            basis = f"1 - {base.free.value / GIB:.2f} / {base.total.value / GIB:.2f}: what the weights hold"
            yield _inferred("least_mem_fraction_static", share, basis)
    size = bytes_per_token(base)
    if size is not None and base.read("kv_tokens") is not None and kv_read(base) is not None:
        yield _inferred(
            "bytes_per_token", size, f"pool / tokens ({base.source('k_gib', 'kv_gib', 'kv_tokens')})"
        )


def _fraction(base: Known) -> Iterator[Inferred]:
    if base.given.mem_fraction_static is not None or base.read("mem_fraction_static") is not None:
        return
    found = fraction_by_pool(base) or fraction_by_rest(base)
    if found is not None:
        yield _inferred("mem_fraction_static", found[0], found[1])


# shape


def _shape(run: Run, base: Known) -> Iterator[Inferred]:
    tensor = [rank for rank in _tp_ranks(run) if rank is not None]
    if tensor and base.deployment.launch.integer("tp_size") is None:
        seen = max(tensor) + 1
        yield Inferred("tp_size", seen, seen, 4096, f"ranks TP0 .. TP{seen - 1} print lines")
    dtype = kv_element(base)
    if dtype is not None:
        yield dtype


def _tp_ranks(run: Run) -> list[int | None]:
    return [event.rank.tp for event in run.events]


def kv_element(base: Known) -> Inferred | None:
    """Bytes of one cache element: the dtype whose cell fits the printed bytes per token, if only one does."""
    if base.given.kv_cache_dtype != "auto" or base.model is None or kv_read(base) is None:
        return None
    size = bytes_per_token(base)
    if size is None or base.read("kv_tokens") is None:
        return None
    fits = [(name, width) for name, width in DTYPES_TO_TRY if _fits(base, name, size)]
    if len(fits) != 1:
        return None
    name, width = fits[0]
    basis = f"{size.value:,.0f} bytes a token are those of {name} ({base.source('k_gib', 'kv_gib')})"
    return Inferred("kv_element_bytes", width, width, width, basis)


def _fits(base: Known, name: str, size: Band) -> bool:
    assert base.model is not None
    cell = cell_size(base.model, _as(base.settings, name)).stored
    return size.low * 0.998 <= cell <= size.high * 1.002


# contradictions


def contradictions(run: Run, deployment: Deployment) -> list[str]:
    """Observed figures that cannot all be true, one sentence each with the numbers and their lines."""
    base = known(deployment)
    found = (_sum(base), _grew(base), _cell(base), _tokens(base), _rest(base))
    return [text for text in found if text is not None]


def _apart(a: Band, b: Band, allowed: float) -> bool:
    return a.low > b.high + allowed or b.low > a.high + allowed


def _sum(base: Known) -> str | None:
    """Weights + free after = free before, but for up to 0.1 GiB taken between."""
    before, after = base.read("free_before_weights_gib"), base.read("free_after_weights_gib")
    used = base.read("weights_gib")
    if before is None or after is None or used is None or not _apart(before, add(after, used), 0.15 * GIB):
        return None
    return (
        f"{after.value / GIB:.2f} GiB free after the weights and {used.value / GIB:.2f} GiB of them make"
        f" {(after.value + used.value) / GIB:.2f}, not the {before.value / GIB:.2f} GiB that were free before"
        f" ({base.source('free_before_weights_gib', 'free_after_weights_gib', 'weights_gib')})"
    )


def _grew(base: Known) -> str | None:
    """More free after the weights than before them: somebody else gave memory back meanwhile."""
    before, after = base.read("free_before_weights_gib"), base.read("free_after_weights_gib")
    if before is None or after is None or after.low <= before.high:
        return None
    return (
        f"{after.value / GIB:.2f} GiB are free after the weights, more than the {before.value / GIB:.2f} before"
        " them: another process of this GPU gave memory back meanwhile, so these figures are not this server's"
        f" alone ({base.source('free_before_weights_gib', 'free_after_weights_gib')})"
    )


def _cell(base: Known) -> str | None:
    """The printed pool against tokens x the model's cell."""
    size, model = bytes_per_token(base), base.model
    if size is None or model is None or not model.layers or kv_read(base) is None:
        return None
    split = base.read("kv_tokens") is None or base.read("swa_tokens") is not None
    if split or not modelled(base) or is_compressed(model) or not cell_size(model, base.settings).stored:
        return None
    cells = [cell_size(model, _as(base.settings, name)).stored for name, _ in DTYPES_TO_TRY]
    if base.given.kv_cache_dtype != "auto":
        cells = [cell_size(model, base.settings).stored]
    if any(size.low * 0.99 <= cell <= size.high * 1.01 for cell in cells):
        return None
    expected = cell_size(model, base.settings).stored
    lines = base.source("k_gib", "kv_gib", "kv_tokens")
    return (
        f"the pool holds {size.value:,.0f} bytes a token, but {model.id} with {kv_dtype(base.settings, model)}"
        f" takes {expected:,.0f} on each of {base.settings.tp} ranks ({lines})"
    )


def _as(s: Settings, name: str) -> Settings:
    return replace(s, kv_cache_dtype=name)


def _tokens(base: Known) -> str | None:
    """The printed fraction against the printed pool: both sides of the rule."""
    stated = base.given.mem_fraction_static
    f = stated * runtime_factor(base.model, base.settings) if stated is not None else None
    implied = fraction_by_pool(base)
    if f is None or implied is None or base.settings.speculative:
        return None
    band = implied[0]
    if band.low - 0.01 <= f <= band.high + 0.01:
        return None
    return (
        f"mem_fraction_static is {f:g}, but the pool that was made needs {band.value:.3f}"
        f" ({band.low:.3f} to {band.high:.3f}): {implied[1]}"
    )


def _rest(base: Known) -> str | None:
    """Free after the pool cannot be more than free after the weights less the pool."""
    after, rest, pool = base.read("free_after_weights_gib"), base.read("free_after_kv_pool_gib"), kv_read(base)
    if after is None or rest is None or pool is None or base.settings.speculative:
        return None
    if rest.low <= less(after, pool).high + 0.1 * GIB:
        return None
    return (
        f"{rest.value / GIB:.2f} GiB are free after the pool, more than {after.value / GIB:.2f} less its"
        f" {pool.value / GIB:.2f} ({base.source('free_after_weights_gib', 'free_after_kv_pool_gib')})"
    )
