"""Launch: an engine, its release, and each argument with where its value is from."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct
from packaging.version import Version

from ullage.core.secrets import HIDDEN, is_secret, masked, masked_value, sealed
from ullage.core.versions import parse_release

Origin = Literal["given", "log", "default", "inferred"]
Value = str | int | float | bool | None | list[object] | dict[str, object]


class Arg(Struct, frozen=True):
    """One setting. ``origin``: typed by the user, printed by the log, the engine's default, or worked out."""

    value: Value
    origin: Origin
    source: str = ""


class Launch(Struct, frozen=True):
    """What was started. Setting names are the engine's own, with underscores (``mem_fraction_static``)."""

    engine: str
    version: str | None = None
    version_source: Literal["log", "command", "inferred"] | None = None
    model: str | None = None
    args: dict[str, Arg] = {}
    env: dict[str, str] = {}
    command: str | None = None
    unknown: tuple[str, ...] = ()

    @property
    def release(self) -> Version | None:
        return parse_release(self.version)

    def get(self, name: str) -> Value:
        """The value of a setting, or None where it is unknown."""
        arg = self.args.get(name)
        return arg.value if arg else None

    def number(self, name: str) -> float | None:
        value = self.get(name)
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None

    def integer(self, name: str) -> int | None:
        value = self.number(name)
        return int(value) if value is not None else None

    def flag(self, name: str) -> bool:
        return self.get(name) is True

    def text(self, name: str) -> str | None:
        value = self.get(name)
        return value if isinstance(value, str) else None

    def with_args(self, **changes: Arg) -> Launch:
        return Launch(
            self.engine, self.version, self.version_source, self.model, {**self.args, **changes}, self.env,
            self.command, self.unknown,
        )  # fmt: skip

    def without_secrets(self) -> Launch:
        """The same launch with tokens, keys and passwords hidden."""
        args = {name: Arg(_sealed(name, arg.value), arg.origin, arg.source) for name, arg in self.args.items()}
        env = {name: masked_value(name, value) for name, value in self.env.items()}
        command = masked(self.command) if self.command else None
        return Launch(
            self.engine, self.version, self.version_source, self.model, args, env, command, self.unknown
        )


def _sealed(name: str, value: Value) -> Value:
    """A flag's value without secrets: all of it where the flag is named as they are."""
    if is_secret(name):
        return HIDDEN if value else value
    found: Value = sealed(value, name)
    return found
