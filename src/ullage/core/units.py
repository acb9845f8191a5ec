"""Sizes: bytes inside, GiB in words. A figure read from text keeps its print step.

GiB is 2**30 bytes. The engines print "GB" and mean GiB; only HiCache sizes of SGLang are decimal.
"""

from __future__ import annotations

import re
from math import erf, sqrt
from typing import Self

from msgspec import Struct

from ullage.core.patterns import lazy

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30
UNITS = {
    "B": 1, "bytes": 1,
    "KiB": KIB, "MiB": MIB, "GiB": GIB, "TiB": 1 << 40,
    # as the engines mean them
    "KB": KIB, "MB": MIB, "GB": GIB, "TB": 1 << 40,
}  # fmt: skip
_NUMBER = lazy(r"[-+]?(?:\d[\d,]*(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?")


class Band(Struct, frozen=True):
    """A value with its limits, all in the same unit: low <= value <= high."""

    value: float
    low: float
    high: float

    def scaled(self, factor: float) -> Band:
        low, high = sorted((self.low * factor, self.high * factor))
        return Band(self.value * factor, low, high)

    def chance_above(self, limit: float) -> float:
        """How likely the true value is above ``limit``, from 0 to 1.

        low .. high is taken as the middle 90 % of a normal distribution whose two sides may differ in width.
        """
        side = self.value - self.low if limit <= self.value else self.high - self.value
        if side <= 0:
            return 1.0 if self.value > limit else 0.0
        return 0.5 * (1 + erf((self.value - limit) / side * 1.645 / sqrt(2)))


class Measured(Struct, frozen=True):
    """A number read from text, in the unit it was printed in, with half its print step as uncertainty.

    >>> Measured.parse("21.78").band
    Band(value=21.78, low=21.775, high=21.785)
    """

    value: float
    step: float = 0.0

    @classmethod
    def parse(cls, text: str) -> Self:
        """The number in ``text`` (thousands separators allowed); its step is one unit of the last digit.

        Raises ValueError where there is none.
        """
        found = _NUMBER.search(text)
        if found is None:
            raise ValueError(f"no number in {text[:40]!r}")
        digits = found[0].replace(",", "")
        mantissa, _, exponent = digits.lower().partition("e")
        decimals = len(mantissa.partition(".")[2])
        step = 10.0 ** (int(exponent or 0) - decimals) if decimals or exponent else 0.0
        return cls(float(digits), step)

    @property
    def band(self) -> Band:
        return Band(self.value, self.value - self.step / 2, self.value + self.step / 2)

    @property
    def bytes(self) -> int:
        """The size in bytes when the number was printed in GiB."""
        return round(self.value * GIB)

    def __str__(self) -> str:
        if not self.step and not self.value.is_integer():
            return f"{self.value:.6g}"
        decimals = max(0, -round(_log10(self.step))) if self.step else 0
        return f"{self.value:.{decimals}f}"


def _log10(value: float) -> float:
    from math import log10

    return log10(value)


def gib(num_bytes: float) -> float:
    """``num_bytes`` in GiB."""
    return num_bytes / GIB


def gib_text(num_bytes: float, decimals: int = 2) -> str:
    """``num_bytes`` for people: GiB with ``decimals`` digits, never "-0.00"; below 0.01 GiB in MiB."""
    if 0 < abs(num_bytes) < GIB / 100 and decimals <= 2:
        return f"{num_bytes / MIB:.1f} MiB"
    value = round(num_bytes / GIB, decimals) + 0.0
    return f"{value:.{decimals}f} GiB"


def parse_size(text: str, default_unit: str = "B") -> int:
    """Bytes of ``text`` such as "786.00 MiB", "21.78GB" (meaning GiB) or "1024" in ``default_unit``.

    Raises ValueError for anything else.
    """
    match = re.fullmatch(rf"\s*({_NUMBER.pattern})\s*([A-Za-z]*)\s*", text)
    unit = (match[2] or default_unit) if match else ""
    for name, factor in UNITS.items():
        if match and name.lower() == unit.lower():
            return round(float(match[1].replace(",", "")) * factor)
    raise ValueError(f"not a size: {text[:40]!r}")


def tokens_text(tokens: float) -> str:
    """A token count for people, with thousands separators."""
    return f"{tokens:,.0f}"


def percent_text(change: float) -> str:
    """A relative change (0.123) for people: "+12.3 %", never "-0.0 %"."""
    return f"{round(change * 100, 1) + 0.0:+.1f} %"


def duration_text(length_s: float) -> str:
    """Seconds for people: "8.2 s", "47 s", "9 min 58 s", "2 h 03 min"."""
    if length_s < 9.95:
        return f"{max(0.0, length_s):.1f} s"
    whole = round(length_s)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
