"""The search, with a place that measures by a formula: nothing doomed is launched, nothing is tried twice."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from ullage.lab.campaign import file, loop, report
from ullage.lab.campaign.experiment import Experiment
from ullage.lab.campaign.job import Given, Job, Stop, Tell
from ullage.lab.campaign.study import open_study
from ullage.planning.plan import engine_of

BASE = """\
launch: vllm serve m --max-num-seqs 8 --max-model-len 1024 --max-num-batched-tokens 2048
goals: [{goals}]
repeats: 3
space:
  sampler: {sampler}
  seed: 3
  trials: {trials}
  flags: {{max-num-seqs: {axis}}}
"""


class Formula:
    """Throughput grows with max_num_seqs up to 48; latency grows with it. ``dies_after`` experiments it raises."""

    def __init__(self, slots: int = 1, dies_after: int | None = None) -> None:
        self.slots, self.launched, self.dies_after = slots, [], dies_after  # type: ignore[var-annotated]

    def prepare(self) -> list[str]:
        return []

    def can(self, num_gpus: int) -> str | None:
        return None

    def gpu(self) -> str | None:
        return None

    def close(self) -> None:
        pass

    def perform(self, job: Job, num_gpus: int, tell: Tell, stop: Stop) -> Given:
        tell("starting", f"run-{len(self.launched)}")
        if self.dies_after is not None and len(self.launched) >= self.dies_after:
            raise RuntimeError("killed")
        seqs = engine_of(job.command.text).parse(job.command.text, None).integer("max_num_seqs") or 0
        self.launched.append(seqs)
        tell("measuring", "")
        repeats = tuple(
            {"output_throughput": min(seqs, 48) * 10 * noise, "median_ttft_ms": 5 + seqs * noise}
            for noise in (0.999, 1.0, 1.001)
        )
        return Given(end="done", repeats=repeats, measured_at=time.time(), place="here")


def campaign(
    folder: Path, sampler: str, axis: str, trials: int = 8, goals: str = "output_throughput"
) -> file.Loaded:
    path = folder / "s.yaml"
    path.write_text(BASE.format(sampler=sampler, axis=axis, trials=trials, goals=goals))
    return file.load(path)


def run(loaded: file.Loaded, place: Formula) -> list[Experiment]:
    outcome = loop.run(loaded, resume=True, say=lambda text: None, place=place)
    assert outcome.how == "finished"
    return open_study(loaded, create=False).experiments()


def trials(found: list[Experiment], stage: str) -> list[int]:
    return [e.params["flags.max-num-seqs"] for e in found if e.role == "trial" and e.stage == stage]


def test_a_grid_is_measured_once_each(tmp_path: Path) -> None:
    place = Formula()
    loaded = campaign(tmp_path, "grid", "[0, 1, 16, 64]")
    found = run(loaded, place)
    assert trials(found, "refused") == [0]
    assert trials(found, "done") == [1, 16, 64]
    assert place.launched == [8, 1, 16, 64, 8]  # the baseline first and last
    built = report.build(loaded, found, {}, "")
    assert built.best == ("max-num-seqs=64",)
    assert [row.effect.word for row in built.rows if row.effect] == ["worse", "better", "better"]
    assert run(loaded, Formula()) == found


@pytest.mark.parametrize("slots", [1, 3])
def test_tpe_launches_nothing_doomed_and_nothing_twice(tmp_path: Path, slots: int) -> None:
    place = Formula(slots)
    found = run(campaign(tmp_path, "tpe", "{low: -4, high: 64, step: 4}", trials=8), place)
    measured = trials(found, "done")
    assert len(measured) == 8 == len(set(measured))
    assert min(measured) >= 1
    assert all(value <= 0 or value in measured for value in trials(found, "refused"))
    assert sorted(place.launched) == sorted([8, *measured, 8])


def test_an_exhausted_space_ends(tmp_path: Path) -> None:
    found = run(campaign(tmp_path, "tpe", "[1, 2]", trials=9), Formula())
    assert sorted(trials(found, "done")) == [1, 2]


def test_two_goals_give_a_front(tmp_path: Path) -> None:
    loaded = campaign(tmp_path, "nsga2", "{low: 1, high: 96}", 10, "output_throughput, median_ttft_ms")
    found = run(loaded, Formula())
    assert len(trials(found, "done")) == 10
    built = report.build(loaded, found, {}, "")
    assert len(built.best) >= 2
    chosen = [e.params["flags.max-num-seqs"] for e in found if e.name in built.best]
    assert len([seqs for seqs in chosen if seqs > 48]) <= 1  # beyond 48 only latency grows


@pytest.mark.parametrize("sampler", ["tpe", "grid"])
def test_a_search_that_is_killed_goes_on_under_the_same_numbers(tmp_path: Path, sampler: str) -> None:
    axis = "[1, 2, 4, 16, 24, 32]"
    loaded = campaign(tmp_path, sampler, axis, trials=6)
    for deaths in (1, 2, 2):
        with pytest.raises(RuntimeError, match="killed"):
            loop.run(loaded, resume=True, say=lambda text: None, place=Formula(dies_after=deaths))
    found = run(loaded, Formula())
    assert sorted(trials(found, "done")) == [1, 2, 4, 16, 24, 32]
    assert [e.number for e in found] == list(range(len(found)))
    assert len({e.name for e in found}) == len(found)
    assert any(e.attempt == 2 for e in found)


def test_a_proposal_that_was_cut_off_is_no_experiment(tmp_path: Path) -> None:
    from ullage.lab.campaign import search

    loaded = campaign(tmp_path, "tpe", "[1, 2]", trials=2)
    study = open_study(loaded, create=True, sampler=lambda: search.sampler(loaded))
    assert loaded.campaign.space is not None
    study.optuna.ask(search.distributions(loaded.campaign.space))  # and then it was killed
    found = run(loaded, Formula())
    assert sorted(trials(found, "done")) == [1, 2]
    assert [t.state.name for t in study.optuna.get_trials()].count("FAIL") == 1
    assert not any(t.state.name == "RUNNING" for t in study.optuna.get_trials())
