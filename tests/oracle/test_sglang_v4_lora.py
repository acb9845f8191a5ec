"""Pools of DeepSeek-V4 and buffers of adapters against answers recorded from SGLang's own code
(record_sglang_v4.py, record_sglang_lora.py)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ullage.core.deployment import Deployment
from ullage.core.launch import Arg, Launch
from ullage.core.units import GIB
from ullage.engines import get
from ullage.engines.sglang.defaults import Host, resolved
from ullage.engines.sglang.lora import lora_buffers
from ullage.engines.sglang.pool import pool_bytes, size_pool
from ullage.engines.sglang.settings import of_launch
from ullage.models.catalogue import find

HERE = Path(__file__).parent / "sglang"
V4 = "deepseek-ai/DeepSeek-V4-Flash"


def rows(name: str) -> list[Any]:
    return [json.loads(line) for line in (HERE / name).read_text().splitlines()]


@pytest.mark.parametrize(
    "row", rows("deepseek_v4.jsonl"), ids=lambda row: f"{row['release']} {row['question'][-1]}"
)
def test_pools_of_deepseek_v4(row: dict[str, Any]) -> None:
    mib, capability, free, total, flags = row["question"]
    command = f"python -m sglang.launch_server --model-path {V4} {flags}"
    model = find(V4)
    assert model is not None
    stated = of_launch(get("sglang").parse(command, row["release"]))
    major, minor = capability.split(".")
    s = resolved(stated, model, Host(mib, (int(major), int(minor))))
    assert s.mem_fraction_static == pytest.approx(row["f"], abs=1e-9)
    pool = size_pool(model, s, pool_bytes(free * GIB, total * GIB, row["f"]))
    assert (pool.tokens, pool.sliding_tokens) == (row["max_total_num_tokens"], row["swa_max_total_num_tokens"])
    assert pool.max_num_reqs == row["max_running_requests"]


@pytest.mark.parametrize("row", rows("lora.jsonl"), ids=lambda row: f"{row['release']} {row['question'][:4]}")
def test_buffers_of_adapters(row: dict[str, Any]) -> None:
    name, tp, slots, rank, modules = row["question"]
    given = {
        "tp_size": tp, "enable_lora": True, "max_loras_per_batch": slots, "max_lora_rank": rank,
        "lora_target_modules": modules,
    }  # fmt: skip
    launch = Launch("sglang", row["release"], args={key: Arg(value, "given") for key, value in given.items()})
    entry = lora_buffers(Deployment(launch, find(name)))
    assert entry is not None
    assert (entry.certainty, entry.bytes) == ("exact", row["bytes"])
