"""The installed command, as a user runs it."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOUNDING = ROOT / "examples" / "founding"
CRASHED, WORKED = FOUNDING / "fewer-channels.log", FOUNDING / "baseline.log"


def ullage(
    *args: str, stdin: bytes = b"", env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    done = subprocess.run(
        [sys.executable, "-m", "ullage.cli", *args],
        input=stdin, capture_output=True, timeout=120, env={**os.environ, **(env or {})}, check=False,
    )  # fmt: skip
    assert b"Traceback (most recent call last)" not in done.stderr, done.stderr.decode()
    assert b"fault of ullage" not in done.stderr, done.stderr.decode()
    return done


def test_help_names_commands_and_exit_codes() -> None:
    done = ullage("--help")
    assert done.returncode == 0
    assert b"why LOG..." in done.stdout
    assert b"Exit codes" in done.stdout


def test_founding_case_as_text() -> None:
    done = ullage("why", str(CRASHED), "--baseline", str(WORKED), env={"COLUMNS": "120"})
    text = " ".join(done.stdout.decode().split())
    assert done.returncode == 1
    for words in (
        "crashed while sizing the KV pool",
        "21.78 - 94.08 x (1 - 0.55) = -20.56 GiB",
        "--mem-fraction-static 0.88 → starts, pool 10.49 GiB, 160,291 tokens",
        "above 0.769",
        "NCCL buffers",
        "fragmentation",
        "graph",
        "BAR",
    ):
        assert words in text, words
    assert "\x1b[" not in done.stdout.decode(), "no colour into a pipe"


def test_founding_case_as_json() -> None:
    done = ullage("why", str(CRASHED), "--baseline", str(WORKED), "--json")
    found = json.loads(done.stdout)
    assert found["schema"] == "ullage.why/1"
    assert (found["cause"], found["certainty"], found["phase"]) == (
        "budget-below-weights",
        "certain",
        "kv_pool",
    )
    assert found["engine"] == {"name": "sglang", "version": "0.5.9", "version_source": "inferred"}
    decisive = [d["setting"] for d in found["compare"]["differences"] if d["decisive"]]
    assert decisive == ["mem_fraction_static"]
    fraction = found["compare"]["baseline"]["inferred"]["mem_fraction_static"]
    assert fraction["low"] <= 0.88 <= fraction["high"] < 0.8805
    assert 0.768 < found["interval"]["low"] < 0.769
    fix = found["fixes"][0]
    assert fix["change"] == {"--mem-fraction-static": 0.88}
    assert fix["predicted"]["kv_tokens"] == 160291
    assert fix["predicted"]["kv_gib"] == pytest.approx(10.49, abs=0.005)
    roots = [e for e in found["evidence"] if e["role"] == "root"]
    assert roots[0]["count"] == 8
    assert found["budget"]["pool_gib"]["value"] == pytest.approx(-20.556, abs=0.01)


def test_a_lower_fraction_makes_it_worse() -> None:
    found = json.loads(ullage("why", str(FOUNDING / "custom-all-reduce-050.log"), "--json").stdout)
    assert found["budget"]["pool_gib"]["value"] < -25
    assert "worse" in found["explanation"]


def test_healthy_is_zero() -> None:
    done = ullage("why", str(WORKED), "--json")
    found = json.loads(done.stdout)
    assert (done.returncode, found["outcome"], found["cause"]) == (0, "started", "none")
    assert found["observed"]["kv_tokens"] == 159221


def test_stdin_and_gzip_say_the_same() -> None:
    plain = json.loads(ullage("why", "-", "--json", stdin=CRASHED.read_bytes()).stdout)
    packed = json.loads(ullage("why", "-", "--json", stdin=gzip.compress(CRASHED.read_bytes())).stdout)
    assert plain["cause"] == packed["cause"] == "budget-below-weights"
    assert plain["observed"] == packed["observed"]


def test_diff_of_a_run_with_itself_finds_nothing() -> None:
    found = json.loads(ullage("diff", str(WORKED), str(WORKED), "--json").stdout)
    assert found["compare"]["differences"] == []


def test_diff_shows_both_sides() -> None:
    done = ullage("diff", str(WORKED), str(CRASHED), env={"COLUMNS": "140"})
    text = done.stdout.decode()
    assert done.returncode == 0
    assert "MEMORY OF A" in text
    assert "MEMORY OF B" in text
    assert "mem_fraction_static" in text


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["why"], "Missing argument"),
        (["why", "no-such-file.log"], "no-such-file.log"),
        (["why", "."], "folder"),
        (["why", "LOG", "--reading", "nonsense"], "NAME=VALUE"),
        (["why", "LOG", "--reading", "x=nan"], "NAME=VALUE"),
        (["why", "LOG", "--run", "7"], "run"),
        (["why", "LOG", "--command", "python -m sglang.launch_server --model 'open"], "quot"),
        (["why", "LOG", "--model-dir", "no-such-folder"], "no-such-folder"),
        (["why", "LOG", "--nonsense"], "No such option"),
        (["nonsense"], "No such command"),
    ],
)
def test_wrong_use_is_one_clear_line(args: list[str], words: str) -> None:
    done = ullage(*[str(CRASHED) if a == "LOG" else a for a in args])
    error = done.stderr.decode()
    assert done.returncode == 2, error
    assert words.lower() in error.lower()
    assert done.stdout == b""


def test_a_log_of_another_program_cannot_be_told() -> None:
    done = ullage("why", "-", "--json", stdin=b"GET / 200\nGET /x 404\n" * 100)
    found = json.loads(done.stdout)
    assert (done.returncode, found["outcome"], found["engine"]["name"]) == (3, "unknown", None)


def test_an_unknown_command_is_said_and_the_log_still_read() -> None:
    found = json.loads(ullage("why", str(CRASHED), "--command", "make coffee", "--json").stdout)
    assert found["cause"] == "budget-below-weights"
    assert any("--command" in note for note in found["notes"])


def test_the_log_wins_over_a_contradicting_command() -> None:
    command = (
        "python -m sglang.launch_server --model-path moonshotai/Kimi-K2.5 --tp 8 --mem-fraction-static 0.9"
    )
    found = json.loads(ullage("why", str(CRASHED), "--command", command, "--json").stdout)
    assert found["settings"]["mem_fraction_static"]["value"] == 0.55
    assert any("0.9" in note for note in found["notes"])


def test_a_reading_beats_the_log() -> None:
    found = json.loads(ullage("why", str(CRASHED), "--reading", "free_after_weights_gib=60", "--json").stdout)
    assert found["budget"]["pool_gib"]["value"] > 0


def test_a_restart_loop_explains_the_last_or_the_chosen_run() -> None:
    both = WORKED.read_bytes() + CRASHED.read_bytes()
    last = json.loads(ullage("why", "-", "--json", stdin=CRASHED.read_bytes() + CRASHED.read_bytes()).stdout)
    assert last["run"]["of"] == 2
    first = json.loads(ullage("why", "-", "--json", "--run", "1", stdin=both).stdout)
    assert (first["run"]["index"], first["outcome"]) == (1, "started")
    second = json.loads(ullage("why", "-", "--json", stdin=both).stdout)
    assert (second["run"]["index"], second["outcome"]) == (2, "crashed")


def test_no_secret_is_shown() -> None:
    token, key = "hf_" + "aB3" * 12, "very-secret-key"
    command = f"HF_TOKEN={token} python -m sglang.launch_server --model-path m --api-key {key} --tp 8"
    log = CRASHED.read_text().replace("port=30000,", f"port=30000, api_key='{key}',", 1)
    log = log.replace("Not enough memory.", f"Not enough memory (token {token}).")
    for extra in (["--json"], []):
        done = ullage("why", "-", "--command", command, "--baseline", str(WORKED), *extra, stdin=log.encode())
        assert done.returncode == 1
        assert token.encode() not in done.stdout
        assert key.encode() not in done.stdout


@pytest.mark.parametrize("columns", ["0", "1", "-5", "abc", "99999999999"])
def test_any_width_shows_the_answer(columns: str) -> None:
    log = ROOT / "examples" / "founding" / "fewer-channels.log"
    done = subprocess.run(
        [sys.executable, "-m", "ullage", "why", str(log)],
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": columns},
    )
    assert done.returncode == 1, done.stderr
    assert "-20.56 GiB" in done.stdout
