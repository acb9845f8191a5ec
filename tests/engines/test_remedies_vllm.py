"""What vLLM's causes propose, over all cases: shares that lie in their interval, nothing that the formula refuses."""

from __future__ import annotations

import shlex
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from ullage.core.report import Diagnosis
from ullage.core.units import GIB
from ullage.diagnose.why import Asked, why
from ullage.render.names import pasted

TESTS = Path(__file__).parents[1]
SHARE = "--gpu-memory-utilization"
FILES = sorted((TESTS / "cases" / "vllm").glob("*.toml")) + sorted((TESTS / "cases_made").glob("*vllm*.toml"))
#: causes that are about the card's memory: each must name a setting to change, or what to free
MEMORY = {
    "attention-workspace-oom", "budget-below-weights", "graph-capture-oom", "graph-estimate-overreserve",
    "kv-cache-memory-oversized", "mamba-blocks-below-max-num-seqs", "max-len-exceeds-kv", "runtime-oom",
    "sampler-warmup-oom", "sleep-mode-accounting", "unified-memory-exhaustion", "weights-exceed-gpu",
}  # fmt: skip


#: logs whose own lines do not add up: 0.98 x 23.08 - 13.95 - 0.19 - 0.25 is not 8.69
INCONSISTENT = {"vllm-13061"}


@cache
def diagnose(path: Path) -> Diagnosis:
    case: dict[str, Any] = tomllib.loads(path.read_text())
    hardware, launch = case["hardware"], case["launch"]
    gpu = f"{hardware.get('count', 1)}x {hardware['gpu']}" if hardware.get("gpu") else None
    try:
        argv = [f"{k}={v}" for k, v in launch.get("env", {}).items()] + shlex.split(launch["command"])
    except ValueError:
        argv = []
    command = shlex.join(argv) if argv else None
    return why([str(path.with_suffix(".log"))], asked=Asked(command, gpu, case["case"].get("version")))


def of(name: str) -> Diagnosis:
    return diagnose(next(path for path in FILES if path.stem == name))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_offer_holds(path: Path) -> None:
    found = diagnose(path)
    for change in found.fixes:
        assert change.predicted is None or change.predicted.verdict != "fails", change
        assert "SGLANG" not in "".join(change.change)
        share = change.change.get(SHARE)
        if isinstance(share, float):
            assert 0.05 <= share <= 0.98
            if found.interval is not None and found.interval.high is not None and not found.interval.empty:
                assert share <= found.interval.high + 1e-9, "above what still fits beside it"
    if found.cause in MEMORY:
        assert any(change.change for change in found.fixes), found.cause


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_run_that_works_lies_in_its_interval_and_keeps_its_share(path: Path) -> None:
    found, item = diagnose(path), diagnose(path).interval
    now = found.settings.get("gpu_memory_utilization")
    if found.outcome != "started" or item is None or now is None or not isinstance(now.value, float):
        return
    assert item.low is None or item.low < now.value
    assert item.high is None or now.value <= item.high + 1e-9
    assert item.recommended in (None, now.value)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_printed_formula_adds_up(path: Path) -> None:
    """0.92 x 276.62 - 171.25 - 36.74 = 46.50: no term that the printed pool contradicts."""
    text, found = diagnose(path).budget.formula.removesuffix(" GiB"), diagnose(path)
    if " = " not in text or "pinned" in text or path.stem in INCONSISTENT:
        return
    left, _, right = text.partition(" = ")
    first, *others = left.replace("+ ", "- -").split(" - ")
    product = 1.0
    for factor in first.split(" x "):
        product *= float(factor)
    assert product - sum(map(float, others)) == pytest.approx(float(right), abs=0.06), found.files


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_no_card_of_a_started_server_is_overfull(path: Path) -> None:
    found = diagnose(path)
    if found.outcome == "started":
        for ledger in found.budget.ledgers:
            assert ledger.left_bytes > -0.05 * GIB, (ledger.rank, ledger.left_bytes / GIB)


def test_a_lower_share_gives_up_just_what_it_says() -> None:
    """35.68 GiB at 0.9 of 79.19: five hundredths less are 3.96 GiB less."""
    (lower,) = [change for change in of("vllm-qwen3vl-1684").fixes if SHARE in change.change]
    predicted = lower.predicted
    assert predicted is not None and predicted.kv_bytes is not None
    assert predicted.kv_bytes / GIB == pytest.approx(31.72, abs=0.03)


def test_more_ranks_divide_the_printed_weights() -> None:
    (wider,) = [c for c in of("vllm-23278").fixes if "--tensor-parallel-size" in c.change]
    assert wider.predicted is not None and wider.predicted.verdict == "starts"
    assert (wider.predicted.kv_bytes or 0) / GIB == pytest.approx(30, abs=2)


def test_a_limit_comes_with_the_share_where_one_alone_is_not_enough() -> None:
    both = of("vllm-23278").fixes[0]
    assert both.change.keys() == {SHARE, "--max-model-len"}
    assert both.predicted is not None and both.predicted.verdict == "starts"


def test_the_engines_own_word_is_the_prediction_of_its_own_limit() -> None:
    (fewer,) = [c for c in of("vllm-49064").fixes if "--max-num-seqs" in c.change]
    assert fewer.change == {"--max-num-seqs": 969}
    assert fewer.predicted is not None and fewer.predicted.verdict == "starts"
    assert "engine's own" in fewer.predicted.note


def test_a_smaller_batch_is_not_offered_where_the_engine_refuses_it() -> None:
    """--no-enable-chunked-prefill: a batch below max_model_len is an error (config/scheduler.py)."""
    found = of("vllm-26863")
    assert not any("--max-num-batched-tokens" in change.change for change in found.fixes)
    assert any("--enable-chunked-prefill" in change.change for change in found.fixes)


def test_a_pinned_pool_is_left_out_not_given_a_share() -> None:
    first = of("vllm-r11-mimo26-tp4-kvmem-fail").fixes[0]
    assert [pasted(*item) for item in first.change.items()] == ["without --kv-cache-memory-bytes"]


def test_what_others_hold_is_not_predicted() -> None:
    """0.8.5 charges other processes: no figure of this server says what a larger share brings."""
    for change in of("vllm-17431").fixes:
        assert change.predicted is None


def test_a_default_is_recommended_rather_than_the_bare_minimum() -> None:
    (larger,) = [c for c in of("vllm-r01-llama31-8b-070-fail").fixes if SHARE in c.change]
    assert larger.change == {SHARE: 0.9} and "0.71" in larger.why
