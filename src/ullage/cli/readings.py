"""--reading NAME=VALUE."""

from __future__ import annotations

from collections.abc import Sequence

from ullage.core.errors import InputError


def readings(given: Sequence[str]) -> dict[str, float]:
    """--reading NAME=VALUE; raises InputError where it is not of that form."""
    found = {}
    for text in given:
        name, equals, value = text.partition("=")
        try:
            number = float(value)
        except ValueError:
            number = float("nan")
        if not equals or not name.isidentifier() or not abs(number) < 1e15:
            raise InputError("expected NAME=VALUE with a number", where=f"--reading {text[:60]}")
        found[name] = number
    return found
