"""Lengths of time as a campaign file writes them: "90s", "20m", "1h30m", or seconds."""

from __future__ import annotations

import re

_PARTS = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)")
_FACTOR = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
#: the longest that anything may be asked to last, in seconds
MOST_S = 30 * 86400.0


def seconds(text: str | float) -> float:
    """Seconds of ``text``. Raises ValueError for what is no length of time, is 0 or less, or beyond 30 days."""
    if isinstance(text, bool):
        raise ValueError("not a length of time")  # noqa: TRY004
    if isinstance(text, int | float):
        found = float(text)
    else:
        plain = text.strip().lower()
        if not plain or _PARTS.sub("", plain).strip():
            raise ValueError(f"not a length of time: {text[:40]!r}")
        found = sum(float(number) * _FACTOR[unit] for number, unit in _PARTS.findall(plain))
    if not 0 < found <= MOST_S:
        raise ValueError(f"out of range: {str(text)[:40]!r}")
    return found
