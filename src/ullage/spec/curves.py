"""Speed-up over what decides it: the acceptance length, and the time of one all-reduce."""

from __future__ import annotations

from msgspec import Struct

from ullage.spec.profit import speedup
from ullage.spec.report import AtBatch, Payoff

#: points of a curve
STEPS = 48


class Curve(Struct, frozen=True):
    """Points (x, times as fast); ``now`` is where the launch stands, ``even`` where it is as fast as without
    drafts (None: nowhere on the curve)."""

    x: str
    label: str
    points: tuple[tuple[float, float], ...]
    now: tuple[float, float] | None = None
    even: float | None = None


def over_length(p: Payoff) -> list[Curve]:
    """One curve a batch size, over the tokens of a round from 1 to the most that the rows can give."""
    most = float(max(2, p.cap))
    grid = [1.0 + (most - 1.0) * i / STEPS for i in range(STEPS + 1)]
    return [
        Curve(
            "tokens a round", f"batch {at.batch}",
            tuple((x, speedup(x, at.baseline.total_us, at.round.total_us)) for x in grid),
            (p.acceptance.length, speedup(p.acceptance.length, at.baseline.total_us, at.round.total_us)),
            at.break_even_length.value if at.break_even_length.value <= most else None,
        )
        for at in p.batches
    ]  # fmt: skip


def over_call(p: Payoff) -> list[Curve]:
    """One curve a batch size with all-reduces, over the microseconds of each in the verify pass; a step without
    drafts keeps what it takes now."""
    return [curve for at in p.batches if (curve := _over_call(p, at)) is not None]


def _over_call(p: Payoff, at: AtBatch) -> Curve | None:
    calls = at.all_reduces
    if calls is None or calls.count <= 0:
        return None
    most = 1.25 * max(calls.us.value, calls.usual_us.value if calls.usual_us else 0.0)
    length, base = p.acceptance.length, at.baseline.total_us

    def fast(us: float) -> float:
        return speedup(length, base, calls.rest_us + calls.count * us)

    even = next((us for gain, us in calls.allowed_us if gain == 1.0), None)
    return Curve(
        "µs an all-reduce", f"batch {at.batch}",
        tuple((most * i / STEPS, fast(most * i / STEPS)) for i in range(STEPS + 1)),
        (calls.us.value, fast(calls.us.value)), even if even is not None and even <= most else None,
    )  # fmt: skip
