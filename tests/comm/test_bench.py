"""``comm bench``: real processes over gloo where a torch is at hand; ends of every kind without one."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.e2e import engine
from ullage.comm import bench
from ullage.comm.measured import Measurement, Point
from ullage.core.errors import InputError


def fake(tmp_path: Path, body: str) -> str:
    """A Python that runs ``body`` instead of the worker."""
    script = tmp_path / "python"
    script.write_text(
        f"#!{sys.executable}\nimport json, os, sys, time\nspec = json.loads(sys.argv[-1])\n{body}\n"
    )
    script.chmod(0o755)
    return str(script)


def asked(python: str, **changes: object) -> bench.Asked:
    values: dict[str, object] = {
        "sizes": (4096,),
        "calls": 2,
        "repeats": 3,
        "warmup": 1,
        "timeout_s": 60.0,
        **changes,
    }
    return bench.Asked(python, "gloo", values.pop("ranks", 2), **values)  # type: ignore[arg-type]


@pytest.mark.engine
@pytest.mark.parametrize("ranks", [2, 4])
def test_over_gloo(ranks: int) -> None:
    found = bench.run(
        asked(
            str(engine.python()),
            ranks=ranks,
            sizes=(4096, 43008),
            kinds=("all_reduce", "all_gather"),
            timeout_s=240.0,
        )
    )
    assert [(one.kind, one.ranks, one.failed, one.mode) for one in found] == [
        ("all_reduce", ranks, "", "eager"), ("all_gather", ranks, "", "eager")
    ]  # fmt: skip
    for one in found:
        assert [point.bytes for point in one.points] == [4096, 43008]
        assert all(point.us > 0 and point.wrong == 0 for point in one.points)
        assert one.torch
        assert "no GPU was measured" in one.notes[0]


@pytest.mark.engine
def test_what_this_python_can() -> None:
    assert bench.here(str(engine.python()))[0] in ("gloo", "nccl")


def answer() -> str:
    row = '{"kind": "all_reduce", "mode": "graph", "bytes": 4096, "us": 30.0, "low_us": 29.0, "high_us": 33.0, "wrong": 0}'
    return f"""if os.environ["RANK"] == "0":
    print("noise")
    print("ULLAGE " + json.dumps({{"results": [{row}], "torch": "2.9.1", "nccl": "2.27.5", "gpu": "NVIDIA L40S"}}))
    open(os.environ["NCCL_DEBUG_FILE"].replace("%p", "1"), "w").write("x Channel 00 : 0[0] -> 1[1] via SHM/direct/direct")
