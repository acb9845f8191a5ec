"""Python reprs as a log prints them -> values: dicts, Namespace(...), config lines. Nothing is evaluated.

Cut lines are read as far as they go; a value that the cut went through is dropped.
"""

from __future__ import annotations

import re

from ullage.core.patterns import lazy

MAX_DEPTH, MAX_CHARS = 24, 200_000
_WORDS: dict[str, object] = {
    "None": None,
    "True": True,
    "False": False,
    "null": None,
    "true": True,
    "false": False,
}
_CLOSERS = {"(": ")", "[": "]", "{": "}"}
_ESCAPE = lazy(r"\\(.)", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r"}
_BREAKS = frozenset(",()[]{}= \t\n:'\"<>")


class _CutError(Exception):
    """The text ends inside a value."""


def keywords(text: str) -> dict[str, object]:
    """``a=1, b='x', c=Config(d=2)`` -> {"a": 1, "b": "x", "c": {"d": 2}}; stops at an unmatched bracket."""
    return _Printed(text[:MAX_CHARS]).keywords()


def mapping(text: str) -> dict[str, object]:
    """``{'a': 1, 'b': [2]}`` -> the same as a dict, as far as the text goes."""
    printed = _Printed(text[:MAX_CHARS])
    try:
        value = printed.value(0)
    except _CutError:
        value = printed.partial
    return {str(k): v for k, v in value.items()} if isinstance(value, dict) else {}


class _Printed:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.partial: dict[object, object] = {}

    def _peek(self) -> str:
        while self.at < len(self.text) and self.text[self.at].isspace():
            self.at += 1
        if self.at >= len(self.text):
            raise _CutError
        return self.text[self.at]

    def _skip(self, wanted: str) -> bool:
        if self._peek() != wanted:
            return False
        self.at += 1
        return True

    def keywords(self) -> dict[str, object]:
        """Items at the top level, up to an unmatched closing bracket or the end."""
        found: dict[str, object] = {}
        try:
            while self._peek() not in ")]}":
                if self._skip(","):
                    continue
                name = self._word()
                if not name:
                    break
                if not self._skip("="):
                    continue
                begin = self.at
                value = self.value(0)
                if not (self.at >= len(self.text) and self.text[begin:].endswith(("...", "…"))):
                    found[name] = value
        except _CutError:
            pass
        return found

    def value(self, depth: int) -> object:
        """The value that begins here. Raises _CutError where the text ends first."""
        if depth > MAX_DEPTH:
            raise _CutError
        first = self._peek()
        if first in "'\"":
            return self._string()
        if first == "{":
            return self._dict(depth)
        if first in "[(":
            self.at += 1
            return self._items(_CLOSERS[first], depth)
        if first == "<":
            return self._angle()
        word = self._word()
        if not word:
            raise _CutError
        if self.at < len(self.text) and self.text[self.at] == "(":
            self.at += 1
            return self._call(depth)
        return scalar(word)

    def _word(self) -> str:
        self._peek()
        begin = self.at
        while self.at < len(self.text) and self.text[self.at] not in _BREAKS:
            self.at += 1
        return self.text[begin : self.at]

    def _string(self) -> str:
        quote, begin = self.text[self.at], self.at
        self.at += 1
        while self.at < len(self.text) and self.text[self.at] != quote:
            self.at += 2 if self.text[self.at] == "\\" else 1
        if self.at >= len(self.text):
            raise _CutError
        self.at += 1
        raw = self.text[begin + 1 : self.at - 1]
        return _ESCAPE.sub(lambda m: _ESCAPED.get(m[1], m[1]), raw) if "\\" in raw else raw

    def _items(self, closer: str, depth: int) -> list[object]:
        found: list[object] = []
        while not self._skip(closer):
            if self._skip(","):
                continue
            before = self.at
            found.append(self.value(depth + 1))
            if self.at == before:
                raise _CutError
        return found

    def _dict(self, depth: int) -> object:
        self.at += 1
        found: dict[object, object] = {}
        if depth == 0:
            self.partial = found
        while not self._skip("}"):
            if self._skip(","):
                continue
            key = self.value(depth + 1)
            key = key if isinstance(key, str | int | float | bool | None) else str(key)
            found[key] = self.value(depth + 1) if self._skip(":") else None
            if depth == 0 and self.at >= len(self.text):
                found.pop(key, None)  # the cut may have gone through it
        return found

    def _call(self, depth: int) -> object:
        """``Name(a=1)`` as a dict of its keywords; ``PosixPath('x')`` as its argument."""
        found: dict[str, object] = {}
        bare: list[object] = []
        while not self._skip(")"):
            if self._skip(","):
                continue
            before = self.at
            word = self._word() if self._peek() not in "'\"[({<" else ""
            if word and self._skip("="):
                found[word] = self.value(depth + 1)
                continue
            self.at = before
            bare.append(self.value(depth + 1))
            if self.at == before:
                raise _CutError
        return found if found or not bare else bare[0]

    def _angle(self) -> str:
        """``<CompilationMode.NONE: 0>`` as "CompilationMode.NONE"."""
        begin, open_count = self.at, 0
        while self.at < len(self.text):
            open_count += {"<": 1, ">": -1}.get(self.text[self.at], 0)
            self.at += 1
            if open_count == 0:
                return self.text[begin + 1 : self.at - 1].partition(":")[0].strip()
        raise _CutError


def scalar(word: str) -> object:
    """A bare word: None, a bool, a number, else the word itself."""
    if word in _WORDS:
        return _WORDS[word]
    for kind in (int, float):
        try:
            return kind(word)
        except (ValueError, OverflowError):
            continue
    return word
