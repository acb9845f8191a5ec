"""A log (and the log of a run that worked) to a Diagnosis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import BinaryIO

from msgspec import Struct
from msgspec.structs import replace

from ullage import engines
from ullage.core.deployment import Budget, Deployment, Inferred, Reading
from ullage.core.errors import CommandError, InputError
from ullage.core.finding import HOW, Case, Change, Evidence, Finding
from ullage.core.launch import Launch
from ullage.core.machine import Machine
from ullage.core.report import Comparison, Diagnosis
from ullage.core.run import Outcome, Phase, Run
from ullage.core.units import Measured
from ullage.diagnose import compare, nccl, rank
from ullage.diagnose.fixes import ready
from ullage.diagnose.read import Log, Progress, pick, read
from ullage.diagnose.timeline import timeline
from ullage.engines.base import Engine, Hints
from ullage.engines.runtime.changes import INPUTS, check
from ullage.hardware import gpus
from ullage.models import load as models

#: where lines end, in words
_AT: dict[Phase, str] = {
    "args": "with the arguments",
    "init": "before the weights",
    "weights": "while the weights load",
    "profile": "in the profile run",
    "kv_pool": "with the KV pool",
    "graph_capture": "at graph capture",
    "warmup": "at the warm-up",
    "serving": "while it serves",
}


class Asked(Struct, frozen=True):
    """What a person says beside the logs."""

    command: str | None = None
    gpu: str | None = None
    version: str | None = None
    model_dir: str | None = None
    readings: Mapping[str, float] = {}
    run: int | None = None


class Examined(Struct, frozen=True):
    """One run, looked at from every side that the engine offers."""

    engine: Engine
    case: Case
    verdict: rank.Verdict
    inferred: dict[str, Inferred]
    observed: dict[str, Reading]
    contradictions: tuple[str, ...]
    notes: tuple[str, ...] = ()


def why(
    paths: Sequence[str],
    *,
    baseline: Sequence[str] = (),
    asked: Asked | None = None,
    stdin: BinaryIO | None = None,
    progress: Progress | None = None,
) -> Diagnosis:
    """Why the run in ``paths`` ended as it did; ``baseline`` is the log of a run that worked.

    Raises InputError and CommandError for input that cannot be read at all.
    """
    asked = asked or Asked()
    hints, said = _hints(asked)
    name = hints.launch.engine if hints.launch else None
    log = read(paths, engine=name, stdin=stdin, progress=progress)
    if log.engine is None:
        return _unknown(paths, log)
    this = examine(log.engine, pick(log, asked.run), _from_log(hints, log), asked.readings)
    this = replace(this, notes=(*said, *this.notes))
    compared = None
    if baseline:
        other_log = read(baseline, engine=log.engine.name, stdin=stdin, progress=progress)
        other = _baseline(other_log, log.engine, baseline)
        compared = compare.runs(other, this, ", ".join(baseline))
        this = replace(this, case=against(this, other, ", ".join(baseline)))
    return _diagnosis(paths, log, this, compared)


def _baseline(log: Log, engine: Engine, paths: Sequence[str]) -> Examined:
    if log.engine is None or log.engine.name != engine.name:
        raise InputError(f"is not a log of {engine.name}", where=", ".join(paths))
    return examine(engine, pick(log, None), _from_log(Hints(), log), {})


def _from_log(hints: Hints, log: Log) -> Hints:
    """The hints, with the launch command that the log itself holds where none was given."""
    if hints.launch is not None or log.command is None or log.engine is None:
        return hints
    if not log.engine.owns_command(log.command.split()):
        return hints
    try:
        return replace(hints, launch=log.engine.parse(log.command, hints.version).without_secrets())
    except CommandError:
        return hints


def against(this: Examined, other: Examined, name: str) -> Case:
    """The case with the bound that the baseline proves: what it was seen to take beside its pool, on a GPU of
    the same size, beats what the rules expect of this run; and its own fraction is known to work."""
    mine, theirs = this.case.interval, other.case.interval
    start = this.engine.fraction
    if mine is None or theirs is None or theirs.high is None or other.verdict.outcome != "started":
        return this.case
    inferred = other.inferred.get(start)
    worked = other.case.deployment.launch.number(start) or (inferred.value if inferred else None)
    if worked is None or not _same_card(this, other):
        return this.case
    took = theirs.high_because.replace("this launch", "it")
    seen = f"seen in {name}, which beats an estimate: {took}" if took else f"{name} started at {worked:.3g}"
    fits = mine.low is not None and mine.low < worked <= theirs.high
    proven = replace(
        mine, high=theirs.high, high_because=seen, recommended=round(worked, 3) if fits else mine.recommended
    )
    return replace(this.case, interval=proven)


def _same_card(this: Examined, other: Examined) -> bool:
    """True if both had as much memory to begin with, within 2 %."""
    totals = [side.case.budget.ledgers[0].total_bytes for side in (this, other) if side.case.budget.ledgers]
    return len(totals) == 2 and abs(totals[0] - totals[1]) <= 0.02 * max(totals)


def _hints(asked: Asked) -> tuple[Hints, list[str]]:
    """What was said beside the log, and a sentence for what of it could not be used."""
    said: list[str] = []
    machine: Machine | None = None
    if asked.gpu:
        machine = gpus.find(asked.gpu)
        if machine is None:
            near = ", ".join(gpus.suggest(asked.gpu))
            said.append(f"--gpu {asked.gpu!r} names no GPU known here" + (f"; near: {near}" if near else ""))
    launch: Launch | None = None
    if asked.command:
        engine = engines.of_text(asked.command)
        if engine is None:
            said.append("--command starts neither SGLang nor vLLM and was not used")
        else:
            launch = engine.parse(asked.command, asked.version).without_secrets()
    model = models.from_directory(asked.model_dir) if asked.model_dir else None
    return Hints(launch, machine, asked.version, model), said


def examine(engine: Engine, run: Run, hints: Hints, readings: Mapping[str, float]) -> Examined:
    """Everything that the engine's rules say of one run."""
    deployment = _with_readings(engine.deployment(run, hints), readings)
    budget = engine.budget(deployment)
    shown = nccl.seen(run, deployment.launch.env)
    budget = replace(budget, ledgers=nccl.parted(budget.ledgers, shown))
    verdict = rank.judge(run)
    interval = engine.interval(run, deployment)
    case = Case(
        run, deployment, budget, verdict.outcome, verdict.phase, verdict.root, interval, verdict.followed
    )
    return Examined(
        engine, case, verdict, engine.infer(run, deployment), engine.observed(run),
        tuple(engine.contradictions(run, deployment)),
        (*engine.disagreements(run, hints), *(nccl.sentences(shown) if shown else ())),
    )  # fmt: skip


