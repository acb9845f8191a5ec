"""Changes of an SGLang launch that are worth planning again, the least intrusive first."""

from __future__ import annotations

from collections.abc import Iterator

from ullage.core.deployment import Deployment, Interval
from ullage.core.model import Model
from ullage.engines.base import Candidate
from ullage.engines.sglang.cells import element_bytes, is_recurrent
from ullage.engines.sglang.known import Known, known
from ullage.engines.sglang.settings import at_least

#: FP8 arithmetic and FP8 caches begin with Ada
FP8_SINCE = (8, 9)


def candidates(deployment: Deployment, interval: Interval | None) -> list[Candidate]:
    base = known(deployment)
    return [*_fraction(deployment, interval), *_smaller(base), *_cache(base), *_wider(base)]


def _fraction(deployment: Deployment, interval: Interval | None) -> Iterator[Candidate]:
    best = interval.recommended if interval is not None else None
    if best is not None and best != deployment.launch.number("mem_fraction_static"):
        yield Candidate({"mem_fraction_static": best}, "the best value inside the interval that starts")


def _smaller(base: Known) -> Iterator[Candidate]:
    """What must fit beside the pool, made smaller: with a larger fraction the pool gains it."""
    s = base.settings
    if s.decode_graphs and (s.cuda_graph_max_bs or 0) > 64:
        name = "cuda_graph_max_bs_decode" if at_least(s.release, "0.5.20") else "cuda_graph_max_bs"
        yield Candidate({name: 32}, "fewer graphs; batches above 32 run without one")
    if (s.chunked_prefill_size or 0) > 2048:
        yield Candidate({"chunked_prefill_size": 2048}, "smaller activations; long prompts take longer")
    context = s.context_length or (base.model.max_context if base.model else None) or 0
    if context > 65536:
        yield Candidate({"context_length": 32768}, "smaller tables; longer requests are refused")
    if base.model is not None and is_recurrent(base.model) and (s.max_running_requests or 64) > 16:
        yield Candidate({"max_running_requests": 16}, "fewer slots of recurrent state")


def _cache(base: Known) -> Iterator[Candidate]:
    gpu = base.deployment.machine.gpu if base.deployment.machine else None
    able = gpu is None or gpu.capability is None or gpu.capability >= FP8_SINCE
    if base.model is not None and able and element_bytes(base.settings, base.model) > 1:
        yield Candidate({"kv_cache_dtype": "fp8_e4m3"}, "half the bytes a token, a little less exact")


def _wider(base: Known) -> Iterator[Candidate]:
    s, model = base.settings, base.model
    for ways in (2, 4, 8):
        size = s.tp * ways
        if size <= 64 and _shares(model, size):
            yield Candidate({"tp_size": size}, f"the weights over {size * s.pp} GPUs")
    if s.pp == 1:
        yield Candidate({"pp_size": 2}, f"two stages of layers: {s.tp * 2} GPUs")


def _shares(model: Model | None, size: int) -> bool:
    return model is None or not model.num_heads or model.num_heads % size == 0
