"""Figures of the log as terms: which rank's decides, and how exactly each is known."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from ullage.core.deployment import Deployment, Reading
from ullage.core.ledger import Certainty, Entry
from ullage.core.run import Phase
from ullage.core.units import GIB, Band, Measured


class Term(Struct, frozen=True):
    """One term of the budget on the deciding rank, in bytes."""

    stage: Phase
    name: str
    band: Band
    certainty: Certainty
    source: str

    @property
    def entry(self) -> Entry:
        low, high = sorted((int(self.band.low), int(self.band.high)))
        return Entry(self.stage, self.name, int(self.band.value), low, high, self.certainty, self.source)


def printed(deployment: Deployment) -> Deployment:
    """The deployment as its figures are meant: sizes known to 0.01 GiB, ranks without figures that were
    dropped.

    vLLM prints two decimals, from 0.14.0 without trailing zeros, so that "30.2" is 30.20. A reading that a
    change of settings made untrue is gone from ``readings``; the ranks' own then are untrue as well.
    """
    kept = {
        rank: {name: reading for name, reading in own.items() if name in deployment.readings}
        for rank, own in deployment.by_rank.items()
    }
    return replace(
        deployment,
        readings=_stepped(deployment.readings),
        by_rank={rank: _stepped(own) for rank, own in kept.items()},
    )


def _stepped(readings: dict[str, Reading]) -> dict[str, Reading]:
    return {
        name: replace(r, value=Measured(r.value.value, 0.01))
        if name.endswith("_gib") and r.value.step > 0.01 and not r.source.startswith("--") else r
        for name, r in readings.items() if abs(r.value.value) < 1e15 and r.value.step < 1e15
    }  # fmt: skip


def read(deployment: Deployment, name: str, stage: Phase, label: str, labels: str | None = None) -> Term | None:
    """A reading in GiB as a term; ``labels``: a rank, whose own reading is taken where it has one."""
    found = deployment.by_rank.get(labels, {}).get(name) if labels else None
    found = found or deployment.readings.get(name)
    return Term(stage, label, found.value.band.scaled(GIB), "observed", found.source) if found else None


def smallest(deployment: Deployment, name: str) -> Reading | None:
    """The reading that decides for the group: the smallest over the ranks that show it."""
    shown = [ranks[name] for ranks in deployment.by_rank.values() if name in ranks]
    if name in deployment.readings:
        shown.append(deployment.readings[name])
    return min(shown, key=lambda reading: reading.value.value, default=None)
