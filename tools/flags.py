"""Reads the command-line flags of an engine's releases out of their unpacked wheels into flags.toml.

    python tools/flags.py --engine sglang --wheels DIR           # adds the releases newer than the table's last
    python tools/flags.py --engine vllm --wheels DIR --rebuild   # every release under DIR, from nothing
    python tools/flags.py --compile                              # only flags.json anew from flags.toml

DIR holds one folder a release, DIR/<engine>-<version>/<package>/. Nothing of a release is run: its parsers are
read by their syntax trees (flags_sglang.py, flags_vllm.py). A `renamed_to` written by hand into a row that has ended stays.
"""

from __future__ import annotations

import argparse
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import flag_rows
import flags_sglang
import flags_vllm
from flag_source import Flag, Source
from packaging.version import InvalidVersion, Version

from ullage.core.tables import compiled

ENGINES = Path(__file__).resolve().parent.parent / "src/ullage/engines"
READERS: dict[str, Callable[[Source], list[Flag]]] = {"sglang": flags_sglang.read, "vllm": flags_vllm.read}
OLDEST = {"sglang": "0.4.0", "vllm": "0.6.0"}


def releases(engine: str, wheels: Path) -> dict[str, Path]:
    """The final releases under ``wheels``, oldest first."""
    found = {}
    for path in wheels.glob(f"{engine}-*"):
        text = path.name.removeprefix(f"{engine}-")
        try:
            version = Version(text)
        except InvalidVersion:
            continue
        if (path / engine).is_dir() and not version.is_prerelease and version >= Version(OLDEST[engine]):
            found[text] = path
    return dict(sorted(found.items(), key=lambda pair: Version(pair[0])))


def head_of(text: str) -> str:
    """The comment at the head of a table."""
    return "\n".join(line for line in text.partition("\nreleases =")[0].splitlines() if line.startswith("#"))


def update(path: Path, engine: str, found: dict[str, Path], *, rebuild: bool) -> list[str]:
    """Take the releases that ``path`` lacks into it; the names of those taken."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    before = flag_rows.parse(tomllib.loads(text))
    table = flag_rows.Table() if rebuild else before
    last = Version(table.releases[-1]) if table.releases else Version("0")
    new = [release for release in found if Version(release) > last]
    for release in new:
        table.add(release, READERS[engine](Source(found[release])))
    if rebuild:
        flag_rows.keep_words(table, before)
    path.write_text(flag_rows.text(table, head_of(text)), encoding="utf-8")
    return new


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=sorted(READERS))
    parser.add_argument("--wheels", type=Path)
    parser.add_argument("--rebuild", action="store_true")
    parser.add_argument("--compile", action="store_true")
    given = parser.parse_args()
    if given.engine and given.wheels:
        found = releases(given.engine, given.wheels)
        new = update(ENGINES / given.engine / "flags.toml", given.engine, found, rebuild=given.rebuild)
        print(f"{given.engine}: {len(new)} releases taken in: {', '.join(new) or 'none'}", file=sys.stderr)
    elif not given.compile:
        parser.error("--engine and --wheels, or --compile")
    for engine in READERS:
        table = ENGINES / engine / "flags.toml"
        table.with_suffix(".json").write_bytes(compiled(table.read_bytes()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