"""


def test_an_answer_is_read_with_its_transport(tmp_path: Path) -> None:
    (one,) = bench.run(asked(fake(tmp_path, answer()), settings=({"NCCL_PROTO": "LL"},)))
    assert (one.nccl, one.gpu, one.via, one.environment) == (
        "2.27.5",
        "NVIDIA L40S",
        "SHM",
        {"NCCL_PROTO": "LL"},
    )
    assert one.points[0].us == 30.0


def test_each_setting_has_its_own_processes_and_variables(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    body = f"open({str(seen)!r}, 'a').write(os.environ.get('NCCL_ALGO', '-') + os.environ['RANK'] + ' ')"
    found = bench.run(asked(fake(tmp_path, body), settings=({}, {"NCCL_ALGO": "Tree"})))
    assert sorted(seen.read_text().split()) == ["-0", "-1", "Tree0", "Tree1"]
    assert [bool(one.points) for one in found] == []


def running(name: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and any(name in word for word in process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue
    return found


def failed(tmp_path: Path, body: str, **changes: object) -> Measurement:
    (one,) = bench.run(asked(fake(tmp_path, body), **changes))
    until = time.monotonic() + 10  # what was killed may need a moment to be gone
    while running(str(tmp_path)) and time.monotonic() < until:
        time.sleep(0.05)
    assert running(str(tmp_path)) == []
    return one


def test_a_worker_that_dies_is_a_measurement_that_failed(tmp_path: Path) -> None:
    one = failed(
        tmp_path,
        "if os.environ['RANK'] == '1': raise RuntimeError('boom hf_abcdefghijklmnopqrstuvwx /a/b/c')\ntime.sleep(60)",
    )
    assert one.failed.startswith("RuntimeError: boom hf_***")
    assert "/a/b" not in one.failed
    assert one.points == ()


def test_workers_that_hang_end_at_the_time_out_with_their_children(tmp_path: Path) -> None:
    started = time.monotonic()
    one = failed(
        tmp_path, "import subprocess\nsubprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)', sys.argv[0]])\ntime.sleep(60)",
        timeout_s=2.0,
    )  # fmt: skip
    assert one.failed.startswith("no answer in 2 s")
    assert time.monotonic() - started < 20


def test_workers_end_when_ullage_is_killed(tmp_path: Path) -> None:
    """kill -9 of ullage: the workers ask Linux to go with it."""
    worker = Path(bench.__file__).with_name("worker.py")
    (tmp_path / "torch.py").write_text("import time\ntime.sleep(60)")
    code = (
        "import subprocess, sys, os, json, time\n"
        f"subprocess.Popen([sys.executable, {str(worker)!r}, json.dumps({{'parent': os.getpid()}})],"
        f" env={{**os.environ, 'PYTHONPATH': {str(tmp_path)!r}}})\n"
        "time.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code])
    try:
        children: list[psutil.Process] = []
        until = time.monotonic() + 20
        while not children and time.monotonic() < until:
            children = psutil.Process(parent.pid).children()
            time.sleep(0.05)
        time.sleep(0.7)
        parent.kill()
        parent.wait()
        gone, alive = psutil.wait_procs(children, timeout=10)
        assert gone
        assert not alive
    finally:
        parent.kill()
        parent.wait()


def test_a_python_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be run"):
        bench.run(asked(str(tmp_path / "none")))
    with pytest.raises(InputError, match="cannot be run"):
        bench.here(str(tmp_path / "none"))
    with pytest.raises(InputError, match="no torch"):
        bench.here(sys.executable)


def test_what_a_launch_costs_is_told() -> None:
    inside, eager = [Point(4096, 20.0), Point(8192, 21.0)], [Point(4096, 60.0), Point(8192, 61.0)]
    assert bench.launch_cost(eager, inside, "eager") == (
        "40 µs more a call than inside a CUDA graph: what each launch costs",
    )
    assert "captured" in bench.launch_cost(inside, inside, "eager")[0]
    assert bench.launch_cost(inside, inside, "graph") == bench.launch_cost(eager, None, "eager") == ()


def test_a_matrix() -> None:
    assert bench.matrix([]) == ({},)
    assert bench.matrix(["NCCL_P2P_LEVEL=,SYS", "NCCL_ALGO=Ring"]) == (
        {"NCCL_ALGO": "Ring"}, {"NCCL_P2P_LEVEL": "SYS", "NCCL_ALGO": "Ring"}
    )  # fmt: skip
    assert bench.matrix(["NCCL_PROTO=LL;LL,Simple"]) == ({"NCCL_PROTO": "LL"}, {"NCCL_PROTO": "LL,Simple"})


@pytest.mark.parametrize("text", ["NCCL_ALGO", "PATH=x", "LD_PRELOAD=x", "NCCL_X=" + ",".join("a" * 99)])
def test_a_setting_that_is_none(text: str) -> None:
    with pytest.raises(InputError):
        bench.matrix([text])


def test_sizes() -> None:
    assert bench.sizes_of("300, 8K,42KiB,1M") == (300, 8192, 43008, 1 << 20)
    with pytest.raises(InputError):
        bench.sizes_of("8G")


@pytest.mark.parametrize("changes", [{"ranks": 1}, {"sizes": ()}, {"sizes": (1 << 40,)}, {"timeout_s": 0.0}])
def test_a_request_that_cannot_be(changes: dict[str, object]) -> None:
    with pytest.raises(InputError):
        bench.run(asked("python", **changes))


def test_the_worker_needs_nothing_of_ullage() -> None:
    text = Path(bench.__file__).with_name("worker.py").read_text()
    assert "ullage." not in text.replace("of ullage.", "").split('"""', 2)[2]
    assert json.loads("{}") == {}
