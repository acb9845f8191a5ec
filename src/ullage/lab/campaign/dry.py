"""A campaign without starting anything: each experiment's plan, and how long all of it is expected to take."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from msgspec import Struct
from msgspec.structs import replace

from ullage.core.errors import UllageError
from ullage.core.secrets import masked
from ullage.core.units import Band, duration_text
from ullage.lab import facts, records
from ullage.lab.campaign import approach, preflight
from ullage.lab.campaign.approach import Command
from ullage.lab.campaign.experiment import Confounder, Preflight
from ullage.lab.campaign.file import BASELINE, DRIFT, Change, Loaded
from ullage.lab.campaign.job import Seconds

#: points of a space that are planned
MOST_POINTS = 200
#: seconds that a server takes to end, beside what was measured
_END_S = 5.0


class DryRow(Struct, frozen=True):
    """One experiment. ``expected`` is its duration in words; ``seconds`` None where no earlier run tells."""

    name: str
    verdict: str
    why: str = ""
    confounded: tuple[Confounder, ...] = ()
    seconds: float | None = None
    expected: str = ""
    predicted: dict[str, Band] = {}


class Dry(Struct, frozen=True):
    name: str
    rows: tuple[DryRow, ...]
    goal: str
    unit: str
    notes: tuple[str, ...] = ()


class _Earlier(Struct, frozen=True):
    """Seconds that earlier runs took: of the same command by its key, else of anything of this campaign."""

    ready: dict[str, float]
    load_s: float | None
    usual_s: float | None


def run(loaded: Loaded) -> Dry:
    """Plan every experiment. Raises UllageError for what cannot be read."""
    campaign = loaded.campaign
    base = preflight.base_command(campaign)
    gpu = campaign.gpu
    looked = preflight.look(campaign, base, gpu)
    earlier = _earlier(loaded)
    rows = [_row(loaded, earlier, BASELINE, base, looked.preflight)]
    for name, reason, change in _changes(loaded):
        try:
            command = approach.changed(base, change)
        except UllageError as error:
            rows.append(DryRow(name, "fails", error.line))
            continue
        seen = preflight.look(campaign, command, gpu)
        if looked.resolved is not None and campaign.space is None:
            seen = preflight.against(campaign, name, reason, change, looked.resolved, seen, gpu)
        rows.append(_row(loaded, earlier, name, command, seen.preflight, seen.confounded))
    rows.append(_row(loaded, earlier, DRIFT, base, replace(looked.preflight, why="")))
    first = loaded.targets[0]
    return Dry(loaded.name, tuple(rows), first.metric, first.unit, tuple(_notes(loaded, rows)))


def _changes(loaded: Loaded) -> Iterator[tuple[str, str, Change]]:
    campaign = loaded.campaign
    yield from ((each.name, each.reason, each) for each in campaign.approaches)
    if campaign.space is None:
        return
    from ullage.lab.campaign import search

    for point in search.sampled(campaign.space, MOST_POINTS):
        yield search._name(point), "a point of the space", search.change_of(campaign.space, point)


def _row(
    loaded: Loaded, earlier: _Earlier, name: str, command: Command, plan: Preflight,
    confounded: tuple[Confounder, ...] = (),
) -> DryRow:  # fmt: skip
    told = DryRow(name, plan.verdict, plan.why, confounded, predicted=plan.predicted)
    if plan.verdict == "fails":
        return replace(told, seconds=0.0, expected="not launched", predicted={})
    ready = earlier.ready.get(facts.key(masked(command.text), "here"), earlier.usual_s)
    if ready is None or earlier.load_s is None:
        return replace(told, expected=f"at most {duration_text(_most(loaded))}")
    runs = loaded.campaign.repeats + loaded.campaign.benchmark.warmup
    seconds = ready + runs * earlier.load_s + _END_S
    return replace(told, seconds=seconds, expected=f"about {duration_text(seconds)}")


def _most(loaded: Loaded) -> float:
    """The most that an experiment can take, by its limits."""
    limits = Seconds.of(loaded.campaign.limits)
    runs = loaded.campaign.repeats + loaded.campaign.benchmark.warmup
    return limits.start + runs * limits.benchmark + limits.stop


def _earlier(loaded: Loaded) -> _Earlier:
    ready: dict[str, float] = {}
    own: list[float] = []
    loads: list[float] = []
    with suppress(UllageError):
        for _, record in records.Store().records():
            if record.ready_s is not None and record.command_key:
                ready[record.command_key] = record.ready_s
            if record.labels.get("campaign") == loaded.name and record.ready_s is not None:
                own.append(record.ready_s)
                with suppress(ValueError):
                    loads.append(float(record.labels.get("load_s", "")))
    return _Earlier(ready, loads[-1] if loads else None, sum(own) / len(own) if own else None)


def _notes(loaded: Loaded, rows: list[DryRow]) -> Iterator[str]:
    launched = [row for row in rows if row.verdict != "fails"]
    known = [row.seconds for row in launched if row.seconds is not None]
    slots = loaded.campaign.where.side_by_side
    if loaded.campaign.space is not None:
        trials = loaded.campaign.space.trials or len(rows) - 2
        failing = sum(row.verdict == "fails" for row in rows[1:-1])
        yield f"{len(rows) - 2} points of the space were planned, {failing} would not start"
        yield f"{trials} launches are searched, beside the baseline twice"
        most = (trials + 2) * _most(loaded)
        about = (sum(known) / len(known)) * (trials + 2) if known else None
    else:
        yield f"{len(launched)} launches, {len(rows) - len(launched)} refused by the plan"
        most, about = (
            len(launched) * _most(loaded),
            sum(known) / max(1, len(known)) * len(launched) if known else None,
        )
    limit = f"at most {duration_text(most / slots)} by the limits"
    told = (
        f"about {duration_text(about / slots)}, by earlier runs"
        if about is not None
        else "not known (no earlier run)"
    )
    yield f"expected: {told}; {limit}"
    if any(row.verdict == "unsure" for row in rows):
        yield "unsure: the plan lacks figures; see ullage plan -- LAUNCH COMMAND"
