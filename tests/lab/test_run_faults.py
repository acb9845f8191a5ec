"""Whatever happens to ullage or to the server: nothing is left running, and what happened is in the record."""

from __future__ import annotations

import os
import random
import re
import resource
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.lab.started import WORKED, Launched, ullage, until


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_a_signal_to_ullage_ends_everything(lab: Launched, number: int) -> None:
    process = lab.start(children=2, orphans=1, log=WORKED)
    lab.wait_said("ready at")
    process.send_signal(number)
    process.communicate(timeout=20)
    assert process.returncode == (131 if number == signal.SIGQUIT else 0)
    assert lab.record().outcome == "stopped"
    lab.nothing_left()


def test_a_signal_during_the_start_is_passed_on(lab: Launched) -> None:
    process = lab.start(log=WORKED, lines_per_s=20)
    until(lambda: len(lab.pids()) == 1)
    time.sleep(0.5)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=20)
    assert process.returncode == 0 and out.endswith(b"stub: signal 15\n")
    lab.nothing_left()


def test_the_servers_own_stop_code_passes(lab: Launched) -> None:
    process = lab.start(stop_code=9)
    lab.wait_said("ready at")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=20)
    assert (process.returncode, lab.record().outcome) == (9, "stopped")


def test_who_ignores_signals_is_killed_after_the_grace(lab: Launched) -> None:
    process = lab.start("--grace", "1", ignore=1, children=2, orphans=1)
    lab.wait_said("ready at")
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=20)
    assert 0.9 < time.monotonic() - began < 12
    assert process.returncode == 137
    assert any("were killed" in note for note in lab.record().notes)
    lab.nothing_left()


def test_three_times_means_now(lab: Launched) -> None:
    process = lab.start("--grace", "60", ignore=1, children=1)
    lab.wait_said("ready at")
    began = time.monotonic()
    for _ in range(3):
        process.send_signal(signal.SIGINT)
        time.sleep(0.4)
    process.communicate(timeout=20)
    assert time.monotonic() - began < 8
    lab.nothing_left()


def test_children_that_a_server_leaves_behind_are_ended(lab: Launched) -> None:
    code, _, _ = lab.run(children=2, orphans=2, pause_s=1.2, exit=3)
    assert code == 3
    lab.nothing_left()


@pytest.mark.parametrize("when", ["at once", "starting", "ready"])
def test_kill_9_then_the_next_start_cleans_up_and_says_so(lab: Launched, when: str) -> None:
    speed, ignore = (2000, 1) if when == "ready" else (20, 0)
    process = lab.start(children=1, orphans=2, log=WORKED, lines_per_s=speed, ignore=ignore)
    if when == "ready":
        lab.wait_said("ready at")
    else:
        until(lambda: len(lab.pids()) >= 4)
        time.sleep(1.5 if when == "starting" else 0)
    process.kill()
    process.communicate(timeout=20)
    assert len(lab.left()) >= 3, "they outlive ullage; the first may find that nobody reads what it prints"
    assert lab.store.get("last").read() is not None, "the record is whole"
    code, _, said = lab.run(exit=0, launch=("sh", "-c", "exit 0"))
    assert code == 0
    assert re.search(r"was abandoned when its ullage was killed: [34] processes ended", said)
    lab.nothing_left()
    first = lab.store.records()[0][1]
    assert first.outcome == "abandoned" and first.ended_at is not None


def test_kill_9_at_random_moments_leaves_nothing_after_the_next_start(lab: Launched) -> None:
    chance = random.Random(0)
    for _ in range(6):
        process = lab.start(children=1, orphans=1, log=WORKED, lines_per_s=200)
        time.sleep(chance.uniform(0.1, 1.6))
        process.kill()
        process.communicate()
    code, _, _ = lab.run(launch=("sh", "-c", "exit 0"))
    assert code == 0
    assert lab.left() == []
    outcomes = [record.outcome for _, record in lab.store.records()]
    assert outcomes == ["abandoned"] * (len(outcomes) - 1) + ["ended"]
    assert len({record.id for _, record in lab.store.records()}) == len(outcomes)


