"""Line charts as SVG: curves with a mark where the launch stands, and a line at "as fast"."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, floor, log10

from msgspec import Struct

from ullage.spec.curves import Curve

WIDTH, HEIGHT = 640, 260
LEFT, RIGHT, TOP, BOTTOM = 52, 16, 14, 40
#: curves that can be told apart
MOST = 4


class Drawn(Struct, frozen=True):
    """A curve in the drawing's units, with its class (its place in the legend)."""

    label: str
    path: str
    number: int
    now: tuple[float, float] | None
    says: str


class Chart(Struct, frozen=True):
    """What the template draws: ticks are (place, text)."""

    title: str
    x: str
    curves: tuple[Drawn, ...]
    x_ticks: tuple[tuple[float, str], ...]
    y_ticks: tuple[tuple[float, str], ...]
    one: float | None
    width: int = WIDTH
    height: int = HEIGHT
    left: int = LEFT
    right: float = WIDTH - RIGHT
    bottom: float = HEIGHT - BOTTOM


def lines(curves: Sequence[Curve], title: str) -> Chart | None:
    """The chart of at most four curves with one x axis; None where there is none."""
    shown = [curve for curve in curves if len(curve.points) > 1][:MOST]
    if not shown:
        return None
    xs = [x for curve in shown for x, _ in curve.points]
    top = max(1.2, *(y for curve in shown for _, y in curve.points if y < 20))
    low, high = min(xs), max(xs)

    def at(x: float, y: float) -> tuple[float, float]:
        across = LEFT + (x - low) / ((high - low) or 1.0) * (WIDTH - RIGHT - LEFT)
        return round(across, 1), round(HEIGHT - BOTTOM - min(y, top) / top * (HEIGHT - BOTTOM - TOP), 1)

    drawn = tuple(
        Drawn(
            curve.label, " ".join(f"{x},{y}" for x, y in (at(*point) for point in curve.points)), number,
            at(*curve.now) if curve.now and low <= curve.now[0] <= high else None, _says(curve),
        )
        for number, curve in enumerate(shown)
    )  # fmt: skip
    return Chart(
        title, shown[0].x, drawn, tuple((at(x, 0)[0], f"{x:g}") for x in ticks(low, high)),
        tuple((at(low, y)[1], f"{y:g}") for y in ticks(0.0, top)), at(low, 1.0)[1] if top >= 1 else None,
    )  # fmt: skip


def _says(curve: Curve) -> str:
    parts = [curve.label]
    if curve.now:
        parts.append(f"now {_short(curve.now[0])} {curve.x}: {curve.now[1]:.2f} times as fast")
    parts.append(f"as fast at {_short(curve.even)}" if curve.even is not None else "nowhere as fast")
    return ", ".join(parts)


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def ticks(low: float, high: float, about: int = 6) -> list[float]:
    """Round values between two ends, some ``about`` of them."""
    if not high > low:
        return [low]
    raw = (high - low) / about
    size = 10.0 ** floor(log10(raw))
    step = next(size * times for times in (1, 2, 5, 10) if size * times >= raw)
    return [round(step * i, 10) for i in range(ceil(low / step), floor(high / step) + 1)]
