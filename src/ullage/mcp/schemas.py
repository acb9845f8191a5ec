"""What each tool returns, as JSON Schema: the objects of ``--json`` (docs/json.md). More keys may be added."""

from __future__ import annotations

from typing import Any

from ullage.render.check_json import CHECK
from ullage.render.comm_json import PLAN as COMM_PLAN
from ullage.render.json import DIFF, WHY
from ullage.render.plan_json import PLAN
from ullage.render.spec_json import SPEC

Schema = dict[str, Any]
RUNS, RUN = "ullage.mcp-runs/1", "ullage.mcp-run/1"
TEXT: Schema = {"type": "string"}
NUMBER: Schema = {"type": "number"}
WHOLE: Schema = {"type": "integer"}
BOOL: Schema = {"type": "boolean"}
ANY: Schema = {}


def optional(kind: Schema) -> Schema:
    return {"anyOf": [kind, {"type": "null"}]}


def many(kind: Schema) -> Schema:
    return {"type": "array", "items": kind}


def by_name(kind: Schema) -> Schema:
    return {"type": "object", "additionalProperties": kind}


def one_of(*values: str, none: bool = False) -> Schema:
    return {"enum": [*values, *([None] if none else [])]}


def record(**fields: Schema) -> Schema:
    """An object whose ``fields`` are all there; others may be."""
    return {"type": "object", "properties": {k.rstrip("_"): v for k, v in fields.items()},
            "required": [k.rstrip("_") for k in fields]}  # fmt: skip


def answer(schema: str, **fields: Schema) -> Schema:
    return record(schema={"const": schema}, **fields)


_PHASE = one_of(
    "args", "init", "weights", "profile", "kv_pool", "graph_capture", "warmup", "serving", none=True
)
_VERDICT = one_of("starts", "fails", "unsure")
_ENGINE = record(name=optional(TEXT), version=optional(TEXT))
_BAND = record(value=NUMBER, low=NUMBER, high=NUMBER)
_INFERRED = by_name(record(value=NUMBER, low=NUMBER, high=NUMBER, from_=TEXT))
_SETTINGS = by_name(record(value=ANY, source=TEXT))
_ITEM = record(
    stage=TEXT, name=TEXT, gib=NUMBER, low=NUMBER, high=NUMBER,
    certainty=one_of("observed", "exact", "estimated"), source=TEXT,
)  # fmt: skip
_LEDGERS = many(record(rank=TEXT, total_gib=NUMBER, left_gib=NUMBER, items=many(_ITEM)))
_BUDGET = record(
    verdict=_VERDICT, formula=TEXT, rule=TEXT, pool_gib=optional(_BAND), kv_tokens=optional(_BAND),
    bytes_per_token=optional(_BAND), missing=many(TEXT),
)  # fmt: skip
_INTERVAL = optional(record(
    flag=TEXT, low=optional(NUMBER), high=optional(NUMBER), recommended=optional(NUMBER), empty=BOOL,
))  # fmt: skip
_FIXES = many(record(
    change=by_name({"type": ["string", "number", "boolean"]}), why=TEXT, certainty=TEXT,
    predicted=optional(record(verdict=_VERDICT, kv_tokens=optional(WHOLE), kv_gib=optional(NUMBER))),
))  # fmt: skip
_COMPARE = optional(record(
    differences=many(record(
        setting=TEXT, baseline=TEXT, this=TEXT, decisive=BOOL, effect_gib=optional(NUMBER),
    )),
    baseline=record(observed=by_name(NUMBER), inferred=_INFERRED), confounded=many(TEXT),
))  # fmt: skip
_EVIDENCE = many(record(
    file=TEXT, line=WHOLE, text=TEXT, rank=optional(TEXT), role=one_of("root", "cascade", "context"),
))  # fmt: skip
_STEP = record(
    us=_BAND, entries=many(record(stage=TEXT, name=TEXT, us=NUMBER, low=NUMBER, high=NUMBER, certainty=TEXT)),
)  # fmt: skip

