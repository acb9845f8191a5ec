"""``ullage plan`` as a user runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

KIMI = [
    "python", "-m", "sglang.launch_server", "--model-path", "moonshotai/Kimi-K2.5", "--tp", "8", "--trust-remote-code",
]  # fmt: skip
EIGHT = ["--gpu", "8x RTX PRO 6000", "--engine-version", "0.5.9"]


def ullage(*args: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    done = subprocess.run(
        [sys.executable, "-m", "ullage.cli", "plan", *args],
        input=stdin, capture_output=True, timeout=60, env={**os.environ, "NO_COLOR": "1"}, check=False,
    )  # fmt: skip
    assert b"Traceback (most recent call last)" not in done.stderr, done.stderr.decode()
    return done


def test_text_of_the_founding_launch() -> None:
    done = ullage(*EIGHT, "--", *KIMI, "--mem-fraction-static", "0.55")
    text = done.stdout.decode()
    assert done.returncode == 1
    for words in (
        "will not start",
        "budget-below-weights",
        "x (1 - 0.55)",
        "WHERE THE MEMORY GOES",
        "WHAT HELPS",
    ):
        assert words in text, words
    assert "\x1b[" not in text


def test_json_has_the_stable_part() -> None:
    done = ullage(*EIGHT, "--json", "--context", "10000", "--", *KIMI, "--mem-fraction-static", "0.88")
    found = json.loads(done.stdout)
    assert done.returncode == 0
    assert found["schema"] == "ullage.plan/1"
    assert {
        "engine", "model", "gpus", "verdict", "fails_at", "cause", "settings", "ledgers", "kv", "interval", "fixes",
        "warnings",
    } <= found.keys()  # fmt: skip
    assert found["engine"] == {"name": "sglang", "version": "0.5.9", "version_source": "command"}
    assert found["gpus"]["count"] == 8
    assert found["settings"]["mem_fraction_static"] == {"value": 0.88, "source": "given"}
    kv = found["kv"]
    assert kv["low_tokens"] <= kv["tokens"] <= kv["high_tokens"]
    assert kv["bytes_per_token"] == 70_272
    assert kv["concurrency"] == {"10000": round(kv["tokens"] / 10_000, 2)}
    stages = {item["stage"] for item in found["ledgers"][0]["items"]}
    assert {"weights", "kv_pool", "graph_capture"} <= stages
    assert found["interval"]["low"] < 0.88 < found["interval"]["high"]
    assert all({"id", "text"} == warning.keys() for warning in found["warnings"])


def test_a_command_as_one_text_from_stdin_or_a_file(tmp_path: Path) -> None:
    text = "vllm serve Qwen/Qwen3-8B \\\n  --max-model-len 8192  # as pasted\n"
    script = tmp_path / "serve.sh"
    script.write_text(text)
    gpu = ["--gpu", "H100", "--engine-version", "0.19.0", "--json"]
    answers = [
        ullage(*gpu, "vllm serve Qwen/Qwen3-8B --max-model-len 8192").stdout,
        ullage(*gpu, "--", "vllm", "serve", "Qwen/Qwen3-8B", "--max-model-len", "8192").stdout,
        ullage(*gpu, "vllm", "serve", "Qwen/Qwen3-8B", "--max-model-len", "8192").stdout,
        ullage(*gpu, stdin=text.encode()).stdout,
        ullage(*gpu, "--file", str(script)).stdout,
    ]
    kv = [json.loads(answer)["kv"] for answer in answers]
    assert kv[0]["tokens"] > 0
    assert all(one == kv[0] for one in kv)


def test_a_configuration_file_of_the_command(tmp_path: Path) -> None:
    config = tmp_path / "vllm.yaml"
    config.write_text("model: Qwen/Qwen3-8B\nmax-model-len: 8192\ngpu-memory-utilization: 0.5\n")
    done = ullage(
        "--gpu", "H100", "--engine-version", "0.19.0", "--json", "--", "vllm", "serve", "--config", str(config)
    )
    found = json.loads(done.stdout)
    assert found["model"]["id"] == "Qwen/Qwen3-8B"
    assert found["settings"]["gpu_memory_utilization"]["value"] == 0.5


def test_cannot_tell_is_3_and_names_what_is_missing() -> None:
    done = ullage("--gpu", "H100", "--", "vllm", "serve", "nobody/knows-this")
    assert done.returncode == 3
    assert b"A surer answer needs" in b" ".join(done.stdout.split())


@pytest.mark.parametrize(
    "args",
    [
        (),
        ("--gpu", "H1000", "--", "vllm", "serve", "x"),
        ("--", "ls", "-l"),
        ("--reading", "nonsense", "--", "vllm", "serve", "x"),
        ("--model-dir", "/nonexistent", "--", "vllm", "serve", "x"),
        ("--file", "/nonexistent"),
        ("--", "vllm", "serve", "x", "--gpu-memory-utilization", "-1"),
        ("vllm serve 'x",),
    ],
)
def test_wrong_use_is_2_and_one_line(args: tuple[str, ...]) -> None:
    done = ullage(*args)
    assert done.returncode == 2
    assert done.stdout == b""
    assert done.stderr.startswith(b"ullage: ")
    assert done.stderr.count(b"\n") == 1
