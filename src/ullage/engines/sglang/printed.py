"""Arguments as a log prints them: the repr of a dataclass or of a dict, read without evaluating anything.

``server_args=ServerArgs(model_path='x', tp_size=8, ...)`` (0.4.0 to 0.5.18, entrypoints/engine.py) or
``server_args={'model_path': 'x', ...}`` (from 0.5.19). A line that was cut keeps the values read so far.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

MAX_DEPTH = 24
MAX_ITEMS = 4096
_NAME = re.compile(r"[A-Za-z_][\w.]*")
_NUMBER = re.compile(r"[-+]?(?:\d[\d_]*)?\.?\d+(?:[eE][-+]?\d+)?(?![\w.])|[-+]?\d+\.(?![\w.])")
_STRING = re.compile(r"[bBrRuUfF]{0,2}(?:'((?:[^'\\]|\\.)*)'|\"((?:[^\"\\]|\\.)*)\")", re.DOTALL)
_ENUM = re.compile(r"<(?P<name>[\w.]+): (?P<value>[^<>]*)>")
_SPACE = re.compile(r"\s*")
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}
_CONSTANTS = {"None": None, "True": True, "False": False, "inf": float("inf"), "nan": float("nan")}
_CLOSERS = {"(": ")", "[": "]", "{": "}"}


class _Cut(Exception):
    """The text ends, or cannot be read further."""


class _At(NamedTuple):
    value: object
    end: int


def settings_in(text: str) -> dict[str, object]:
    """Setting -> value as far as ``text`` (which holds "server_args=") can be read; {} where it holds none."""
    start = re.search(r"server_args=(?:ServerArgs)?([({])", text)
    if start is None:
        return {}
    found: dict[str, object] = {}
    with suppress(_Cut):
        _pairs(text, start.end(), found, start[1], 0)
    return found


def literal(text: str) -> object:
    """The value that ``text`` is the repr of; the text itself where it is none."""
    try:
        found = _value(text, 0, 0)
    except _Cut:
        return text
    return found.value if not text[found.end :].strip() else text


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at


def _pairs(text: str, at: int, into: dict[str, object], opener: str, depth: int) -> int:
    """Reads ``name=value`` (after "(") or ``'name': value`` (after "{") pairs; the end behind the bracket."""
    joint = "=" if opener == "(" else ":"
    for _ in range(MAX_ITEMS):
        at = _skip(text, at)
        if text[at : at + 1] == _CLOSERS[opener]:
            return at + 1
        name, at = _key(text, at, opener, depth)
        at = _skip(text, at)
        if text[at : at + 1] != joint:
            raise _Cut
        value = _value(text, _skip(text, at + 1), depth + 1)
        at = _skip(text, value.end)
        if at >= len(text):
            if text[value.end - 1] in "'\")]}>":
                into[name] = value.value
            raise _Cut
        into[name] = value.value
        if text[at] == ",":
            at += 1
        elif text[at] != _CLOSERS[opener]:
            raise _Cut
    raise _Cut


def _key(text: str, at: int, opener: str, depth: int) -> tuple[str, int]:
    if opener == "(":
        found = _NAME.match(text, at)
        if found is None:
            raise _Cut
        return found[0], found.end()
    key = _value(text, at, depth + 1)
    return str(key.value), key.end


def _value(text: str, at: int, depth: int) -> _At:
    if depth > MAX_DEPTH or at >= len(text):
        raise _Cut
    for read in _READERS:
        found = read(text, at, depth)
        if found is not None:
            return found
    raise _Cut


def _string(text: str, at: int, depth: int) -> _At | None:
    found = _STRING.match(text, at)
    if found is None:
        if text[at] in "'\"":
            raise _Cut
        return None
    body = found[1] if found[1] is not None else found[2]
    return _At(_ESCAPE.sub(lambda m: _ESCAPES.get(m[1], m[1]), body or ""), found.end())


def _number(text: str, at: int, depth: int) -> _At | None:
    found = _NUMBER.match(text, at)
    if found is None:
        return None
    digits = found[0].replace("_", "")
    try:
        return _At(int(digits) if digits.lstrip("+-").isdigit() else float(digits), found.end())
    except ValueError:  # more digits than int() takes
        return _At(found[0][:64], found.end())


def _sequence(text: str, at: int, depth: int) -> _At | None:
    """A list or tuple as a list."""
    opener = text[at]
    if opener not in "[(":
        return None
    items: list[object] = []
    at += 1
    for _ in range(MAX_ITEMS):
        at = _skip(text, at)
        if text[at : at + 1] == _CLOSERS[opener]:
            return _At(items, at + 1)
        item = _value(text, at, depth + 1)
        items.append(item.value)
        at = _skip(text, item.end)
        if text[at : at + 1] == ",":
            at += 1
        elif text[at : at + 1] != _CLOSERS[opener]:
            raise _Cut
    raise _Cut


def _mapping(text: str, at: int, depth: int) -> _At | None:
    if text[at] != "{":
        return None
    found: dict[str, object] = {}
    try:
        return _At(found, _pairs(text, at + 1, found, "{", depth))
    except _Cut:
        end = _closing(text, at)
        return _At(text[at:end], end)


def _enum(text: str, at: int, depth: int) -> _At | None:
    """ "<Mode.A: 'a'>" as "a"; "<function f at 0x..>" as its text."""
    if text[at] != "<":
        return None
    found = _ENUM.match(text, at)
    if found is not None:
        return _At(literal(found["value"]), found.end())
    end = text.find(">", at)
    if end < 0:
        raise _Cut
    return _At(text[at : end + 1], end + 1)


def _named(text: str, at: int, depth: int) -> _At | None:
    """A constant, a name, or the repr of an object: its fields, or its text where it has none."""
    found = _NAME.match(text, at)
    if found is None:
        return None
    name, end = found[0], found.end()
    if text[end : end + 1] != "(":
        return _At(_CONSTANTS.get(name, name), end)
    fields: dict[str, object] = {}
    try:
        return _At(fields, _pairs(text, end + 1, fields, "(", depth))
    except _Cut:
        end = _closing(text, end)
        return _At(text[at:end], end)


def _closing(text: str, at: int) -> int:
    """The end of the bracket that opens at ``at``, strings skipped."""
    depth = 0
    while at < len(text):
        char = text[at]
        if char in "'\"":
            found = _STRING.match(text, at)
            if found is None:
                raise _Cut
            at = found.end()
            continue
        depth += (char in "([{") - (char in ")]}")
        at += 1
        if depth == 0:
            return at
    raise _Cut


_READERS: tuple[Callable[[str, int, int], _At | None], ...] = (
    _string, _number, _sequence, _mapping, _enum, _named,
)  # fmt: skip
