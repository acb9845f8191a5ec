"""The record of a campaign: an Optuna study, each experiment one trial, in SQLite beside the file or in
PostgreSQL.

A trial is created in one transaction, with all that it is. What happens to it is written before and after each
step into its attribute ``experiment`` (the whole record) and only then into Optuna's own state, so that a kill
between any two writes leaves either the step before or the step after, and ``resume`` can tell which.
"""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from ullage.core.errors import InputError
from ullage.lab.campaign.experiment import Experiment, Stage, Step
from ullage.lab.campaign.file import Loaded
from ullage.lab.campaign.storage import connection, guarded, sqlite_path, url

if TYPE_CHECKING:
    import optuna

ATTRIBUTE = "experiment"
SCHEMA = "ullage.campaign/1"


class Study:
    """The experiments of one campaign. Opened by ``open_study``; used from one thread or under the caller's
    lock."""

    def __init__(self, loaded: Loaded, place: str, study: optuna.Study) -> None:
        self.loaded, self.place, self.optuna = loaded, place, study
        self._storage: Any = study._storage

    # reading

    def experiments(self) -> list[Experiment]:
        """Every experiment in the order of its number."""
        with guarded(self.place):
            trials = self.optuna.get_trials(deepcopy=False)
        return [found for trial in trials if (found := _experiment(trial)) is not None]

    def get(self, number: int) -> Experiment:
        return next(found for found in self.experiments() if found.number == number)

    def about(self) -> dict[str, Any]:
        """What the campaign as a whole has noted."""
        with guarded(self.place):
            found = self.optuna.user_attrs.get("campaign")
        return dict(found) if isinstance(found, dict) else {}

    # writing

    def note_campaign(self, **what: Any) -> None:
        with guarded(self.place):
            self.optuna.set_user_attr("campaign", {**self.about(), **what})

    def note(self, name: str, value: Any) -> None:
        """An attribute of the study, for who opens it with optuna-dashboard."""
        with guarded(self.place):
            self.optuna.set_user_attr(name, value)

    def add(self, planned: Experiment, distributions: Mapping[str, Any] | None = None) -> Experiment:
        """A new experiment, planned. One of the same name is never added twice."""
        from optuna.trial import TrialState, create_trial

        known = [found for found in self.experiments() if found.name == planned.name]
        if known:
            return known[0]
        planned = replace(planned, history=(Step("planned", time.time()),))
        with guarded(self.place):
            trial = create_trial(
                state=TrialState.WAITING, params=dict(planned.params), distributions=dict(distributions or {}),
                user_attrs=_attributes(planned),
            )  # fmt: skip
            trial_id = self._storage.create_new_trial(self.optuna._study_id, template_trial=trial)
            number = self._storage.get_trial_number_from_id(trial_id)
        return replace(planned, number=number)

    def adopt(self, trial: optuna.Trial, planned: Experiment) -> Experiment:
        """A trial that a sampler proposed becomes an experiment."""
        found = replace(planned, number=trial.number, history=(Step("planned", time.time()),))
        self._write(found)
        return found

    def begin(self, experiment: Experiment) -> Experiment:
        """Another attempt: what an earlier one measured is dropped, for its server is gone."""
        from optuna.trial import TrialState

        attempt = experiment.attempt + 1
        fresh = replace(
            experiment, stage="preflight", attempt=attempt, repeats=(), why="", told=None, measured_at=None,
            ready_s=None, history=(*experiment.history, Step("preflight", time.time(), attempt)),
        )  # fmt: skip
        self._write(fresh)
        trial = self._trial(fresh.number)
        if trial.state == TrialState.WAITING:
            with guarded(self.place):
                self._storage.set_trial_state_values(trial._trial_id, TrialState.RUNNING)
        return fresh

    def enter(self, experiment: Experiment, stage: Stage, **changes: Any) -> Experiment:
        """The experiment in another stage, kept."""
        history = (*experiment.history, Step(stage, time.time(), experiment.attempt))
        found = replace(experiment, stage=stage, history=history, **changes)
        self._write(found)
        if found.settled:
            self.close(found)
        return found

    def keep(self, experiment: Experiment) -> None:
        """The experiment as it is now, within its stage."""
        self._write(experiment)

    def close(self, experiment: Experiment) -> None:
        """Optuna's own state for a finished experiment; safe to repeat."""
        from optuna.trial import TrialState

        trial = self._trial(experiment.number)
        if trial.state.is_finished():
            return
        values = [experiment.mean(target.metric) for target in self.loaded.targets]
        whole = experiment.stage == "done" and all(value is not None for value in values)
        state = (
            TrialState.COMPLETE if whole else
            TrialState.PRUNED if experiment.stage == "refused" else TrialState.FAIL
        )  # fmt: skip
        with guarded(self.place):
            if trial.state == TrialState.WAITING:
                self._storage.set_trial_state_values(trial._trial_id, TrialState.RUNNING)
            self._storage.set_trial_state_values(trial._trial_id, state, values if whole else None)

    def drop_unknown(self) -> None:
        """Trials that a sampler had begun when ullage was killed, before they were an experiment: failed."""
        from optuna.trial import TrialState

        with guarded(self.place):
            for trial in self.optuna.get_trials(deepcopy=False):
                if not trial.state.is_finished() and ATTRIBUTE not in trial.user_attrs:
                    self._storage.set_trial_state_values(trial._trial_id, TrialState.FAIL)

    def _trial(self, number: int) -> Any:
        with guarded(self.place):
            trial_id = self._storage.get_trial_id_from_study_id_trial_number(self.optuna._study_id, number)
            return self._storage.get_trial(trial_id)

    def _write(self, experiment: Experiment) -> None:
        with guarded(self.place):
            trial_id = self._storage.get_trial_id_from_study_id_trial_number(
                self.optuna._study_id, experiment.number
            )
            for name, value in _attributes(experiment).items():
                self._storage.set_trial_user_attr(trial_id, name, value)


