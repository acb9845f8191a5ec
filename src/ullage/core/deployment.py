"""Deployment: a Launch of a Model on a Machine, with the readings that a log or a person already gives."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from ullage.core.launch import Arg, Launch
from ullage.core.ledger import Entry, Ledger
from ullage.core.machine import Machine
from ullage.core.model import Model
from ullage.core.run import Phase
from ullage.core.units import Band, Measured

Verdict = Literal["starts", "fails", "unsure"]


class Reading(Struct, frozen=True):
    """A figure that is known because something printed it (``source``: "B.log:812") or a person gave it
    (``source``: "--reading"). Names as in cases/README; units by the name's ending."""

    name: str
    value: Measured
    source: str


class Deployment(Struct, frozen=True):
    """What the engine's arithmetic is asked about.

    ``readings`` hold the figures that decide for the whole group of ranks (the engines take the minimum over
    ranks of free memory); ``by_rank`` holds each rank's own, by rank label.
    """

    launch: Launch
    model: Model | None = None
    machine: Machine | None = None
    readings: dict[str, Reading] = {}
    by_rank: dict[str, dict[str, Reading]] = {}

    def reading(self, name: str) -> Band | None:
        found = self.readings.get(name)
        return found.value.band if found else None

    def with_args(self, **changes: Arg) -> Deployment:
        """The same deployment with other settings. Readings that a change makes untrue must be dropped by the
        caller (``without``)."""
        return replace(self, launch=self.launch.with_args(**changes))

    def without(self, *names: str) -> Deployment:
        return replace(self, readings={k: v for k, v in self.readings.items() if k not in names})


#: a verdict is given where the odds are better than three to two
SURE = 0.6


def likely(chance: float) -> Verdict:
    """The verdict of a check that is passed with this ``chance`` (0 to 1)."""
    return "starts" if chance >= SURE else "fails" if chance <= 1 - SURE else "unsure"


class Budget(Struct, frozen=True):
    """An engine's own arithmetic for one deployment.

    ``pool_bytes`` is what is left for the KV cache on the deciding rank; it may be negative. ``formula`` is the
    rule with its numbers in words ("21.78 - 94.08 x (1 - 0.55) = -20.56 GiB"), ``rule`` its source. ``missing``
    names what would be needed where ``verdict`` is "unsure". ``reserve`` is what the fraction keeps out of
    weights and pool (SGLang: total x (1 - mem_fraction_static)), where the engine works so.
    """

    verdict: Verdict = "unsure"
    fails_at: Phase | None = None
    cause: str | None = None
    formula: str = ""
    rule: str = ""
    pool_bytes: Band | None = None
    kv_bytes: Band | None = None
    bytes_per_token: Band | None = None
    kv_tokens: Band | None = None
    ledgers: tuple[Ledger, ...] = ()
    missing: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    reserve: Entry | None = None


class Interval(Struct, frozen=True):
    """The values of the fraction flag that start: low < value <= high. None: that side is unknown.

    ``low`` comes from the pool (it must be positive), ``high`` from what must still fit beside it.
    ``empty_cause`` names the fault of a launch that no value starts, where that is another one.
    """

    flag: str
    low: float | None = None
    high: float | None = None
    recommended: float | None = None
    low_because: str = ""
    high_because: str = ""
    empty_cause: str | None = None

    @property
    def empty(self) -> bool:
        return self.low is not None and self.high is not None and self.low >= self.high


class Inferred(Struct, frozen=True):
    """A figure worked out from others, with its band; ``basis`` says how, with the numbers and their lines."""

    name: str
    value: float
    low: float
    high: float
    basis: str
