"""Ignore lists: which linear layers a quantised checkpoint leaves plain, as the loaders match them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import translate
from functools import lru_cache

from msgspec import Struct


class Ignore(Struct, frozen=True):
    """An ignore list: ``plain`` entries are names or dotted parts of names. ``numbered`` is True where an entry
    speaks of single layers."""

    plain: frozenset[str]
    pattern: re.Pattern[str] | None
    numbered: bool

    def holds(self, name: str) -> bool:
        if self.pattern is not None and self.pattern.match(name):
            return True
        words = name.split(".")
        ends = range(1, len(words) + 1)
        return any(".".join(words[i:j]) in self.plain for j in ends for i in range(j))

    def among(self, name: str, layers: Sequence[int]) -> tuple[int, ...] | None:
        """Those of ``layers`` whose ``name`` is listed; None: all."""
        if not layers or not self.numbered:
            return None if self.holds(filled(name, layers[0] if layers else 0)) else ()
        found = tuple(n for n in layers if self.holds(filled(name, n)))
        return None if len(found) == len(layers) else found


def filled(name: str, layer: int, expert: int = 0) -> str:
    """``name`` with numbers in the places of its {}: the layer's first, then the expert's."""
    return name.replace("{}", str(layer), 1).replace("{}", str(expert), 1)


@lru_cache(maxsize=64)
def ignore_list(entries: tuple[str, ...]) -> Ignore:
    """``entries`` as the loaders read them: "re:" a pattern from the name's start, "*" a wildcard; else a whole
    name, a prefix, a suffix or an inner part of it, dot by dot."""
    plain = frozenset(entry for entry in entries if not entry.startswith("re:") and "*" not in entry)
    patterns = [entry[3:] for entry in entries if entry.startswith("re:") and _safe(entry[3:])]
    patterns += [translate(entry) for entry in entries if "*" in entry and not entry.startswith("re:")]
    pattern = re.compile("|".join(f"(?:{part})" for part in patterns[:256])) if patterns else None
    return Ignore(plain, pattern, any(_numbered(entry) for entry in entries))


def _safe(pattern: str) -> bool:
    """True if ``pattern`` compiles and cannot take for ever: no repeated group, four repetitions at most."""
    if (
        len(pattern) > 512
        or re.search(r"\)[*+{]|\(\?P?[=<(]", pattern)
        or len(re.findall(r"[*+{]", pattern)) > 4
    ):
        return False
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError):
        return False
    return True


def _numbered(entry: str) -> bool:
    return re.search(r"\.\d+(\.|$)|\\d|\[\d|\(\d", entry) is not None
