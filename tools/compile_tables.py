"""Write the compiled twins of the tables that every command reads (core/tables): run it after a change of one."""

from __future__ import annotations

from pathlib import Path

from ullage.core.tables import compiled

ROOT = Path(__file__).parents[1] / "src" / "ullage"
TABLES = ("hardware/gpus.toml",)


def main() -> None:
    for name in TABLES:
        path = ROOT / name
        path.with_suffix(".json").write_bytes(compiled(path.read_bytes()))


if __name__ == "__main__":
    main()
