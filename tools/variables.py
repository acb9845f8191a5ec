"""Which environment variables each release of an engine reads -> engines/<engine>/variables.toml.

    python tools/variables.py sglang FOLDER > src/ullage/engines/sglang/variables.toml

FOLDER holds one unpacked wheel a release, named ENGINE-VERSION. The source is read, never run: a variable is read
by a release if its name stands in quotes or as a declared field in the engine's Python files, tests aside.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from packaging.version import Version

NAMES = {
    "sglang": re.compile(rb"\b(?:SGLANG|SGL)_[A-Z][A-Z0-9_]{3,60}\b"),
    "vllm": re.compile(rb"\bVLLM_[A-Z][A-Z0-9_]{3,60}\b"),
}


def names(folder: Path, engine: str) -> set[str]:
    """The variables that the Python files of one release name."""
    files = [folder / "vllm" / "envs.py"] if engine == "vllm" else (folder / engine).rglob("*.py")
    found: set[bytes] = set()
    for path in files:
        if path.is_file() and not {"test", "tests", "multimodal_gen"} & set(path.parts):
            found |= set(NAMES[engine].findall(path.read_bytes()))
    return {name.decode() for name in found}


def spans(read: list[tuple[str, set[str]]]) -> list[tuple[str, str, str]]:
    """(name, since, until) for every unbroken stretch of releases, oldest first; "" for an open side."""
    rows: list[tuple[str, str, str]] = []
    for name in sorted(set().union(*(known for _, known in read))):
        since, inside = "", False
        for at, (release, known) in enumerate(read):
            if (name in known) and not inside:
                since, inside = (release if at else f"≤{release}"), True
            elif inside and name not in known:
                rows.append((name, since, release))
                inside = False
        if inside:
            rows.append((name, since, ""))
    return rows


def main(engine: str, folder: str) -> None:
    wheels = sorted(Path(folder).glob(f"{engine}-[0-9]*"), key=lambda path: Version(path.name.split("-", 1)[1]))
    read = [(path.name.split("-", 1)[1], names(path, engine)) for path in wheels]
    where = "vllm/envs.py" if engine == "vllm" else "any Python file of the wheel"
    print(f"# Environment variables that {engine} reads, by release ({where}), written by tools/variables.py.")
    print("# variable: [since, until (exclusive)] of each stretch of releases; an empty side is open.")
    print(f"# Releases read: {', '.join(release for release, _ in read)}.".replace(", ", " "))
    print(f'source = "{engine} {read[0][0]} to {read[-1][0]}, {where}"\n\n[variable]')
    stretches: dict[str, list[str]] = {}
    for name, since, until in spans(read):
        stretches.setdefault(name, []).append(f'["{since}", "{until}"]')
    for name, found in stretches.items():
        print(f"{name} = [{', '.join(found)}]")


if __name__ == "__main__":
    main(*sys.argv[1:3])
