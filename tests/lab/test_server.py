"""Processes, output and endpoint of one server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.lab import stub_server
from tests.lab.started import WORKED, free_port, until
from ullage.core.errors import InputError
from ullage.core.machine import Device, Process
from ullage.lab import containers, endpoint, gpu_samples, launching, proc_table, processes
from ullage.lab.endpoint import Endpoint
from ullage.lab.pump import Masker
from ullage.lab.server import Server, Start, secrets_of
from ullage.planning.plan import engine_of


def server(folder: Path, port: int, **stub: object) -> Server:
    program = stub_server.install(folder / "bin") / "vllm"
    env = {**os.environ, **{f"STUB_{name.upper()}": str(value) for name, value in stub.items()}}
    start = Start((str(program), "serve", "m", "--port", str(port)), env)
    return Server(start, f"test-{port}-{os.getpid()}", folder / "log", Endpoint("127.0.0.1", port))


def test_start_ready_answers_stop(tmp_path: Path) -> None:
    port = free_port()
    one = server(tmp_path, port, log=WORKED, children=1, orphans=1)
    one.start()
    try:
        assert one.wait_ready(20) == "ready"
        assert one.answers() is None
        assert len(one.found()) == 3
        assert proc_table.entry(one.pid).group == one.pid  # type: ignore[union-attr]
    finally:
        ended = one.stop(10)
    assert ended.clean and not ended.killed and len(ended.found) == 3
    assert one.poll() == 0
    assert (tmp_path / "log").read_bytes() == WORKED.read_bytes() + b"stub: signal 15\n"
    assert one.stop().clean, "again"


def test_waiting_ends_with_the_server_the_time_or_a_wish(tmp_path: Path) -> None:
    one = server(tmp_path, free_port(), exit=3)
    one.start()
    assert one.wait_ready(20) == "exited" and one.wait(1) == 3
    one.stop()
    two = server(tmp_path, free_port(), hang=1)
    two.start()
    try:
        assert two.wait_ready(0.3) == "timeout"
        assert two.wait_ready(20, stop=lambda: True) == "stopped"
        assert two.silent_s > 0.2
    finally:
        assert two.stop(5).clean


def test_another_server_on_the_port_is_not_taken_for_ours(tmp_path: Path) -> None:
    port = free_port()
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    other = server(tmp_path / "a", port)
    other.start()
    try:
        assert other.wait_ready(20) == "ready"
        mine = server(tmp_path / "b", port, hang=1)
        mine.start()
        try:
            assert mine.shares_port
            assert mine.wait_ready(1) == "timeout"
        finally:
            mine.stop(5)
        assert other.healthy() and other.poll() is None, "what we did not start is never touched"
    finally:
        other.stop(5)


def test_a_pid_that_was_given_away_is_never_hit() -> None:
    bystander = subprocess.Popen(["sleep", "60"])
    try:
        now = proc_table.started(bystander.pid)
        assert now is not None
        old = proc_table.Started(bystander.pid, now.ticks - 100)
        traces = processes.Traces("x", proc_table.boot_id(), 0, old, 0, (), (old,))
        assert processes.find(traces) == []
        assert not processes.send(old, signal.SIGKILL)
        assert processes.end(traces, 0.1) == processes.Ended()
        assert bystander.poll() is None
        assert processes.find(processes.Traces("x", "another boot", 0, now, 0, (), (now,))) == []
    finally:
        bystander.kill()
        bystander.wait()


def test_found_by_its_output_alone(tmp_path: Path) -> None:
    """A process that renamed itself, left its session and lost its parent still writes to the run's pipe."""
    one = server(tmp_path, free_port(), orphans=1, hang=1)
    one.start()
    try:
        # for a moment, until it has an environment of its own, the variable shows too
        renamed = until(lambda: [
            row.pid for row in one.found()
            if len(one.found()) == 2 and not proc_table.has_variable(row.pid, processes.MARKER, one.run_id)
        ])  # fmt: skip
        orphan = renamed[0]
        row = proc_table.entry(orphan)
        assert row is not None and row.session != proc_table.entry(os.getpid()).session  # type: ignore[union-attr]
    finally:
        assert one.stop(5).clean
    assert orphan not in proc_table.table()


def test_ports_are_free_or_not() -> None:
    import socket

    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        assert not processes.port_free(port)
    assert processes.port_free(port)


# output


@given(st.lists(st.sampled_from(["secret-value", "secret-", "secre", "value", "s", "x", "\n"]), max_size=30),
       st.lists(st.integers(1, 9), min_size=1, max_size=9))  # fmt: skip
def test_a_secret_is_masked_however_it_is_cut(parts: list[str], cuts: list[int]) -> None:
    data = "".join(parts).encode()
    masker, found, at = Masker(["secret-value"]), b"", 0
    while at < len(data):
        step = cuts[at % len(cuts)]
        found += masker.feed(data[at : at + step])
        at += step
    found += masker.close()
    assert found == data.replace(b"secret-value", b"***")


def test_secrets_of_a_command() -> None:
    argv = [
        "vllm",
        "serve",
        "--api-key",
        "one-key",
        "--hf-token=two-token",
        "--port",
        "80",
        "HF_TOKEN=three-token",
    ]
    assert secrets_of(argv, {"VLLM_API_KEY": "four-key", "PATH": "/bin"}) == (
        "four-key", "one-key", "two-token", "three-token",
    )  # fmt: skip


# endpoints


