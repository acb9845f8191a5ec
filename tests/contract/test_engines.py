"""What every engine promises (engines/base.py), the same tests for each."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ullage import engines
from ullage.core.deployment import Deployment
from ullage.core.errors import UllageError
from ullage.core.finding import Case, Finding
from ullage.core.launch import Launch
from ullage.core.run import Figure, Run
from ullage.diagnose import rank
from ullage.engines.base import Engine, Hints
from ullage.logs.lines import lines_of

ROOT = Path(__file__).parents[2]


class Side(NamedTuple):
    """An engine, a command of its own and one of the other's, and a real log."""

    name: str
    command: str
    other: str
    log: Path

    @property
    def engine(self) -> Engine:
        return engines.get(self.name)

    def runs(self, text: str) -> list[Run]:
        reader = self.engine.reader()
        for line in lines_of(text, "some.log"):
            reader.feed(line)
        return reader.finish()


SIDES = [
    Side(
        "sglang",
        "python3 -m sglang.launch_server --model-path moonshotai/Kimi-K2.5 --tp 8 --mem-fraction-static 0.8",
        "vllm serve Qwen/Qwen3-8B",
        ROOT / "examples" / "founding" / "fewer-channels.log",
    ),
    Side(
        "vllm",
        "vllm serve Qwen/Qwen3-8B --tensor-parallel-size 2 --gpu-memory-utilization 0.8",
        "python3 -m sglang.launch_server --model-path Qwen/Qwen3-8B",
        ROOT / "tests" / "cases" / "vllm" / "vllm-r22-52-openai-gpt-oss-20b-tp1-8192-fail.log",
    ),
]
BOTH = pytest.mark.parametrize("side", SIDES, ids=[side.name for side in SIDES])


@BOTH
def test_owns_its_command_and_no_other(side: Side) -> None:
    assert side.engine.owns_command(side.command.split())
    assert not side.engine.owns_command(side.other.split())
    assert engines.of_text(side.command) is side.engine


@BOTH
def test_parses_its_command(side: Side) -> None:
    launch = side.engine.parse(side.command, None)
    assert launch.engine == side.name
    assert launch.model
    assert not launch.unknown
    assert launch.number(side.engine.fraction) == 0.8


@BOTH
def test_equals_sign_or_space(side: Side) -> None:
    a = side.engine.parse(side.command, None)
    words = side.command.split()
    flag = next(i for i, w in enumerate(words) if w.startswith("--") and not words[i + 1].startswith("--"))
    joined = [*words[:flag], f"{words[flag]}={words[flag + 1]}", *words[flag + 2 :]]
    assert side.engine.parse(" ".join(joined), None).args == a.args


@BOTH
def test_reads_its_own_log(side: Side) -> None:
    runs = side.runs(side.log.read_text())
    assert any(isinstance(event, Figure) for run in runs for event in run.events)
    assert all(run.engine == side.name for run in runs)


@BOTH
def test_phrases_are_bytes_without_routine(side: Side) -> None:
    phrases = side.engine.literals()
    assert len(phrases) == len(set(phrases)) > 50
    assert all(isinstance(phrase, bytes) and len(phrase) > 2 for phrase in phrases)


@BOTH
@settings(max_examples=60, deadline=None)
@given(text=st.text(max_size=600))
def test_reads_any_text(side: Side, text: str) -> None:
    for run in side.runs(text):
        everything(side, run)


@BOTH
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_reads_any_mixture_of_real_lines(side: Side, data: st.DataObject) -> None:
    lines = side.log.read_text().splitlines()
    chosen = data.draw(st.lists(st.sampled_from(lines), max_size=25))
    for run in side.runs("\n".join(chosen)):
        everything(side, run)


def everything(side: Side, run: Run) -> None:
    """No method raises, whatever the run."""
    engine = side.engine
    deployment = engine.deployment(run, Hints())
    budget = engine.budget(deployment)
    for ledger in budget.ledgers:
        assert ledger.used_bytes + ledger.left_bytes == ledger.total_bytes
    verdict = rank.judge(run)
    interval = engine.interval(run, deployment)
    case = Case(run, deployment, budget, verdict.outcome, verdict.phase, verdict.root, interval)
    for cause in engine.causes():
        found = cause.test(case)
        assert found is None or isinstance(found, Finding)
    for inferred in engine.infer(run, deployment).values():
        assert inferred.low <= inferred.value <= inferred.high
    assert all(isinstance(text, str) for text in engine.contradictions(run, deployment))


@BOTH
def test_nothing_known_is_unsure_and_says_what_is_missing(side: Side) -> None:
    budget = side.engine.budget(Deployment(Launch(side.name)))
    assert budget.verdict == "unsure"
    assert budget.missing


@BOTH
def test_causes_are_complete_and_unique(side: Side) -> None:
    causes = side.engine.causes()
    assert len({cause.id for cause in causes}) == len(causes) > 40
    for cause in causes:
        assert min(len(text) for text in (cause.text.see, cause.text.true, cause.text.helps)) > 20, cause.id


@BOTH
@settings(max_examples=80, deadline=None)
@given(text=st.text(max_size=200))
def test_any_command_is_read_or_refused(side: Side, text: str) -> None:
    try:
        launch = side.engine.parse(f"{side.command} {text}", None)
    except UllageError as error:
        assert "\n" not in error.line
    else:
        assert launch.engine == side.name


def test_no_such_engine() -> None:
    with pytest.raises(LookupError):
        engines.get("tgi")
