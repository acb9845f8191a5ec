"""A Plan to JSON (schema ullage.plan/1). GiB here, bytes inside."""

from __future__ import annotations

import msgspec

from ullage.core.machine import Machine
from ullage.core.model import Model
from ullage.core.report import Plan
from ullage.core.units import GIB
from ullage.render.json import Json, budget, fix, interval, ledger, settings

PLAN = "ullage.plan/1"


def plan(found: Plan) -> bytes:
    """The answer of ``plan`` as one JSON object, with a newline at its end."""
    return msgspec.json.format(msgspec.json.encode(plan_object(found)), indent=2) + b"\n"


def plan_object(p: Plan) -> Json:
    return {
        "schema": PLAN,
        "engine": {"name": p.engine, "version": p.version, "version_source": p.version_source},
        "model": model(p.model, p.model_id), "gpus": gpus(p.machine),
        "verdict": p.verdict, "proven": p.proven, "fails_at": p.fails_at, "cause": p.cause, "why": p.why,
        "missing": list(p.missing),
        "settings": settings(p.settings),
        "readings": {name: reading.value.value for name, reading in sorted(p.readings.items())},
        "ledgers": [ledger(item) for item in p.budget.ledgers],
        "budget": budget(p.budget),
        "kv": kv(p),
        "speed": _speed(p),
        "interval": interval(p.interval),
        "fixes": [fix(change) for change in p.fixes],
        "warnings": [{"id": caution.id, "text": caution.text} for caution in p.cautions],
    }  # fmt: skip


def _speed(p: Plan) -> Json | None:
    if p.speed is None:
        return None
    from ullage.render.spec_json import speed

    return speed(p.speed)


def model(found: Model | None, name: str | None) -> Json:
    if found is None:
        return {"id": name, "source": None}
    return {
        "id": found.id, "source": found.source, "architecture": found.architecture,
        "parameters": found.parameters, "checkpoint_bytes": found.checkpoint_bytes,
        "quantization": found.quantization or None, "layers": found.num_layers or None,
        "max_context": found.max_context,
    }  # fmt: skip


def gpus(machine: Machine | None) -> Json | None:
    if machine is None or machine.gpu is None:
        return None
    gpu = machine.gpu
    return {
        "name": gpu.name, "count": machine.count,
        "total_gib": round(gpu.total_bytes / GIB, 2) if gpu.total_bytes else None,
        "capability": list(gpu.capability) if gpu.capability else None, "nvlink": machine.nvlink,
        "source": gpu.source,
    }  # fmt: skip


def kv(p: Plan) -> Json | None:
    """The pool: None where it is not known."""
    tokens, each = p.budget.kv_tokens, p.budget.bytes_per_token
    pool = p.budget.kv_bytes or p.budget.pool_bytes
    if pool is None:
        return None
    return {
        "tokens": int(tokens.value) if tokens else None,
        "low_tokens": int(tokens.low) if tokens else None, "high_tokens": int(tokens.high) if tokens else None,
        "gib": round(pool.value / GIB, 4), "low_gib": round(pool.low / GIB, 4),
        "high_gib": round(pool.high / GIB, 4),
        "bytes_per_token": round(each.value) if each else None,
        "concurrency": {str(length): times for length, times in sorted(p.concurrency.items())},
    }  # fmt: skip
