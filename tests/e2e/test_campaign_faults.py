"""A campaign that is killed, stopped, starved: every experiment once in the record, nothing left running."""

from __future__ import annotations

import os
import random
import signal
import subprocess
from pathlib import Path

import pytest
from tests.lab.campaign.world import APPROACHES, World, until_said

EXPECTED = {
    "baseline": "done",
    "baseline, again": "done",
    **{name: stage for name, (_, stage) in APPROACHES.items()},
}


def test_a_whole_campaign(tmp_path: Path) -> None:
    world = World(tmp_path)
    code, _, err = world.run("run", world.file.name)
    assert code == 0, err
    found = world.export()
    assert {e["name"]: e["stage"] for e in found["experiments"]} == EXPECTED
    by_name = {e["name"]: e for e in found["experiments"]}
    assert by_name["slow"]["effects"][0]["word"] == "worse"
    assert by_name["alike"]["effects"][0]["word"] == "no difference shown"
    assert "max-num-seqs" in by_name["refused"]["why"]
    assert "code 3" in by_name["crashes"]["why"]
    assert [c["setting"] for c in by_name["confounded"]["confounded"]] == ["max_num_batched_tokens"]
    assert all(e["attempt"] == 1 for e in found["experiments"])
    assert [e["number"] for e in found["experiments"]] == list(range(7))
    world.nothing_left()
    code, _, err = world.run("run", world.file.name)
    assert code == 2
    assert "resume" in err
    code, _, err = world.run("resume", world.file.name)
    assert code == 0
    assert world.export() == found  # nothing is run twice


def test_killed_at_thirty_moments(tmp_path: Path) -> None:
    """kill -9 of ullage at random moments of a campaign, resumed each time: every experiment exactly once."""
    chance = random.Random(20_261)
    world = World(tmp_path)
    kills = 0
    while kills < 30:
        for path in tmp_path.glob("c.db*"):
            path.unlink()
        while not _cut_off(world, chance.uniform(0.8, 3.0) if kills < 30 else 60.0):
            kills += 1
        found = world.export()["experiments"]
        assert {e["name"]: e["stage"] for e in found} == EXPECTED
        assert [e["number"] for e in found] == list(range(len(EXPECTED)))
        world.nothing_left()


def _cut_off(world: World, seconds: float) -> bool:
    """False where ullage was killed after ``seconds``; True where it had finished before."""
    child = world.start("resume", world.file.name)
    try:
        child.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.kill(child.pid, signal.SIGKILL)
        child.communicate()
        return False
    assert child.returncode == 0
    return True


@pytest.mark.parametrize(("number", "stage"), [
    (signal.SIGINT, "starting"), (signal.SIGTERM, "measuring"), (signal.SIGHUP, "measuring"),
])  # fmt: skip
def test_a_signal_ends_all_and_resume_goes_on(tmp_path: Path, number: int, stage: str) -> None:
    world = World(
        tmp_path, approaches="approaches:\n  - {name: alike, reason: x, env: {NOTHING: 1}}", latency=0.05
    )
    child = world.start("run", world.file.name)
    until_said(child, f": {stage}")
    child.send_signal(number)
    _, err = child.communicate(timeout=20)
    assert child.returncode == 128 + number, err
    world.nothing_left()
    assert world.run("status", world.file.name)[0] == 3
    code, _, err = world.run("resume", world.file.name)
    assert code == 0, err
    found = world.export()["experiments"]
    assert [(e["name"], e["stage"]) for e in found] == [
        ("baseline", "done"), ("alike", "done"), ("baseline, again", "done"),
    ]  # fmt: skip
    assert found[0]["attempt"] == 2


def test_only_one_runner(tmp_path: Path) -> None:
    world = World(tmp_path, latency=0.2)
    child = world.start("run", world.file.name)
    try:
        until_said(child, ": measuring")
        code, _, err = world.run("resume", world.file.name)
        assert code == 2
        assert f"runs already: pid {child.pid}" in err
        assert world.run("status", world.file.name)[0] == 3  # looking is allowed
    finally:
        child.send_signal(signal.SIGTERM)
        child.communicate(timeout=20)
    world.nothing_left()


ONE = "approaches:\n  - {name: one, reason: x, env: {NOTHING: 1}}"


def test_a_baseline_that_cannot_start_stops_the_campaign(tmp_path: Path) -> None:
    world = World(tmp_path, approaches=ONE, more="baseline: {env: {STUB_EXIT: 7}}")
    code, _, err = world.run("run", world.file.name)
    assert code == 1
    assert "the baseline was not measured" in err
    assert "code 7" in err
    assert world.stages() == {"baseline": "crashed", "one": "planned"}
    assert "baseline was not measured" in world.run("report", world.file.name)[1]
    world.nothing_left()
    world.file.write_text(world.file.read_text().replace("STUB_EXIT: 7", "MENDED: 7"))
    code, _, err = world.run("resume", world.file.name)
    assert code == 0, err
    assert world.stages() == {"baseline": "done", "one": "done", "baseline, again": "done"}


