"""What of a diagnosis is part of its answer, and what is only known beside it."""

from __future__ import annotations

from ullage.core.deployment import Interval
from ullage.core.ledger import Entry, Ledger
from ullage.core.report import Diagnosis
from ullage.core.run import PHASES
from ullage.render.names import flag


def decides(d: Diagnosis) -> bool:
    """True if the pool's formula is the reason of what happened, not just a figure of the run."""
    if not d.budget.formula:
        return False
    fails = d.budget.verdict == "fails" and d.budget.fails_at not in ("args", "init", "weights")
    if d.phase and d.budget.fails_at and PHASES.index(d.phase) > PHASES.index(d.budget.fails_at):
        fails = False  # the run got past the check that the rule expects to fail
    said = d.budget.formula in f"{d.summary}\n{d.explanation}" and d.budget.verdict != "starts"
    return d.outcome != "started" and (said or (fails and d.phase not in ("args", "init", "weights")))


def reached(d: Diagnosis) -> list[Ledger]:
    """The ranks' ledgers without what the rules only expect of stages that the run did not get past; none where
    the log shows nothing and memory is no part of the answer."""
    last = PHASES.index(d.phase) if d.phase and d.outcome in ("crashed", "hang") else len(PHASES)

    def was(entry: Entry) -> bool:
        at = PHASES.index(entry.stage)
        return (
            entry.certainty == "observed" or at < last or (at == last and entry.stage in ("weights", "serving"))
        )

    shown = [
        Ledger(
            item.rank, item.total_bytes, _fitting(item, [e for e in item.entries if was(e)]), item.total_source
        )
        for item in d.budget.ledgers
    ]
    seen = any(entry.certainty == "observed" for item in shown for entry in item.entries)
    return [item for item in shown if item.entries] if seen or decides(d) or bounds(d) is not None else []


def _fitting(ledger: Ledger, entries: list[Entry]) -> tuple[Entry, ...]:
    """``entries`` without those of the rules for which what the log shows leaves no room."""
    room = ledger.total_bytes - sum(entry.bytes for entry in entries if entry.certainty == "observed")
    found = []
    for entry in entries:
        if entry.certainty != "observed" and entry.stage != "weights":
            if entry.low > room:
                continue
            room -= entry.low
        found.append(entry)
    return tuple(found)


def bounds(d: Diagnosis) -> Interval | None:
    """The interval of the fraction where it is an answer: a run that works or fails for it, or a change."""
    item = d.interval
    if item is None or (item.low is None and item.high is None):
        return None
    named = any(flag(item) in change.change for change in d.fixes)
    asked = named or decides(d) or (d.outcome == "started" and not d.fixes)
    return item if asked else None
