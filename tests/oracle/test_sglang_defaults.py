"""ullage's resolved defaults against those that SGLang's own code resolved for random launches
(tests/oracle/record_sglang_defaults.py): a launch a line, every recorded value compared as it is."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct
from packaging.version import Version

from ullage.core.deployment import Deployment
from ullage.core.launch import Launch
from ullage.core.model import Model
from ullage.engines import get
from ullage.engines.sglang.defaults import Host, resolved
from ullage.engines.sglang.settings import Settings, of_launch
from ullage.models.config import from_config

HERE = Path(__file__).parent / "sglang"
ALLOWED: list[dict[str, Any]] = tomllib.loads((HERE / "allow.toml").read_text()).get("random", [])
LISTS = ("options", "lists")
RELEASES = sorted(
    (path.stem for path in (HERE / "random").glob("*.jsonl") if path.stem not in LISTS), key=Version
)
COLUMNS = (
    "mem_fraction_static", "chunked_prefill_size", "cuda_graph_max_bs", "cuda_graph_bs", "max_running_requests",
    "page_size", "attention_backend", "speculative_num_steps", "speculative_eagle_topk",
    "speculative_num_draft_tokens", "prefill_graphs", "disable_radix_cache",
)  # fmt: skip


class Launched(Struct, frozen=True):
    release: str
    mib: int
    capability: str
    model: str
    flags: str

    @property
    def text(self) -> str:
        return f"{self.release} {self.mib} MiB {self.capability} {self.model} {self.flags}"


class Difference(Struct, frozen=True):
    launched: Launched
    what: str
    ours: Any
    theirs: Any


@cache
def rows(name: str) -> list[Any]:
    return [json.loads(line) for line in (HERE / name).read_text().splitlines()]


@cache
def model(name: str) -> Model:
    config = next(row["config"] for row in rows("configs.jsonl") if row["id"] == name)
    return from_config(config, id=name, source=name)


def recorded(release: str) -> Iterator[tuple[Launched, dict[str, Any] | str]]:
    """Each launch with its resolved values by name, or what the engine says instead of resolving it."""
    options, lists = rows("random/options.jsonl"), rows("random/lists.jsonl")
    for mib, capability, name, flags, *values in rows(f"random/{release}.jsonl"):
        launched = Launched(release, mib, capability, name, " ".join(options[number] for number in flags))
        if len(values) == 1 and isinstance(values[0], str):
            yield launched, values[0]
            continue
        listed = [lists[int(v[1:])] if isinstance(v, str) and v.startswith("#") else v for v in values]
        yield launched, dict(zip(COLUMNS, listed, strict=False))


def parsed(launched: Launched) -> Launch:
    flags = launched.flags.replace("@", "")
    command = f"python -m sglang.launch_server --model-path {launched.model} {flags}"
    return get("sglang").parse(command, launched.release)


def ours(launched: Launched) -> Settings:
    major, minor = (int(part) for part in launched.capability.split("."))
    return resolved(of_launch(parsed(launched)), model(launched.model), Host(launched.mib, (major, minor)))


def compared(launched: Launched, theirs: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """(what, ours, theirs): what a release leaves to its model runner is not in its arguments, and skipped."""
    s, release = ours(launched), Version(launched.release)
    yield "mem_fraction_static", s.mem_fraction_static, theirs["mem_fraction_static"]
    yield "chunked_prefill_size", s.chunked_prefill_size, theirs.get("chunked_prefill_size")
    yield "max_running_requests", s.max_running_requests, theirs.get("max_running_requests")
    yield "page_size", s.page, theirs.get("page_size") or 1
    yield "disable_radix_cache", s.radix_off, bool(theirs.get("disable_radix_cache"))
    yield "cuda_graph_max_bs", s.cuda_graph_max_bs, theirs.get("cuda_graph_max_bs")
    if release >= Version("0.5.3"):
        yield "cuda_graph_bs", list(s.cuda_graph_bs), theirs.get("cuda_graph_bs") or []
    if theirs.get("attention_backend"):
        yield "attention_backend", s.attention_backend, theirs["attention_backend"]
    if s.speculative:
        yield "speculative_num_steps", s.num_steps, theirs.get("speculative_num_steps")
        yield "speculative_eagle_topk", s.topk, theirs.get("speculative_eagle_topk")
        yield "speculative_num_draft_tokens", s.draft_tokens, theirs.get("speculative_num_draft_tokens")
    if release >= Version("0.5.10"):
        yield "prefill_graphs", list(s.prefill_graph_sizes), theirs.get("prefill_graphs") or []


@cache
def differences(release: str) -> tuple[int, int, tuple[Difference, ...]]:
    """(launches resolved, launches refused, what differs)."""
    resolved_, refused, found = 0, 0, []
    for launched, theirs in recorded(release):
        if isinstance(theirs, str):
            refused += 1
            continue
        resolved_ += 1
        found += [Difference(launched, *pair) for pair in compared(launched, theirs) if pair[1] != pair[2]]
    return resolved_, refused, tuple(found)


def allowing(difference: Difference) -> list[int]:
    """Numbers of the rows of allow.toml, ``[[random]]``, that name ``difference``."""
    launched = difference.launched
    return [
        number
        for number, row in enumerate(ALLOWED)
        if launched.release in row["releases"]
        and any(launched.model.startswith(name) for name in row.get("models", [""]))
        and all(flag in launched.flags for flag in row.get("flags", []))
        and difference.what in row["what"]
    ]


@pytest.mark.parametrize("release", RELEASES)
def test_release(release: str) -> None:
    unknown = [d for d in differences(release)[2] if not allowing(d)]
    assert not unknown, "\n".join(
        f"{d.launched.text}: {d.what}: ours {str(d.ours)[:80]}, theirs {str(d.theirs)[:80]}" for d in unknown
    )


def test_every_allowance_is_needed_and_explained() -> None:
    used = {number for release in RELEASES for d in differences(release)[2] for number in allowing(d)}
    assert [row for number, row in enumerate(ALLOWED) if number not in used] == []
    assert all(len(row["reason"]) > 20 for row in ALLOWED)


def test_enough_was_asked_and_little_is_allowed() -> None:
    asked = [differences(release) for release in RELEASES]
    launches = sum(resolved_ for resolved_, _, _ in asked)
    allowed = {d.launched for _, _, found in asked for d in found}
    assert launches >= 2000
    assert sum(resolved_ > 0 for resolved_, _, _ in asked) >= 12
    assert len(allowed) <= 0.02 * launches


@pytest.mark.parametrize("release", RELEASES)
def test_a_context_beyond_the_models_is_refused_where_the_engine_does(release: str) -> None:
    for launched, theirs in recorded(release):
        refusals = get("sglang").refusals(Deployment(parsed(launched), model(launched.model)))
        says = isinstance(theirs, str) and "User-specified context_length" in theirs
        assert any(refusal.cause == "max-len-exceeds-model" for refusal in refusals) == says, launched.text


def test_a_wrong_rule_would_be_seen() -> None:
    """The comparison itself can fail: another fraction, one size less."""
    launched, theirs = next((x, y) for x, y in recorded("0.5.9") if isinstance(y, dict) and y["cuda_graph_bs"])
    wrong = {**theirs, "mem_fraction_static": theirs["mem_fraction_static"] - 0.001}
    wrong["cuda_graph_bs"] = theirs["cuda_graph_bs"][:-1]
    found = {what for what, ours_, theirs_ in compared(launched, wrong) if ours_ != theirs_}
    assert found == {"mem_fraction_static", "cuda_graph_bs"}