def test_a_run_that_goes_on_is_not_reaped(lab: Launched) -> None:
    process = lab.start()
    lab.wait_said("ready at")
    code, _, said = lab.run(launch=("sh", "-c", "exit 0"))
    assert code == 0 and "abandoned" not in said
    assert process.poll() is None and lab.left()
    assert ullage(lab.home, "runs", "rm", lab.store.records()[0][1].name)[0] == 2
    process.terminate()
    process.communicate(timeout=20)
    lab.nothing_left()


def test_health_without_answers_is_told(lab: Launched) -> None:
    from ullage.lab.endpoint import Endpoint, answers, healthy

    process = lab.start(health_only=1)
    lab.wait_said("ready at")
    where = Endpoint("127.0.0.1", lab.port)
    assert healthy(where)
    assert "no answer" in str(answers(where, 0.5))
    process.terminate()
    process.communicate(timeout=20)


def test_a_refused_request_is_told(lab: Launched) -> None:
    process = lab.start("--request", refuse=1)
    said = lab.wait_said("a request is not answered")
    assert "/v1/completions answered 500" in said
    process.terminate()
    process.communicate(timeout=20)
    assert lab.record().answered_s is None


def test_an_unwritable_store_is_one_line(lab: Launched) -> None:
    lab.home.write_text("a file where the folder should be")
    code, _, said = lab.run()
    assert code == 2
    assert said.splitlines()[-1].startswith("ullage: ") and "record of the run cannot be kept" in said
    assert not lab.pids()


def test_a_full_disk_ends_the_log_and_not_the_server(lab: Launched) -> None:
    """RLIMIT_FSIZE stands for the full disk: the kernel refuses the write in the same place (EFBIG)."""
    limit = 64 << 10

    def small() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    env = {**lab.env, "STUB_BYTES": "1000000", "STUB_LOG": str(WORKED)}
    with lab.err.open("wb") as err:
        process = subprocess.Popen(
            lab.words(), env=env, stdout=subprocess.PIPE, stderr=err, preexec_fn=small, stdin=subprocess.DEVNULL
        )
    assert process.stdout is not None
    size = 0
    while size < WORKED.stat().st_size + 1_000_000:
        size += len(os.read(process.stdout.fileno(), 1 << 16))
    lab.wait_said("ready at")
    process.terminate()
    process.communicate(timeout=20)
    assert process.returncode == 0
    assert lab.store.get("last").log.stat().st_size == limit
    assert "the log ends after 65,536 bytes: File too large" in lab.said()
    lab.nothing_left()


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small tmpfs: needs root")
def test_a_disk_without_room_is_one_line(lab: Launched) -> None:
    small = lab.folder / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(small)], check=False).returncode:
        pytest.skip("a tmpfs cannot be mounted here")
    try:
        with suppress(OSError), (small / "filler").open("wb", buffering=0) as stream:
            while True:
                stream.write(b"x" * 4096)
        lab.env["ULLAGE_HOME"] = str(small / "home")
        code, _, said = lab.run()
        assert code == 2 and "No space left on device" in said and "make room there" in said
        assert not lab.pids()
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_pausing_pauses_the_server(lab: Launched) -> None:
    from ullage.lab import proc_table

    process = lab.start(children=1)
    lab.wait_said("ready at")

    def states() -> set[str]:
        rows = [proc_table.entry(pid) for pid in (process.pid, *lab.pids())]
        return {row.state for row in rows if row}

    process.send_signal(signal.SIGTSTP)
    until(lambda: states() == {"T"}, 5, "all to be stopped")
    process.send_signal(signal.SIGCONT)
    until(lambda: "T" not in states(), 5, "all to go on")
    process.terminate()
    process.communicate(timeout=20)
    lab.nothing_left()


