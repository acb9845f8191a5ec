"""A campaign in words: figures, effects, changes, each once for every face."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from typing import Any

from ullage.core.units import Band
from ullage.lab.campaign.experiment import Confounder, Experiment
from ullage.lab.campaign.report import Report, Row, Shown
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


def percent(value: float) -> str:
    return f"{round(value * 100, 1) + 0.0:+.1f} %"


def interval(found: Effect | Drift) -> str:
    if isinstance(found, Effect) and found.word == "not judged":
        return found.because
    return f"{percent(found.low)} to {percent(found.high)}"


def effect(found: Effect) -> str:
    """ "better: +12.3 % (+10.1 % to +14.6 %)"."""
    return f"{found.word}: {percent(found.value)} ({interval(found)})"


def figure(found: Shown) -> str:
    """ "89.5 tok/s (88.9 to 90.2)", with what was predicted."""
    unit = f" {found.unit}" if found.unit else ""
    return f"{number(found.mean)}{unit} ({number(found.low)} to {number(found.high)})"


def predicted(found: Band | None, unit: str) -> str:
    if found is None:
        return ""
    return f"{number(found.value)} {unit} ({number(found.low)} to {number(found.high)})"


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


def unfinished(experiments: Iterable[Experiment]) -> str:
    return ", ".join(f"{e.name} ({e.stage})" for e in experiments)
