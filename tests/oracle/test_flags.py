"""flags.toml against the engines' own parsers: the spellings, what follows each, and the values that they allow."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from ullage.core.tables import load
from ullage.engines.runtime.flags import Flags, FlagTable

RECORDED = [json.loads(line) for line in Path(__file__).with_name("flags.jsonl").read_text().splitlines()]
FORMS = {"flag": "none", "unflag": "none", "switch": "switch", "optional": "optional", "list": "many"}
#: choices that only running the code tells: of the environment, of the platform, of every permutation
OPEN = {
    ("sglang", "--lora-target-modules"), ("vllm", "--collect-detailed-traces"), ("vllm", "--guided-decoding-backend"),
    ("vllm", "--mm-processor-device"), ("vllm", "--chat-template-content-format"), ("vllm", "--device"),
}  # fmt: skip


def table(engine: str) -> FlagTable:
    import_module(f"ullage.engines.{engine}")
    found: FlagTable = load(f"ullage.engines.{engine}", "flags.toml", FlagTable)
    return found


def name(recorded: dict[str, Any]) -> str:
    return f"{recorded['engine']}-{recorded['release']}"


@pytest.mark.parametrize("recorded", RECORDED, ids=name)
def test_spellings_and_what_follows_them(recorded: dict[str, Any]) -> None:
    known = Flags(table(recorded["engine"]).flag, Version(recorded["release"])).now
    for spelling, form in recorded["flags"].items():
        if spelling not in known and form == "switch":
            positive = spelling.replace("--no-", "--", 1)
            others = (
                positive,
                spelling.replace("--disable-", "--enable-"),
                spelling.replace("--enable-", "--disable-"),
            )
            assert any(each in known and known[each].type == "switch" for each in others), spelling
            continue
        word = known[spelling].type
        ours = FORMS.get(word) or FORMS.get(word.partition("-")[0], "one")
        assert ours == form, f"{spelling}: ours {word}, theirs {form}"


@pytest.mark.parametrize("recorded", RECORDED, ids=name)
def test_no_spelling_is_made_up(recorded: dict[str, Any]) -> None:
    known = Flags(table(recorded["engine"]).flag, Version(recorded["release"])).now
    serve = {"config", "headless", "api_server_count", "data_parallel_start_rank", "disable_uvicorn_access_log"}
    extra = {row.name for spelling, row in known.items() if spelling not in recorded["flags"]}
    assert extra <= (serve if recorded["engine"] == "vllm" else set())


@pytest.mark.parametrize("recorded", RECORDED, ids=name)
def test_choices(recorded: dict[str, Any]) -> None:
    found = table(recorded["engine"])
    release = Version(recorded["release"])
    known = Flags(found.flag, release).now
    allowed = {row.name: values for row in found.choices if (values := row.at(release)) is not None}
    for spelling, theirs in recorded["choices"].items():
        if (recorded["engine"], spelling) not in OPEN:
            assert set(allowed[known[spelling].name]) == set(theirs) - {"None"}, spelling
