"""Whatever the three streams are: a closed one, a full one, one of another encoding; bad words; one line, code 2."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PLAN = 'plan --no-hub --gpu "1x H100" -- vllm serve Qwen/Qwen3-8B'
JSON = 'plan --json --no-hub --gpu "1x H100" -- vllm serve Qwen/Qwen3-8B'


def shell(line: str, folder: Path, **env: str) -> tuple[int, str, str]:
    """``ullage`` with the words and redirections of ``line``; exit code, stdout, stderr."""
    done = subprocess.run(
        ["/bin/bash", "-c", f'"{sys.executable}" -m ullage {line}'], capture_output=True, timeout=60, cwd=folder,
        env={**os.environ, "ULLAGE_HOME": str(folder / "home"), **env},
    )  # fmt: skip
    return done.returncode, done.stdout.decode("latin-1"), done.stderr.decode("utf-8")


@pytest.mark.parametrize("line", [PLAN, JSON, "runs --json", "completion bash", "--help"])
def test_a_full_stdout_is_told_in_one_line(line: str, tmp_path: Path) -> None:
    code, _, err = shell(f"{line} >/dev/full", tmp_path)
    assert (code, err) == (2, "ullage: stdout: cannot be written: No space left on device\n")


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", ">&- 2>&- <&-", "2>/dev/full"])
def test_a_closed_stream_is_no_fault(closed: str, tmp_path: Path) -> None:
    for line in (PLAN, "why no-such-file", "nosuch"):
        code, _, err = shell(f"{line} {closed}", tmp_path)
        assert code == (0 if line == PLAN else 2)
        assert "fault" not in err


def test_a_reader_that_goes_is_no_fault(tmp_path: Path) -> None:
    code, out, err = shell(f"{PLAN} | head -1", tmp_path)
    assert (code, err) == (0, "") and out.startswith("vLLM")


def test_an_encoding_that_lacks_a_character(tmp_path: Path) -> None:
    code, out, err = shell(PLAN, tmp_path, PYTHONIOENCODING="ascii")
    assert (code, err) == (0, "") and "vLLM (newest rules)  ?  Qwen/Qwen3-8B" in out


@pytest.mark.parametrize(
    "line", ["why $'\\xff'", "plan --json -- vllm serve $'m\\xfe'", "check --from $'\\xff'"]
)
def test_a_word_that_is_no_text(line: str, tmp_path: Path) -> None:
    code, _, err = shell(line, tmp_path)
    assert code == 2 and err.count("\n") == 1 and "is not UTF-8 text" in err


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("nosuch", "ullage: no such command 'nosuch' (hint: ullage --help)"),
        ("spec --depth 0 x", "ullage: spec: invalid value for '--depth': 0 is not in the range 1<=x<=64 "
                             "(hint: ullage spec --help)"),
        ("comm plan --nosuch", "ullage: comm plan: no such option '--nosuch'"),
        ("why", "ullage: why: missing argument 'LOG...' (hint: ullage why --help)"),
        ("ui --root nowhere", "ullage: --root nowhere: is no folder"),
        ("comm plan --topology nowhere -- vllm serve m", "ullage: nowhere: cannot be read: No such file or directory"),
        ("spec --metrics nowhere --method eagle3 -- vllm serve Qwen/Qwen3-8B",
         "ullage: --metrics nowhere: cannot be read: No such file or directory"),
    ],
)  # fmt: skip
def test_wrong_usage_is_one_line(line: str, said: str, tmp_path: Path) -> None:
    code, _, err = shell(line, tmp_path)
    assert code == 2 and err.count("\n") == 1 and err.startswith(said)


@pytest.mark.parametrize("line", ["runs", "comm import nowhere", PLAN, "why no-such"])
def test_a_home_that_nobody_has(line: str, tmp_path: Path) -> None:
    code, _, err = shell(line, tmp_path, ULLAGE_HOME="~no-such-user/x", HF_HOME="~no-such-user/y")
    assert code == (0 if line == PLAN else 2) and "fault" not in err and err.count("\n") <= 1


def test_an_error_shows_no_secret_and_obeys_no_character(tmp_path: Path) -> None:
    _, _, err = shell("plan -- $'HF_TOKEN=abc123 prog \\e[31m\\u202e'", tmp_path)
    assert "abc123" not in err and "\x1b" not in err and "‹U+001B›[31m‹U+202E›" in err