def _attributes(experiment: Experiment) -> dict[str, Any]:
    """The whole record, and what a table of optuna-dashboard should show."""
    shown = {"name": experiment.name, "stage": experiment.stage}
    if experiment.stage == "planned" or experiment.finished:
        shown |= {"role": experiment.role, "reason": experiment.reason, "why": experiment.why}
        shown["changes"] = msgspec.json.encode(experiment.changes).decode()
    record = msgspec.to_builtins(experiment)
    return {ATTRIBUTE: record, **shown}


def _experiment(trial: Any) -> Experiment | None:
    record = trial.user_attrs.get(ATTRIBUTE)
    if not isinstance(record, dict):
        return None
    with suppress(msgspec.ValidationError):
        return replace(msgspec.convert(record, Experiment, strict=False), number=trial.number)
    return None


def quiet() -> None:
    """Optuna without its chatter on stderr."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    logging.getLogger("alembic").setLevel(logging.ERROR)


def open_study(loaded: Loaded, *, create: bool, sampler: Callable[[], Any] | None = None) -> Study:
    """The campaign's study. Raises InputError where there is none and ``create`` is False, StorageError where
    the database cannot be used."""
    place = url(loaded)
    path = sqlite_path(place)
    if not create and path is not None and not path.exists():
        raise InputError(
            "has not been run yet", where=str(loaded.path), hint=f"ullage campaign run {loaded.path.name}"
        )
    import optuna

    quiet()
    with guarded(place), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        storage = optuna.storages.RDBStorage(place, engine_kwargs=connection(place))
        try:
            study = _study(loaded, storage, create, sampler() if sampler else None)
        except KeyError:
            raise InputError("has not been run yet", where=str(loaded.path)) from None
    found = Study(loaded, place, study)
    _same(found)
    return found


def _study(loaded: Loaded, storage: Any, create: bool, sampler: Any) -> optuna.Study:
    import optuna

    if not create:
        return optuna.load_study(study_name=loaded.name, storage=storage, sampler=sampler)
    directions: list[Any] = ["maximize" if t.better == "higher" else "minimize" for t in loaded.targets]
    study = optuna.create_study(study_name=loaded.name, storage=storage, sampler=sampler, directions=directions,
                                load_if_exists=True)  # fmt: skip
    names = [f"{target.metric} ({target.unit})" if target.unit else target.metric for target in loaded.targets]
    if study.metric_names != names:
        study.set_metric_names(names)
    return study


def _same(study: Study) -> None:
    """Raise InputError where the study of that name has other goals than the file."""
    with guarded(study.place):
        directions: list[Any] = [direction.name for direction in study.optuna.directions]
    wanted = ["MAXIMIZE" if target.better == "higher" else "MINIMIZE" for target in study.loaded.targets]
    if directions != wanted:
        raise InputError("its goals were others when it began", where=str(study.loaded.path),
                         hint="give the changed campaign another name:")  # fmt: skip
