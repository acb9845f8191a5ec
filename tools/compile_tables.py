"""Write the compiled twins of the tables that every command reads (core/tables): run it after a change of one."""

from __future__ import annotations

from pathlib import Path

import msgspec

from ullage.core.tables import compiled

ROOT = Path(__file__).parents[1] / "src" / "ullage"
TABLES = (
    "hardware/gpus.toml", "models/defaults.toml", "hardware/compat/components.toml", "hardware/compat/software.toml",
    *(f"engines/{engine}/{name}.toml" for engine in ("sglang", "vllm") for name in ("compat", "ships", "variables")),
)  # fmt: skip


def main() -> None:
    for name in TABLES:
        path = ROOT / name
        path.with_suffix(".json").write_bytes(compiled(path.read_bytes()))
    (ROOT / "models" / "catalogue.json").write_bytes(catalogue())


def catalogue() -> bytes:
    """Every file of the model catalogue in one."""
    paths = [
        path for folder in ("data", "checkpoints") for path in sorted((ROOT / "models" / folder).glob("*.toml"))
    ]
    twins = {
        path.relative_to(ROOT / "models").as_posix(): compiled(path.read_bytes()).decode() for path in paths
    }
    return msgspec.json.format(msgspec.json.encode(twins), indent=1) + b"\n"


if __name__ == "__main__":
    main()
