"""The pages that are made from the code say what the code says: the causes, the rules."""

from __future__ import annotations

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_pages_are_up_to_date() -> None:
    made = runpy.run_path(str(ROOT / "tools" / "cause_pages.py"))["pages"]()
    there = {path.name: path.read_text() for path in (ROOT / "docs" / "causes").glob("*.md")}
    assert there == made, "run `make docs`"


def test_the_page_of_rules_is_up_to_date() -> None:
    made = runpy.run_path(str(ROOT / "tools" / "rule_page.py"))["page"]()
    assert (ROOT / "docs" / "rules.md").read_text() == made, "run `make docs`"
    assert "model\\_runner" in made and "gpu\\_worker" in made