def _with_readings(deployment: Deployment, readings: Mapping[str, float]) -> Deployment:
    given = {name: Reading(name, Measured.parse(repr(value)), "--reading") for name, value in readings.items()}
    return replace(deployment, readings={**deployment.readings, **given})


def findings(engine: Engine, case: Case) -> list[Finding]:
    """What every cause says of the case, the best first."""
    found = [finding for cause in engine.causes() if (finding := cause.test(case)) is not None]
    return sorted(found, key=lambda finding: (HOW.index(finding.certainty), -finding.weight))


def _diagnosis(paths: Sequence[str], log: Log, this: Examined, compared: Comparison | None) -> Diagnosis:
    case, run = this.case, this.case.run
    found = findings(this.engine, case)
    best = found[0] if found else None
    proven = _proven(this, compared) if compared and this.verdict.outcome != "started" else ()
    outcome, phase = _outcome(this, best)
    launch = case.deployment.launch
    summary, explanation = _words(this, best)
    return Diagnosis(
        engine=this.engine.name, version=launch.version, version_source=launch.version_source,
        outcome=outcome, phase=phase,
        cause=best.cause if best else ("none" if outcome == "started" else None),
        certainty=best.certainty if best else None,
        summary=summary, explanation=explanation, files=tuple(paths),
        evidence=_evidence(this, best), observed=this.observed, inferred=this.inferred,
        settings=launch.args, budget=case.budget, interval=case.interval,
        refuted=best.refuted if best else (), compare=compared,
        fixes=ready(
            this.engine, case.deployment, case.budget, (*proven, *(best.fixes if best else ()))
        ),
        contradictions=this.contradictions, notes=(*log.notes, *run.notes, *this.notes),
        contributing=best.contributing if best else (),
        run_index=run.index, runs=run.of, num_lines=log.num_lines, timeline=timeline(run),
    )  # fmt: skip


