"""The answer of ``ullage spec``: what faces show."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from ullage.core.timing import TimeLedger
from ullage.core.units import Band
from ullage.spec.acceptance import Acceptance, Width

#: "cannot": not even with every draft accepted; "pays" and "loses" where the odds are better than three to two
Verdict = Literal["pays", "loses", "cannot", "unsure"]


class AllReduces(Struct, frozen=True):
    """The all-reduces in the layers of a verify pass: ``count`` of ``bytes``, ``us`` each; ``rest_us`` is the
    round without them. ``allowed_us``: what each may take for speculation to be ``gain`` times as fast; None:
    no all-reduce is quick enough. ``usual_us``: what they take on hosts of this kind, where ``us`` was
    given."""

    count: int
    bytes: int
    us: Band
    rest_us: float
    allowed_us: tuple[tuple[float, float | None], ...] = ()
    usual_us: Band | None = None


class AtBatch(Struct, frozen=True):
    """Speculation at one batch size. Speeds are tokens per second of each request."""

    batch: int
    verdict: Verdict
    baseline: TimeLedger
    round: TimeLedger
    without: Band
    with_drafts: Band
    speedup: Band
    break_even_length: Band
    all_reduces: AllReduces | None = None
    experts_decode: float | None = None
    experts_verify: float | None = None


class AtDepth(Struct, frozen=True):
    """A chain of another depth at the first batch size."""

    depth: int
    length: float
    speedup: Band


class Memory(Struct, frozen=True):
    """What speculation adds to a rank, or takes from its pool; ``bytes`` below 0: less than without."""

    name: str
    bytes: int
    low: int
    high: int
    source: str


class Usual(Struct, frozen=True):
    """The first batch size once more with the all-reduces of hosts of this kind instead of the given ones."""

    us: Band
    speedup: Band
    with_drafts: Band


class Payoff(Struct, frozen=True):
    """The answer. ``paying`` are the ranges of batch sizes at which speculation is faster, the last one open
    (None) where no larger batch was tried. ``best``: the depth that gives most, by batch size."""

    engine: str
    version: str | None
    model: str
    gpu: str
    method: str
    width: Width
    context: int
    acceptance: Acceptance
    cap: int
    batches: tuple[AtBatch, ...]
    depths: tuple[AtDepth, ...] = ()
    best: dict[int, int] = {}
    paying: tuple[tuple[int, int | None], ...] = ()
    tried_to: int = 1
    memory: tuple[Memory, ...] = ()
    tokens: tuple[int | None, int | None] = (None, None)
    usual: Usual | None = None
    measured: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    experts: tuple[int, int] | None = None
