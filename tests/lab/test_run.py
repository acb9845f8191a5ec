"""``ullage run`` with the stub: it is transparent, and it knows what happened."""

from __future__ import annotations

import os
import signal
import subprocess
import time

import pytest

from tests.lab.started import CRASHED, WORKED, Launched, decoded, ullage

SGLANG = ("serve", "--model-path", "moonshotai/Kimi-K2.5", "--tp", "8", "--mem-fraction-static")


def sglang(lab: Launched, fraction: str) -> tuple[str, ...]:
    return (str(lab.bin / "sglang"), *SGLANG, fraction, "--port", str(lab.port))


def test_ready_answered_and_stopped(lab: Launched) -> None:
    process = lab.start("--request", log=WORKED)
    said = lab.wait_said("a request of one token was answered")
    assert f"ready at 127.0.0.1:{lab.port}" in said
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=20)
    assert process.returncode == 0
    assert out == WORKED.read_bytes() + b"stub: signal 15\n", "byte for byte"
    record = lab.record()
    assert (record.outcome, record.exit_code) == ("stopped", 0)
    assert record.ready_s is not None and record.answered_s is not None
    assert record.observed["kv_tokens"] == 159221
    assert record.diagnosis is not None and record.diagnosis["outcome"] == "started"
    assert lab.store.get("last").log.read_bytes() == out
    lab.nothing_left()


@pytest.mark.parametrize(("told", "code"), [("7", 7), ("-9", 137), ("0", 0)])
def test_exit_code_is_the_servers(lab: Launched, told: str, code: int) -> None:
    found, _, said = lab.run(exit=told)
    assert found == code
    record = lab.record()
    assert (record.exit_code, record.outcome) == (code, "ended" if code == 0 else "crashed")
    assert ("ended by signal 9 (SIGKILL)" in said) == (code == 137)


def test_a_crash_is_diagnosed(lab: Launched) -> None:
    code, out, said = lab.run("--no-preflight", "--keep-going", launch=sglang(lab, "0.55"), log=CRASHED, exit=3)
    assert code == 3
    assert out == CRASHED.read_bytes()
    assert "budget-below-weights (certain)" in said
    record = lab.record()
    assert record.outcome == "crashed"
    assert record.diagnosis is not None and record.diagnosis["cause"] == "budget-below-weights"
    assert record.diagnosis["schema"] == "ullage.why/1"
    code, text, _ = ullage(lab.home, "why", record.name)
    assert code == 1 and "budget-below-weights" in text


def test_what_will_not_start_is_not_launched(lab: Launched) -> None:
    code, _, said = lab.run("--gpu", "8x RTX PRO 6000", launch=sglang(lab, "0.55"), log=CRASHED, exit=3)
    assert code == 1
    assert "will not start" in said and "not launched" in said
    assert not lab.pids(), "nothing was started"
    record = lab.record()
    assert record.outcome == "refused" and record.plan is not None
    assert (record.plan["schema"], record.plan["verdict"]) == ("ullage.plan/1", "fails")
    code, _, said = lab.run(
        "--gpu", "8x RTX PRO 6000", "--keep-going", launch=sglang(lab, "0.55"), log=CRASHED, exit=3
    )
    assert code == 3 and "launched all the same" in said


def test_doomed_is_stopped_before_the_weights_are_read(lab: Launched) -> None:
    began = time.monotonic()
    code, out, said = lab.run(launch=sglang(lab, "0.55"), log=CRASHED, lines_per_s=20, pause_s=60)
    assert code == 1
    assert time.monotonic() - began < 20
    assert "this start cannot succeed" in said and "20.56 GiB are missing" in said
    assert "--mem-fraction-static 0.89" in said, "what would start instead"
    assert b"Load weight begin" in out and b"Not enough memory" not in out
    assert lab.record().outcome == "doomed"
    lab.nothing_left()


def test_what_works_is_never_called_doomed(lab: Launched) -> None:
    process = lab.start(launch=sglang(lab, "0.88"), log=WORKED, lines_per_s=200)
    said = lab.wait_said("ready at")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)
    assert "cannot succeed" not in said
    stages = lab.record().stages
    assert list(stages) == sorted(stages, key=lambda phase: stages[phase])
    assert {"weights", "kv_pool", "graph_capture"} <= set(stages)


def test_a_hang_is_told_once_with_what_each_rank_did_last(lab: Launched) -> None:
    process = lab.start("--hang-after", "1", log=WORKED, lines_per_s=2000, hang=1)
    said = lab.wait_said("it is not ready")
    time.sleep(1.5)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=20)
    said = lab.said()
    assert said.count("it is not ready") == 1
    assert "TP7 last, " in said
    assert lab.record().outcome == "hang"
    lab.nothing_left()


