"""Writes docs/causes/: one page a cause, made from the cause's own module or row. `--check` only compares."""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from pathlib import Path

from ullage import engines
from ullage.core.finding import CauseText
from ullage.engines.base import Cause

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "causes"
TITLES = {"sglang": "SGLang", "vllm": "vLLM"}
#: the families of tests/cases/CAUSES.toml, in the order of a server's life
FAMILIES = {
    "configuration": "The command asks for what cannot be",
    "software-mismatch": "Releases that do not go together",
    "gpu-memory-held-elsewhere": "GPU memory that something else holds",
    "gpu-memory-startup": "GPU memory, before it serves",
    "gpu-memory-serving": "GPU memory, while it serves",
    "host-memory": "Memory of the host",
    "communication": "Between GPUs and nodes",
    "defect": "Defects",
    "contributing": "What only makes another worse",
}
#: flags, settings and variables, outside of quotes and code
_NAME = re.compile(
    r'(?P<quoted>`[^`]*`|"[^"]*")|(?<![\w/.-])(?P<name>--[a-z0-9][\w-]+|[a-z]+\d*(?:_[a-z0-9]+)+|[A-Z]{2,}(?:_[A-Z0-9]+)+)(?![\w/]|\.\w)'
)


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
            parts.append(f"**{head}.** {_typeset(body)}\n")
    parts.append("[All causes](index.md) · [how to read an answer](../why.md#how-to-read-the-answer)\n")
    return "\n".join(parts)


def index(found: dict[str, dict[str, Cause]]) -> str:
    parts = [
        "# Causes\n",
        "What `ullage why` can find, each with its page: what you see, what misleads, what is true, what helps. The id "
        "is what `--json` says. The families are causes that call for the same kind of remedy.\n",
    ]
    family = families()
    for name, title in FAMILIES.items():
        rows = [_row(cause_id, found[cause_id]) for cause_id in found if family[cause_id] == name]
        if rows:
            parts.append(
                f"## {title}\n\n| cause | engines | what is true |\n|---|---|---|\n" + "\n".join(rows) + "\n"
            )
    return "\n".join(parts)


def families() -> dict[str, str]:
    """Cause id -> its family."""
    known = tomllib.loads((ROOT / "tests" / "cases" / "CAUSES.toml").read_text())["cause"]
    return {each["id"]: each["family"] for each in known}


def _row(cause_id: str, by_engine: dict[str, Cause]) -> str:
    true = _first_sentence(next(iter(by_engine.values())).text.true)
    return f"| [{cause_id}]({cause_id}.md) | {', '.join(TITLES[name] for name in by_engine)} | {true} |"


def _first_sentence(text: str) -> str:
    return _typeset(f"{text.split('. ')[0].strip().rstrip('.')}.").replace("|", "\\|")


def _typeset(text: str) -> str:
    """A paragraph as Markdown: a plain first word with a capital, names of flags and settings as code."""
    begun = f"{text[:1].upper()}{text[1:]}" if re.match(r"[a-z]+[,.:;]?(?:\s|$)", text) else text
    return _NAME.sub(lambda found: found["quoted"] or f"`{found['name']}`", begun)


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
