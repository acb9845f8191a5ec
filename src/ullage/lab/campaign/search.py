"""A space instead of a list: Optuna proposes, the plan is the constraint, and only what may start is
launched."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from ullage.core.errors import InputError, UllageError
from ullage.lab.campaign import approach
from ullage.lab.campaign.file import Axis, Change, Interval, Loaded, Space

if TYPE_CHECKING:
    from ullage.lab.campaign.loop import Runner, Trial

#: proposals in a row that cost nothing (refused, or tried before) after which the space counts as exhausted
MOST_REFUSED = 60
#: points that a grid may have
MOST_POINTS = 10_000
_SEP = "."


def distributions(space: Space) -> dict[str, Any]:
    """Each axis as an Optuna distribution, by "flags.NAME" or "env.NAME"."""
    return {name: _distribution(axis) for name, axis in axes(space).items()}


def axes(space: Space) -> dict[str, Axis]:
    return {f"flags{_SEP}{n}": a for n, a in space.flags.items()} | {
        f"env{_SEP}{n}": a for n, a in space.env.items()
    }


def _distribution(axis: Axis) -> Any:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if isinstance(axis, list):
        return CategoricalDistribution(tuple(axis))
    if _whole(axis):
        return IntDistribution(int(axis.low), int(axis.high), log=axis.log, step=int(axis.step or 1))
    return FloatDistribution(float(axis.low), float(axis.high), log=axis.log, step=axis.step)


def sampler(loaded: Loaded) -> Any:
    """Optuna's sampler. Infeasible proposals (those that the plan refuses) carry a constraint above 0."""
    import warnings

    import optuna

    space = loaded.campaign.space
    assert space is not None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if space.sampler == "nsga2":
            size = max(4, min(50, (space.trials or 20) // 4))
            return optuna.samplers.NSGAIISampler(
                population_size=size, seed=space.seed, constraints_func=_constraint
            )
        startup = max(3, min(10, (space.trials or 20) // 3))
        return optuna.samplers.TPESampler(
            n_startup_trials=startup,
            seed=space.seed,
            multivariate=True,
            constant_liar=True,
            constraints_func=_constraint,
        )


def _constraint(trial: Any) -> tuple[float]:
    """Above 0: refused by the plan."""
    record = trial.user_attrs.get("experiment")
    refused = isinstance(record, dict) and record.get("stage") == "refused"
    return (1.0 if refused else -1.0,)


def run(runner: Runner) -> None:
    """Search until the trials are used up, the space is exhausted, or somebody asks to stop."""
    space = runner.campaign.space
    assert space is not None
    runner.side_by_side(grid(runner, space) if space.sampler == "grid" else proposals(runner, space))


def points(space: Space) -> list[dict[str, Any]]:
    """Every point of a grid, the last axis fastest."""
    values = {name: _values(axis) for name, axis in axes(space).items()}
    number = 1
    for each in values.values():
        number *= len(each)
    if number > MOST_POINTS:
        raise InputError(
            f"a grid of {number:,} points", where="space", hint=f"at most {MOST_POINTS:,}; sampler: tpe"
        )
    return [dict(zip(values, point, strict=True)) for point in itertools.product(*values.values())]


def _values(axis: Axis) -> list[Any]:
    if isinstance(axis, list):
        return list(axis)
    step = axis.step or 1
    count = int((axis.high - axis.low) / step + 1e-9) + 1
    if count > MOST_POINTS:
        raise InputError(f"{count:,} steps", where="space", hint=f"at most {MOST_POINTS:,}")
    return [_round(axis, axis.low + i * step) for i in range(count)]


def _round(axis: Interval, value: float) -> float | int:
    return value if isinstance(value, int) else round(value, 12)


def grid(runner: Runner, space: Space) -> Iterator[Trial]:
    """Every point, in the order of the file."""
    every = points(space)
    for point in every[: space.trials] if space.trials else every:
        trial = _trial(runner, _name(point), point)
        with runner.lock:
            runner._planned(trial, distributions(space))
        yield trial


def proposals(runner: Runner, space: Space) -> Iterator[Trial]:
    """What the sampler proposes, as long as there are trials left. What was cut off comes first."""
    yield from _unfinished(runner)
    costless, size = 0, _size(space)
    while costless < MOST_REFUSED and not runner.stopping():
        with runner.lock:
            if _used(runner) >= (space.trials or 0):
                return
            if size is not None and _tried(runner) >= size:
                runner.say(f"all {size} points of the space were tried")
                return
            trial, fresh = _proposed(runner, space)
        costless = 0 if fresh else costless + 1
        if fresh:
            yield trial
    if costless >= MOST_REFUSED:
        runner.say(
            f"{MOST_REFUSED} proposals in a row would not start or were tried before: the space is exhausted"
        )


def _size(space: Space) -> int | None:
    """Points of the space; None where an axis is a range of fractions without steps."""
    size = 1
    for axis in axes(space).values():
        endless = isinstance(axis, Interval) and axis.step is None and not _whole(axis)
        if endless:
            return None
        size *= (
            len(axis) if isinstance(axis, list) else int((axis.high - axis.low) / (axis.step or 1) + 1e-9) + 1
        )
    return size


def _whole(axis: Interval) -> bool:
    return all(isinstance(value, int) for value in (axis.low, axis.high, axis.step or 1))


def _tried(runner: Runner) -> int:
    """Different points that were proposed so far."""
    return len({repr(sorted(e.params.items())) for e in runner.study.experiments() if e.role == "trial"})


def _used(runner: Runner) -> int:
    """Launches that count: measured, crashed, or under way."""
    return sum(1 for e in runner.study.experiments() if e.role == "trial" and e.stage != "refused")


def _unfinished(runner: Runner) -> Iterator[Trial]:
    for found in runner.study.experiments():
        if found.role == "trial" and not found.finished:
            yield _trial(runner, found.name, dict(found.params))


def _proposed(runner: Runner, space: Space) -> tuple[Trial, bool]:
    """(a proposal, whether it is worth a launch). It is planned at once: what would not start is told to the
    sampler as such and costs nothing."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        asked = runner.study.optuna.ask(distributions(space))
    params = dict(asked.params)
    trial = _trial(runner, f"trial {asked.number}: {_name(params)}"[:200], params)
    experiment = runner.study.adopt(asked, trial.experiment)
    twin = next((e for e in runner.study.experiments() if e.role == "trial" and e.number != asked.number
                 and e.params == params and e.stage != "refused"), None)  # fmt: skip
    why = f"the same as {twin.name}" if twin else _doomed(runner, trial)
    if why is None:
        return replace(trial, experiment=experiment), True
    runner.study.enter(replace(experiment, attempt=1), "refused", why=why)
    runner.say(f"{experiment.name}: not launched: {why}")
    return trial, False


def _doomed(runner: Runner, trial: Trial) -> str | None:
    try:
        return runner._refusal(trial, runner.look(trial.command))
    except UllageError as error:
        return error.line


def _trial(runner: Runner, name: str, params: dict[str, Any]) -> Trial:
    """The launch of one point. One that cannot be made is left to the plan to refuse."""
    space = runner.campaign.space
    assert space is not None
    change = change_of(space, params)
    command = approach.changed(runner.base, change)
    return runner.trial(name, "trial", "proposed by the search", change, command, params=params)


def _name(params: dict[str, Any]) -> str:
    shown = {name: f"{value:.6g}" if isinstance(value, float) else value for name, value in params.items()}
    return ", ".join(f"{name.partition(_SEP)[2]}={value}" for name, value in shown.items())


def change_of(space: Space, params: dict[str, Any]) -> Change:
    """What a point of the space changes; the dust in a fraction's last digits is rounded away."""
    plain = {name: round(v, 10) if isinstance(v, float) else v for name, v in params.items()}
    return Change(
        flags={n.partition(_SEP)[2]: v for n, v in plain.items() if n.startswith("flags")},
        env={n.partition(_SEP)[2]: v for n, v in plain.items() if n.startswith("env")}, also=space.also,
    )  # fmt: skip


def sampled(space: Space, most: int) -> list[dict[str, Any]]:
    """Points of the space, spread evenly by their number: all of them where there are no more than ``most``."""
    values = {}
    for name, axis in axes(space).items():
        if (
            isinstance(axis, Interval)
            and axis.step is None
            and not all(isinstance(v, int) for v in (axis.low, axis.high))
        ):
            axis = Interval(low=axis.low, high=axis.high, step=(axis.high - axis.low) / 8 or 1)
        found = _values(axis)
        values[name] = found[:: max(1, len(found) // 32)]
    total = 1
    for each in values.values():
        total *= len(each)
    every = itertools.islice(itertools.product(*values.values()), 0, None, max(1, -(-total // most)))
    return [dict(zip(values, point, strict=True)) for point in itertools.islice(every, most)]
