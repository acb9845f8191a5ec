"""A campaign in words: figures, effects, changes, each once for every face."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any

from ullage.core.units import Band, percent_text
from ullage.lab.campaign.experiment import Confounder, Experiment
from ullage.lab.campaign.report import Report, Row, Shown, figures
from ullage.lab.campaign.verdict import Drift, Effect

STATUS = {
    "not begun": "not begun", "unfinished": "unfinished: resume goes on", "finished": "finished",
    "no baseline": "stopped: the baseline was not measured",
}  # fmt: skip
#: a list of settings longer than this is cut
_MOST = 60


def number(value: float) -> str:
    """A measured figure to four digits or so."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def interval(found: Effect | Drift) -> str:
    if isinstance(found, Effect) and found.word == "not judged":
        return found.because
    return f"{percent_text(found.low)} to {percent_text(found.high)}"


def change(found: Effect | Drift | None) -> str:
    """ "+12.3 % (+10.1 % to +14.6 %)"."""
    return f"{percent_text(found.value)} ({interval(found)})" if found is not None else "-"


def effect(found: Effect) -> str:
    """ "better: +12.3 % (+10.1 % to +14.6 %)"."""
    return f"{found.word}: {change(found)}"


def figure(found: Shown) -> str:
    """ "89.5 tok/s (88.9 to 90.2)", with what was predicted."""
    unit = f" {found.unit}" if found.unit else ""
    return f"{number(found.mean)}{unit} ({number(found.low)} to {number(found.high)})"


def predicted(found: Band | None, unit: str) -> str:
    if found is None:
        return ""
    return f"{number(found.value)} {unit} ({number(found.low)} to {number(found.high)})"


#: columns of a baseline's table
BASELINE = ("goal", "at the start", "at the end", "drift", "predicted")


def baseline(report: Report) -> Iterator[tuple[str, str, str, str, str]]:
    """A row for each goal of a baseline that was measured, under the heads BASELINE."""
    drifts = {d.metric: d for d in report.drifts}
    again = report.again if report.again and report.again.stage == "done" else None
    ends = {shown.metric: shown for shown in figures(again, report.targets)} if again else {}
    for shown in figures(report.baseline, report.targets) if report.baseline else ():
        end = ends.get(shown.metric)
        yield (
            shown.metric, figure(shown), figure(end) if end else "-", change(drifts.get(shown.metric)),
            predicted(shown.predicted, shown.unit) or "-",
        )  # fmt: skip


def changes(found: dict[str, Any]) -> str:
    """What an experiment changes, as it is typed."""
    parts = [_flag(name, value) for name, value in dict(found.get("flags") or {}).items()]
    parts += [f"{name}={shlex.quote(str(value))}" if value is not None else f"without {name}"
              for name, value in dict(found.get("env") or {}).items()]  # fmt: skip
    parts += [f"{name}: {found[name]}" for name in ("image", "build", "launch") if found.get(name)]
    return "  ".join(parts) or "nothing"


def _flag(name: str, value: Any) -> str:
    flag = name if name.startswith("-") else f"--{name}"
    if value is None:
        return f"without {flag}"
    if value is True:
        return flag
    if value is False:
        return f"{flag} off"
    return f"{flag} {' '.join(map(str, value)) if isinstance(value, list) else value}"


def confounder(found: Confounder) -> str:
    """One setting that differs too, and why."""
    how = "came along by default" if found.because == "dragged along" else "was given too"
    return f"{found.setting}: {_value(found.baseline)} -> {_value(found.this)} ({how})"


def _value(value: object) -> str:
    if value is None:
        return "not set"
    text = str(value)
    return text if len(text) <= _MOST else f"{text[: _MOST - 4]} ..]"


def verdict(row: Row) -> str:
    """The word of a row: its verdict, or the stage it is in."""
    if row.effect is not None:
        return row.effect.word
    return row.experiment.stage


def state(experiment: Experiment) -> str:
    """How far an experiment is."""
    again = f" (attempt {experiment.attempt})" if experiment.attempt > 1 else ""
    return f"{experiment.stage}{again}"


def counts(report: Report) -> str:
    """How many of each kind there are."""
    found: dict[str, int] = {}
    for row in report.rows:
        word = verdict(row)
        found[word] = found.get(word, 0) + 1
    return ", ".join(f"{count} {word}" for word, count in found.items()) or "nothing tried yet"


def notes(report: Report) -> list[str]:
    """The report's notes, and what is still to do."""
    to_do = ", ".join(f"{e.name} ({e.stage})" for e in report.unfinished)
    return [*report.notes, *([f"to do: {to_do}"] if to_do else [])]
