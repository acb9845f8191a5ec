"""A start followed while it happens: the real logs of the cases, a piece at a time."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab.started import CRASHED, ROOT, WORKED
from ullage.core.run import PHASES
from ullage.engines.base import Hints
from ullage.lab import health, oom
from ullage.lab.proc_table import Started
from ullage.lab.watch import MOST_WAITING, Watch, durations
from ullage.logs.follow import Follower
from ullage.planning.plan import Asked, engine_of, plan
from ullage.render.run_text import lines_of

COMMAND = "python -m sglang.launch_server --model-path moonshotai/Kimi-K2.5 --tp 8 --mem-fraction-static {}"
CASES = sorted((ROOT / "tests" / "cases").glob("*/*.log"))


def followed(log: Path, watch: Watch, size: int = 4096) -> Watch:
    """The watch after every piece of the log, looked at after each."""
    data = log.read_bytes()
    for at in range(0, len(data), size):
        watch.feed(data[at : at + size])
        watch.step(5)
        watch.look()
        if watch.doom is not None:
            break
    return watch


def asked(fraction: float, gpu: str | None = None) -> Watch:
    command = COMMAND.format(fraction)
    found = plan(Asked(command, gpu))
    launch = engine_of(command).parse(command, None)
    return Watch(found, Hints(launch, found.machine, None, found.model))


@pytest.mark.parametrize("size", [1, 7, 64, 100_000])
def test_lines_do_not_depend_on_how_they_are_cut(size: int) -> None:
    data = WORKED.read_bytes()[:20_000]
    follower = Follower("log")
    texts = [line.text for at in range(0, len(data), size) for line in follower.feed(data[at : at + size])]
    texts += [line.text for line in follower.close()]
    whole = Follower("log")
    assert texts == [line.text for line in [*whole.feed(data), *whole.close()]]


def test_a_bar_is_seen_while_it_moves() -> None:
    watch = Watch()
    watch.feed(b"\rLoading safetensors checkpoint shards:  50% Completed | 32/64 [04:48<04:48,  9.00s/it]\r")
    watch.step()
    assert watch.counts == {"weights": (32, 64)}


def test_the_founding_case_is_doomed_at_its_first_figure() -> None:
    watch = followed(CRASHED, asked(0.55), 200)
    assert watch.doom is not None
    assert (watch.doom.phase, watch.doom.cause) == ("kv_pool", "budget-below-weights")
    assert "-20.56 GiB" in watch.doom.formula
    assert "free_after_weights_gib" not in watch.doom.readings, "before the weights are loaded"
    assert watch.counts.get("weights", (0, 0))[0] == 0


def test_the_run_that_worked_is_followed_to_its_end() -> None:
    watch = followed(WORKED, asked(0.88, "8x RTX PRO 6000"))
    assert watch.doom is None
    assert watch.run is not None and watch.run.ready is not None
    view = watch.view()
    stages = {stage.phase: stage for stage in view.stages}
    assert stages["weights"].total == 64
    predicted, observed = stages["weights"].predicted_bytes, stages["weights"].observed_bytes
    assert predicted and observed and abs(predicted - observed) < 0.01 * observed
    assert stages["kv_pool"].observed_bytes


@pytest.mark.parametrize("log", [
    log for log in CASES if 'outcome = "started"' in log.with_suffix(".toml").read_text()
], ids=lambda log: log.stem)  # fmt: skip
def test_no_start_that_worked_is_ever_called_doomed(log: Path) -> None:
    watch = followed(log, Watch(), 8192)
    assert watch.doom is None, watch.doom


def test_a_flood_is_left_out_and_never_held() -> None:
    watch = Watch()
    for _ in range(64):
        watch.feed(b"routine line\n" * 20_000)
    assert watch.num_left_out > 0
    assert watch._num_waiting <= MOST_WAITING


def test_time_left_by_an_earlier_run() -> None:
    usual = durations({"args": 1.0, "weights": 11.0, "kv_pool": 71.0, "serving": 80.0}, 81.0)
    assert usual == {"args": 10.0, "weights": 60.0, "kv_pool": 9.0}
    watch = Watch(usual=usual)
    assert watch.view().left_s == pytest.approx(79, abs=1)
    watch.began = {"args": 0.0, "weights": 0.0}
    assert watch.view().left_s == pytest.approx(69, abs=1)
    stage = next(stage for stage in watch.view().stages if stage.phase == "weights")
    assert stage.state == "open" and stage.fraction is not None and stage.fraction < 0.1


def test_the_view_fits_its_screen() -> None:
    watch = followed(WORKED, asked(0.88, "8x RTX PRO 6000"))
    for width in (50, 80, 200):
        lines = lines_of(watch.view(), width, 40)
        assert 3 <= len(lines) <= len(PHASES) + 2
    assert lines_of(watch.view(), 30, 40) == [] and lines_of(watch.view(), 100, 5) == []


def test_a_hang_names_every_rank_and_dumps_where_py_spy_is(tmp_path: Path) -> None:
    last = {
        "": (0.5, "banner"),
        "TP0": (1.0, "Load weight begin."),
        "TP1": (3.0, "Init torch distributed begin."),
    }
    tool = tmp_path / "bin" / "py-spy"
    tool.parent.mkdir()
    tool.write_text('#!/bin/sh\necho "stack of $4"\n')
    tool.chmod(0o755)
    import os

    from ullage.lab import proc_table

    me = proc_table.started(os.getpid())
    assert me is not None
    found = health.hang("weights", 60.0, last, 63.0, [me, Started(1 << 22, 1)], tmp_path / "stacks", str(tool))
    assert found.ranks == {"TP0": (62.0, "Load weight begin."), "TP1": (60.0, "Init torch distributed begin.")}
    assert f"stack of {me.pid}" in (tmp_path / "stacks").read_text()
    without = health.hang("weights", 60.0, last, 63.0, [], tmp_path / "none", "/no/such/vllm")
    assert without.stacks is None or health.py_spy("vllm")


def test_the_oom_killers_count_is_a_number_or_unknown() -> None:
    found = oom.kills()
    assert found is None or found >= 0
