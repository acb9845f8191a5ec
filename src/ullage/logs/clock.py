"""Timestamps as logs print them, in seconds on one scale: only good for differences within one log.

vLLM and glog print no year. It is taken from the last line that had one; where the date then leaps back by more
than half a year, a new year has begun.
"""

from __future__ import annotations

import datetime
import re
from functools import lru_cache

_HALF_YEAR = 183
_MONTH_NAMES = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_MONTHS = {name: number for number, name in enumerate(_MONTH_NAMES, 1)}
_STAMP = re.compile(
    r"(?:(?P<year>\d{4})-)?(?:(?P<month>\d\d)-(?P<day>\d\d)|(?P<mon>[A-Z][a-z]{2}) +(?P<mday>\d\d?)"
    r"|(?P<mmdd>\d{3,4}))[T ](?P<h>\d\d):(?P<m>\d\d):(?P<s>\d\d)(?P<fraction>[.,]\d+)?"
    r"(?P<zone>Z|[+-]\d\d:?\d\d)?"
)


@lru_cache(maxsize=256)
def _day(year: int, month: int, day: int) -> int | None:
    for candidate in (year, 2000):  # 02-29 of an unknown year
        try:
            return datetime.date(candidate, month, day).toordinal()
        except ValueError:
            continue
    return None


class Clock:
    """Turns the timestamps of one log into seconds, in the order in which they are read."""

    def __init__(self) -> None:
        self._year = 2001
        self._day: int | None = None
        self._cached = ("", 0.0)

    def seconds(self, text: str) -> float | None:
        """Seconds of ``text``; None where it is no timestamp. A zone other than Z is taken off."""
        if text == self._cached[0]:
            return self._cached[1]
        match = _STAMP.fullmatch(text)
        if match is None:
            return None
        day = self._ordinal(match)
        if day is None:
            return None
        h, m, s = int(match["h"]), int(match["m"]), int(match["s"])
        seconds = day * 86400.0 + h * 3600 + m * 60 + s + _fraction(match["fraction"]) - _zone(match["zone"])
        self._cached = (text, seconds)
        return seconds

    def _ordinal(self, match: re.Match[str]) -> int | None:
        month, day = _month_day(match)
        if match["year"]:
            self._year = int(match["year"]) or 1
            self._day = _day(self._year, month, day)
            return self._day
        ordinal = _day(self._year, month, day)
        if ordinal is not None and self._day is not None and ordinal < self._day - _HALF_YEAR:
            self._year += 1
            ordinal = _day(self._year, month, day)
        self._day = ordinal
        return ordinal


def _month_day(match: re.Match[str]) -> tuple[int, int]:
    if match["month"]:
        return int(match["month"]), int(match["day"])
    if match["mon"]:
        return _MONTHS.get(match["mon"], 0), int(match["mday"])
    return int(match["mmdd"][:-2]), int(match["mmdd"][-2:])


def _fraction(text: str | None) -> float:
    return float("0." + text[1:16]) if text else 0.0


def _zone(text: str | None) -> float:
    if not text or text == "Z":
        return 0.0
    sign = -1 if text[0] == "-" else 1
    return sign * (int(text[1:3]) * 3600.0 + int(text[-2:]) * 60.0)
