"""Fills the console blocks of README and docs with what the commands really print."""

from __future__ import annotations

import runpy
from pathlib import Path

CHECK = runpy.run_path(str(Path(__file__).parents[1] / "tests" / "docs" / "test_console.py"))


def main() -> None:
    for page in CHECK["PAGES"]:
        old = page.read_text()
        new = CHECK["BLOCK"].sub(
            lambda found: f"```console\n$ {found['command']}\n{CHECK['run'](found['command'])}```", old
        )
        if new != old:
            page.write_text(new)
            print(f"renewed {page.name}")


if __name__ == "__main__":
    main()