def _proven(this: Examined, compared: Comparison) -> tuple[Change, ...]:
    """The baseline's value of each deciding setting, planned for this run by the engine's rule."""
    return tuple(
        check(
            this.engine, this.case.deployment, {d.setting: d.value},
            f"the run of {compared.baseline_file} had it and started", certainty="certain",
        )
        for d in compared.differences
        if d.decisive and isinstance(d.value, str | int | float | bool) and d.setting not in INPUTS
    )  # fmt: skip


def _outcome(this: Examined, best: Finding | None) -> tuple[Outcome, Phase | None]:
    """Outcome and phase; a cause that needed particular proof may know the phase better."""
    outcome, phase = this.verdict.outcome, this.verdict.phase
    if best is not None and best.outcome is not None:
        outcome = best.outcome
    return outcome, best.phase if best is not None and best.phase is not None else phase


def _words(this: Examined, best: Finding | None) -> tuple[str, str]:
    if best is not None:
        return best.summary, best.explanation
    root, run = this.verdict.root, this.case.run
    if this.verdict.outcome == "started":
        if run.ready is not None:
            return "The server started and serves; no failure was found.", ""
        return f"No failure in these lines; they end {_AT[this.verdict.phase or 'init']}.", ""
    if root is not None:
        return f"It failed with a cause that ullage has no rule for: {root.message or root.text}", ""
    if this.verdict.followed:
        return "It ended, but the lines that say why are not in this log.", (
            "Every failure that it prints is of the kind that follows another one: "
            "the root is in another process's output, or was cut off."
        )
    last = f"they end {_AT[this.verdict.phase]}" if this.verdict.phase else "no stage is seen"
    return f"These lines hold neither a failure nor a finished start; {last}.", ""


def _evidence(this: Examined, best: Finding | None) -> tuple[Evidence, ...]:
    """The cause's own proof first, then the root and what followed, each line once; ranks that print the root
    too are counted with it."""
    mine = list({(e.file, e.line): e for e in reversed(best.evidence)}.values())[::-1] if best else []
    rest = [
        e for e in rank.evidence_of(this.verdict) if (e.file, e.line) not in {(m.file, m.line) for m in mine}
    ]
    for index, proof in enumerate(mine):
        twins = [e for e in rest if proof.role == "root" and rank.alike(e.text, proof.text)]
        if twins:
            ranks = rank.spread(proof.rank, *(e.rank for e in twins))
            mine[index] = replace(proof, rank=ranks, count=proof.count + sum(e.count for e in twins))
            rest = [e for e in rest if e not in twins]
    return (*mine, *rest)


def _unknown(paths: Sequence[str], log: Log) -> Diagnosis:
    what = "is empty" if not log.num_bytes else "holds nothing that SGLang or vLLM print"
    return Diagnosis(
        engine=None, version=None, version_source=None, outcome="unknown", phase=None, cause=None,
        certainty=None, summary=f"The log {what}.", explanation="", files=tuple(paths), budget=Budget(),
        notes=log.notes, num_lines=log.num_lines,
    )  # fmt: skip


__all__ = ["Asked", "Examined", "examine", "findings", "why"]
