"""tools/flags.py on small made-up releases: rows are ended and begun, nothing is copied."""

from __future__ import annotations

import importlib
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from ullage.core.tables import compiled

ROOT = Path(__file__).parents[2]
HEAD = "# Flags, made up.\n\nreleases = [\n]\n"


@pytest.fixture
def flags(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    yield importlib.import_module("flags")
    for name in ("flags", "flag_rows", "flag_source", "flag_hints", "flags_sglang", "flags_vllm"):
        sys.modules.pop(name, None)


def sglang(root: Path, release: str, arguments: str, fields: str = "") -> None:
    folder = root / f"sglang-{release}/sglang/srt"
    folder.mkdir(parents=True)
    (folder / "choices.py").write_text("COMMON = ['auto', 'fp8']\n")
    (folder / "server_args.py").write_text(
        "from sglang.srt.choices import COMMON\n"
        "class ServerArgs:\n    model_path: str\n    tp_size: int = 1\n"
        f"{fields}\n    @staticmethod\n    def add_cli_args(parser):\n        extra = COMMON + ['bf16']\n"
        "        parser.add_argument('--model-path', '--model', type=str, required=True)\n"
        f"{arguments}\n"
    )


OLD = """
        parser.add_argument('--tensor-parallel-size', '--tp-size', type=int, default=ServerArgs.tp_size)
        parser.add_argument('--kv-dtype', type=str, default='auto', choices=COMMON)
        parser.add_argument('--graph-max-bs', type=int)
        parser.add_argument('--lonely', action='store_true')
"""
NEW = """
        parser.add_argument('--tensor-parallel-size', '--tp-size', type=int, default=ServerArgs.tp_size)
        parser.add_argument('--kv-dtype', type=str, default='auto', choices=extra)
        parser.add_argument('--graph-max-bs-decode', type=int)
"""


def test_adding_a_release_is_a_small_diff(flags: ModuleType, tmp_path: Path) -> None:
    table = tmp_path / "flags.toml"
    table.write_text(HEAD)
    sglang(tmp_path, "0.4.0", OLD)
    found = flags.releases("sglang", tmp_path)
    assert flags.update(table, "sglang", found, rebuild=False) == ["0.4.0"]
    before = table.read_text()
    sglang(tmp_path, "0.4.1", OLD)
    sglang(tmp_path, "0.4.2", NEW)
    assert flags.update(table, "sglang", flags.releases("sglang", tmp_path), rebuild=False) == [
        "0.4.1",
        "0.4.2",
    ]
    after = table.read_text()
    gone = set(before.splitlines()) - set(after.splitlines())
    assert {line.strip() for line in gone} == {'"0.4.0",', '"auto", "fp8",'}
    added = [line for line in after.splitlines() if line and line not in before.splitlines()]
    assert added == [
        '  "0.4.0", "0.4.1", "0.4.2",',
        'renamed_to = "--graph-max-bs-decode"',
        'until = "0.4.2"',
        'name = "graph_max_bs_decode"',
        'since = "0.4.2"',
        'until = "0.4.2"',
        '  "auto", "fp8", "bf16@0.4.2..",',
    ]
    assert after.startswith("# Flags, made up.\n")


def test_the_table_says_what_the_parser_takes(flags: ModuleType, tmp_path: Path) -> None:
    table = tmp_path / "flags.toml"
    table.write_text(HEAD)
    sglang(tmp_path, "0.5.0", OLD)
    flags.update(table, "sglang", flags.releases("sglang", tmp_path), rebuild=True)
    data = tomllib.loads(table.read_text())
    rows = {row["name"]: row for row in data["flag"]}
    assert rows["tp_size"] == {
        "name": "tp_size", "spellings": ["--tp-size", "--tensor-parallel-size"], "type": "int", "default": 1,
        "since": "≤0.5.0",
    }  # fmt: skip
    assert rows["lonely"]["type"] == "flag"
    assert data["choices"] == [{"name": "kv_dtype", "since": "≤0.5.0", "values": ["auto", "fp8"]}]


def test_what_people_wrote_survives_a_rebuild(flags: ModuleType, tmp_path: Path) -> None:
    table = tmp_path / "flags.toml"
    table.write_text(HEAD)
    sglang(tmp_path, "0.4.0", OLD)
    sglang(tmp_path, "0.4.2", NEW)
    found = flags.releases("sglang", tmp_path)
    flags.update(table, "sglang", found, rebuild=True)
    text = table.read_text().replace('name = "lonely"\n', 'name = "lonely"\nrenamed_to = "--other"\n')
    table.write_text(text)
    flags.update(table, "sglang", found, rebuild=True)
    rows = {row["name"]: row for row in tomllib.loads(table.read_text())["flag"]}
    assert rows["lonely"]["renamed_to"] == "--other"


def test_an_older_release_wants_a_rebuild(flags: ModuleType) -> None:
    rows = importlib.import_module("flag_rows")
    table = rows.Table()
    table.add("0.5.0", [])
    with pytest.raises(ValueError, match="rebuild"):
        table.add("0.4.0", [])


def test_flags_that_config_classes_declare(flags: ModuleType, tmp_path: Path) -> None:
    """vLLM from 0.8 on: type hints -> what argparse takes."""
    base = tmp_path / "vllm-0.9.0/vllm"
    for folder in ("engine", "entrypoints/openai"):
        (base / folder).mkdir(parents=True)
    (base / "config.py").write_text(
        "from typing import Literal, Optional\nfrom dataclasses import dataclass\n"
        "Dtype = Literal['auto', 'half']\n"
        "@dataclass\nclass Inner:\n    x: int = 0\n"
        "@dataclass\nclass CacheConfig:\n    dtype: Dtype = 'auto'\n    share: float = 0.9\n    on: Optional[bool] = None\n"
        "    names: list[str] = field(default_factory=list)\n    inner: Inner = field(default_factory=Inner)\n    size: int = 1 << 4\n"
    )
    (base / "engine/arg_utils.py").write_text(
        "from vllm.config import CacheConfig\nclass EngineArgs:\n    share: float = CacheConfig.share\n"
        "    def add_cli_args(parser):\n        kw = get_kwargs(CacheConfig)\n"
        + "".join(
            f"        parser.add_argument('--{n}', **kw['{n}'])\n"
            for n in ("dtype", "share", "names", "inner", "size")
        )
        + "        parser.add_argument('--on', **{**kw['on'], 'default': True})\n"
    )
    (base / "entrypoints/openai/cli_args.py").write_text("def make_arg_parser(parser): ...\n")
    source = importlib.import_module("flag_source").Source(tmp_path / "vllm-0.9.0")
    found = {flag.name: flag for flag in flags.READERS["vllm"](source)}
    assert {name: flag.type for name, flag in found.items()} == {
        "dtype": "str", "share": "float", "names": "list-str", "inner": "json", "size": "int", "on": "switch",
    }  # fmt: skip
    assert found["dtype"].choices == ("auto", "half")
    assert [found[name].default for name in ("share", "size", "on")] == [0.9, 16, True]


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_the_compiled_twin_is_up_to_date(engine: str) -> None:
    table = ROOT / f"src/ullage/engines/{engine}/flags.toml"
    assert table.with_suffix(".json").read_bytes() == compiled(table.read_bytes())
