"""Write the compiled twins of the tables that every command reads (core/tables): run it after a change of one."""

from __future__ import annotations

from pathlib import Path

import msgspec

from ullage.core.tables import compiled
from ullage.models.naming import words

ROOT = Path(__file__).parents[1] / "src" / "ullage"
TABLES = (
    "hardware/gpus.toml", "models/defaults.toml", "models/variants.toml", "hardware/compat/components.toml", "hardware/compat/software.toml",
    "spec/peaks.toml", "spec/constants.toml", "comm/fabrics.toml", "comm/tuner.toml",
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
    named = {path.stem: words(path.stem) for path in paths if path.parent.name == "data"}
    twins["index"] = msgspec.json.encode(named, order="sorted").decode()
    return msgspec.json.format(msgspec.json.encode(twins), indent=1) + b"\n"


if __name__ == "__main__":
    main()
