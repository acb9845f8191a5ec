"""Ledger: what every byte of one GPU goes to, and how each entry is known."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from ullage.core.run import Phase

Certainty = Literal["observed", "exact", "estimated"]


class Entry(Struct, frozen=True):
    """One use of memory, in bytes, with its limits. ``source`` is a log line, a rule or a data row."""

    stage: Phase
    name: str
    bytes: int
    low: int
    high: int
    certainty: Certainty
    source: str

    @classmethod
    def exact(cls, stage: Phase, name: str, num_bytes: int, source: str) -> Entry:
        return cls(stage, name, num_bytes, num_bytes, num_bytes, "exact", source)


class Ledger(Struct, frozen=True):
    """The memory of one rank's GPU. ``total_bytes`` is what the engine had at its own starting point
    (SGLang: free before the weights; vLLM: the device), so entries + left = total. ``total_source``: the line
    or rule that the total is from, where it is known."""

    rank: str
    total_bytes: int
    entries: tuple[Entry, ...] = ()
    total_source: str = ""

    @property
    def used_bytes(self) -> int:
        return sum(entry.bytes for entry in self.entries)

    @property
    def left_bytes(self) -> int:
        return self.total_bytes - self.used_bytes

    def of(self, stage: Phase) -> int:
        """Bytes that the entries of ``stage`` take together."""
        return sum(entry.bytes for entry in self.entries if entry.stage == stage)
