"""What mends a run, in words: the interval of the fraction, and changes ready to paste."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ullage.core.deployment import Interval
from ullage.core.finding import Change, Prediction
from ullage.core.report import Diagnosis
from ullage.core.units import gib_text, tokens_text
from ullage.render.names import flag, lower_limit, pasted, short, upper_limit
from ullage.render.shown import bounds
from ullage.render.words import sentence

#: a fraction above it leaves little for what comes after the pool, though it may work
PRUDENT = 0.95
#: limits that cross by less than this are as close as estimates allow
CLOSE = 0.02


def title(d: Diagnosis) -> str:
    if d.outcome != "started":
        return "WHAT MENDS IT"
    return "WHAT WOULD HELP" if d.fixes else "WHAT ELSE WORKS"


def remedies(d: Diagnosis) -> Iterator[RenderableType]:
    if (item := bounds(d)) is not None:
        yield from _interval(item, d)
    for change in d.fixes:
        yield _change(change)


def _interval(item: Interval, d: Diagnosis) -> Iterator[RenderableType]:
    name = flag(item)
    low = f"above {lower_limit(item.low)}" if item.low is not None else ""
    high = f"at most {upper_limit(item.high)}" if item.high is not None else ""
    if item.empty and item.low is not None and item.high is not None:
        none = "No value" if item.low - item.high > CLOSE else "Hardly any value"
        yield Text(f"{none} of {name} works: it must be {low} and {high}", style="bold")
    else:
        best = f"; {item.recommended:.3g} is prudent" if item.recommended is not None else ""
        if any(name in change.change for change in d.fixes):
            best = ""  # the change below says what to set
        elif d.outcome == "started" and item.recommended is not None:
            setting = name.lstrip("-").replace("-", "_")
            arg = d.settings.get(setting) or d.inferred.get(setting)
            now = arg.value if arg is not None else None
            if isinstance(now, float) and abs(now - item.recommended) < 0.0051:
                best = f"; {now:.3g} is in force" + (", and prudent" if now <= PRUDENT else "")
        yield Text(f"{name} must be {' and '.join(filter(None, (low, high)))}{best}", style="bold")
    if d.outcome == "started" and not d.fixes:
        return  # it works: the limits are enough
    for head, text in ((low, item.low_because), (high, item.high_because)):
        if text and head:
            yield Text(f"  {head}: {short(text, d.files)}", style="dim")


def _change(change: Change) -> RenderableType:
    text = Text()
    flags = "  ".join(pasted(name, value) for name, value in change.change.items())
    if flags:
        text.append(flags, "bold green")
    if change.predicted is not None:
        text.append(f"  → {_predicted(change.predicted)}")
    if change.why:
        text.append(("\n" if flags else "") + sentence(change.why))
    table = Table.grid(padding=(0, 1))
    table.add_row(Text("-"), text)
    return table


def _predicted(p: Prediction) -> str:
    words = {
        "starts": "starts",
        "fails": "still fails",
        "unsure": "the pool is positive; the rest is not known",
    }
    parts = [words[p.verdict]]
    if p.kv_bytes is not None:
        parts.append(f"pool {gib_text(p.kv_bytes)}")
    if p.kv_tokens:
        parts.append(f"{tokens_text(p.kv_tokens)} tokens")
    return ", ".join(parts) + (f" ({p.note})" if p.note else "")
