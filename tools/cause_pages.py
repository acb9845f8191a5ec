"""Writes docs/causes/: one page a cause, made from the cause's own module or row. `--check` only compares."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ullage import engines
from ullage.core.finding import CauseText
from ullage.engines.base import Cause

FOLDER = Path(__file__).parents[1] / "docs" / "causes"
TITLES = {"sglang": "SGLang", "vllm": "vLLM"}


def causes() -> dict[str, dict[str, Cause]]:
    """Cause id -> engine -> cause, by id. A cause that both engines share stands once."""
    found: dict[str, dict[str, Cause]] = {}
    for name in engines.NAMES:
        for cause in engines.get(name).causes():
            found.setdefault(cause.id, {}).setdefault(name, cause)
    return dict(sorted(found.items()))


def page(cause_id: str, by_engine: dict[str, Cause]) -> str:
    texts: dict[CauseText, list[str]] = {}
    for engine, cause in by_engine.items():
        texts.setdefault(cause.text, []).append(TITLES[engine])
    parts = [f"# {cause_id}\n"]
    for text, names in texts.items():
        parts.append(f"*{' and '.join(names)}*\n" if len(texts) == 1 else f"## {' and '.join(names)}\n")
        for head, body in (
            ("What you see", text.see),
            ("What misleads", text.misleads),
            ("What is true", text.true),
            ("What helps", text.helps),
        ):
            parts.append(f"**{head}.** {body[:1].upper()}{body[1:]}\n")
    parts.append("[All causes](index.md)\n")
    return "\n".join(parts)


def index(found: dict[str, dict[str, Cause]]) -> str:
    rows = [
        f"| [{cause_id}]({cause_id}.md) | {', '.join(TITLES[name] for name in by_engine)} "
        f"| {_first_sentence(next(iter(by_engine.values())).text.true)} |"
        for cause_id, by_engine in found.items()
    ]
    head = "# Causes\n\nWhat `ullage why` can find, each with its page.\n\n| cause | engines | what is true |\n|---|---|---|\n"
    return head + "\n".join(rows) + "\n"


def _first_sentence(text: str) -> str:
    sentence = text.split(". ")[0].strip().rstrip(".")
    return f"{sentence[:1].upper()}{sentence[1:]}.".replace("|", "\\|")


def pages() -> dict[str, str]:
    found = causes()
    made = {f"{cause_id}.md": page(cause_id, by_engine) for cause_id, by_engine in found.items()}
    return {"index.md": index(found), **made}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="exit 1 where a page is not up to date")
    check = parser.parse_args().check
    made = pages()
    there = {path.name: path.read_text() for path in FOLDER.glob("*.md")} if FOLDER.exists() else {}
    if check:
        stale = sorted(name for name in made.keys() | there.keys() if made.get(name) != there.get(name))
        print(f"not up to date: {', '.join(stale)}; run `make docs`" if stale else "cause pages are up to date")
        return bool(stale)
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in there.keys() - made.keys():
        (FOLDER / name).unlink()
    for name, text in made.items():
        (FOLDER / name).write_text(text)
    print(f"{len(made)} pages in docs/causes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