def test_stdin_passes_through(lab: Launched) -> None:
    env = {**lab.env, "STUB_STDIN": "1", "STUB_PAUSE_S": "0.5", "STUB_EXIT": "0"}
    done = subprocess.run(
        lab.words("--no-preflight"), input=b"hello\n", env=env, capture_output=True, timeout=30, check=False,
    )  # fmt: skip
    assert b"stdin: hello\nstdin ended\n" in done.stdout


def test_stdout_and_stderr_stay_apart(lab: Launched) -> None:
    launch = ("sh", "-c", "echo out; echo err >&2; exit 4")
    code, out, said = lab.run(launch=launch)
    assert (code, out) == (4, b"out\n")
    assert "err\n" in said and "no preflight" in said
    assert sorted(lab.store.get("last").log.read_bytes().split()) == [b"err", b"out"]


def test_a_taken_port_is_told_before_anything_starts(lab: Launched) -> None:
    import socket

    with socket.socket() as holder:
        holder.bind(("127.0.0.1", lab.port))
        holder.listen()
        code, _, said = lab.run()
        assert code == 1 and f"port {lab.port} is taken by process {os.getpid()}" in said
        assert not lab.pids()
        code, out, said = lab.run("--keep-going")
        assert code == 1 and b"Address already in use" in out
        assert "ready at" not in said


def test_secrets_reach_neither_record_nor_log(lab: Launched, tmp_path: object) -> None:
    secret = "s3cr3t-value-of-a-key"
    log = lab.folder / "secret.log"
    log.write_text(f"using key {secret} for requests\nHF_TOKEN=hf_{'a' * 30}\n")
    launch = (str(lab.bin / "vllm"), "serve", "m", "--port", str(lab.port), "--api-key", secret)
    env_token = "another-secret-in-the-environment"
    lab.env["HF_TOKEN"] = env_token
    log.write_text(log.read_text() + f"token {env_token}\n")
    code, out, _ = lab.run(launch=launch, log=log, exit=0)
    assert code == 0
    assert secret.encode() in out, "the terminal shows what the server prints"
    folder = lab.store.get("last")
    kept = b"".join(path.read_bytes() for path in folder.path.iterdir())
    assert secret.encode() not in kept and env_token.encode() not in kept
    assert b"using key ***" in folder.log.read_bytes()


def test_json_gives_the_record_and_leaves_stdout_to_it(lab: Launched) -> None:
    code, out, said = lab.run("--json", exit=5, log=WORKED)
    found = decoded(out.decode())
    assert code == 5
    assert (found["schema"], found["exit_code"], found["outcome"]) == ("ullage.run/1", 5, "crashed")
    assert "server is fired up" in said


def test_time_left_is_known_from_an_earlier_run(lab: Launched) -> None:
    from msgspec.structs import replace

    from ullage.lab.run import _usual

    process = lab.start(launch=sglang(lab, "0.88"), log=WORKED)
    lab.wait_said("ready at")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=20)
    now = lab.record()
    assert now.command_key and now.stages
    folder = lab.store.create("m", "earlier")
    folder.write(
        replace(now, name="earlier", ready_s=90.0, stages={"init": 2.0, "weights": 10.0, "kv_pool": 70.0})
    )
    other = lab.store.create("m", "other")
    other.write(replace(now, name="other", command_key="another", ready_s=1.0))
    assert _usual(lab.store, replace(now, created_at=0)) == {"init": 8.0, "weights": 60.0, "kv_pool": 20.0}


def test_runs_are_listed_shown_and_removed(lab: Launched) -> None:
    lab.run("--name", "one", exit=5)
    lab.run("--name", "two", exit=0)
    code, text, _ = ullage(lab.home, "runs")
    assert code == 0 and text.index("one") < text.index("two")
    code, text, _ = ullage(lab.home, "runs", "show", "one")
    assert code == 0 and "crashed" in text and "stub/model" in text
    code, text, _ = ullage(lab.home, "runs", "show", "last", "--json")
    assert decoded(text)[0]["name"] == "two"
    assert ullage(lab.home, "runs", "rm", "one")[0] == 0
    code, _, said = ullage(lab.home, "runs", "show", "one")
    assert code == 2 and "there is no run of that name" in said
    code, _, said = ullage(lab.home, "why", "one")
    assert code == 2 and said.count("\n") == 1


def test_a_name_that_is_taken_or_none_is_one_line(lab: Launched) -> None:
    lab.run("--name", "one", exit=0)
    for name in ("one", "../up", "", "a" * 200, "-"):
        code, _, said = lab.run("--name", name, exit=0)
        assert code == 2 and said.splitlines()[-1].startswith("ullage: "), name


def test_no_such_program_is_one_line_and_no_folder_that_runs(lab: Launched) -> None:
    code, _, said = lab.run(launch=("/no/such/vllm", "serve", "m", "--port", str(lab.port)))
    assert code == 2 and "cannot be started: No such file or directory" in said
    assert lab.record().outcome == "crashed"
    assert not lab.store.get("last").locked
