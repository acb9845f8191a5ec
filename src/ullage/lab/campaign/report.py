"""What a campaign found: each experiment with its verdict, what was ruled out and why, what is still to do."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Literal

from msgspec import Struct

from ullage.core.units import Band, percent_text
from ullage.lab.campaign import metrics
from ullage.lab.campaign.experiment import Experiment
from ullage.lab.campaign.file import Loaded, Target
from ullage.lab.campaign.verdict import Drift, Effect, Sample, drift, effect

Status = Literal["not begun", "unfinished", "no baseline", "finished"]
#: metrics that are shown beside the goals, where they were measured
BESIDE = ("output_throughput", "request_throughput", "median_ttft_ms", "p99_ttft_ms", "median_tpot_ms",
          "median_itl_ms",          "p99_itl_ms", "acceptance_length")  # fmt: skip


class Row(Struct, frozen=True):
    """One experiment with the effects on its goals (the first decides) and on what else was measured.
    ``ruled_out`` is why it is no candidate, with its evidence; "" while it is one."""

    experiment: Experiment
    effects: tuple[Effect, ...] = ()
    beside: tuple[Effect, ...] = ()
    ruled_out: str = ""

    @property
    def effect(self) -> Effect | None:
        return self.effects[0] if self.effects else None


class Shown(Struct, frozen=True):
    """A measured figure with what was predicted of it."""

    metric: str
    unit: str
    mean: float
    low: float
    high: float
    predicted: Band | None = None


class Report(Struct, frozen=True):
    """The whole campaign. ``best`` are the names of the best experiments: one, or a Pareto front."""

    name: str
    file: str
    storage: str
    launch: str
    status: Status
    targets: tuple[Target, ...]
    confidence: float
    least_effect: float
    repeats: int
    baseline: Experiment | None = None
    again: Experiment | None = None
    drifts: tuple[Drift, ...] = ()
    rows: tuple[Row, ...] = ()
    best: tuple[str, ...] = ()
    began: float | None = None
    notes: tuple[str, ...] = ()
    searched: bool = False

    @property
    def unfinished(self) -> tuple[Experiment, ...]:
        every = [self.baseline, *(row.experiment for row in self.rows), self.again]
        return tuple(each for each in every if each is not None and not each.finished)


def build(loaded: Loaded, experiments: Sequence[Experiment], about: dict[str, Any], storage: str) -> Report:
    """The report of what is kept; a pure function of its arguments."""
    baseline = next((e for e in experiments if e.role == "baseline"), None)
    again = next((e for e in experiments if e.role == "drift"), None)
    tried = [e for e in experiments if e.role in ("approach", "trial")]
    rows = tuple(_row(loaded, each, baseline, again) for each in tried)
    campaign = loaded.campaign
    return Report(
        name=loaded.name, file=loaded.path.name, storage=storage, launch=str(about.get("launch") or ""),
        status=_status(loaded, baseline, again, tried), targets=loaded.targets, confidence=campaign.confidence,
        least_effect=campaign.least_effect, repeats=campaign.repeats, baseline=baseline, again=again,
        drifts=_drifts(loaded, baseline, again), rows=rows, best=_best(loaded, rows, baseline),
        began=about.get("began"), notes=tuple(_notes(loaded, rows, baseline, again)),
        searched=campaign.space is not None,
    )  # fmt: skip


def _status(
    loaded: Loaded, baseline: Experiment | None, again: Experiment | None, tried: Sequence[Experiment]
) -> Status:
    if baseline is None or not baseline.attempt:
        return "not begun"
    if baseline.finished and baseline.stage != "done":
        return "no baseline"
    space = loaded.campaign.space
    measured = [e for e in tried if e.stage in ("done", "crashed")]
    open_search = space is not None and space.trials is not None and len(measured) < space.trials
    if any(not e.finished for e in tried) or (open_search and again is None):
        return "unfinished"
    needs_again = any(e.stage == "done" for e in tried)
    return "unfinished" if needs_again and (again is None or not again.finished) else "finished"


def sample(experiment: Experiment, metric: str) -> Sample:
    return Sample(experiment.values(metric), experiment.measured_at or 0.0)


def _row(loaded: Loaded, this: Experiment, baseline: Experiment | None, again: Experiment | None) -> Row:
    if this.stage in ("refused", "crashed"):
        return Row(this, ruled_out=_why_out(this))
    if this.stage != "done" or baseline is None or baseline.stage != "done":
        return Row(this)
    goals = tuple(
        found for t in loaded.targets if (found := _effect(loaded, t.metric, t.better, this, baseline, again))
    )
    named = {target.metric for target in loaded.targets}
    beside = tuple(
        found for name in BESIDE
        if name not in named and (known := metrics.find(name)) is not None
        and (found := _effect(loaded, name, known.better, this, baseline, again))
    )  # fmt: skip
    return Row(this, goals, beside, _ruled_out(goals, loaded))


def _effect(
    loaded: Loaded, metric: str, better: Any, this: Experiment, baseline: Experiment, again: Experiment | None
) -> Effect | None:
    if not this.values(metric) or not baseline.values(metric):
        return None
    end = (
        sample(again, metric) if again is not None and again.stage == "done" and again.values(metric) else None
    )
    return effect(
        metric, better, sample(this, metric), sample(baseline, metric), end,
        confidence=loaded.campaign.confidence, least=loaded.campaign.least_effect,
    )  # fmt: skip


def _why_out(this: Experiment) -> str:
    if this.stage == "refused":
        return f"not launched: {this.why}"
    cause = f" ({this.told.cause}, {this.told.certainty})" if this.told and this.told.cause else ""
    told = f": {this.told.summary}" if this.told and this.told.summary else ""
    return f"crashed: {this.why}{told}{cause}"


def _ruled_out(effects: Sequence[Effect], loaded: Loaded) -> str:
    """Why a measured experiment is no candidate: the first goal is worse, and no other goal is better."""
    if not effects or effects[0].word != "worse" or any(e.word == "better" for e in effects):
        return ""
    first = effects[0]
    limits = f"{percent_text(first.low)} to {percent_text(first.high)}"
    return f"{first.metric} is {percent_text(first.value)} ({limits})"


def _drifts(loaded: Loaded, baseline: Experiment | None, again: Experiment | None) -> tuple[Drift, ...]:
    if baseline is None or again is None or again.stage != "done" or baseline.stage != "done":
        return ()
    return tuple(
        drift(t.metric, t.better, sample(baseline, t.metric), sample(again, t.metric),
              loaded.campaign.confidence,
              loaded.campaign.least_effect)
        for t in loaded.targets if baseline.values(t.metric) and again.values(t.metric)
    )  # fmt: skip


def _best(loaded: Loaded, rows: Sequence[Row], baseline: Experiment | None) -> tuple[str, ...]:
    """The best by the first goal among those shown to be better and not confounded; with several goals, those
    that no other one beats in every goal."""
    if baseline is None or baseline.stage != "done":
        return ()
    fit = [row for row in rows if any(e.word == "better" for e in row.effects) and not row.ruled_out]
    fit = [row for row in fit if not row.experiment.confounded]
    if len(loaded.targets) == 1:
        sign = 1 if loaded.targets[0].better == "higher" else -1
        best = max(fit, key=lambda row: sign * (row.effect.value if row.effect else 0), default=None)
        return (best.experiment.name,) if best else ()
    front = [row for row in fit if not any(_beats(loaded, other, row) for other in fit)]
    return tuple(row.experiment.name for row in front)


def _beats(loaded: Loaded, one: Row, other: Row) -> bool:
    """True if ``one`` is at least as good in every goal, and better in one."""
    pairs = []
    for target in loaded.targets:
        a, b = one.experiment.mean(target.metric), other.experiment.mean(target.metric)
        if a is None or b is None:
            return False
        pairs.append((a, b) if target.better == "higher" else (-a, -b))
    return all(a >= b for a, b in pairs) and any(a > b for a, b in pairs)


def _notes(
    loaded: Loaded, rows: Sequence[Row], baseline: Experiment | None, again: Experiment | None
) -> Sequence[str]:
    found = []
    judged = [row for row in rows if row.effects]
    if judged and (again is None or again.stage != "done"):
        found.append("the baseline was not measured again: drift during the campaign is not known")
    if loaded.campaign.repeats < 2:
        found.append("one repeat has no spread: nothing is judged; set repeats to 3 or more")
    chance = (1 - loaded.campaign.confidence) * len(judged)
    if chance >= 0.5:
        found.append(f"{len(judged)} comparisons at {loaded.campaign.confidence:.0%}: about {chance:.1f}"
                     " verdict(s) by chance alone; run what looks best again")  # fmt: skip
    named = {e.name for e in [baseline, again, *(r.experiment for r in rows)] if e}
    gone = [a.name for a in loaded.campaign.approaches if a.name not in named]
    if gone and baseline is not None:
        found.append(f"in the file and not begun: {', '.join(gone)}")
    return found


def figures(experiment: Experiment, targets: Sequence[Target]) -> list[Shown]:
    """The goals' figures of an experiment: mean, least and greatest, and what was predicted."""
    found = []
    for target in targets:
        values = experiment.values(target.metric)
        if values:
            mean = sum(values) / len(values)
            found.append(Shown(target.metric, target.unit, mean, min(values), max(values),
                               experiment.predicted.get(target.metric)))  # fmt: skip
    return found


def short(loaded: Loaded, experiments: Sequence[Experiment]) -> dict[str, str]:
    """Each experiment's verdict in a word or two, by name."""
    found = build(loaded, experiments, {}, "")
    words = {}
    for row in found.rows:
        effect = row.effect
        word = (
            f"{effect.word} ({percent_text(effect.low)} to {percent_text(effect.high)})"
            if effect
            else row.experiment.stage
        )
        words[row.experiment.name] = f"{word}, confounded" if row.experiment.confounded else word
    return words


def at(seconds: float | None) -> str:
    """A time for people, in this machine's zone."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds)) if seconds else "-"
