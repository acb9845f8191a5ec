"""The engines' only door: names, and each engine imported when first asked for."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import cast

from ullage.engines.base import Engine

NAMES = ("sglang", "vllm")


@cache
def get(name: str) -> Engine:
    """The engine called ``name``; LookupError for another."""
    if name not in NAMES:
        raise LookupError(f"no engine {name!r}; known: {', '.join(NAMES)}")
    return cast(Engine, import_module(f"ullage.engines.{name}").ENGINE)


def of_text(command: str) -> Engine | None:
    """The engine that a command as pasted starts, a manifest included; quoting need not be closed."""
    from ullage.engines.runtime.command import belongs

    return next((engine for engine in map(get, NAMES) if belongs(command, engine.owns_command)), None)


def literals() -> list[bytes]:
    """The phrases of every engine, each once."""
    return list(dict.fromkeys(phrase for name in NAMES for phrase in get(name).literals()))
