"""What every engine promises (engines/base.py), one class; each engine brings its fixture."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

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


class EngineContract:
    name: ClassVar[str]
    command: ClassVar[str]
    other: ClassVar[str]
    log: ClassVar[Path]

    @property
    def engine(self) -> Engine:
        return engines.get(self.name)

    def runs(self, text: str) -> list[Run]:
        reader = self.engine.reader()
        for line in lines_of(text, "some.log"):
            reader.feed(line)
        return reader.finish()

    def test_owns_its_command_and_no_other(self) -> None:
        assert self.engine.owns_command(self.command.split())
        assert not self.engine.owns_command(self.other.split())
        assert engines.of_text(self.command) is self.engine

    def test_parses_its_command(self) -> None:
        launch = self.engine.parse(self.command, None)
        assert launch.engine == self.name
        assert launch.model
        assert not launch.unknown
        assert launch.number(self.engine.fraction) == 0.8

    def test_equals_sign_or_space(self) -> None:
        a = self.engine.parse(self.command, None)
        words = self.command.split()
        flag = next(i for i, w in enumerate(words) if w.startswith("--") and not words[i + 1].startswith("--"))
        joined = [*words[:flag], f"{words[flag]}={words[flag + 1]}", *words[flag + 2 :]]
        assert self.engine.parse(" ".join(joined), None).args == a.args

    def test_reads_its_own_log(self) -> None:
        runs = self.runs(self.log.read_text())
        assert any(isinstance(event, Figure) for run in runs for event in run.events)
        assert all(run.engine == self.name for run in runs)

    def test_phrases_are_bytes_without_routine(self) -> None:
        phrases = self.engine.literals()
        assert len(phrases) == len(set(phrases)) > 50
        assert all(isinstance(phrase, bytes) and len(phrase) > 2 for phrase in phrases)

    @settings(max_examples=60, deadline=None)
    @given(st.text(max_size=600))
    def test_reads_any_text(self, text: str) -> None:
        for run in self.runs(text):
            self.everything(run)

    @settings(max_examples=40, deadline=None)
    @given(st.data())
    def test_reads_any_mixture_of_real_lines(self, data: st.DataObject) -> None:
        lines = self.log.read_text().splitlines()
        chosen = data.draw(st.lists(st.sampled_from(lines), max_size=25))
        for run in self.runs("\n".join(chosen)):
            self.everything(run)

    def everything(self, run: Run) -> None:
        """No method raises, whatever the run."""
        engine = self.engine
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

    def test_nothing_known_is_unsure_and_says_what_is_missing(self) -> None:
        budget = self.engine.budget(Deployment(Launch(self.name)))
        assert budget.verdict == "unsure"
        assert budget.missing

    def test_causes_are_complete_and_unique(self) -> None:
        causes = self.engine.causes()
        assert len({cause.id for cause in causes}) == len(causes) > 40
        for cause in causes:
            assert min(len(text) for text in (cause.text.see, cause.text.true, cause.text.helps)) > 20, cause.id

    @settings(max_examples=80, deadline=None)
    @given(st.text(max_size=200))
    def test_any_command_is_read_or_refused(self, text: str) -> None:
        try:
            launch = self.engine.parse(f"{self.command} {text}", None)
        except UllageError as error:
            assert "\n" not in error.line
        else:
            assert launch.engine == self.name


class TestSglang(EngineContract):
    name = "sglang"
    command = (
        "python3 -m sglang.launch_server --model-path moonshotai/Kimi-K2.5 --tp 8 --mem-fraction-static 0.8"
    )
    other = "vllm serve Qwen/Qwen3-8B"
    log = ROOT / "examples" / "founding" / "fewer-channels.log"


class TestVllm(EngineContract):
    name = "vllm"
    command = "vllm serve Qwen/Qwen3-8B --tensor-parallel-size 2 --gpu-memory-utilization 0.8"
    other = "python3 -m sglang.launch_server --model-path Qwen/Qwen3-8B"
    log = ROOT / "tests" / "cases" / "vllm" / "vllm-r22-52-openai-gpt-oss-20b-tp1-8192-fail.log"


del EngineContract


def test_no_such_engine() -> None:
    with pytest.raises(LookupError):
        engines.get("tgi")
