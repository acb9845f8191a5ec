"""The campaign: the baseline first, then what is to be tried, the baseline again; every step kept before it is
taken, so that a kill at any moment loses nothing and ``resume`` repeats nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from typing import Any, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ullage.core.errors import InputError, UllageError
from ullage.core.secrets import masked, sealed
from ullage.lab.campaign import approach, durations, places, preflight, report
from ullage.lab.campaign.approach import Command
from ullage.lab.campaign.experiment import Experiment, Role, Step
from ullage.lab.campaign.file import BASELINE, DRIFT, Approach, Change, Loaded, fingerprint
from ullage.lab.campaign.job import Given, Job, Seconds
from ullage.lab.campaign.places import Place
from ullage.lab.campaign.preflight import Looked
from ullage.lab.campaign.storage import only_runner
from ullage.lab.campaign.study import Study, open_study

#: shows a line to who watches
Say = Callable[[str], None]
#: ``no-baseline``: it did not start or was not measured; ``stopped``: by a signal; ``limit``: the campaign's
#: time is
#: up; ``lost``: a machine cannot be reached; ``unclean``: something could not be freed, so nothing more may
#: start
How = Literal["finished", "no-baseline", "stopped", "limit", "lost", "unclean"]


class Outcome(Struct, frozen=True):
    how: How
    text: str = ""


class Stopping:
    """Whether to stop, and how hard: raised by signals and by the campaign's own reasons."""

    def __init__(self) -> None:
        self.level = 0
        self.outcome: Outcome | None = None

    def ask(self, outcome: Outcome) -> None:
        """Another reason to stop; the first one counts. From a signal handler too."""
        self.outcome = self.outcome or outcome
        self.level = min(2, self.level + 1)

    def __call__(self) -> int:
        return self.level


class Trial(Struct, frozen=True):
    """Something to run: what it is and what it changes."""

    experiment: Experiment
    change: Change
    command: Command


def run(
    loaded: Loaded, *, resume: bool, say: Say, stopping: Stopping | None = None, place: Place | None = None
) -> Outcome:
    """Run the campaign from where it stands. Raises UllageError where it cannot be kept, or runs already."""
    stopping = stopping or Stopping()
    with only_runner(loaded):
        study = open_study(loaded, create=True, sampler=_sampler(loaded))
        if not resume and any(e.attempt for e in study.experiments()):
            raise InputError("has been begun already", where=str(loaded.path),
                             hint=f"ullage campaign resume {loaded.path.name}")  # fmt: skip
        runner = Runner(loaded, study, say, stopping, place)
        try:
            return runner.run()
        finally:
            runner.place.close()


def _sampler(loaded: Loaded) -> Callable[[], Any] | None:
    if loaded.campaign.space is None:
        return None
    from ullage.lab.campaign import search

    return lambda: search.sampler(loaded)


