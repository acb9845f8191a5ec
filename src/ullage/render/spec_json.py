"""The answer of ``spec`` to JSON (schema ullage.spec/1). Microseconds and bytes, tokens per second of each
request."""

from __future__ import annotations

import msgspec

from ullage.core.timing import Speed, TimeEntry, TimeLedger
from ullage.core.units import GIB, Band
from ullage.render.json import Json
from ullage.spec.report import AllReduces, AtBatch, Payoff

SPEC = "ullage.spec/1"


def spec(found: Payoff) -> bytes:
    """The answer as one JSON object, with a newline at its end."""
    return msgspec.json.format(msgspec.json.encode(spec_object(found)), indent=2) + b"\n"


def spec_object(p: Payoff) -> Json:
    width = p.width
    return {
        "schema": SPEC,
        "engine": {"name": p.engine, "version": p.version}, "model": p.model, "gpus": p.gpu,
        "method": p.method,
        "width": {"depth": width.steps, "topk": width.topk, "verify_rows": width.verify_rows},
        "context": p.context,
        "acceptance": {
            "length": round(p.acceptance.length, 4), "low": round(p.acceptance.low, 4),
            "high": round(p.acceptance.high, 4), "depth": p.acceptance.width.steps,
            "positions": [round(rate, 4) for rate in p.acceptance.positions], "source": p.acceptance.source,
        },
        "cap": p.cap,
        "verdict": p.batches[0].verdict,
        "batches": [at_batch(item) for item in p.batches],
        "depths": [
            {"depth": d.depth, "length": round(d.length, 4), "speedup": band(d.speedup, 4)} for d in p.depths
        ],
        "best_depth": {str(batch): depth for batch, depth in p.best.items()},
        "pays_at": [{"from": first, "to": last} for first, last in p.paying], "tried_to": p.tried_to,
        "memory": [
            {"name": m.name, "gib": round(m.bytes / GIB, 4), "low": round(m.low / GIB, 4),
             "high": round(m.high / GIB, 4), "source": m.source}
            for m in p.memory
        ],
        "kv_tokens": {"without": p.tokens[0], "with": p.tokens[1]},
        "usual_allreduce": {
            "us": band(p.usual.us), "speedup": band(p.usual.speedup, 4), "tok_s": band(p.usual.with_drafts),
        } if p.usual else None,
        "experts": {"num": p.experts[0], "per_token": p.experts[1]} if p.experts else None,
        "measured": list(p.measured), "assumed": list(p.assumed), "notes": list(p.notes),
    }  # fmt: skip


def at_batch(item: AtBatch) -> Json:
    return {
        "batch": item.batch, "verdict": item.verdict, "speedup": band(item.speedup, 4),
        "break_even_length": band(item.break_even_length, 4),
        "tok_s": {"without": band(item.without), "with": band(item.with_drafts)},
        "allreduce": all_reduces(item.all_reduces) if item.all_reduces else None,
        "experts_touched": {"decode": _rounded(item.experts_decode), "verify": _rounded(item.experts_verify)}
        if item.experts_decode is not None else None,
        "decode": time_ledger(item.baseline), "round": time_ledger(item.round),
    }  # fmt: skip


def all_reduces(item: AllReduces) -> Json:
    return {
        "count": item.count, "bytes": item.bytes, "us": band(item.us), "rest_us": round(item.rest_us, 1),
        "allowed_us": {f"{gain:g}": _rounded(us) for gain, us in item.allowed_us},
        "usual_us": band(item.usual_us) if item.usual_us else None,
    }  # fmt: skip


def time_ledger(item: TimeLedger) -> Json:
    """A step: its entries in microseconds, and the band of their sum."""
    return {
        "kind": item.kind, "batch": item.batch, "context": item.context, "rows": item.rows,
        "us": band(item.band_us), "entries": [time_entry(entry) for entry in item.entries],
    }  # fmt: skip


def time_entry(entry: TimeEntry) -> Json:
    return {
        "stage": entry.stage, "name": entry.name, "us": round(entry.microseconds, 1),
        "low": round(entry.low, 1), "high": round(entry.high, 1), "certainty": entry.certainty,
        "source": entry.source,
    }  # fmt: skip


def speed(found: Speed | None) -> Json | None:
    """The ``speed`` of ullage.plan/1: None where model or GPU are not known."""
    if found is None:
        return None
    return {
        "points": [
            {"batch": p.batch, "context": p.context, "tok_s_per_user": band(p.per_user), "tok_s": band(p.total),
             "acceptance_length": round(p.acceptance_length, 3)}
            for p in found.points
        ],
        "ledger": time_ledger(found.ledger), "assumed": list(found.assumed), "measured": list(found.measured),
    }  # fmt: skip


def band(value: Band, digits: int = 1) -> Json:
    return {
        "value": round(value.value, digits), "low": round(value.low, digits), "high": round(value.high, digits)
    }  # fmt: skip


def _rounded(value: float | None) -> float | None:
    return round(value, 1) if value is not None else None
