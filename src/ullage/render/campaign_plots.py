"""Plots of a campaign as inline SVG: effects with their intervals, and every measurement."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import ceil, floor, log10

from ullage.core.units import percent_text
from ullage.lab.campaign.file import Target
from ullage.lab.campaign.verdict import Effect
from ullage.render import campaign_words as words

WIDTH, LABEL, RIGHT, ROW, TOP = 860, 210, 240, 26, 12
_MOST_NAME = 32


def css(effect: Effect | None) -> str:
    """The class of a verdict."""
    word = effect.word if effect else ""
    return word if word in ("better", "worse") else "none"


def _name(text: str) -> str:
    plain = "".join(c if c.isprintable() else "?" for c in text)
    return escape(plain if len(plain) <= _MOST_NAME else f"{plain[: _MOST_NAME - 2]}..")


def forest(effects: Sequence[tuple[str, Effect]], metric: str) -> str:
    """Effects with their intervals, one a line; the line at 0 is the baseline."""
    low = min(0.0, *(found.low for _, found in effects))
    high = max(0.0, *(found.high for _, found in effects))
    x = _Scale(low, high)
    height = TOP + ROW * len(effects) + 34
    parts = [f'<line class="zero" x1="{x(0)}" x2="{x(0)}" y1="{TOP}" y2="{height - 30}"/>']
    for i, (name, found) in enumerate(effects):
        y = TOP + ROW * i + ROW // 2
        kind = css(found)
        parts += [
            f'<text x="0" y="{y + 4}">{_name(name)}</text>',
            _line(kind, x(found.low), x(found.high), y, y),
            *(_line(kind, x(end), x(end), y - 5, y + 5) for end in (found.low, found.high)),
            f'<circle class="{kind}" cx="{x(found.value)}" cy="{y}" r="4"/>',
            f'<text x="{WIDTH - RIGHT + 12}" y="{y + 4}">{_told(found)}</text>',
        ]  # fmt: skip
    parts += _axis(x, height, [percent_text(v) for v in x.ticks])
    told = "; ".join(f"{name}: {words.effect(found)}" for name, found in effects[:20])
    return _svg(height, f"Effects on {metric} with intervals", told, parts)


def _line(kind: str, x1: float, x2: float, y1: int, y2: int) -> str:
    return f'<line class="{kind}" stroke-width="2" x1="{x1}" x2="{x2}" y1="{y1}" y2="{y2}"/>'


def _told(found: Effect) -> str:
    return escape(f"{percent_text(found.value)} {found.word}")


def dots(series: Sequence[tuple[str, tuple[float, ...], str]], target: Target) -> str:
    """Every measurement of one metric, a line each experiment."""
    values = [value for _, found, _ in series for value in found]
    if not values:
        return ""
    x = _Scale(min(values), max(values))
    height = TOP + ROW * len(series) + 34
    parts: list[str] = []
    for i, (name, found, kind) in enumerate(series):
        y = TOP + ROW * i + ROW // 2
        parts.append(f'<text x="0" y="{y + 4}">{_name(name)}</text>')
        parts.append(f'<line class="axis" x1="{LABEL}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>')
        parts += [
            f'<circle class="{kind}" cx="{x(v)}" cy="{y}" r="4" fill-opacity=".55"/>' for v in found[:200]
        ]
    parts += _axis(x, height, [f"{words.number(v)}" for v in x.ticks])
    told = "; ".join(
        f"{name}: {', '.join(words.number(v) for v in found[:10])}" for name, found, _ in series[:20]
    )
    return _svg(height, f"Measurements of {target.metric} in {target.unit or 'its unit'}", told, parts)


class _Scale:
    """Values to columns."""

    def __init__(self, low: float, high: float) -> None:
        room = (high - low) * 0.06 or abs(high) * 0.05 or 1.0
        self.low, self.high = low - room, high + room

    def __call__(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return round(LABEL + share * (WIDTH - RIGHT - LABEL), 1)

    @property
    def ticks(self) -> list[float]:
        """Round values within, three to six of them."""
        rough = (self.high - self.low) / 4
        power = 10.0 ** floor(log10(rough))
        step = next(power * each for each in (1, 2, 2.5, 5, 10) if power * each >= rough)
        first = ceil(self.low / step)
        return [step * i for i in range(first, floor(self.high / step) + 1)]


def _axis(x: _Scale, height: int, labels: Sequence[str]) -> list[str]:
    y = height - 28
    found = [f'<line class="axis" x1="{LABEL}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>']
    for value, label in zip(x.ticks, labels, strict=True):
        found.append(
            f'<text class="dim" text-anchor="middle" x="{x(value)}" y="{y + 18}">{escape(label)}</text>'
        )
    return found


def _svg(height: int, title: str, told: str, parts: Sequence[str]) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img">'
        f"<title>{escape(title)}</title><desc>{escape(told[:2000])}</desc>{''.join(parts)}</svg>"
    )