class Runner:
    """One run of a campaign. Experiments go on in threads; the study is written under a lock."""

    def __init__(self, loaded: Loaded, study: Study, say: Say, stopping: Stopping, place: Place | None) -> None:
        self.loaded, self.study, self.say, self.stopping = loaded, study, say, stopping
        self.campaign = loaded.campaign
        self.base = preflight.base_command(self.campaign)
        self.place = place or places.of(loaded, self.base)
        self.gpu = self.campaign.gpu or self.place.gpu()
        self.seconds = Seconds.of(self.campaign.limits)
        self.lock = threading.RLock()
        self.began = time.monotonic()
        self.baseline = self.look(self.base)

    def look(self, command: Command) -> Looked:
        return preflight.look(self.campaign, command, self.gpu)

    def run(self) -> Outcome:
        for told in self.place.prepare():
            self.say(told)
        self._recover()
        self._check_file()
        self._begin()
        if not self._run_baseline():
            return self.stopping.outcome or self._without_baseline()
        self._run_rest()
        if self.stopping.outcome is None:
            self._run_drift()
        self._conclude()
        return self.stopping.outcome or Outcome("finished")

    # what an earlier run left

    def _recover(self) -> None:
        """Finished experiments whose last write was cut off are closed; others wait to be begun anew."""
        self.study.drop_unknown()
        for experiment in self.study.experiments():
            if experiment.settled:
                self.study.close(experiment)
            elif experiment.attempt:
                self.say(f"{experiment.name}: was {experiment.stage} when it was cut off, and is begun anew")

    def _check_file(self) -> None:
        """Raise InputError where something that was measured is another thing in the file now."""
        for trial in [self._baseline_trial(), *self._approaches()]:
            known = self._known(trial.experiment.name)
            if known is not None and known.settled and known.fingerprint != trial.experiment.fingerprint:
                raise InputError(
                    f"{known.name!r} is not what it was when it was {known.stage}", where=str(self.loaded.path),
                    hint="give what changed a name of its own, or the campaign another name:",
                )  # fmt: skip

    def _known(self, name: str) -> Experiment | None:
        return next((e for e in self.study.experiments() if e.name == name), None)

    def _begin(self) -> None:
        from ullage.core.secrets import masked as hide

        about = self.study.about()
        self.study.note_campaign(
            schema="ullage.campaign/1", launch=hide(self.campaign.launch), file=self.loaded.path.name,
            began=about.get("began", time.time()), goals=msgspec.to_builtins(self.loaded.targets),
            confidence=self.campaign.confidence, least_effect=self.campaign.least_effect,
            repeats=self.campaign.repeats,
        )  # fmt: skip
        for trial in [self._baseline_trial(), *self._approaches()]:
            self._planned(trial)

    def _planned(self, trial: Trial, distributions: dict[str, Any] | None = None) -> Experiment:
        """The experiment in the record; one that is there and unfinished takes what the file says now."""
        found = self.study.add(trial.experiment, distributions)
        if found.settled or found.fingerprint == trial.experiment.fingerprint:
            return found
        fresh = trial.experiment
        found = replace(found, reason=fresh.reason, changes=fresh.changes, command=fresh.command,
                        fingerprint=fresh.fingerprint)  # fmt: skip
        self.study.keep(found)
        return found

    # what there is to run

    def trial(self, name: str, role: Role, reason: str, change: Change, command: Command, **more: Any) -> Trial:
        mark = fingerprint(
            command, self.campaign.benchmark, self.campaign.repeats, self.campaign.engine_version
        )
        return Trial(Experiment(
            name=name, role=role, reason=masked(reason), changes=changes_of(change),
            command=masked(command.text), fingerprint=mark, **more,
        ), change, command)  # fmt: skip

    def _baseline_trial(self, name: str = BASELINE, role: Role = "baseline") -> Trial:
        reason = self.campaign.baseline.reason or "what everything is compared with"
        if role == "drift":
            reason = "the baseline again: what changed by itself meanwhile"
        return self.trial(name, role, reason, self.campaign.baseline, self.base)

    def _approaches(self) -> Iterator[Trial]:
        for each in self.campaign.approaches:
            yield self._approach(each)

    def _approach(self, each: Approach) -> Trial:
        try:
            command = approach.changed(self.base, each)
        except UllageError as error:
            index = self.campaign.approaches.index(each)
            raise self.loaded.marked.error(error.what, ("approaches", index), error.hint) from None
        return self.trial(each.name, "approach", each.reason, each, command)

    # running

    def _run_baseline(self) -> bool:
        """True once the baseline is measured."""
        self._one(self._baseline_trial())
        found = self._known(BASELINE)
        return found is not None and found.stage == "done"

    def _without_baseline(self) -> Outcome:
        found = self._known(BASELINE)
        why = found.why if found else "it was not run"
        told = f"; {found.told.summary}" if found and found.told else ""
        return Outcome(
            "no-baseline",
            f"the baseline was not measured, so nothing can be compared: {why}{told}"
            "; once that is mended, resume tries it again",
        )

    def _run_rest(self) -> None:
        if self.campaign.space is not None:
            from ullage.lab.campaign import search

            search.run(self)
            return
        self.side_by_side(iter([self._approach(each) for each in self.campaign.approaches]))

    def side_by_side(self, trials: Iterator[Trial]) -> None:
        """Run ``trials`` in as many threads as there are places; the first fault of ullage's own is raised when
        all have ended."""
        with ThreadPoolExecutor(self.place.slots, thread_name_prefix="experiment") as threads:
            running: set[Future[None]] = set()
            try:
                for trial in trials:
                    while len(running) >= self.place.slots:
                        done, running = wait(
                            running, return_when=FIRST_EXCEPTION if self.place.slots == 1 else "FIRST_COMPLETED"
                        )
                        _raised(done)
                    if self._over():
                        break
                    running.add(threads.submit(self._one, trial))
                _raised(wait(running).done)
            except BaseException:
                self.stopping.ask(Outcome("stopped"))
                raise

    def _over(self) -> bool:
        limit = self.campaign.limits.campaign
        if limit is not None and time.monotonic() - self.began > durations.seconds(limit):
            self.stopping.ask(Outcome("limit", f"the campaign's limit of {limit} is reached; resume goes on"))
        return self.stopping() > 0

    def _run_drift(self) -> None:
        """The baseline again, where anything was measured that it can be held against."""
        measured = [
            e for e in self.study.experiments() if e.role in ("approach", "trial") and e.stage == "done"
        ]
        if measured and not self._over():
            trial = self._baseline_trial(DRIFT, "drift")
            self._planned(trial)
            self._one(trial)

    def _one(self, trial: Trial) -> None:
        """One experiment, unless it is finished: preflight, and then the place does the rest."""
        if self._over():
            return
        with self.lock:
            experiment = self._known(trial.experiment.name)
            assert experiment is not None, "planned before it is run"
            if experiment.settled:
                return
            experiment = self.study.begin(experiment)
        self.say(f"{experiment.name}: preflight")
        looked = self._looked(trial)
        experiment = replace(
            experiment, preflight=looked.preflight, confounded=looked.confounded, split=looked.split
        )
        refusal = self._refusal(trial, looked)
        with self.lock:
            if refusal is not None:
                self.study.enter(experiment, "refused", why=refusal)
                self.say(f"{experiment.name}: not launched: {refusal}")
                return
            self.study.keep(experiment)
        if looked.confounded:
            self.say(
                f"{experiment.name}: confounded: {', '.join(c.setting for c in looked.confounded)} differ too"
            )
        self._perform(trial, experiment)

    def _looked(self, trial: Trial) -> Looked:
        if trial.experiment.role in ("baseline", "drift"):
            return self.baseline
        looked = self.look(trial.command)
        if self.baseline.resolved is None or trial.experiment.role == "trial":
            return looked
        return preflight.against(self.campaign, trial.experiment.name, trial.experiment.reason, trial.change,
                                 self.baseline.resolved, looked, self.gpu)  # fmt: skip

    def _refusal(self, trial: Trial, looked: Looked) -> str | None:
        if looked.preflight.verdict == "fails":
            cause = f" ({looked.preflight.cause})" if looked.preflight.cause else ""
            return f"it will not start: {looked.preflight.why}{cause}"
        return self.place.can(preflight.ranks_of(trial.command))

    def _perform(self, trial: Trial, experiment: Experiment) -> None:
        current = [experiment]

        def tell(stage: Any, run: str) -> None:
            with self.lock:
                runs = (*current[0].runs, run) if run and run not in current[0].runs else current[0].runs
                current[0] = self.study.enter(current[0], stage, runs=runs)
            self.say(f"{experiment.name}: {stage}")

        given = self.place.perform(
            self._job(trial, experiment), preflight.ranks_of(trial.command), tell, self.stopping
        )
        self._keep(current[0], given)

    def _job(self, trial: Trial, experiment: Experiment) -> Job:
        return Job(
            campaign=self.loaded.name, experiment=experiment.name, attempt=experiment.attempt,
            command=trial.command,
            benchmark=self.campaign.benchmark, repeats=self.campaign.repeats, seconds=self.seconds,
            metrics=tuple(target.metric for target in self.loaded.targets), gpu=_named(self.gpu),
            version=self.campaign.engine_version,
        )  # fmt: skip

    def _keep(self, experiment: Experiment, given: Given) -> None:
        if given.unclean:
            self.stopping.ask(
                Outcome("unclean", f"{experiment.name}: {given.unclean}; nothing more is started")
            )
        with self.lock:
            if given.end in ("stopped", "lost"):
                if given.end == "lost":
                    self.stopping.ask(Outcome("lost", f"{experiment.name}: {given.why}; resume runs it again"))
                self.say(f"{experiment.name}: {given.why}; it waits for resume")
                return
            missing = [step for step in given.steps if step[0] not in _stages(experiment)]
            history = (*experiment.history, *(Step(stage, at, experiment.attempt) for stage, at in missing))
            runs = (
                (*experiment.runs, given.run)
                if given.run and given.run not in experiment.runs
                else experiment.runs
            )
            whole = replace(
                experiment, history=history, runs=runs, repeats=given.repeats, measured_at=given.measured_at,
                ready_s=given.ready_s, took_s=given.took_s, place=given.place, told=given.told,
                notes=given.notes,
            )  # fmt: skip
            found = self.study.enter(whole, "done" if given.end == "done" else "crashed", why=given.why)
        self.say(f"{found.name}: {self._said(found)}")

    def _said(self, found: Experiment) -> str:
        if found.stage != "done":
            return f"crashed: {found.why}{f' ({found.told.cause})' if found.told and found.told.cause else ''}"
        parts = []
        for target in self.loaded.targets:
            mean = found.mean(target.metric)
            parts.append(f"{target.metric} {mean:,.6g} {target.unit}".rstrip() if mean is not None else "")
        return f"done: {', '.join(parts)}"

    def _conclude(self) -> None:
        """The verdicts, where optuna-dashboard shows them too."""
        with self.lock:
            words = report.short(self.loaded, self.study.experiments())
            self.study.note("verdicts", words)


def _stages(experiment: Experiment) -> set[str]:
    return {step.stage for step in experiment.history if step.attempt == experiment.attempt}


def _raised(done: set[Future[None]]) -> None:
    for each in done:
        each.result()


def _named(gpu: str | None) -> str | None:
    """The GPUs as ``why`` takes them: a name, not a machine to ask."""
    return gpu if gpu and ":" not in gpu and gpu.strip().lower() != "here" else None


def changes_of(change: Change) -> dict[str, Any]:
    """What a change changes, for the record: secrets hidden."""
    env = {name: sealed(value, name) for name, value in change.env.items()}
    flags = {name: sealed(value, name.lstrip("-").replace("-", "_")) for name, value in change.flags.items()}
    found: dict[str, Any] = {"flags": flags, "env": env, "image": change.image}
    found |= {"build": masked(change.build) if change.build else None}
    found |= {"launch": masked(change.launch) if change.launch else None, "also": list(change.also)}
    return {name: value for name, value in found.items() if value}
