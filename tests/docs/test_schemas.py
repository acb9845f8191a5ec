"""The page about JSON names every schema that ullage prints, and no other."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
_SCHEMA = re.compile(r"\bullage\.[a-z-]+/\d+\b")


def test_every_schema_is_described() -> None:
    printed = {
        found
        for path in (ROOT / "src" / "ullage").rglob("*.py")
        for quoted in re.findall(r'"(ullage\.[a-z-]+/\d+)"', path.read_text())
        for found in _SCHEMA.findall(quoted)
    }
    told = set(_SCHEMA.findall((ROOT / "docs" / "json.md").read_text()))
    assert printed == told
