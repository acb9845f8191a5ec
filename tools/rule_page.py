"""Writes docs/rules.md: every dated rule of the engines, from when each form holds, and where it was read."""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import sys
from pathlib import Path

from ullage import engines
from ullage.core.versions import Dated, Rules

PAGE = Path(__file__).parents[1] / "docs" / "rules.md"
TITLES = {"sglang": "SGLang", "vllm": "vLLM"}
NEW_ROW = "\n| "
HEAD = """\
# Rules and their sources

Every formula that changed from release to release, made from the code by `make docs`. A form holds until the next of its
name begins, the last one also beyond the last release known. [Memory in SGLang](memory-sglang.md) and
[memory in vLLM](memory-vllm.md) tell how they work together; `tests/oracle` compares them with what the engines' real
code answers.
"""


def rules(engine: str) -> list[Rules]:
    """The dated rules of one engine by name."""
    package = importlib.import_module(f"ullage.engines.{engine}")
    found: dict[int, Rules] = {}
    for each in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        for value in vars(importlib.import_module(each.name)).values():
            if isinstance(value, Rules):
                found[id(value)] = value
    return sorted(found.values(), key=lambda rule: rule.name.lower())


def page() -> str:
    parts = [HEAD]
    for engine in engines.NAMES:
        rows = [_row(rule, form) for rule in rules(engine) for form in rule.forms]
        parts.append(
            f"## {TITLES[engine]}\n\n| rule | from | form | read in |\n|---|---|---|---|\n"
            + "\n".join(rows)
            + "\n"
        )
    return "\n".join(parts)


def _row(rule: Rules, form: Dated) -> str:
    said = " ".join(
        (form.function.__doc__ or form.function.__name__.strip("_").replace("_", " ")).split("\n\n")[0].split()
    )
    until = f", until {form.span.until}" if form.span.until else ""
    return f"| {rule.name} | {form.span.since}{until} | {_cell(said)} | {_cell(form.source)} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("*", "\\*").replace("_", "\\_").replace("<", "\\<")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="exit 1 where the page is not up to date")
    made = page()
    if parser.parse_args().check:
        stale = not PAGE.exists() or PAGE.read_text() != made
        print("docs/rules.md is not up to date; run `make docs`" if stale else "docs/rules.md is up to date")
        return int(stale)
    PAGE.write_text(made)
    print(f"{made.count(NEW_ROW) - len(engines.NAMES)} forms of rules in docs/rules.md")
    return 0


if __name__ == "__main__":
    sys.exit(main())
