"""What ``comm`` found as JSON (schemas ullage.comm-plan/1 and ullage.comm/1). Times in us, sizes in bytes."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ullage.comm.measured import SCHEMA, Measurement, Outlier
from ullage.core.units import Band
from ullage.planning.comm import Advice, Choice, CommPlan, Forward, Item
from ullage.render.json import Json

PLAN = "ullage.comm-plan/1"


def plan(found: CommPlan) -> bytes:
    """The answer of ``comm plan`` as one JSON object, with a newline at its end."""
    return _encoded(plan_object(found))


def measurements(found: Sequence[Measurement], slow: Sequence[Outlier] = ()) -> bytes:
    """What was measured or imported; ``measurements`` can be read back with --measured."""
    return _encoded({
        "schema": SCHEMA, "measurements": msgspec.to_builtins(list(found)),
        "outliers": [_outlier(one) for one in slow],
    })  # fmt: skip


def plan_object(p: CommPlan) -> Json:
    return {
        "schema": PLAN, "engine": {"name": p.engine, "version": p.version}, "model": p.model_id,
        "links": msgspec.to_builtins(p.links), "layout": msgspec.to_builtins(p.layout),
        "all_reduces": p.num_all_reduces, "all_reduce_bytes": p.main.bytes if p.main else None,
        "forwards": [_forward(one) for one in p.forwards],
        "backends": [_choice(one) for one in p.choices],
        "nccl_memory": {
            "bytes": _band(p.nccl_memory.total), "basis": p.nccl_memory.basis, "at_init": p.at_init,
        } if p.nccl_memory else None,
        "try": [_advice(one) for one in p.advice], "outliers": [_outlier(one) for one in p.outliers],
        "measured": p.num_measured, "missing": list(p.missing),
    }  # fmt: skip


def _encoded(found: Json) -> bytes:
    return msgspec.json.format(msgspec.json.encode(found), indent=2) + b"\n"


def _forward(one: Forward) -> Json:
    return {
        "phase": one.phase, "verify": one.verify, "batch": one.batch, "rows": one.rows,
        "total_us": _band(one.total), "collectives": [_item(item) for item in one.items],
    }  # fmt: skip


def _item(item: Item) -> Json:
    one = item.collective
    return {
        "kind": one.kind, "count": one.count, "bytes": one.bytes, "ranks": one.ranks, "what": one.what,
        "stage": one.stage, "backend": item.backend, "call_us": _band(item.call.band),
        "total_us": _band(item.total), "how": item.call.how, "source": item.call.source,
        "measured": bool(item.measured),
    }  # fmt: skip


def _choice(one: Choice) -> Json:
    s = one.standing
    return {
        "id": s.backend, "name": s.name, "result": s.result, "runs": one.runs, "default": s.default,
        "message": s.message or None, "text": s.text or None, "source": s.source or None,
        "call_us": _band(one.call.band) if one.call else None, "fit": one.call.source if one.call else None,
        "memory_bytes": _band(one.memory) if one.memory else None,
        "gain_us": _band(one.gain_us) if one.gain_us else None, "switch": dict(s.switch),
    }  # fmt: skip


def _advice(one: Advice) -> Json:
    return {
        "change": dict(one.change), "why": one.why, "gain_us": _band(one.gain_us) if one.gain_us else None
    }  # fmt: skip


def _outlier(one: Outlier) -> Json:
    return {"bytes": one.point.bytes, "us": one.point.us, "expected_us": _band(one.expected), "text": one.text}


def _band(band: Band) -> Json:
    return {"value": _rounded(band.value), "low": _rounded(band.low), "high": _rounded(band.high)}


def _rounded(value: float) -> float:
    """As many digits as a time is ever known by."""
    return float(f"{value:.4g}") if abs(value) < 1e6 else round(value)
