"""What of a launch a person turns, and the command with a value turned: for faces that have sliders."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from ullage.core import tables
from ullage.core.errors import CommandError
from ullage.core.launch import Arg
from ullage.core.report import Plan
from ullage.planning.plan import engine_of


class Row(Struct, frozen=True, forbid_unknown_fields=True):
    """A row of knobs.toml."""

    setting: str
    kind: Literal["share", "size"]
    label: str
    low: float = 0.0
    high: float = 0.0
    step: float = 0.0
    choices: tuple[int, ...] = ()


class _Table(Struct, frozen=True, forbid_unknown_fields=True):
    knob: tuple[Row, ...]


class Knob(Struct, frozen=True):
    """A setting that can be turned: its flag, its value now, and the values that it may take. ``given``: the
    command sets it; else the engine chose it."""

    setting: str
    flag: str
    label: str
    value: float
    values: tuple[float, ...]
    given: bool


def knobs(plan: Plan) -> tuple[Knob, ...]:
    """The knobs of a plan, in the order of the table; a value between the choices joins them."""
    rows = tables.load("ullage.planning", "knobs.toml", _Table).knob
    found = []
    for row in rows:
        arg = plan.settings.get(row.setting)
        if (
            arg is None
            or isinstance(arg.value, bool)
            or not isinstance(arg.value, int | float)
            or arg.value <= 0
        ):
            continue
        values = sorted({*_values(row), round(float(arg.value), 4)})
        flag = f"--{row.setting.replace('_', '-')}"
        found.append(Knob(row.setting, flag, row.label, float(arg.value), tuple(values), arg.origin == "given"))
    return tuple(found)


def _values(row: Row) -> list[float]:
    if row.kind == "size":
        return [float(choice) for choice in row.choices]
    return [round(row.low + index * row.step, 4) for index in range(1 + round((row.high - row.low) / row.step))]


_MODEL = ("model_path", "model")


def turned(
    command: str, changes: Mapping[str, float], version: str | None = None, model: str | None = None
) -> str:
    """``command`` with other values of settings, each by the spelling that it has there, or added at its end;
    and with another model. Raises CommandError where the command cannot be read."""
    given = engine_of(command).parse(command, version).args
    for setting, value in changes.items():
        if not re.fullmatch(r"[a-z][a-z0-9_]*", setting):
            raise CommandError(f"is no setting: {setting[:40]!r}", where="set")
        command = _with(command, _spelled(setting, given.get(setting)), f"{value:.10g}")
    named = next((name for name in _MODEL if name in given), None)
    if model and named:
        old = given[named]
        if old.source.startswith("-"):
            return _with(command, _spelled(named, old), shlex.quote(model))
        word = re.compile(rf"(?<!\S)(['\"]?){re.escape(str(old.value))}\1(?!\S)")
        return word.sub(lambda _: shlex.quote(model), command, count=1)
    return command


def _spelled(setting: str, arg: Arg | None) -> str:
    """The flag as the command spells it; its full name where it is not there."""
    if arg is not None and arg.source.startswith("-"):
        return arg.source.split("=")[0].split()[0]
    return f"--{setting.replace('_', '-')}"


def _with(command: str, flag: str, value: str) -> str:
    pattern = re.compile(rf"(?<!\S)({re.escape(flag)})(=|[ \t]+(?:\\\n[ \t]*)?)(\"[^\"]*\"|'[^']*'|[^\s-]\S*)")
    found = list(pattern.finditer(command))
    if not found:
        return f"{command.rstrip()} {flag} {value}"
    last = found[-1]
    return f"{command[: last.start(3)]}{value}{command[last.end(3) :]}"
