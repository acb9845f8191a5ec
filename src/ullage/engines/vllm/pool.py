"""From a KV budget to tokens: by the model's layers where they are known, else by the figures of the log."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from ullage.core.deployment import Deployment
from ullage.core.units import GIB, Band
from ullage.engines.vllm.kv_plan import KvPlan, plan
from ullage.engines.vllm.kv_specs import Spec, stages, token_bytes
from ullage.engines.vllm.readings import smallest
from ullage.engines.vllm.settings import Settings
from ullage.engines.vllm.terms import Terms, terms


def kv_plans(deployment: Deployment, s: Settings, pool: Band | None) -> tuple[KvPlan, KvPlan, KvPlan] | None:
    """The engine's plan for the pool's value, low and high limit; None where model, length or pool is
    unknown."""
    parts = kv_stages(deployment, s)
    if parts is None or pool is None or not s.max_model_len:
        return None
    pools = stage_pools(deployment, s) or [pool]
    value, low, high = (
        plan(parts, [int(size) for size in sizes], s.max_model_len, s.cache, s.release, auto_fit=s.auto_fit)
        for sizes in ([p.value for p in pools], [p.low for p in pools], [p.high for p in pools])
    )
    return value, low, high


def stage_pools(deployment: Deployment, s: Settings) -> list[Band] | None:
    """The smallest pool of each pipeline stage where ranks of every stage print their own; else None."""
    if s.cache.pp < 2 or s.kv_bytes:
        return None
    found: dict[int, Band] = {}
    for rank, own in deployment.by_rank.items():
        stage = next((part[2:] for part in rank.split() if part.startswith("PP")), "")
        if not stage.isdigit() or not ("kv_gib" in own or "peak_activation_gib" in own):
            continue
        pool = terms(deployment, s, rank).pool
        if pool is not None:
            known = found.get(int(stage), pool.band)
            found[int(stage)] = min(known, pool.band, key=lambda band: band.value)
    return [found[i] for i in range(s.cache.pp)] if all(i in found for i in range(s.cache.pp)) else None


def kv_stages(deployment: Deployment, s: Settings) -> list[list[Spec]] | None:
    """The specs of each pipeline stage, the draft's layers on the last one; None where the model is unknown."""
    model = deployment.model
    if model is None or not model.layers:
        return None
    parts = stages(model, s.cache, s.release)
    if s.draft:
        extra = stages(
            replace(model, layers=s.draft), replace(s.cache, pp=1, block_size=_block(parts, s)), s.release
        )
        parts[-1] = [*parts[-1], *extra[0]]
    return parts


def _block(parts: Sequence[Sequence[Spec]], s: Settings) -> int:
    """The block size of the target's attention layers: the draft's cache uses the same."""
    return next(
        (spec.block_size for part in parts for spec in part if spec.kind != "mamba"), s.cache.block_size
    )


def bytes_per_token(deployment: Deployment, s: Settings) -> Band | None:
    """Bytes of KV cache per token on the widest rank: a reading, the model's layers, or pool / tokens as
    printed."""
    given = deployment.reading("bytes_per_token")
    if given is not None:
        return given
    parts = kv_stages(deployment, s)
    if parts and all(spec.kind == "full" for part in parts for spec in part):
        widest = max(token_bytes(part) for part in parts) / s.cache.dcp
        return Band(widest, widest, widest)
    pool, tokens = smallest(deployment, "kv_gib"), deployment.reading("kv_tokens")
    if pool is None or tokens is None or tokens.value <= 0 or pool.value.value <= 0:
        return None
    band = pool.value.band.scaled(GIB)
    # the tokens are whole blocks: up to one block of budget is unused
    return Band(band.value / tokens.value, band.low / (tokens.value + 256), band.high / tokens.value)


def kv_tokens(
    deployment: Deployment, s: Settings, t: Terms, plans: tuple[KvPlan, KvPlan, KvPlan] | None
) -> Band | None:
    """The tokens that the engine prints for the pool. A printed figure stands as it is."""
    shown = deployment.reading("kv_tokens")
    if shown is not None:
        return shown
    if plans is not None and plans[0].blocks:
        value, low, high = (one.tokens for one in plans)
        return Band(value, min(low, value), max(high, value))
    token = bytes_per_token(deployment, s)
    if t.pool is None or token is None or token.low <= 0:
        return None
    pool = t.pool.band
    return Band(
        max(0, int(pool.value / token.value)),
        max(0, int(pool.low / token.high)),
        max(0, int(pool.high / token.low)),
    )
