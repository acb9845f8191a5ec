"""The same campaign on this machine, on a two-node Ray cluster and against PostgreSQL: the same record."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab.campaign.world import World, until_said
from tests.lab.started import free_port

SHORT = """\
approaches:
  - {name: slow, reason: x, env: {STUB_LATENCY_S: 0.1}}
  - {name: refused, reason: x, flags: {max-num-seqs: 0}}
  - {name: crashes, reason: x, env: {STUB_EXIT: 3}}
  - {name: confounded, reason: x, flags: {max-num-seqs: 1}}"""
#: what differs from place to place and from time to time
_APART = ("run", "runs", "measured_at", "ready_s", "took_s", "place", "repeats", "effects", "beside", "history", "command",
          "fingerprint", "changes")  # fmt: skip


def record(world: World) -> list[dict[str, Any]]:
    """What the campaign kept, without times, names of runs, figures and paths."""
    found = []
    for each in world.export()["experiments"]:
        kept = {key: value for key, value in each.items() if key not in _APART}
        kept["steps"] = [step["stage"] for step in each["history"]]
        kept["metrics"] = [sorted(repeat) for repeat in each["repeats"]]
        kept["verdicts"] = [effect["word"] for effect in each.get("effects", [])]
        kept["ruled_out"] = bool(each.get("ruled_out"))
        kept["preflight"].pop("warnings")
        found.append(kept)
    return found


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The record of the campaign on this machine."""
    world = World(tmp_path_factory.mktemp("here"), approaches=SHORT)
    code, _, err = world.run("run", world.file.name)
    assert code == 0, err
    world.nothing_left()
    return record(world)


def test_here(here: list[dict[str, Any]]) -> None:
    assert [(e["name"], e["stage"]) for e in here] == [
        ("baseline", "done"), ("slow", "done"), ("refused", "refused"), ("crashes", "crashed"),
        ("confounded", "done"), ("baseline, again", "done"),
    ]  # fmt: skip
    assert here[0]["steps"] == ["planned", "preflight", "starting", "measuring", "done"]
    assert here[1]["verdicts"] == ["worse"]


def test_side_by_side(here: list[dict[str, Any]], tmp_path: Path) -> None:
    """Two at once, on GPUs and ports of their own."""
    world = World(tmp_path, approaches=SHORT, more="where: {side_by_side: 2, gpus: [4, 6], gpus_each: 1}")
    code, _, err = world.run("run", world.file.name)
    assert code == 0, err
    assert record(world) == here
    seen = set()
    for path in (world.home / "runs").glob("*/record.json"):
        import json

        seen.add(json.loads(path.read_bytes())["environment"].get("CUDA_VISIBLE_DEVICES"))
    assert seen == {"4", "6"}
    world.nothing_left()


@pytest.fixture(scope="module")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a database cluster of our own, on loopback."""
    initdb, postgres = _program("initdb"), _program("postgres")
    if initdb is None or postgres is None:
        pytest.skip("no PostgreSQL on this machine (Debian: postgresql)")
    user = next((name for name in ("postgres", "nobody") if _exists(name)), None) if os.geteuid() == 0 else None
    if os.geteuid() == 0 and user is None:
        pytest.skip("PostgreSQL does not run as root, and there is no other account")
    folder = tmp_path_factory.mktemp("postgres")
    folder.chmod(0o777)
    for parent in folder.parents:
        if parent.stat().st_uid == os.geteuid() and not parent.stat().st_mode & 0o001:
            parent.chmod(parent.stat().st_mode | 0o011)
    port = free_port()
    data = folder / "data"
    _as(user, [initdb, "-D", str(data), "-U", "ullage", "-A", "trust", "--no-sync"])
    server = subprocess.Popen(
        [postgres, "-D", str(data), "-p", str(port), "-c", "listen_addresses=127.0.0.1", "-c", "fsync=off",
         "-c", f"unix_socket_directories={folder}"],
        user=user, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=folder,
        env={"PATH": os.environ["PATH"], "LC_ALL": "C"}, start_new_session=True,
    )  # fmt: skip
    try:
        _ready(port, server)
        yield f"postgresql://ullage@127.0.0.1:{port}/postgres"
    finally:
        server.terminate()
        server.wait(20)


def _program(name: str) -> str | None:
    """Debian keeps a database's programs off the PATH, below its release."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return shutil.which(name) or shutil.which(name, path=":".join(map(str, folders)))