def test_a_benchmark_that_hangs(tmp_path: Path) -> None:
    world = World(tmp_path, approaches=ONE, load_env=", LOAD_HANG: 1")
    world.file.write_text(world.file.read_text().replace("benchmark: 20s", "benchmark: 2s"))
    code, _, err = world.run("run", world.file.name)
    assert code == 1
    assert "the benchmark did not end within 2 s" in err
    world.nothing_left()


def test_a_benchmark_that_fails_or_gives_no_figure(tmp_path: Path) -> None:
    world = World(tmp_path, approaches=ONE, load_env=", LOAD_FAIL: 1")
    code, _, err = world.run("run", world.file.name)
    assert code == 1
    assert "code 3: load: told to fail" in err
    world = World(tmp_path / "other", approaches=ONE)
    world.file.write_text(world.file.read_text().replace("{json: request_throughput}", "{json: no.such}"))
    code, _, err = world.run("run", world.file.name)
    assert code == 1
    assert "no number at 'no.such'" in err
    world.nothing_left()


def test_servers_that_misbehave(tmp_path: Path) -> None:
    """Health without answers; children that ignore SIGTERM; children that leave; one that dies under load."""
    approaches = """\
approaches:
  - {name: deaf, reason: x, env: {STUB_HEALTH_ONLY: 1}}
  - {name: refuses, reason: x, env: {STUB_REFUSE: 1}}
  - {name: stubborn, reason: x, env: {STUB_IGNORE: 1, STUB_CHILDREN: 2, STUB_ORPHANS: 1}}
  - {name: dies, reason: x, env: {STUB_SERVE_S: 0.6, STUB_EXIT: -9, STUB_LATENCY_S: 0.4}}
  - {name: never ready, reason: x, env: {STUB_HANG: 1}}"""
    world = World(tmp_path, approaches=approaches)
    text = world.file.read_text().replace("start: 20s, benchmark: 20s", "start: 3s, benchmark: 5s")
    world.file.write_text(text)
    code, _, err = world.run("run", world.file.name)
    assert code == 0, err
    found = {e["name"]: e for e in world.export()["experiments"]}
    assert "answers no request" in found["deaf"]["why"]
    assert "500" in found["refuses"]["why"]
    assert found["stubborn"]["stage"] == "done"
    assert any("were killed" in note for note in found["stubborn"]["notes"])
    assert "signal 9" in found["dies"]["why"]
    assert "not ready within 3 s" in found["never ready"]["why"]
    world.nothing_left()


def test_a_port_that_somebody_else_holds(tmp_path: Path) -> None:
    import socket

    world = World(tmp_path, approaches=ONE)
    with socket.socket() as other:
        other.bind(("127.0.0.1", world.port))
        other.listen()
        code, _, err = world.run("run", world.file.name)
    assert code == 1
    assert f"port {world.port} is in use" in err


def test_a_store_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    world = World(tmp_path, approaches=ONE, more=f"storage: sqlite:///{tmp_path}/file/no.db")
    code, _, err = world.run("run", world.file.name)
    assert code == 2
    assert err.count("\n") == 1 and "no.db" in err
    world = World(tmp_path / "runs", approaches=ONE)
    world.folder.joinpath("home").write_text("no folder")
    code, _, err = world.run("run", world.file.name)
    assert code == 2
    assert "cannot be kept" in err.splitlines()[-1]
    world.nothing_left()


def test_a_disk_that_is_full(tmp_path: Path) -> None:
    """A disk that fills up while a server runs: one line, no server left, and resume goes on once there is room."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)], capture_output=True, check=False
    ).returncode:
        pytest.skip("no small file system can be mounted here")
    try:
        world = World(tmp_path / "w", approaches=ONE, more=f"storage: sqlite:///{disk}/c.db", latency=0.1)
        child = world.start("run", world.file.name)
        until_said(child, ": measuring")
        filler = os.open(disk / "filler", os.O_WRONLY | os.O_CREAT)
        with pytest.raises(OSError):
            while True:
                os.write(filler, bytes(4096))
        os.close(filler)
        _, err = child.communicate(timeout=60)
        last = err.decode().splitlines()[-1]
        assert child.returncode == 2
        assert "full" in last and "resume" in last
        world.nothing_left()
        (disk / "filler").unlink()
        code, _, text = world.run("resume", world.file.name)
        assert code == 0, text
        assert world.stages() == {"baseline": "done", "one": "done", "baseline, again": "done"}
        world.nothing_left()
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_changed_file_is_noticed(tmp_path: Path) -> None:
    world = World(tmp_path, approaches=ONE)
    assert world.run("run", world.file.name)[0] == 0
    text = world.file.read_text()
    world.file.write_text(text.replace("NOTHING: 1", "NOTHING: 2"))
    code, _, err = world.run("resume", world.file.name)
    assert code == 2
    assert "'one' is not what it was" in err
    more = text.replace(ONE, ONE + "\n  - {name: two, reason: x, env: {NOTHING: 2}}")
    world.file.write_text(more)
    code, _, err = world.run("resume", world.file.name)
    assert code == 0, err
    assert world.stages() == {"baseline": "done", "one": "done", "baseline, again": "done", "two": "done"}