@pytest.mark.parametrize(("command", "where"), [
    ("vllm serve m", "127.0.0.1:8000"),
    ("vllm serve m --host 0.0.0.0 --port 9000", "127.0.0.1:9000"),
    ("vllm serve m --host ::1", "::1:8000"),
    ("vllm serve m --uds /run/x.sock", "unix:/run/x.sock"),
    ("python -m sglang.launch_server --model-path m", "127.0.0.1:30000"),
    ("python -m sglang.launch_server --model-path m --host 10.0.0.5 --port 1234", "10.0.0.5:1234"),
    ("python -m sglang.launch_server --model-path m --nnodes 2 --node-rank 1", None),
    ("vllm serve m --headless", None),
])  # fmt: skip
def test_where_a_launch_answers(command: str, where: str | None) -> None:
    found = endpoint.of_launch(engine_of(command).parse(command, None))
    assert (found.where if found else None) == where


def test_the_key_of_a_request() -> None:
    for command in ("vllm serve m --api-key k1", "VLLM_API_KEY=k1 vllm serve m"):
        found = endpoint.of_launch(engine_of(command).parse(command, None))
        assert found is not None and found.key == "k1"


@pytest.mark.parametrize(("command", "ports"), [
    ("docker run -p 8000:30000 img x", {30000: ("127.0.0.1", 8000)}),
    ("docker run --publish=0.0.0.0:81:80/tcp -it img", {80: ("127.0.0.1", 81)}),
    ("sudo docker run -p 10.0.0.1:1:2 img", {2: ("10.0.0.1", 1)}),
    ("podman run --network host img", None),
    ("docker run --rm img", {}),
])  # fmt: skip
def test_where_a_container_answers(command: str, ports: dict[int, tuple[str, int]] | None) -> None:
    found = containers.of_command(command.split(), "id")
    assert found is not None and found.ports == ports
    assert "ullage.run=id" in found.argv


def test_detached_containers_stay_in_front_and_others_are_none() -> None:
    found = containers.of_command("docker run -itd --name x img -d y".split(), "id")
    assert found is not None and found.argv[-6:] == ("-it", "--name", "x", "img", "-d", "y")
    assert containers.of_command(["vllm", "serve", "m"], "id") is None
    assert containers.of_command(["docker", "ps"], "id") is None
    assert containers.of_command([], "id") is None


# commands


def test_variables_in_front_are_set_and_a_script_is_given_to_a_shell() -> None:
    found = launching.of_words(["A=1", "B=x=y", "vllm", "serve", "m"])
    assert (found.argv, found.given) == (("vllm", "serve", "m"), {"A": "1", "B": "x=y"})
    found = launching.of_words(["A='1 2' vllm serve m \\\n  --port 80"])
    assert (found.argv, found.given) == (("vllm", "serve", "m", "--port", "80"), {"A": "1 2"})
    found = launching.of_words(["cd /x && vllm serve $MODEL"])
    assert found.argv[1:] == ("-c", "cd /x && vllm serve $MODEL")
    for words in ([], [""], ["A=1"], ["  "], ["vllm serve 'm"]):
        with pytest.raises(InputError):
            launching.of_words(words)


# GPUs


def test_samples_are_what_the_driver_said(tmp_path: Path) -> None:
    """Recorded: two H200 as nvidia-ml-py described them, then one with a process."""
    first = (
        Device(0, "NVIDIA H200", total_bytes=150754820096, used_bytes=503316480, free_bytes=150251503616),
        Device(1, "NVIDIA H200", total_bytes=150754820096, used_bytes=0, free_bytes=150754820096),
    )
    second = (
        Device(0, "NVIDIA H200", total_bytes=150754820096, used_bytes=99503316480, free_bytes=51251503616,
               processes=(Process(41, "VLLM::Worker", 99000000000), Process(42, "", None))),
    )  # fmt: skip
    answers = iter([first, second, ()])
    sampler = gpu_samples.Sampler(tmp_path / "gpu.jsonl", lambda: next(answers, ()), every_s=0.01)
    sampler.start()
    until(lambda: len(list(gpu_samples.read(tmp_path / "gpu.jsonl"))) == 3)
    sampler.stop()
    found = list(gpu_samples.read(tmp_path / "gpu.jsonl"))
    assert [(s.index, s.used_bytes) for s in found] == [(0, 503316480), (1, 0), (0, 99503316480)]
    assert found[2].processes == {"41": 99000000000, "42": None}
    assert sampler.peaks == {0: 99503316480, 1: 0}


def test_no_gpu_no_samples(tmp_path: Path) -> None:
    sampler = gpu_samples.Sampler(tmp_path / "gpu.jsonl", lambda: ())
    sampler.start()
    sampler.stop()
    assert not (tmp_path / "gpu.jsonl").exists()
    assert list(gpu_samples.read(tmp_path / "gpu.jsonl")) == []


def test_a_slow_reader_of_the_terminal_slows_the_server_and_loses_nothing(tmp_path: Path) -> None:
    got = []

    def show(stream: int, data: bytes) -> None:
        got.append(data)
        time.sleep(0.002)

    start = Start((sys.executable, "-c", "import sys; sys.stdout.write('x' * 79 + chr(10)) or None\n"
                   "for n in range(50_000): print(n)"), dict(os.environ))  # fmt: skip
    one = Server(start, "slow", tmp_path / "log", show=show)
    one.start()
    assert one.wait(30) == 0
    one.stop()
    assert b"".join(got) == (tmp_path / "log").read_bytes()
    assert b"".join(got).endswith(b"49999\n")
