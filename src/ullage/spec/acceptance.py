"""Acceptance of drafts as the engines state it, each release in its own meaning, to tokens a round."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

from msgspec import Struct
from packaging.version import Version

from ullage.core.errors import InputError
from ullage.core.ledger import Certainty
from ullage.core.tables import load
from ullage.core.versions import Span
from ullage.spec.profit import alpha_of, expected_length, extended, positions_of

#: "log" and "metrics" state one and the same rate; "request" is that of one answer's meta_info
Where = Literal["log", "request"]
Quantity = Literal["length", "rate"]


class Meaning(Struct, frozen=True, forbid_unknown_fields=True):
    """A row of acceptance.toml: what a release of an engine calls acceptance length or rate.

    length = ``plus`` + value x ``times``, where ``times`` is "1", "steps" (draft depth), "steps+1", "drafts"
    (verify width less the root) or "width" (the whole verify width).
    """

    engine: str
    quantity: Quantity
    times: Literal["1", "steps", "steps+1", "drafts", "width"]
    plus: int
    source: str
    where: Where = "log"
    since: str | None = None
    until: str | None = None


class _Table(Struct, frozen=True, forbid_unknown_fields=True):
    meaning: tuple[Meaning, ...]


class Width(Struct, frozen=True):
    """How a round drafts: ``steps`` deep, ``topk`` branches a step, ``rows`` verified a request (the root
    included). ``parallel``: one draft forward gives all (DFlash, Medusa); ``free``: no draft model (n-gram)."""

    steps: int
    topk: int = 1
    rows: int = 0
    parallel: bool = False
    free: bool = False

    @property
    def verify_rows(self) -> int:
        return self.rows or self.steps + 1

    @property
    def forwards(self) -> int:
        """Draft forwards a round."""
        return 0 if self.free else 1 if self.parallel else self.steps

    @property
    def is_chain(self) -> bool:
        return self.topk <= 1

    def deeper(self, steps: int) -> Width:
        """A chain of another depth."""
        return Width(steps, 1, steps + 1, self.parallel, self.free)


class Acceptance(Struct, frozen=True):
    """How well drafts are accepted. ``positions`` are unconditional shares, one a depth; ``length`` is the mean
    measured or given at ``width``. ``low`` and ``high`` bound it."""

    length: float
    low: float
    high: float
    width: Width
    source: str
    positions: tuple[float, ...] = ()
    certainty: Certainty = "observed"

    def at(self, width: Width) -> float:
        """Tokens a round at another width: by the positions where a chain is deepened or shortened, the
        measured mean where the width is the same, and never more than the width can give."""
        if width == self.width or (not self.width.is_chain and width.steps == self.width.steps):
            return min(self.length, width.steps + 1)
        return min(expected_length(extended(self.positions, width.steps)), width.steps + 1)

    def limits(self, width: Width) -> tuple[float, float]:
        """Low and high of ``at``, as far from it as the measured mean's own."""
        here, most = self.at(width), width.steps + 1
        scale = (here - 1) / (self.length - 1) if self.length > 1 else 1.0
        low = max(1.0, here - (self.length - self.low) * scale)
        return low, min(most, here + (self.high - self.length) * scale)


def of_positions(positions: Sequence[float], width: Width, source: str) -> Acceptance:
    """Acceptance from unconditional rates per position. Raises InputError where they cannot be such."""
    rates = tuple(positions)
    if not rates or len(rates) > 64:
        raise InputError("expected 1 to 64 rates", where=source)
    if any(not 0 <= rate <= 1 for rate in rates):
        raise InputError("a rate per position lies between 0 and 1", where=source)
    if any(later > before + 1e-9 for before, later in pairwise(rates)):
        raise InputError(
            "rates per position cannot rise: each counts the rounds in which it and all before it are accepted",
            where=source, hint="multiply conditional rates first: 0.8,0.75 -> 0.8,0.6",
        )  # fmt: skip
    length = expected_length(rates)
    chain = width.deeper(len(rates))
    return Acceptance(length, length, length, chain, source, rates)


def of_length(
    length: float, width: Width, source: str, limits: tuple[float, float] | None = None
) -> Acceptance:
    """Acceptance from a mean length at ``width``: every position is taken to be accepted with the same
    conditional probability. Raises InputError for a length that the width cannot give."""
    most = width.steps + 1
    if not 1 <= length <= most + 1e-9:
        raise InputError(
            f"a round of {width.steps} drafts gives 1 to {most} tokens, not {length:g}", where=source,
            hint="the length counts the bonus token; name the depth it was measured at: 2.69@3",
        )  # fmt: skip
    low, high = limits or (length, length)
    alpha = alpha_of(length, width.steps)
    return Acceptance(length, max(1.0, low), min(most, high), width, source, positions_of(alpha, width.steps))


def meaning(engine: str, quantity: Quantity, release: Version | None, where: Where = "log") -> Meaning | None:
    """What ``engine`` at ``release`` means by the quantity; None where it does not print it."""
    table: _Table = load("ullage.spec", "acceptance.toml", _Table)
    return next(
        (
            row
            for row in table.meaning
            if (row.engine, row.quantity, row.where) == (engine, quantity, where)
            and Span(row.since, row.until).holds(release)
        ),
        None,
    )


def to_length(value: float, row: Meaning, width: Width) -> float:
    """Tokens a round, bonus included, of a value in the meaning of ``row``."""
    times = {
        "1": 1, "steps": width.steps, "steps+1": width.steps + 1, "drafts": width.verify_rows - 1,
        "width": width.verify_rows,
    }[row.times]  # fmt: skip
    return row.plus + value * times
