"""A campaign on another machine, an sshd on loopback: the same record, and a lost connection loses no experiment."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.campaign.world import World, until_said
from tests.lab.sshd import Sshd, sshd

WHERE = "where: {kind: ssh, hosts: [box]}"
TWO = """\
approaches:
  - {name: slow, reason: x, env: {STUB_LATENCY_S: 0.1}}
  - {name: crashes, reason: x, env: {STUB_EXIT: 3}}"""


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Sshd]:
    with sshd(tmp_path / "ssh") as found:
        yield found


def test_there_as_here(tmp_path: Path, box: Sshd) -> None:
    path = {"PATH": f"{box.bin}:{os.environ['PATH']}"}
    world = World(tmp_path / "w", approaches=TWO, more=WHERE)
    code, _, err = world.run("run", world.file.name, env=path)
    assert code == 0, err
    found = {e["name"]: e for e in world.export()["experiments"]}
    assert {name: e["stage"] for name, e in found.items()} == {
        "baseline": "done", "slow": "done", "crashes": "crashed", "baseline, again": "done",
    }  # fmt: skip
    assert found["slow"]["effects"][0]["word"] == "worse"
    assert "code 3" in found["crashes"]["why"]
    assert {e["place"] for e in found.values()} == {"box"}
    world.nothing_left()


def test_a_lost_connection_waits_for_resume(tmp_path: Path, box: Sshd) -> None:
    path = {"PATH": f"{box.bin}:{os.environ['PATH']}"}
    world = World(tmp_path / "w", approaches=TWO, more=WHERE, latency=0.15)
    child = world.start("run", world.file.name, env=path)
    until_said(child, "baseline: measuring")
    time.sleep(0.5)
    box.cut()
    _, err = child.communicate(timeout=60)
    assert child.returncode == 3, err
    assert b"the connection to box was lost" in err
    world.nothing_left(15)
    assert world.stages()["baseline"] == "measuring"
    code, _, text = world.run("resume", world.file.name, env=path)
    assert code == 0, text
    found = world.export()["experiments"]
    assert [(e["name"], e["stage"], e["attempt"]) for e in found] == [
        ("baseline", "done", 2), ("slow", "done", 1), ("crashes", "crashed", 1), ("baseline, again", "done", 1),
    ]  # fmt: skip
    world.nothing_left()


def test_results_of_files_come_back(tmp_path: Path) -> None:
    from ullage.lab.campaign import far

    result = str(tmp_path / "deep" / "r.json")
    words = far.with_result(("sh", "-c", f"echo said; echo '{{\"x\": 1}}' > {result}; exit 4"), result)
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 4
    assert far.result_of(done.stdout) == ("said\n", '{"x": 1}\n')
    assert not (tmp_path / "deep").exists()
    assert far.result_of("nothing") == ("nothing", None)
