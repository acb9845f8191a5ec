"""The settings that decide, as the release resolves them, for people to read."""

from __future__ import annotations

from ullage.core.deployment import Deployment
from ullage.core.launch import Arg, Value
from ullage.engines.vllm.kv_settings import cache_dtype
from ullage.engines.vllm.options import count
from ullage.engines.vllm.settings import Settings, settings


def effective(deployment: Deployment) -> dict[str, Arg]:
    """Setting -> value with where it is from. What is not known is left out."""
    s = settings(deployment)
    found = {name: _arg(deployment, name, value) for name, value in _values(deployment, s).items()}
    return {name: arg for name, arg in found.items() if arg.value is not None}


def _values(deployment: Deployment, s: Settings) -> dict[str, Value]:
    launch = deployment.launch
    values: dict[str, Value] = {
        "gpu_memory_utilization": s.utilization, "max_model_len": s.max_model_len,
        "max_num_batched_tokens": s.max_num_batched_tokens, "max_num_seqs": s.max_num_seqs,
        "tensor_parallel_size": s.cache.tp, "pipeline_parallel_size": s.cache.pp,
        "data_parallel_size": max(1, count(launch, "data_parallel_size", 65536) or 1),
        "block_size": s.cache.block_size, "kv_cache_dtype": cache_dtype(launch, deployment.model),
        "enforce_eager": s.eager, "cudagraph_capture_sizes": list(s.graph_sizes) or None,
        "engine_core": s.core,
    }  # fmt: skip
    if s.cache.num_speculative_tokens:
        values["num_speculative_tokens"] = s.cache.num_speculative_tokens
    if s.kv_bytes:
        values["kv_cache_memory_bytes"] = s.kv_bytes
    return values


def _arg(deployment: Deployment, name: str, value: Value) -> Arg:
    """Given where the launch states this very value; else the release's own choice."""
    launch = deployment.launch
    stated = launch.args.get(name)
    if stated is not None and (stated.value == value or stated.origin == "given"):
        return Arg(value, stated.origin, stated.source)
    return Arg(value, "inferred", f"vllm {launch.version or 'newest rules'}")
