"""Tokens and concurrency of public logs, from the pool they print: two decimals of GiB leave a few blocks."""

from __future__ import annotations

import pytest
from packaging.version import Version

from ullage.core.deployment import Deployment, Reading
from ullage.core.launch import Arg, Launch, Value
from ullage.core.machine import Gpu, Machine
from ullage.core.model import Layer, LinearState, Model
from ullage.core.units import GIB, Measured
from ullage.engines.vllm import memory
from ullage.engines.vllm.kv_plan import plan
from ullage.engines.vllm.pool import kv_stages
from ullage.engines.vllm.settings import settings

FULL = Layer("full", kv_heads=8, head_dim=128, v_head_dim=128)
WIDE = Layer("full", kv_heads=8, head_dim=256, v_head_dim=256)
WINDOW = Layer("sliding", kv_heads=8, head_dim=256, v_head_dim=256, window=1024)
CHUNK = Layer("chunked", kv_heads=8, head_dim=128, v_head_dim=128, window=8192)
LATENT = Layer("mla", kv_lora_rank=512, rope_dim=64)
SPARSE = Layer("mla", kv_lora_rank=512, rope_dim=64, index_dim=128)
DELTA = Layer("linear", state=LinearState("gdn", 8192, 4, 32, 128, 128, dtype="float32"))
NARROW = Layer("full", kv_heads=2, head_dim=256, v_head_dim=256)

LOGS = {
    # source, release, layers, pool GiB, length, arguments -> tokens, concurrency
    "Qwen3-14B": ("0.18.0", (FULL,) * 40, "45.23", 8192, {}, 296_400, 36.18),
    "Llama-3.1-8B": ("0.19.0", (FULL,) * 32, "58.11", 8192, {}, 476_016, 58.11),
    "Gemma-3-12B": ("0.19.0", ((WINDOW,) * 5 + (WIDE,)) * 8, "47.72", 8192, {"max_num_batched_tokens": 8192}, 130_304, 15.88),
    "Kimi-VL-A3B": ("0.19.0", (LATENT,) * 27, "41.32", 8192, {}, 1_426_368, 174.12),
    "Llama-4-Scout": ("0.19.0", ((CHUNK,) * 3 + (FULL,)) * 12, "16.75", 8192, {"tensor_parallel_size": 4}, 365_968, None),
    "GLM-5.1": ("0.20.2", (SPARSE,) * 78, "19.55", 131072, {"kv_cache_dtype": "fp8", "tensor_parallel_size": 8}, 341_504, None),
    "GLM-5.1 dcp": ("0.20.2", (SPARSE,) * 78, "19.47", 131072,
                    {"kv_cache_dtype": "fp8", "tensor_parallel_size": 8, "decode_context_parallel_size": 8}, 2_720_768, None),
    "Qwen3.6-35B": ("0.20.0", ((DELTA,) * 3 + (NARROW,)) * 10, "6.64", 262_144,
                    {"kv_cache_dtype": "fp8", "enable_prefix_caching": True}, 173_968, 2.52),
    "Kimi-K2.5": ("0.32.0", (LATENT,) * 61, "10.42", 65536, {"tensor_parallel_size": 8}, 159_168, 2.43),
    "Qwen2.5-0.5B": ("0.27.1", (Layer("full", kv_heads=2, head_dim=64, v_head_dim=64),) * 24, "20.52", 32768, {}, 1_793_232, None),
}  # fmt: skip


def deployed(name: str) -> Deployment:
    version, layers, pool, length, args, *_ = LOGS[name]
    model = Model(name, "config.json", num_layers=len(layers), layers=layers, num_heads=32, hidden_size=4096,
                  model_type="qwen3_5_moe" if layers[0] is DELTA else None)  # fmt: skip
    values: dict[str, Value] = {"max_model_len": length, **args}
    return Deployment(
        Launch("vllm", version, "log", args={key: Arg(value, "given") for key, value in values.items()}),
        model, Machine(Gpu("NVIDIA H100", 80 * GIB, (9, 0))),
        {"kv_gib": Reading("kv_gib", Measured.parse(pool), "x.log:1")},
    )  # fmt: skip


@pytest.mark.parametrize("name", LOGS)
def test_tokens(name: str) -> None:
    tokens = memory.budget(deployed(name)).kv_tokens
    assert tokens is not None
    assert tokens.low <= LOGS[name][5] <= tokens.high


@pytest.mark.parametrize("name", [name for name, row in LOGS.items() if row[6]])
def test_concurrency(name: str) -> None:
    version, _, pool, length, *_, concurrency = LOGS[name]
    deployment = deployed(name)
    s = settings(deployment)
    stages = kv_stages(deployment, s)
    assert stages is not None
    made = plan(stages, [round(float(pool) * GIB)], length, s.cache, Version(version))
    assert made.concurrency == pytest.approx(concurrency, rel=2e-3)