CONTAINER_TOOL = """#!/bin/sh
# docker as far as it is needed: containers are processes with a label file each
here=$(dirname "$0")/containers; mkdir -p "$here"
case $1 in
run) shift
  while :; do case $1 in
    --label) label=$2; shift 2 ;; -p|-e|--name) shift 2 ;; -*) shift ;; *) break ;;
  esac; done
  shift
  id=$(od -An -tx1 -N16 /dev/urandom | tr -d ' \\n')
  setsid env -u ULLAGE_RUN sh -c 'exec "$0" "$@" >>"$OUT" 2>&1' "$@" </dev/null & pid=$!
  echo "$label $pid" > "$here/$id"
  tail --pid=$pid -n +1 -F "$OUT" 2>/dev/null & tail=$!
  trap 'kill -TERM $pid; wait $pid; exit $?' TERM INT
  wait $pid; code=$?; rm -f "$here/$id"; sleep 0.3; kill $tail; exit $code ;;
ps) for f in "$here"/*; do [ -e "$f" ] || continue
    case "$*" in *"label=$(cut -d' ' -f1 "$f")"*) basename "$f" ;; esac; done ;;
stop) shift 3; for id; do kill -TERM $(cut -d' ' -f2 "$here/$id"); done; sleep 0.3 ;;
rm) shift 2; for id; do kill -KILL $(cut -d' ' -f2 "$here/$id") 2>/dev/null; rm -f "$here/$id"; done ;;
esac
"""


def docker(lab: Launched) -> tuple[str, ...]:
    tool = lab.bin / "docker"
    tool.write_text(CONTAINER_TOOL)
    tool.chmod(0o755)
    lab.env["OUT"] = str(lab.folder / "container.out")
    Path(lab.env["OUT"]).touch()
    return (
        str(tool), "run", "-d", "--rm", "--gpus=all", "-p", f"127.0.0.1:{lab.port}:8000", "vllm/vllm-openai:v0.20.2",
        sys.executable, str(Path(__file__).with_name("stub_server.py")), "serve", "m", "--port", str(lab.port),
    )  # fmt: skip


def test_a_container_is_followed_and_stopped(lab: Launched) -> None:
    from ullage.lab import containers

    launch = docker(lab)
    found = containers.of_command(launch, "r1")
    assert found is not None and "-d" not in found.argv and "ullage.run=r1" in found.argv
    assert found.ports == {8000: ("127.0.0.1", lab.port)}
    process = lab.start("--no-preflight", launch=launch)
    until(lambda: lab.pids())
    until(lambda: (lab.bin / "containers").exists() and list((lab.bin / "containers").iterdir()))
    time.sleep(0.5)
    process.terminate()
    process.communicate(timeout=30)
    assert not list((lab.bin / "containers").iterdir())
    lab.nothing_left()


def test_a_container_that_outlives_ullage_is_reaped(lab: Launched) -> None:
    process = lab.start("--no-preflight", launch=docker(lab))
    until(lambda: lab.pids())
    until(lambda: list((lab.bin / "containers").iterdir()))
    process.kill()
    process.communicate(timeout=20)
    code, _, said = lab.run(launch=("sh", "-c", "exit 0"))
    assert code == 0 and "was abandoned" in said and "container" in said
    assert not list((lab.bin / "containers").iterdir())
    lab.nothing_left()


def test_a_reader_that_is_slow_gets_everything(lab: Launched) -> None:
    process = lab.start(bytes=3_000_000, exit=0)
    assert process.stdout is not None
    time.sleep(1.5)
    got = b""
    while piece := os.read(process.stdout.fileno(), 1 << 16):
        got += piece
        time.sleep(0.02)
    process.stdout.close()
    process.wait(20)
    assert got == lab.store.get("last").log.read_bytes() and len(got) > 3_000_000


def test_a_reader_that_goes_away_does_not_end_the_server(lab: Launched) -> None:
    process = lab.start(log=WORKED)
    assert process.stdout is not None
    process.stdout.close()
    lab.wait_said("ready at")
    process.terminate()
    process.wait(20)
    assert process.returncode == 0
    assert lab.store.get("last").log.stat().st_size > WORKED.stat().st_size
    lab.nothing_left()