def _exists(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True


def _as(user: str | None, words: list[str]) -> None:
    done = subprocess.run(words, user=user, capture_output=True, check=False, cwd="/",
                          env={"PATH": os.environ["PATH"], "LC_ALL": "C"})  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()


def _ready(port: int, server: subprocess.Popen[bytes]) -> None:
    import time

    import psycopg

    for _ in range(200):
        assert server.poll() is None, "postgres ended"
        try:
            psycopg.connect(f"postgresql://ullage@127.0.0.1:{port}/postgres", connect_timeout=2).close()
            return
        except psycopg.OperationalError:
            time.sleep(0.1)
    raise AssertionError("postgres is not ready")


def test_postgres(here: list[dict[str, Any]], postgres: str, tmp_path: Path) -> None:
    world = World(tmp_path, approaches=SHORT, more=f"storage: {postgres}")
    code, _, err = world.run("run", world.file.name)
    assert code == 0, err
    assert record(world) == here
    assert "PostgreSQL at 127.0.0.1" in world.run("status", world.file.name)[1]


def test_postgres_has_one_runner_and_can_go_away(postgres: str, tmp_path: Path) -> None:
    """Its lock goes with the connection of who is killed; an absent database is one clear line."""
    import signal
    import time

    world = World(tmp_path, name="locked", latency=0.2, more=f"storage: {postgres}",
                  approaches="approaches:\n  - {name: a, reason: x, env: {N: 1}}")  # fmt: skip
    child = world.start("run", world.file.name)
    until = time.monotonic() + 30
    while world.run("status", world.file.name)[0] == 2 and time.monotonic() < until:
        time.sleep(0.2)
    code, _, err = world.run("resume", world.file.name)
    assert code == 2 and "runs already: ullage pid" in err
    child.send_signal(signal.SIGKILL)
    child.communicate()
    code, _, err = world.run("resume", world.file.name)
    assert code == 0, err
    assert world.stages() == {"baseline": "done", "a": "done", "baseline, again": "done"}
    world.nothing_left()
    gone = World(tmp_path / "gone", more=f"storage: postgresql://u:sesame@127.0.0.1:{free_port()}/x")
    code, _, err = gone.run("run", gone.file.name)
    assert code == 2 and err.count("\n") == 1
    assert "sesame" not in err


@pytest.fixture(scope="module")
def ray_cluster() -> Iterator[str]:
    """The address of a cluster of two nodes on this machine."""
    pytest.importorskip("ray", reason="needs the extra ray")
    os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from ray.cluster_utils import Cluster

        small = {"num_cpus": 1, "object_store_memory": 80 << 20, "include_dashboard": False}
        cluster = Cluster(initialize_head=True, head_node_args=small)
        cluster.add_node(**{**small, "include_dashboard": None})
    yield cluster.address
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cluster.shutdown()


@pytest.mark.filterwarnings("ignore")
def test_ray(here: list[dict[str, Any]], ray_cluster: str, tmp_path: Path) -> None:
    where = f"where: {{kind: ray, address: '{ray_cluster}', side_by_side: 2, gpus_each: 0, cpus_each: 1}}"
    world = World(tmp_path, approaches=SHORT, more=where)
    code, _, err = world.run("run", world.file.name, env={"PYTHONPATH": str(Path(__file__).parents[3])})
    assert code == 0, err
    assert record(world) == here
    world.nothing_left()


def test_slurm_by_processes(tmp_path: Path) -> None:
    """submitit's own local executor stands for Slurm: the same code but for sbatch."""
    pytest.importorskip("submitit", reason="needs the extra slurm")
    from ullage.lab.campaign import file, loop
    from ullage.lab.campaign.places_slurm import Slurm
    from ullage.lab.campaign.preflight import base_command
    from ullage.lab.campaign.study import open_study

    world = World(tmp_path, approaches=SHORT, more="where: {kind: slurm, gpus_each: 0}")
    loaded = file.load(world.file)
    os.environ["ULLAGE_HOME"] = str(world.home)
    try:
        place = Slurm(loaded.campaign.where, base_command(loaded.campaign), tmp_path / "jobs", cluster="local")
        said: list[str] = []
        outcome = loop.run(loaded, resume=False, say=said.append, place=place)
    finally:
        del os.environ["ULLAGE_HOME"]
    assert outcome.how == "finished", said
    found = {e.name: e.stage for e in open_study(loaded, create=False).experiments()}
    assert found == {"baseline": "done", "slow": "done", "refused": "refused", "crashes": "crashed",
                     "confounded": "done", "baseline, again": "done"}  # fmt: skip
    world.nothing_left()


@pytest.mark.filterwarnings("ignore")
def test_ray_killed_and_resumed(ray_cluster: str, tmp_path: Path) -> None:
    """kill -9 of ullage while its tasks run: resume ends what the nodes still hold, and runs it again."""
    import signal

    where = f"where: {{kind: ray, address: '{ray_cluster}', gpus_each: 0}}"
    one = "approaches:\n  - {name: a, reason: x, env: {N: 1}}"
    world = World(tmp_path, approaches=one, more=where, latency=0.1)
    child = world.start("run", world.file.name, env={"PYTHONPATH": str(Path(__file__).parents[3])})
    until_said(child, "baseline: measuring")
    child.send_signal(signal.SIGKILL)
    child.communicate()
    code, _, err = world.run("resume", world.file.name, env={"PYTHONPATH": str(Path(__file__).parents[3])})
    assert code == 0, err
    assert world.stages() == {"baseline": "done", "a": "done", "baseline, again": "done"}
    world.nothing_left(10)
