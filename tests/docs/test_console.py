"""The console blocks of README and docs say what the commands really print."""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: a command, maybe on several lines with "\" at their ends, maybe piped into others; then what it prints
BLOCK = re.compile(
    r"^```console\n\$ (?P<command>(?:[^\n]*\\\n)*[^\n]+)\n(?P<output>.*?)^```$", re.MULTILINE | re.DOTALL
)
PYTHON = re.compile(r"^```pycon\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCKS = [(page, found) for page in PAGES for found in BLOCK.finditer(page.read_text())]
TALKS = [page for page in PAGES if PYTHON.search(page.read_text())]


@cache
def _installed() -> str:
    """A folder with the command as it is installed."""
    folder = Path(tempfile.mkdtemp(prefix="ullage-docs-"))
    command = folder / "ullage"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m ullage.cli "$@"\n')
    command.chmod(0o755)
    return str(folder)


def run(command: str) -> str:
    """What the command prints to stdout in the repository's folder, 100 columns wide, without the network."""
    assert command.startswith("ullage ")
    place = _installed()
    done = subprocess.run(
        ["sh", "-c", command], capture_output=True, text=True, cwd=ROOT, timeout=60, check=False,
        env={**os.environ, "PATH": f"{place}:{os.environ['PATH']}", "COLUMNS": "100", "ULLAGE_HOME": place,
             "ULLAGE_OFFLINE": "1", "NO_COLOR": "1"},
    )  # fmt: skip
    return "\n".join(line.rstrip() for line in done.stdout.splitlines()).rstrip("\n") + "\n"


@contextmanager
def _in_the_repository() -> Iterator[None]:
    before = Path.cwd()
    os.chdir(ROOT)
    try:
        yield
    finally:
        os.chdir(before)


@pytest.mark.parametrize(("page", "block"), BLOCKS, ids=[f"{p.name}-{b.start()}" for p, b in BLOCKS])
def test_block(page: Path, block: re.Match[str]) -> None:
    assert run(block["command"]) == block["output"], f"{page.name}: run `make docs`"


@pytest.mark.parametrize("page", TALKS, ids=[page.name for page in TALKS])
def test_python(page: Path) -> None:
    """The pycon blocks of a page are one talk with Python, top to bottom."""
    text = "\n".join(found["text"] for found in PYTHON.finditer(page.read_text()))
    talk = doctest.DocTestParser().get_doctest(text, {}, page.name, str(page), 0)
    with _in_the_repository():
        runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
        assert runner.run(talk).failed == 0


def test_there_are_blocks() -> None:
    assert {"README.md", "founding-case.md", "plan.md", "start.md"} <= {page.name for page, _ in BLOCKS}
    assert TALKS
