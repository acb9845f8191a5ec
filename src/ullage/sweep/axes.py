"""What is varied: ``--over NAME=VALUES`` as an Axis. Needs no numpy.

VALUES are separated by commas; each is a value, or a range "from:to:step" with both ends in it; "from:to:x2"
goes on by a factor. Numbers may end in k, K, m or M (32k = 32000, 32K = 32768).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal, InvalidOperation

from msgspec import Struct

from ullage.core.errors import InputError

Value = str | int | float | bool
#: values on one axis; more is a typing error
MOST_VALUES = 1_000_000
_FACTOR = {"k": 1000, "K": 1 << 10, "m": 1000**2, "M": 1 << 20}
_NUMBER = re.compile(r"([-+]?(?:\d{1,15}(?:\.\d{0,15})?|\.\d{1,15})(?:[eE][-+]?\d{1,2})?)([kKmM]?)")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,79}")


class Axis(Struct, frozen=True):
    """``name`` as typed, with underscores for dashes; ``values`` in the order given, each once."""

    name: str
    values: tuple[Value, ...]

    @property
    def numeric(self) -> bool:
        """True if every value is a number (truth values are not)."""
        return all(isinstance(value, int | float) and not isinstance(value, bool) for value in self.values)

    @property
    def whole(self) -> bool:
        return all(isinstance(value, int) for value in self.values)


def axis(text: str) -> Axis:
    """The axis of one ``--over``. Raises InputError where it cannot be read."""
    name, equals, values = text.partition("=")
    name = name.strip().lstrip("-")
    if not equals or not _NAME.fullmatch(name):
        raise _wrong(text, "is not of the form NAME=VALUES")
    found: dict[tuple[type, Value], Value] = {}
    for part in values.split(","):
        for value in _values(text, part.strip()):
            found[type(value), value] = value
            if len(found) > MOST_VALUES:
                raise _wrong(text, f"has more than {MOST_VALUES:,} values")
    return Axis(name.replace("-", "_"), tuple(found.values()))


def _values(text: str, part: str) -> Iterator[Value]:
    if not part:
        raise _wrong(text, "has an empty value")
    ends = part.split(":")
    if len(ends) in (2, 3) and all(_NUMBER.fullmatch(end.removeprefix("x")) for end in ends):
        yield from _range(text, *ends)
        return
    yield _value(part)


def _value(part: str) -> Value:
    if part.lower() in ("true", "false"):
        return part.lower() == "true"
    number = _decimal(part)
    if number is None:
        return part[:200]
    return (
        int(number) if number == number.to_integral_value() and not re.search(r"[.eE]", part) else float(number)
    )


def _decimal(text: str) -> Decimal | None:
    match = _NUMBER.fullmatch(text)
    try:
        return Decimal(match[1]) * _FACTOR.get(match[2], 1) if match else None
    except InvalidOperation:
        return None


def _range(text: str, first: str, last: str, step: str = "1") -> Iterator[Value]:
    """from:to:step, to the last digit as typed: 0.5:0.95:0.01 has 0.57, not 0.5700000000000001."""
    start, end, by = _decimal(first), _decimal(last), _decimal(step.removeprefix("x"))
    if start is None or end is None or by is None:
        raise _wrong(text, f"has a range that is none: {first}:{last}:{step}")
    factor = step.startswith("x")
    if by <= (1 if factor else 0) or start > end or (factor and start <= 0):
        raise _wrong(text, "has a range without values", "write from:to:step, or from:to:x2")
    if not factor and (end - start) / by > MOST_VALUES:
        raise _wrong(text, f"has more than {MOST_VALUES:,} values")
    whole = all(value == value.to_integral_value() for value in (start, by))
    while start <= end:
        yield int(start) if whole else float(start)
        start = start * by if factor else start + by


def _wrong(
    text: str, what: str, hint: str = "such as mem-fraction-static=0.5:0.95:0.01 or tp=1,2,4"
) -> InputError:
    return InputError(what, where=f"--over {text[:60]}", hint=hint)
