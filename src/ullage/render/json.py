"""Reports to JSON: the stable part, versioned by ``schema``. GiB here, bytes inside."""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

from ullage.core.deployment import Budget, Inferred, Interval
from ullage.core.finding import Change, Evidence, Prediction
from ullage.core.launch import Arg
from ullage.core.ledger import Ledger
from ullage.core.report import Comparison, Diagnosis
from ullage.core.secrets import sealed
from ullage.core.units import GIB, Band, Measured

WHY = "ullage.why/1"
Json = dict[str, object]


def why(diagnosis: Diagnosis) -> bytes:
    """The answer of ``why`` as one JSON object, with a newline at its end."""
    return msgspec.json.format(msgspec.json.encode(why_object(diagnosis)), indent=2) + b"\n"


def why_object(d: Diagnosis) -> Json:
    return {
        "schema": WHY,
        "engine": {"name": d.engine, "version": d.version, "version_source": d.version_source},
        "outcome": d.outcome, "phase": d.phase, "cause": d.cause, "certainty": d.certainty,
        "summary": d.summary, "explanation": d.explanation,
        "evidence": [evidence(e) for e in d.evidence],
        "observed": {name: number(reading.value) for name, reading in sorted(d.observed.items())},
        "observed_at": {name: reading.source for name, reading in sorted(d.observed.items())},
        "inferred": inferred(d.inferred),
        "settings": settings(d.settings),
        "ledgers": [ledger(item) for item in d.budget.ledgers],
        "budget": budget(d.budget),
        "interval": interval(d.interval),
        "refuted": [{"hypothesis": r.hypothesis, "because": r.because} for r in d.refuted],
        "fixes": [fix(change) for change in d.fixes],
        "compare": comparison(d.compare) if d.compare else None,
        "contributing": list(d.contributing), "contradictions": list(d.contradictions), "notes": list(d.notes),
        "timeline": [
            {"rank": s.rank, "stage": s.stage, "begin_s": round(s.begin_s, 3), "end_s": round(s.end_s, 3),
             "failed": s.failed}
            for s in d.timeline
        ],
        "run": {"index": d.run_index + 1, "of": d.runs, "lines": d.num_lines},
    }  # fmt: skip


def number(value: Measured) -> float | int:
    """The figure as printed: whole where it was printed whole."""
    if not math.isfinite(value.value):
        return 0
    return int(value.value) if not value.step and value.value.is_integer() else round(value.value, 12)


def evidence(e: Evidence) -> Json:
    return {
        "file": e.file, "line": e.line, "text": e.text, "rank": e.rank or None, "role": e.role,
        "count": e.count,
    }  # fmt: skip


def inferred(found: Mapping[str, Inferred]) -> Json:
    return {
        name: {"value": i.value, "low": i.low, "high": i.high, "from": i.basis}
        for name, i in sorted(found.items())
    }


def settings(args: Mapping[str, Arg]) -> Json:
    return {
        name: {"value": sealed(arg.value, name), "source": arg.origin} for name, arg in sorted(args.items())
    }


def ledger(item: Ledger) -> Json:
    return {
        "rank": item.rank, "total_gib": _gib(item.total_bytes), "left_gib": _gib(item.left_bytes),
        "total_source": item.total_source or None,
        "items": [
            {
                "stage": e.stage, "name": e.name, "gib": _gib(e.bytes), "low": _gib(e.low),
                "high": _gib(e.high), "certainty": e.certainty, "source": e.source,
            }
            for e in item.entries
        ],
    }  # fmt: skip


def budget(item: Budget) -> Json:
    return {
        "verdict": item.verdict, "fails_at": item.fails_at, "formula": item.formula, "rule": item.rule,
        "pool_gib": _band(item.pool_bytes, GIB), "kv_tokens": _band(item.kv_tokens),
        "bytes_per_token": _band(item.bytes_per_token), "missing": list(item.missing),
        "reserve_gib": _gib(item.reserve.bytes) if item.reserve else None,
    }  # fmt: skip


def interval(item: Interval | None) -> Json | None:
    if item is None:
        return None
    return {
        "flag": item.flag, "low": item.low, "high": item.high, "recommended": item.recommended,
        "empty": item.empty, "low_because": item.low_because, "high_because": item.high_because,
    }  # fmt: skip


def fix(change: Change) -> Json:
    return {
        "change": change.change, "why": change.why, "certainty": change.certainty,
        "predicted": prediction(change.predicted) if change.predicted else None,
    }  # fmt: skip


def prediction(p: Prediction) -> Json:
    gib = _gib(p.kv_bytes) if p.kv_bytes is not None else None
    return {"verdict": p.verdict, "kv_tokens": p.kv_tokens, "kv_gib": gib, "note": p.note}


def comparison(c: Comparison) -> Json:
    return {
        "differences": [
            {
                "setting": d.setting, "baseline": d.baseline, "this": d.this, "decisive": d.decisive,
                "effect_gib": _gib(d.effect_bytes) if d.effect_bytes is not None else None, "note": d.note,
            }
            for d in c.differences
        ],
        "baseline": {
            "file": c.baseline_file,
            "observed": {name: number(r.value) for name, r in sorted(c.baseline_observed.items())},
            "inferred": inferred(c.baseline_inferred),
            "ledgers": [ledger(item) for item in c.baseline_budget.ledgers] if c.baseline_budget else [],
        },
        "confounded": list(c.confounded),
    }  # fmt: skip


def _gib(num_bytes: float) -> float:
    return round(num_bytes / GIB, 4)


def _band(band: Band | None, unit: float = 1.0) -> Json | None:
    if band is None:
        return None
    return {
        "value": round(band.value / unit, 4),
        "low": round(band.low / unit, 4),
        "high": round(band.high / unit, 4),
    }


DIFF = "ullage.diff/1"


def diff(diagnosis: Diagnosis) -> bytes:
    """The answer of ``diff``: both sides' figures and what differs."""
    found = why_object(diagnosis)
    shown = {
        "schema": DIFF,
        **{k: found[k] for k in ("engine", "compare", "observed", "inferred", "settings", "ledgers")},
    }
    return msgspec.json.format(msgspec.json.encode(shown), indent=2) + b"\n"
