"""Values of vLLM's flags: numbers as people write them, objects key by key, what a shell left of JSON."""

from __future__ import annotations

import re

from ullage.core.launch import Value
from ullage.core.patterns import lazy
from ullage.engines.runtime.flags import FlagRow
from ullage.engines.vllm.printed import mapping, scalar

_HUMAN = lazy(r"(\d+(?:\.\d+)?)([kKmMgGtT])")
_DECIMAL = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
MAX_DEPTH = 12


def closed(words: list[str]) -> int:
    depth = 0
    for i, word in enumerate(words):
        depth += sum(word.count(c) for c in "{[") - sum(word.count(c) for c in "}]")
        if depth <= 0:
            return i + 1
    return 1


def nested(keys: list[str], text: str) -> dict[str, object]:
    """``--x.a.b v`` as {"a": {"b": v}}; ``--x.a+ v,w`` as a list."""
    value = _json(text)
    if keys[-1].endswith("+"):
        keys, value = [*keys[:-1], keys[-1][:-1]], list(text.split(","))
    elif isinstance(value, str):
        value = human_int(value) or value
    for key in reversed(keys[:MAX_DEPTH]):
        value = {key: value}
    return value if isinstance(value, dict) else {}


def merged(before: dict[str, object], added: dict[str, object]) -> dict[str, object]:
    """Both objects, lists joined, the later value of a key."""
    both = dict(before)
    for key, value in added.items():
        old = both.get(key)
        if isinstance(old, dict) and isinstance(value, dict):
            both[key] = merged(old, value)
        elif isinstance(old, list) and isinstance(value, list):
            both[key] = [*old, *value]
        else:
            both[key] = value
    return both


def value_of(row: FlagRow, values: list[str], *, off: bool) -> Value:
    """The value of a flag, of the row's type; text that is none of that type stays text."""
    kind = row.type
    if kind in ("flag", "switch", "optional-bool", "unflag"):
        said = values[0].lower() not in ("false", "0") if values else True
        return said != (off or kind == "unflag")
    if kind.startswith("list-"):
        one = kind.removeprefix("list-")
        found = [_scalar(one, value) for value in values]
        return (
            found[0]
            if row.name == "served_model_name" and len(found) == 1 and row.type == "str"
            else list(found)
        )
    text = values[0] if values else ""
    if kind == "json":
        return _json(text)  # type: ignore[return-value]
    return _scalar(kind, text)


def _scalar(kind: str, text: str) -> str | int | float:
    if kind in ("int", "size"):
        if kind == "size" and text.strip().lower() == "auto":
            return -1
        number = human_int(text) if kind == "size" else None
        value = scalar(text.strip()) if number is None else number
        return value if isinstance(value, int) and not isinstance(value, bool) else text
    if kind == "float":
        value = scalar(text.strip())
        return float(value) if isinstance(value, int | float) else text
    return text


def wrong(row: FlagRow, word: str) -> str | None:
    """What is wrong with a value by the flag's type, None where nothing is."""
    kind = row.type.rsplit("-", 1)[-1]
    if kind == "json":
        broken = word.lstrip()[:1] in ("{", "[") and not isinstance(_strict(word), dict | list)
        return "wants JSON with its quotes, '{\"name\": value}'" if broken else None
    value = _scalar(kind, word)
    if kind in ("int", "size") and isinstance(value, str):
        return "wants a whole number" if kind == "int" else "wants a whole number, 32k or 32K"
    return "wants a number" if kind == "float" and isinstance(value, str) else None


def _strict(text: str) -> object:
    import json

    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def human_int(text: str) -> int | None:
    """``32k`` = 32000, ``32K`` = 32768, ``25.6k`` = 25600; decimals only with the small letters.

    vllm 0.8.3 to 0.33.0, human_readable_int. None where ``text`` has no such form.
    """
    found = _HUMAN.fullmatch(text.strip())
    if found is None:
        return None
    number, suffix = found.groups()
    if suffix in _DECIMAL:
        return int(float(number) * _DECIMAL[suffix])
    return int(number) * _BINARY[suffix] if number.isdigit() else None


def _json(text: str) -> object:
    """JSON, or what is left of it when the shell has eaten its quotes; else the text."""
    import json

    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    if text.lstrip()[:1] == "{":
        return mapping(text) or text
    if re.fullmatch(r"\w+=\d+(?:,\w+=\d+)*", text):
        return {name: int(count) for name, _, count in (pair.partition("=") for pair in text.split(","))}
    word = scalar(text.strip())
    return word if isinstance(word, int | float | bool) else text
