"""The console blocks of README and docs say what the commands really print."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```console\n\$ (?P<command>[^\n]+)\n(?P<output>.*?)^```$", re.MULTILINE | re.DOTALL)
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCKS = [(page, found) for page in PAGES for found in BLOCK.finditer(page.read_text())]


def run(command: str) -> str:
    words = shlex.split(command)
    assert words[0] == "ullage"
    done = subprocess.run(
        [sys.executable, "-m", "ullage.cli", *words[1:]],
        capture_output=True, text=True, cwd=ROOT, timeout=60, check=False, env={**os.environ, "COLUMNS": "100"},
    )  # fmt: skip
    return "".join(f"{line.rstrip()}\n" for line in done.stdout.splitlines())


@pytest.mark.parametrize(("page", "block"), BLOCKS, ids=[f"{p.name}-{b.start()}" for p, b in BLOCKS])
def test_block(page: Path, block: re.Match[str]) -> None:
    assert run(block["command"]) == block["output"], f"{page.name}: run `make docs`"


def test_there_are_blocks() -> None:
    assert BLOCKS
