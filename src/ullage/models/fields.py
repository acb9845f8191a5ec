"""Fields: a config.json read with care. A value of the wrong kind is an InputError that names its place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import isfinite

from ullage.core.errors import InputError

#: No size in a config.json comes near this; above it, products would only waste memory and time.
LARGEST = 1 << 40
MOST_LAYERS = 4096
_NESTED = ("text_config", "llm_config", "language_config", "transformer_layer_config", "thinker_config")


class Fields:
    """A JSON object, the place it stands at, and the class defaults of its model type.

    Every getter takes several spellings and returns the first that is present and not null, else None.
    """

    def __init__(
        self,
        values: Mapping[str, object],
        source: str,
        place: str = "",
        defaults: Mapping[str, object] | None = None,
    ) -> None:
        self.values = values
        self.source = source
        self.place = place
        self.defaults = defaults or {}

    def wrong(self, name: str, expected: str, value: object) -> InputError:
        where = f"{self.place}.{name}" if self.place else name
        return InputError(f"{where}: expected {expected}, found {shown(value)}", where=self.source)

    def get(self, *names: str) -> tuple[str, object]:
        for values in (self.values, self.defaults):
            for name in names:
                value = values.get(name)
                if value is not None:
                    return name, value
        return names[0], None

    def has(self, *names: str) -> bool:
        return self.get(*names)[1] is not None

    def integer(self, *names: str, most: int = LARGEST) -> int | None:
        """A whole number from 0 to ``most`` (32.0 counts as one)."""
        name, value = self.get(*names)
        if value is None:
            return None
        number = whole(value)
        if number is None or not 0 <= number <= most:
            raise self.wrong(name, f"a whole number from 0 to {most}", value)
        return number

    def size(self, *names: str) -> int:
        """As ``integer``; 0 where the config does not say."""
        return self.integer(*names) or 0

    def number(self, *names: str) -> float | None:
        name, value = self.get(*names)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= 1e18:
            raise self.wrong(name, "a number", value)
        return float(value)

    def text(self, *names: str) -> str | None:
        name, value = self.get(*names)
        if value is None:
            return None
        if not isinstance(value, str) or len(value) > 4096:
            raise self.wrong(name, "a short text", value)
        return value

    def flag(self, *names: str) -> bool | None:
        name, value = self.get(*names)
        if value is None or isinstance(value, bool):
            return value
        raise self.wrong(name, "true or false", value)

    def inner(self, *names: str) -> Fields | None:
        """The object under ``names``, with its own place."""
        name, value = self.get(*names)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.wrong(name, "an object", value)
        return Fields(value, self.source, f"{self.place}.{name}" if self.place else name)

    def items(self, *names: str, most: int = MOST_LAYERS) -> list[object] | None:
        """The list under ``names``."""
        name, value = self.get(*names)
        if value is None:
            return None
        if not isinstance(value, Sequence) or isinstance(value, str) or len(value) > most:
            raise self.wrong(name, f"a list of at most {most} entries", value)
        return list(value)

    def integers(self, *names: str) -> list[int] | None:
        found = self.items(*names)
        if found is None:
            return None
        numbers = [whole(value) for value in found]
        kept = [number for number in numbers if number is not None and 0 <= number <= LARGEST]
        if len(kept) != len(numbers):
            raise self.wrong(self.get(*names)[0], "a list of whole numbers", found)
        return kept

    def texts(self, *names: str) -> list[str] | None:
        found = self.items(*names)
        if found is None:
            return None
        kept = [value for value in found if isinstance(value, str) and len(value) <= 4096]
        if len(kept) != len(found):
            raise self.wrong(self.get(*names)[0], "a list of texts", found)
        return kept


def whole(value: object) -> int | None:
    """``value`` as a whole number; None where it is not one (bool, NaN, 1.5, text)."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, float) and isfinite(value) and value.is_integer():
        return int(value)
    return None


def shown(value: object) -> str:
    """``value`` for an error line: its kind, and its text where that is short."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, int):
        return str(value) if value.bit_length() <= 128 else "a number of more than 38 digits"
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, str):
        return repr(value[:40]) if len(value) <= 40 else f"a text of {len(value)} characters"
    if isinstance(value, Mapping):
        return f"an object of {len(value)} keys"
    return f"a list of {len(value)} entries" if isinstance(value, Sequence) else type(value).__name__


def text_fields(top: Fields) -> Fields:
    """The part of a config that describes the language model: the innermost text_config and its like."""
    found = top
    for step in _steps(top):
        found = step
    return found


def _steps(top: Fields, depth: int = 4) -> Iterator[Fields]:
    for _ in range(depth):
        names = [name for name in _NESTED if isinstance(top.values.get(name), Mapping)]
        if (
            not names
            and top.values.get("model_type") == "eagle"
            and isinstance(top.values.get("model"), Mapping)
        ):
            names = ["model"]
        inner = top.inner(names[0]) if names else None
        if inner is None:
            return
        top = inner
        yield inner
