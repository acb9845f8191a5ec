"""Parts of a report in plain words, the same for every face: terminal, Markdown, HTML."""

from __future__ import annotations

from collections.abc import Sequence

from ullage.core.deployment import Inferred
from ullage.core.finding import Evidence
from ullage.core.report import Diagnosis, Difference
from ullage.core.units import GIB
from ullage.render.names import ENGINES, unit
from ullage.render.stages import WHEN

#: what stands before a summary that is not certain
DOUBT = {"likely": "Probably: ", "possible": "Possibly: "}
OUTCOMES = {"started": "started", "crashed": "crashed", "hang": "hangs", "unknown": "outcome unknown"}


def headline(d: Diagnosis) -> str:
    """Engine, release, outcome and ranks in one line."""
    parts = [ENGINES.get(d.engine or "", d.engine or "unknown engine")]
    if d.version:
        told = {"command": "as given", "inferred": "inferred from its lines"}.get(d.version_source or "")
        parts[0] += f" {d.version}" + (f" ({told})" if told else "")
    outcome = OUTCOMES[d.outcome]
    parts.append(f"{outcome} {WHEN[d.phase]}" if d.phase and d.outcome in ("crashed", "hang") else outcome)
    ranks = len(d.budget.ledgers)
    if ranks > 1:
        parts.append(f"{ranks} ranks")
    if d.runs > 1:
        parts.append(f"start {d.run_index + 1} of {d.runs} in this log")
    return "  ·  ".join(parts)


def summary(d: Diagnosis) -> str:
    """The answer in a sentence, with its doubt in front."""
    return f"{DOUBT.get(d.certainty or '', '')}{d.summary}"


def mark(d: Difference) -> str:
    """Whether a difference decides."""
    if d.decisive:
        return "decides"
    return "differs" if d.effect_bytes is None else "does not"


def effect(d: Difference) -> str:
    """What a difference does to the pool, in GiB or in words."""
    return d.note or (f"{-d.effect_bytes / GIB:+.2f} GiB" if d.effect_bytes is not None else "")


def number(item: Inferred) -> str:
    """The value with its band, as exact as the band allows, and its unit."""
    of = unit(item.name)
    if item.low == item.high:
        return f"{item.value:,.10g}{of}"
    if item.low == item.value and item.high >= 4096:
        return f"at least {item.value:,.10g}{of}"
    if abs(item.value) >= 1000:
        return f"{item.value:,.0f}{of} ({item.low:,.0f} to {item.high:,.0f})"
    if not of and all(float(value).is_integer() for value in (item.value, item.low, item.high)):
        return f"{item.value:.0f} ({item.low:.0f} to {item.high:.0f})"
    digits = 2 if of else 4
    low, high = (f"{value:.{digits}f}" for value in (item.low, item.high))
    return f"{item.value:.{digits}f}{of} ({low} to {high})"


def sentence(text: str) -> str:
    """``text`` with a capital in front, unless it begins with a name in code, and a full stop."""
    first = text.split(" ", 1)[0]
    code = "_" in first or "=" in first or first.startswith("-")
    done = text if code else text[:1].upper() + text[1:]
    return done if done.endswith((".", "!", "?")) else f"{done}."


def telling(evidence: Sequence[Evidence], followed: int) -> list[Evidence]:
    """The proof, and of what only followed the first lines and the last: what people see at the log's end."""
    after = [item for item in evidence if item.role == "cascade"]
    if len(after) <= followed:
        return list(evidence)
    kept = {id(item) for item in (*after[: followed - 1], after[-1])}
    return [item for item in evidence if item.role != "cascade" or id(item) in kept]


def shortened(text: str, limit: int = 300) -> str:
    one = " ".join(text.split())
    return one if len(one) <= limit else f"{one[:limit]} …"
