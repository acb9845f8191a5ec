"""The pages of docs/causes say what the causes say."""

from __future__ import annotations

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_pages_are_up_to_date() -> None:
    made = runpy.run_path(str(ROOT / "tools" / "cause_pages.py"))["pages"]()
    there = {path.name: path.read_text() for path in (ROOT / "docs" / "causes").glob("*.md")}
    assert there == made, "run `make docs`"
