"""Changes of a vLLM launch that are worth planning again, the least intrusive first."""

from __future__ import annotations

from collections.abc import Iterator

from ullage.core.deployment import Deployment, Interval
from ullage.core.model import Model
from ullage.engines.base import Candidate
from ullage.engines.vllm.kv_plan import KvPlan
from ullage.engines.vllm.kv_specs import element_bytes
from ullage.engines.vllm.pool import kv_plans
from ullage.engines.vllm.settings import Settings, settings
from ullage.engines.vllm.terms import terms

#: FP8 caches begin with Ada
FP8_SINCE = (8, 9)


def candidates(deployment: Deployment, interval: Interval | None) -> list[Candidate]:
    s = settings(deployment)
    pool = terms(deployment, s).pool
    plans = kv_plans(deployment, s, pool.band if pool else None)
    return [
        *_share(deployment, interval), *_shorter(s, plans), *_fewer(deployment, s, plans),
        *_cache(deployment, s), *_wider(deployment, s),
    ]  # fmt: skip


def _share(deployment: Deployment, interval: Interval | None) -> Iterator[Candidate]:
    best = interval.recommended if interval is not None else None
    if best is not None and best != deployment.launch.number("gpu_memory_utilization"):
        yield Candidate({"gpu_memory_utilization": best}, "the largest share that leaves room beside it")


def _shorter(s: Settings, plans: tuple[KvPlan, KvPlan, KvPlan] | None) -> Iterator[Candidate]:
    """The longest request that the low limit of the pool still holds, rounded down."""
    if plans is None or s.max_model_len is None or s.auto_fit:
        return
    for plan, step in ((plans[1], 1024), (plans[0], 1024)):
        length = plan.fitted // step * step if not plan.fits else 0
        if 0 < length < s.max_model_len:
            yield Candidate({"max_model_len": length}, "the longest request that the pool holds")
            return


def _fewer(
    deployment: Deployment, s: Settings, plans: tuple[KvPlan, KvPlan, KvPlan] | None
) -> Iterator[Candidate]:
    hybrid = deployment.model is not None and any(layer.state for layer in deployment.model.layers)
    if hybrid and plans is not None and 0 < plans[1].blocks < s.max_num_seqs:
        yield Candidate({"max_num_seqs": plans[1].blocks}, "no more sequences than the pool has states for")
    if s.max_num_seqs > 64:
        yield Candidate({"max_num_seqs": 64}, "a smaller sampler pass in the profile and fewer graphs")
    if s.max_num_batched_tokens > 2048 and (s.max_model_len or 0) > 0:
        yield Candidate({"max_num_batched_tokens": 2048}, "smaller activations; long prompts take longer")
    if not s.eager:
        yield Candidate({"enforce_eager": True}, "no CUDA graphs: slower decoding")


def _cache(deployment: Deployment, s: Settings) -> Iterator[Candidate]:
    gpu = deployment.machine.gpu if deployment.machine else None
    able = gpu is None or gpu.capability is None or gpu.capability >= FP8_SINCE
    if able and element_bytes(s.cache.dtype, s.cache.model_dtype) > 1:
        yield Candidate({"kv_cache_dtype": "fp8"}, "half the bytes a token, a little less exact")


def _wider(deployment: Deployment, s: Settings) -> Iterator[Candidate]:
    for ways in (2, 4, 8):
        size = s.cache.tp * ways
        if size <= 64 and _shares(deployment.model, size):
            yield Candidate({"tensor_parallel_size": size}, f"the weights over {size * s.cache.pp} GPUs")
    if s.cache.pp == 1:
        yield Candidate({"pipeline_parallel_size": 2}, f"two stages of layers: {s.cache.tp * 2} GPUs")


def _shares(model: Model | None, size: int) -> bool:
    return model is None or not model.num_heads or model.num_heads % size == 0
