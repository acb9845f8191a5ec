"""ullage's arithmetic against answers recorded from SGLang's own code (tests/oracle/record_sglang.py).

A question is a GPU, a model, flags and the free memory after the weights; an answer is what the release resolved
by default and the pool that it sized. Token counts are compared as integers, fractions as the same float.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct
from msgspec.structs import replace
from packaging.version import Version

from ullage.core.model import Model
from ullage.core.units import GIB
from ullage.engines import get
from ullage.engines.sglang.defaults import Host, resolved
from ullage.engines.sglang.pool import Pool, extra_slots, mm_reserved_bytes, pool_bytes, size_pool
from ullage.engines.sglang.settings import Settings, of_launch
from ullage.engines.sglang.windows import has_split_pool
from ullage.models.config import from_config

HERE = Path(__file__).parent / "sglang"
ALLOWED: list[dict[str, Any]] = tomllib.loads((HERE / "allow.toml").read_text()).get("difference", [])


@cache
def rows(name: str) -> list[Any]:
    return [json.loads(line) for line in (HERE / name).read_text().splitlines()]


RELEASES = sorted((path.stem for path in (HERE / "answers").glob("*.jsonl")), key=Version)


class Question(Struct, frozen=True):
    release: str
    gpu: str
    model: str
    flags: str
    free_gib: float
    draft_layers: int | None

    @property
    def text(self) -> str:
        return f"{self.release} {self.gpu} {self.model} {self.flags}"


class Difference(Struct, frozen=True):
    question: Question
    what: str
    ours: Any
    theirs: Any


@cache
def model(name: str) -> Model:
    config = next(row["config"] for row in rows("configs.jsonl") if row["id"] == name)
    return from_config(config, id=name, source=name)


def machine(gpu: str) -> tuple[Host, float]:
    """The host as the engine sees it, and the free GiB before the weights."""
    _, mib, capability, total = next(row for row in rows("gpus.jsonl") if row[0] == gpu)
    major, minor = (int(part) for part in capability.split("."))
    return Host(mib, (major, minor)), total


def asked(release: str) -> Iterator[tuple[Question, dict[str, Any]]]:
    questions = rows("questions.jsonl")
    for answer in rows(f"answers/{release}.jsonl"):
        gpu, name, flags, free, draft_layers, _ = questions[answer["q"]]
        yield Question(release, gpu, name, flags, free, draft_layers), answer


def given(question: Question) -> Settings:
    command = f"python -m sglang.launch_server --model-path {question.model} {question.flags}"
    stated = of_launch(get("sglang").parse(command, question.release))
    return replace(stated, draft_layers=question.draft_layers)


def listed(value: str | None) -> list[int] | None:
    return rows("lists.jsonl")[int(value[1:])] if value else None


def defaults(question: Question, answer: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """(what, ours, theirs) for everything that the release resolved by default."""
    theirs, release = answer["resolved"], Version(question.release)
    s = resolved(given(question), model(question.model), machine(question.gpu)[0])
    yield "mem_fraction_static", s.mem_fraction_static, theirs["mem_fraction_static"]
    yield "chunked_prefill_size", s.chunked_prefill_size, theirs.get("chunked_prefill_size")
    yield "page_size", s.page, theirs.get("page_size", 1)
    yield "max_running_requests", s.max_running_requests, theirs.get("max_running_requests")
    if any(layer.kind == "sliding" for layer in model(question.model).layers):
        stated = replace(s, hybrid_swa_off=bool(theirs.get("disable_hybrid_swa_memory")))
        yield (
            "split_pool",
            has_split_pool(model(question.model), s),
            has_split_pool(model(question.model), stated),
        )
    if s.speculative and "speculative_num_draft_tokens" in theirs:
        yield "draft_tokens", s.draft_tokens, theirs["speculative_num_draft_tokens"]
    if theirs.get("cuda_graph_max_bs") is not None:
        yield "cuda_graph_max_bs", s.cuda_graph_max_bs, theirs["cuda_graph_max_bs"]
    if "cuda_graph_bs" in theirs:
        yield "cuda_graph_bs", list(s.cuda_graph_bs), listed(theirs["cuda_graph_bs"])
    if theirs.get("attention_backend"):
        yield "attention_backend", s.attention_backend, theirs["attention_backend"]
    if release >= Version("0.5.10"):
        off = theirs.get("disable_piecewise_cuda_graph") or theirs.get("prefill_graph_backend") == "disabled"
        yield "prefill_graphs", s.prefill_graphs, not off
        sizes = listed(theirs.get("piecewise_cuda_graph_tokens") or theirs.get("prefill_graph_bs"))
        if sizes and not off:
            yield "prefill_graph_sizes", list(s.prefill_graph_sizes), sizes


def as_resolved(question: Question, theirs: dict[str, Any]) -> Settings:
    """Our settings with what the release resolved: sizing is compared by itself, whatever the defaults are."""
    s = resolved(given(question), model(question.model), machine(question.gpu)[0])
    strategy = theirs.get("mamba_strategy") or ("no_buffer" if s.mamba_strategy == "auto" else s.mamba_strategy)
    return replace(
        s,
        mem_fraction_static=theirs["mem_fraction_static"],
        page_size=theirs.get("page_size", 1),
        max_running_requests=theirs.get("max_running_requests"),
        hybrid_swa_off=bool(theirs.get("disable_hybrid_swa_memory")),
        overlap_off=bool(theirs.get("disable_overlap_schedule")),
        radix_off=bool(theirs.get("disable_radix_cache")),
        mamba_strategy=strategy,
        kv_cache_dtype=theirs.get("kv_cache_dtype", "auto"),
        dsa_prefill_backend=theirs.get("dsa_prefill_backend") or theirs.get("nsa_prefill_backend"),
        dsa_decode_backend=theirs.get("dsa_decode_backend") or theirs.get("nsa_decode_backend"),
    )


def sized(question: Question, answer: dict[str, Any]) -> tuple[Settings, Pool]:
    s, shape = as_resolved(question, answer["resolved"]), model(question.model)
    total = machine(question.gpu)[1]
    assert s.mem_fraction_static is not None
    budget = pool_bytes(
        question.free_gib * GIB, total * GIB, s.mem_fraction_static, mm_reserved_bytes(shape, s)
    )
    return s, size_pool(shape, s, budget, answer.get("context_len"))


def pools(question: Question, answer: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """(what, ours, theirs) for the pool; a refusal is an answer, a fault of the stand-ins is none."""
    theirs, refusal = answer.get("kv"), answer.get("kv_error", "")
    if refusal.startswith(("TypeError", "AttributeError", "AssertionError")):
        return
    s, pool = sized(question, answer)
    if theirs is None:
        yield "refused", pool.fails or pool.budget_bytes <= 0, True
        return
    # the recording command stops before the slots for drafts in flight are added
    beyond = extra_slots(s, pool.max_num_reqs) if pool.tokens > 0 else 0
    yield "tokens", pool.tokens - beyond, theirs["max_total_num_tokens"]
    if "profiled_tokens" in theirs:
        yield "profiled_tokens", pool.profiled_tokens, theirs["profiled_tokens"]
    if "max_mamba_cache_size" in theirs and pool.mamba_slots is not None:
        yield "mamba_slots", pool.mamba_slots, theirs["max_mamba_cache_size"]
    sliding = theirs.get("swa_tokens", theirs.get("swa_max_total_num_tokens"))
    if sliding is not None:
        yield "swa_tokens", pool.sliding_tokens, sliding
    if "max_running_requests" in theirs:
        yield "max_num_reqs", pool.max_num_reqs, theirs["max_running_requests"]
    if "cell_size" in theirs:
        yield "cell_size", pool.cell_bytes, theirs["cell_size"]


def allowing(difference: Difference) -> list[int]:
    """Numbers of the rows of allow.toml that name ``difference``."""
    q = difference.question
    return [
        number
        for number, row in enumerate(ALLOWED)
        if q.release in row["releases"]
        and q.model.startswith(row.get("model", ""))
        and row.get("flags", "") in q.flags
        and difference.what in row["what"]
    ]


@cache
def compared(release: str) -> tuple[int, int, tuple[Difference, ...]]:
    """(defaults compared, pools sized, what differs)."""
    found, resolutions, sizings = [], 0, 0
    for question, answer in asked(release):
        pairs = [*defaults(question, answer), *pools(question, answer)]
        resolutions += 1
        sizings += any(what in ("tokens", "refused") for what, _, _ in pairs)
        found += [Difference(question, *pair) for pair in pairs if pair[1] != pair[2]]
    return resolutions, sizings, tuple(found)


@pytest.mark.parametrize("release", RELEASES)
def test_release(release: str) -> None:
    _, _, differences = compared(release)
    unknown = [d for d in differences if not allowing(d)]
    assert not unknown, "\n".join(
        f"{d.question.text}: {d.what}: ours {str(d.ours)[:80]}, theirs {str(d.theirs)[:80]}" for d in unknown
    )


def test_every_allowance_is_needed_and_explained() -> None:
    used = {number for release in RELEASES for d in compared(release)[2] for number in allowing(d)}
    assert [row for number, row in enumerate(ALLOWED) if number not in used] == []
    assert all(len(row["reason"]) > 20 for row in ALLOWED)


def test_enough_was_asked() -> None:
    asked_for = [compared(release) for release in RELEASES]
    assert sum(resolutions for resolutions, _, _ in asked_for) >= 500
    assert sum(sizings for _, sizings, _ in asked_for) >= 300
    assert {"0.4.0", "0.4.6.post5", "0.4.9.post2", "0.5.3", "0.5.6", "0.5.9", "0.5.10", "0.5.12", "0.5.14", "0.5.18", "0.5.20", "0.5.23"} <= set(RELEASES)  # fmt: skip


def test_a_wrong_rule_would_be_seen() -> None:
    """The comparison itself can fail: one token more is a difference."""
    question, answer = next(iter(asked("0.5.9")))
    wrong = {**answer, "kv": {**answer["kv"], "max_total_num_tokens": answer["kv"]["max_total_num_tokens"] + 1}}
    assert any(ours != theirs for what, ours, theirs in pools(question, wrong) if what == "tokens")
