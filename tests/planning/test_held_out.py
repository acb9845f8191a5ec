"""Plans of public launches that no rule was made from when they were first tried (held_out.toml): verdict, weights,
pool and band, from the command and the GPU's name alone."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from ullage.core.report import Plan
from ullage.core.units import GIB
from ullage.planning.plan import Asked, plan

LAUNCHES: list[dict[str, Any]] = tomllib.loads(Path(__file__).with_name("held_out.toml").read_text())["launch"]


def planned(row: dict[str, Any]) -> Plan:
    return plan(Asked(row["command"], row["gpu"], row["version"]))


@pytest.mark.parametrize("row", LAUNCHES, ids=[row["id"] for row in LAUNCHES])
def test_a_launch_that_was_held_out(row: dict[str, Any]) -> None:
    found = planned(row)
    assert found.verdict == row.get("verdict", "starts"), found.why
    near_weights, near_pool = row["within"]
    if "weights" in row:
        said = found.budget.ledgers[0].of("weights") / GIB
        assert said == pytest.approx(row["weights"], rel=near_weights)
    pool = found.budget.kv_bytes or found.budget.pool_bytes
    if "kv" in row:
        assert pool is not None
        assert pool.value / GIB == pytest.approx(row["kv"], rel=near_pool)
    tokens = found.budget.kv_tokens
    if "tokens" in row:
        assert tokens is not None
        assert tokens.value == pytest.approx(row["tokens"], rel=near_pool)
        assert row.get("outside") or tokens.low <= row["tokens"] <= tokens.high


def test_every_launch_names_its_source_and_what_was_seen() -> None:
    for row in LAUNCHES:
        assert row["source"] and row["version"]
        assert row.get("verdict") == "fails" or "kv" in row or "tokens" in row


def test_aiter_scales_the_fraction_that_was_typed() -> None:
    """0.5.5 on: 0.85 in, 0.7225 in force; SGLANG_AITER_HONOR_EXPLICIT_MEM_FRACTION leaves it from 0.5.20 on."""
    command = "python -m sglang.launch_server --model-path Qwen/Qwen3.8-27B-FP8 --mem-fraction-static 0.85"
    scaled = plan(Asked(command, "MI355X", "0.5.20"))
    asked = plan(Asked(f"SGLANG_AITER_HONOR_EXPLICIT_MEM_FRACTION=1 {command}", "MI355X", "0.5.20"))
    assert "(1 - 0.7225)" in scaled.budget.formula
    assert "(1 - 0.85)" in asked.budget.formula
    assert "(1 - 0.85)" in plan(Asked(command, "H200", "0.5.20")).budget.formula


def test_a_gb10_has_the_batch_of_a_small_gpu() -> None:
    """NVML does not tell a GB10's memory: 2048 tokens and 256 sequences in every release."""
    for release in ("0.19.0", "0.25.1", "0.33.0"):
        found = plan(Asked("vllm serve Qwen/Qwen3-8B", "GB10", release)).settings
        assert (found["max_num_batched_tokens"].value, found["max_num_seqs"].value) == (2048, 256)


@pytest.mark.parametrize(
    ("release", "gpu", "share"),
    [("0.10.1", "MI300X", 1.022), ("0.12.0", "MI300X", 1.045), ("0.12.0", "MI355X", 1.138)],
)
def test_gpt_oss_on_amd_is_padded(release: str, gpu: str, share: float) -> None:
    """2880 x 2880 becomes 2944 x 2880, 2944 x 2944 or 3072 x 3072 in each of 24 layers of 32 experts."""
    plain = 24 * 32 * 3 * 2880 * 2880 * 17 / 32
    found = plan(Asked("vllm serve openai/gpt-oss-20b", gpu, release)).budget.ledgers[0].of("weights")
    least = plan(Asked("vllm serve openai/gpt-oss-20b", "RTX 4090", "0.10.1")).budget.ledgers[0].of("weights")
    assert found < least * 1.1
    assert found - plain * share == pytest.approx(12.885 * GIB - plain, abs=0.12 * GIB)
