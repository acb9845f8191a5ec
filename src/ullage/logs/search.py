"""Where any of some hundred phrases stands in a block of bytes.

Measured over 299 phrases on one core, in MB/s (bench/scan.py; decode lines, vLLM's start-up lines):

    hyperscan 0.9.1         2,170   1,335
    google-re2 1.1            760     325   (not used)
    ripgrep 13.0              650           (for comparison)
    ahocorasick_rs 1.0.3      650     573
    RegexSearch               600      21   (leaps over decode lines; a trie of the phrases for the rest)
    re, phrases side by side    4       3
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from typing import Any, Protocol

from ullage.logs.prefixes import table

MAX_HITS = 2000


class Search(Protocol):
    def find(self, block: bytes) -> list[int] | None:
        """An offset inside each occurrence of a phrase, ascending; None where there are more than
        ``MAX_HITS`` of them."""
        ...


@cache
def routine_run() -> re.Pattern[bytes]:
    """One or more whole routine lines."""
    return re.compile("(?m:^)(?:{})+".format("|".join(row.pattern for row in table().routine)).encode())


def search_for(literals: Sequence[bytes]) -> Search:
    """The fastest search that is installed. Empty phrases and those with a line break are left out."""
    phrases = [literal for literal in dict.fromkeys(literals) if literal and b"\n" not in literal]
    if not phrases:
        return Nothing()
    for kind in (HyperscanSearch, AhoCorasickSearch):
        with suppress(Exception):  # not installed, or built for another CPU
            return kind(phrases)
    return RegexSearch(phrases)


class Nothing:
    """No phrases: finds nothing."""

    def find(self, block: bytes) -> list[int] | None:
        return []


class HyperscanSearch:
    """Intel's multi-pattern matcher, from the extra ``ullage[fast]``."""

    def __init__(self, phrases: Sequence[bytes]) -> None:
        import hyperscan

        self._stopped: type[Exception] = hyperscan.ScanTerminated
        self._database: Any = hyperscan.Database()
        self._database.compile(
            expressions=list(phrases), ids=list(range(len(phrases))), elements=len(phrases),
            flags=[0] * len(phrases), literal=True,
        )  # fmt: skip
        self._found: list[int] = []

    def find(self, block: bytes) -> list[int] | None:
        self._found.clear()
        try:
            self._database.scan(block, match_event_handler=self._hit)
        except self._stopped:
            return None
        return list(self._found)

    def _hit(self, _id: int, _start: int, end: int, _flags: int, _context: object) -> bool:
        self._found.append(end - 1)
        return len(self._found) > MAX_HITS


class AhoCorasickSearch:
    """Rust's aho-corasick as a DFA, from ``ahocorasick_rs`` where it is installed."""

    def __init__(self, phrases: Sequence[bytes]) -> None:
        module = import_module("ahocorasick_rs")
        self._automaton: Any = module.BytesAhoCorasick(
            list(phrases), matchkind=module.MatchKind.LeftmostFirst, implementation=module.Implementation.DFA
        )

    def find(self, block: bytes) -> list[int] | None:
        found = [start for _, start, _ in self._automaton.find_matches_as_indexes(block)]
        return found if len(found) <= MAX_HITS else None


class RegexSearch:
    """Python alone: leaps over runs of routine lines and searches what is between them."""

    def __init__(self, phrases: Sequence[bytes]) -> None:
        self._pattern = re.compile(_trie_pattern(_trie(phrases)))

    def find(self, block: bytes) -> list[int] | None:
        found: list[int] = []
        position = 0
        for run in routine_run().finditer(block):
            self._between(block, position, run.start(), found)
            position = run.end()
            if len(found) > MAX_HITS:
                return None
        self._between(block, position, len(block), found)
        return found if len(found) <= MAX_HITS else None

    def _between(self, block: bytes, start: int, end: int, found: list[int]) -> None:
        for match in self._pattern.finditer(block, start, end):
            found.append(match.start())
            if len(found) > MAX_HITS:
                return


_Trie = dict[int | None, "_Trie"]


def _trie(phrases: Sequence[bytes]) -> _Trie:
    """The phrases as a tree of bytes; the key None ends one, and nothing longer hangs below it."""
    root: _Trie = {}
    for phrase in sorted(phrases, key=len):
        node = root
        for byte in phrase:
            if None in node:
                break
            node = node.setdefault(byte, {})
        else:
            node[None] = {}
    return root


def _trie_pattern(root: _Trie) -> bytes:
    """The tree as a regular expression: seven times as fast as the phrases side by side."""
    if None in root:
        return b""
    parts = []
    for byte, below in root.items():
        text = bytearray()
        while byte is not None:
            text.append(byte)
            if len(below) != 1 or None in below:
                break
            byte, below = next(iter(below.items()))
        parts.append(re.escape(bytes(text)) + _trie_pattern(below))
    return parts[0] if len(parts) == 1 else b"(?:" + b"|".join(parts) + b")"
