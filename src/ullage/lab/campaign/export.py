"""A campaign as data: JSON with everything, CSV with a line for each measurement."""

from __future__ import annotations

import csv
import io
from typing import Any

import msgspec

from ullage.lab.campaign.experiment import Experiment
from ullage.lab.campaign.report import Report

SCHEMA = "ullage.campaign/1"
_COLUMNS = (
    "number",
    "experiment",
    "role",
    "stage",
    "repeat",
    "verdict",
    "effect",
    "low",
    "high",
    "confounded",
    "run",
)


def json(report: Report) -> bytes:
    """One object: the campaign, its experiments with every measurement, and the verdicts."""
    rows = {row.experiment.name: row for row in report.rows}
    experiments = []
    for each in every(report):
        found = msgspec.to_builtins(each)
        row = rows.get(each.name)
        if row is not None:
            found["effects"] = msgspec.to_builtins(row.effects)
            found["beside"] = msgspec.to_builtins(row.beside)
            found["ruled_out"] = row.ruled_out
        experiments.append(found)
    whole: dict[str, Any] = {
        "schema": SCHEMA, "name": report.name, "file": report.file, "status": report.status,
        "launch": report.launch,
        "goals": msgspec.to_builtins(report.targets), "confidence": report.confidence,
        "least_effect": report.least_effect, "repeats": report.repeats, "began": report.began,
        "drift": msgspec.to_builtins(report.drifts), "best": list(report.best), "notes": list(report.notes),
        "experiments": experiments,
    }  # fmt: skip
    return msgspec.json.format(msgspec.json.encode(whole), indent=2) + b"\n"


def every(report: Report) -> list[Experiment]:
    """All experiments by their number."""
    found = [report.baseline, *(row.experiment for row in report.rows), report.again]
    return sorted((each for each in found if each is not None), key=lambda each: each.number)


def table(report: Report) -> str:
    """CSV: a line for each run of the benchmark, and one for an experiment without any."""
    rows = {row.experiment.name: row for row in report.rows}
    names = sorted({name for each in every(report) for found in each.repeats for name in found})
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*_COLUMNS, *names])
    for each in every(report):
        row = rows.get(each.name)
        effect = row.effect if row else None
        judged = [effect.word, effect.value, effect.low, effect.high] if effect else ["", "", "", ""]
        mixed = " ".join(c.setting for c in each.confounded)
        run = each.runs[-1] if each.runs else ""
        for index, found in enumerate(each.repeats or ({},)):
            repeat = index + 1 if each.repeats else ""
            head = [each.number, each.name, each.role, each.stage, repeat, *judged, mixed, run]
            writer.writerow([_safe(cell) for cell in head] + [found.get(name, "") for name in names])
    return out.getvalue()


def _safe(cell: object) -> object:
    """A text that a spreadsheet would take for a formula, made harmless."""
    return f"'{cell}" if isinstance(cell, str) and cell and cell[0] in "=+-@\t\r" else cell
