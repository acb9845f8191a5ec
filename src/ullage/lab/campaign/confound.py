"""What an experiment changes beyond what it declares, and how to tell the parts apart."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from ullage.core import tables
from ullage.core.launch import Launch, Value
from ullage.core.secrets import HIDDEN, is_secret
from ullage.lab.campaign.approach import Command, declared
from ullage.lab.campaign.experiment import Confounder
from ullage.lab.campaign.file import Change

#: where a server answers changes nothing of what is measured
_APART = frozenset({"host", "port", "api_key", "served_model_name", "uds", "log_level", "model", "model_path"})


class Resolved(Struct, frozen=True):
    """A launch with every setting that decides, as its release resolves them (None: not known)."""

    launch: Launch
    settings: dict[str, Value]
    command: Command


class _Follows(Struct, frozen=True, forbid_unknown_fields=True):
    setting: str
    source: str
    with_: tuple[str, ...] = field(name="with")


class _Table(Struct, frozen=True, forbid_unknown_fields=True):
    follows: tuple[_Follows, ...]


@cache
def _follows() -> dict[str, tuple[str, ...]]:
    rows = tables.load("ullage.lab.campaign", "follows.toml", _Table).follows
    return {row.setting: row.with_ for row in rows}


def confounders(change: Change, base: Resolved, this: Resolved) -> tuple[Confounder, ...]:
    """The settings in which ``this`` differs from ``base`` without having declared it; secrets hidden."""
    said = _said(change, base.command)
    return tuple(_hidden(found) for found in _undeclared(said, change, base, this))


def _hidden(found: Confounder) -> Confounder:
    if not is_secret(found.setting):
        return found
    return replace(found, baseline=found.baseline and HIDDEN, this=found.this and HIDDEN)


def _said(change: Change, command: Command) -> frozenset[str]:
    """The settings that the change declares: its flags', the parts of those given as JSON, what is the same."""
    found = set(declared(change, command))
    for value in change.flags.values():
        if isinstance(value, str) and value.lstrip().startswith("{"):
            with suppress(ValueError):
                found |= set(json.loads(value))
    return frozenset(found | {name for each in tuple(found) for name in _follows().get(each, ())})


def _undeclared(said: frozenset[str], change: Change, base: Resolved, this: Resolved) -> Iterator[Confounder]:
    seen = set(said) | _APART
    for name in sorted(base.settings.keys() | this.settings.keys()):
        before, after = base.settings.get(name), this.settings.get(name)
        if name not in seen and before != after and (name in this.settings or name in base.settings):
            seen.add(name)
            given = change.launch is not None and _given(this.launch, name)
            yield Confounder(name, before, after, "given" if given else "dragged along")
    if change.launch is None:
        return
    for name in sorted(base.launch.args.keys() | this.launch.args.keys()):
        before, after = base.launch.get(name), this.launch.get(name)
        if name not in seen and before != after and (_given(base.launch, name) or _given(this.launch, name)):
            yield Confounder(name, before, after, "given")
    for name in sorted(base.command.env.keys() | this.command.env.keys()):
        one, other = base.command.env.get(name), this.command.env.get(name)
        if name not in change.env and one != other:
            yield Confounder(name, one, other, "given")
    if base.launch.model != this.launch.model:
        yield Confounder("model", base.launch.model, this.launch.model, "given")


def _given(launch: Launch, name: str) -> bool:
    arg = launch.args.get(name)
    return arg is not None and arg.origin == "given"


def split(name: str, reason: str, change: Change, found: tuple[Confounder, ...]) -> list[dict[str, Any]]:
    """Approaches that tell the parts of a confounded one apart: what came along alone, and the change with it
    held as in the baseline. Before they are shown they are planned again."""
    along = {c.setting: c for c in found if c.because == "dragged along"}
    alone = {_flag(s): c.this for s, c in along.items() if _simple(c.this)}
    held = {_flag(s): c.baseline for s, c in along.items() if _simple(c.baseline)}
    listed = ", ".join(sorted(along))
    proposals: list[dict[str, Any]] = []
    if alone:
        proposals.append({"name": _short(f"only what {name} drags along"), "flags": alone,
                          "reason": f"the part of {name} that comes from {listed}"[:400]})  # fmt: skip
    if held:
        own = {**change.flags, **held}
        env = dict(change.env)
        proposals.append({"name": _short(f"{name} alone"), "flags": own, "env": env,
                          "reason": f"{reason}; {', '.join(sorted(held))} as before"[:400]})  # fmt: skip
    return [{key: value for key, value in each.items() if value} for each in proposals]


def _short(name: str) -> str:
    return name if len(name) <= 80 else f"{name[:76]} .."


def _flag(setting: str) -> str:
    return setting.replace("_", "-")


def _simple(value: Value) -> bool:
    """True if the value can be given as a flag."""
    if isinstance(value, list):
        return 0 < len(value) <= 64 and all(isinstance(each, int) for each in value)
    return isinstance(value, bool | int | float | str)
