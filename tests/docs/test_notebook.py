"""The notebooks of examples/ run, and hold nothing of the machine that wrote them."""

from __future__ import annotations

import contextlib
import io
import json
import os
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
BOOKS = sorted(EXAMPLES.glob("*.ipynb"))


def _cells(book: Path, kind: str = "code") -> list[dict[str, Any]]:
    return [cell for cell in json.loads(book.read_text())["cells"] if cell["cell_type"] == kind]


def _run(book: Path) -> str:
    """What the code cells print, run in one namespace in the notebook's folder."""
    shown, names, before = io.StringIO(), {"__name__": "__main__"}, Path.cwd()
    os.chdir(book.parent)
    try:
        with contextlib.redirect_stdout(shown):
            for number, cell in enumerate(_cells(book)):
                exec(compile("".join(cell["source"]), f"{book.name}[{number}]", "exec"), names)
    finally:
        os.chdir(before)
    return shown.getvalue()


def test_the_library_on_the_founding_case() -> None:
    shown = _run(EXAMPLES / "library.ipynb")
    for words in (
        "budget-below-weights at kv_pool", "21.78 - 94.08 x (1 - 0.55) = -20.56 GiB", "0.8800, 0.8799 to 0.8801",
        "{'--mem-fraction-static': 0.88} -> starts 160,291 tokens", "0.5 fails budget-below-weights",
        "0.88 starts None", "159,221 tokens",
    ):  # fmt: skip
        assert words in shown, words
    assert [line.split()[1] for line in shown.splitlines() if line.startswith("decides")] == [
        "mem_fraction_static"
    ]


@pytest.mark.parametrize("book", BOOKS, ids=[book.name for book in BOOKS])
def test_nothing_of_a_machine_is_in_it(book: Path) -> None:
    for cell in _cells(book):
        assert cell["outputs"] == [] and cell["execution_count"] is None
    text = book.read_text()
    assert not any(f'"{root}/' in text or f" {root}/" in text for root in ("/home", "/root", "/tmp", "/Users"))