WHY_SCHEMA = answer(
    WHY, engine=_ENGINE, outcome=one_of("started", "crashed", "hang", "unknown"), phase=_PHASE,
    cause=optional(TEXT), certainty=one_of("certain", "likely", "possible", none=True), summary=TEXT,
    explanation=TEXT, evidence=_EVIDENCE, observed=by_name(NUMBER), inferred=_INFERRED, settings=_SETTINGS,
    ledgers=_LEDGERS, budget=_BUDGET, interval=_INTERVAL,
    refuted=many(record(hypothesis=TEXT, because=TEXT)), fixes=_FIXES, compare=_COMPARE,
    contradictions=many(TEXT), notes=many(TEXT), run=record(index=WHOLE, of=WHOLE, lines=WHOLE),
)  # fmt: skip
DIFF_SCHEMA = answer(
    DIFF, engine=_ENGINE, compare=_COMPARE, observed=by_name(NUMBER), inferred=_INFERRED, settings=_SETTINGS,
    ledgers=_LEDGERS,
)  # fmt: skip
PLAN_SCHEMA = answer(
    PLAN, engine=_ENGINE, model=record(id=optional(TEXT), source=optional(TEXT)),
    gpus=optional(record(name=TEXT, count=optional(WHOLE), total_gib=optional(NUMBER))), verdict=_VERDICT,
    why=TEXT, fails_at=_PHASE, cause=optional(TEXT), missing=many(TEXT), settings=_SETTINGS,
    readings=by_name(NUMBER), ledgers=_LEDGERS, budget=_BUDGET,
    kv=optional(record(
        tokens=optional(WHOLE), gib=NUMBER, bytes_per_token=optional(WHOLE), concurrency=by_name(NUMBER),
    )),
    speed=optional(record(points=many(record(batch=WHOLE, tok_s=_BAND)), ledger=_STEP)),
    interval=_INTERVAL, fixes=_FIXES, warnings=many(record(id=TEXT, text=TEXT)),
)  # fmt: skip
SPEC_SCHEMA = answer(
    SPEC, engine=_ENGINE, model=TEXT, gpus=TEXT, method=TEXT, context=WHOLE,
    acceptance=record(length=NUMBER, low=NUMBER, high=NUMBER, source=TEXT), cap=NUMBER,
    verdict=one_of("pays", "loses", "cannot", "unsure"),
    batches=many(record(
        batch=WHOLE, verdict=TEXT, speedup=_BAND, break_even_length=_BAND,
        tok_s=record(without=_BAND, with_=_BAND), decode=_STEP, round=_STEP,
    )),
    pays_at=many(ANY), assumed=many(TEXT), notes=many(TEXT),
)  # fmt: skip
COMM_SCHEMA = answer(
    COMM_PLAN, engine=_ENGINE, model=optional(TEXT), all_reduces=WHOLE, all_reduce_bytes=optional(WHOLE),
    forwards=many(record(phase=TEXT, batch=WHOLE, rows=WHOLE, total_us=_BAND, collectives=many(record(
        kind=TEXT, count=WHOLE, bytes=WHOLE, ranks=WHOLE, backend=TEXT, call_us=_BAND, total_us=_BAND,
    )))),
    backends=many(record(id=TEXT, name=TEXT, result=TEXT, runs=BOOL)),
    try_=many(record(change=by_name({"type": ["string", "boolean"]}), why=TEXT)), missing=many(TEXT),
)  # fmt: skip
CHECK_SCHEMA = answer(
    CHECK, source=TEXT, outcome=one_of("stops", "ok", "unknown"), gpus=many({"type": "object"}),
    driver=optional(TEXT), host={"type": "object"}, software=optional({"type": "object"}),
    findings=many(record(id=TEXT, severity=TEXT, text=TEXT, remedy=TEXT)), missing=many(TEXT),
)  # fmt: skip
_RECORD = record(
    name=TEXT, command=TEXT, outcome=TEXT, created_at=NUMBER, exit_code=optional(WHOLE), why=TEXT,
    engine=optional(TEXT), version=optional(TEXT), ready_s=optional(NUMBER), ended_at=optional(NUMBER),
)  # fmt: skip
RUNS_SCHEMA = answer(RUNS, runs=many(_RECORD), of=WHOLE)
RUN_SCHEMA = answer(RUN, run=_RECORD, state=one_of("running", "over"), ready=BOOL, log=many(TEXT))
