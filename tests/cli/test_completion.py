"""The completion scripts, tried in the shells themselves where they are installed."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with two logs and the command itself, as it is installed."""
    (tmp_path / "worked.log").touch()
    (tmp_path / "crashed.log").touch()
    command = tmp_path / "bin" / "ullage"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m ullage.cli "$@"\n')
    command.chmod(0o755)
    return tmp_path


def _environment(place: Path) -> dict[str, str]:
    return {
        "PATH": f"{place / 'bin'}:{os.environ['PATH']}", "HOME": str(place), "ULLAGE_HOME": str(place / "home"),
        "TERM": "dumb", "PS1": "> ", "LC_ALL": "C.UTF-8", "XDG_CONFIG_HOME": str(place / "config"),
    }  # fmt: skip


def _shell(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


ASKED = {
    "ullage camp": ["campaign"],
    "ullage campaign re": ["report", "resume"],
    "ullage plan --model": ["--model-dir"],
    "ullage completion f": ["fish"],
    "ullage plan --gpu 8xmi355": ["8xmi355x"],
    "ullage plan --gpu MI355": ["MI355X"],
    "ullage spec --accept-of re": ["request"],
    "ullage plan -- vllm serve --max-mod": [],
}


@pytest.mark.parametrize(("line", "expected"), ASKED.items(), ids=list(ASKED))
def test_bash_asks_and_is_answered(place: Path, line: str, expected: list[str]) -> None:
    words = line.split()
    script = (
        'compopt() { :; }; eval "$(ullage completion bash)"; '
        f"COMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}; "
        '_ullage_completion ullage; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        [_shell("bash"), "--norc", "-c", script], capture_output=True, text=True, timeout=60,
        check=True, cwd=place, env=_environment(place),
    )  # fmt: skip
    assert done.stderr == ""
    assert sorted(set(done.stdout.split())) == expected


def _typed(place: Path, keys: list[str], expected: str) -> str:
    """What an interactive bash shows when these keys are pressed, until ``expected`` is there."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(place)
        os.execve(_shell("bash"), ["bash", "--norc", "--noprofile", "-i"], _environment(place))
    shown, until = "", time.monotonic() + 30
    waiting = iter(keys)
    try:
        while time.monotonic() < until and expected not in shown:
            ready, _, _ = select.select([terminal], [], [], 0.5)
            if ready:
                shown += os.read(terminal, 65536).decode(errors="replace")
            if shown.rstrip().endswith(">") or not ready:
                key = next(waiting, None)
                if key is not None:
                    os.write(terminal, key.encode())
        return shown
    finally:
        os.write(terminal, b"\x03exit\n")
        os.close(terminal)
        os.waitpid(pid, 0)


@pytest.mark.parametrize(
    ("typed", "expected"),
    [("ullage camp\t", "ullage campaign"), ("ullage why cr\t", "ullage why crashed.log"),
     ("ullage plan --gpu 8xmi355\t", "8xmi355x")],
)  # fmt: skip
def test_keys_in_a_real_bash(place: Path, typed: str, expected: str) -> None:
    _shell("bash")
    shown = _typed(place, ['eval "$(ullage completion bash)"\n', typed], expected)
    assert re.search(re.escape(expected), shown), shown


def test_zsh_completes(place: Path) -> None:
    driver = """
    zmodload zsh/zpty
    zpty shell zsh -f -i
    zpty -w shell 'PS1="> "; autoload -U compinit; compinit -u -D; eval "$(ullage completion zsh)"; echo READY'
    zpty -r -m shell seen '*READY*READY*'
    zpty -n -w shell $'ullage camp\\t'
    zpty -r -m shell seen '*ullage campaign*' && print -r -- "$seen"
    zpty -d shell
    """
    done = subprocess.run(
        [_shell("zsh"), "-f", "-c", driver], capture_output=True, text=True, timeout=60, check=False,
        cwd=place, env=_environment(place),
    )  # fmt: skip
    assert "ullage campaign" in done.stdout, done.stderr


def test_fish_completes(place: Path) -> None:
    for line, expected in (("ullage camp", "campaign"), ("ullage plan --gpu MI355", "MI355X")):
        done = subprocess.run(
            [_shell("fish"), "--no-config", "-c", f"ullage completion fish | source; complete -C '{line}'"],
            capture_output=True, text=True, timeout=60, check=True, cwd=place, env=_environment(place),
        )  # fmt: skip
        assert done.stdout.split()[0] == expected


def test_help_does_not_wait_for_completion() -> None:
    code = "import sys; from ullage.cli import answer; answer(['--help']); print('click' in sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stderr.strip() == "False"


def test_a_shell_that_is_not_known_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ullage.cli", "completion", "tcsh"], capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "tcsh" in done.stderr
