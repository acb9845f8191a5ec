"""SGLang's own defaults: mem_fraction_static, chunked_prefill_size, the graph sizes, by release.

``gpu_mib`` is the smallest ``memory.total`` that nvidia-smi prints for any GPU of the host, in MiB; None where
the engine cannot tell. N is tp_size (..0.4.6.post1) or tp_size x pp_size. Read: server_args (..0.5.18) and
arg_groups/memory_hook (0.5.19..), each release of tests/oracle.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from ullage.core.model import Model, Vision
from ullage.core.versions import Rules
from ullage.engines.sglang.backends import attention_backend, page_size
from ullage.engines.sglang.captured import (
    capture_sizes,
    prefill_limit,
    prefill_sizes,
    prefills_captured,
    switched_off,
)
from ullage.engines.sglang.settings import Settings, at_least

KIB = 1024


class Host(Struct, frozen=True):
    """What the heuristics ask of the machine: the smallest GPU in MiB, its compute capability."""

    gpu_mib: int | None = None
    capability: tuple[int, int] | None = None


CHUNK: Rules[[Settings, int | None], int] = Rules("chunked_prefill_size")
MAX_BS: Rules[[Settings, int | None], int | None] = Rules("cuda_graph_max_bs")
FRACTION: Rules[[Settings, int | None, bool], float] = Rules("mem_fraction_static")


# chunked_prefill_size, in tokens ----------------------------------------------------------------------------


@CHUNK.since("≤0.4.0", source="sglang 0.4.0, server_args")
def chunk_by_25000(s: Settings, gpu_mib: int | None) -> int:
    """2048 below 25,000 MiB, else 8192."""
    return 2048 if gpu_mib is not None and gpu_mib < 25_000 else 8192


@CHUNK.since("0.4.6.post2", source="sglang 0.4.6.post2, server_args")
def chunk_by_25000_pd(s: Settings, gpu_mib: int | None) -> int:
    """As before; 16384 where prefill and decode run on different servers."""
    if gpu_mib is not None and gpu_mib < 25_000:
        return 2048
    return 16384 if s.disaggregation_mode != "null" else 8192


@CHUNK.since("0.4.7", source="sglang 0.4.7, server_args")
def chunk_by_180000(s: Settings, gpu_mib: int | None) -> int:
    """As before; 16384 above 180,000 MiB."""
    return 16384 if gpu_mib is not None and gpu_mib > 180_000 else chunk_by_25000_pd(s, gpu_mib)


@CHUNK.since("0.4.7.post1", source="sglang 0.4.7.post1, server_args")
def chunk_by_35(s: Settings, gpu_mib: int | None) -> int:
    """2048 below 35 GiB, 8192 below 160 GiB, else 16384; 4096 where the memory is unknown."""
    if gpu_mib is None:
        return 4096
    return 2048 if gpu_mib < 35 * KIB else 8192 if gpu_mib < 160 * KIB else 16384


@CHUNK.since("0.5.3", source="sglang 0.5.3, server_args, _handle_gpu_memory_settings")
def chunk_by_class(s: Settings, gpu_mib: int | None) -> int:
    """As before; 4096 below 60 GiB."""
    return 4096 if gpu_mib is not None and 35 * KIB <= gpu_mib < 60 * KIB else chunk_by_35(s, gpu_mib)


@CHUNK.since("0.5.20", source="sglang 0.5.20, arg_groups/memory_hook")
def chunk_by_20(s: Settings, gpu_mib: int | None) -> int:
    """As before; 4096 from 20 GiB on."""
    return 4096 if gpu_mib is not None and 20 * KIB <= gpu_mib < 60 * KIB else chunk_by_35(s, gpu_mib)


# cuda_graph_max_bs; None: no limit --------------------------------------------------------------------------


@MAX_BS.since("≤0.4.0", source="sglang 0.4.0, server_args")
def max_bs_8_160(s: Settings, gpu_mib: int | None) -> int | None:
    """8 below 25,000 MiB, else 160."""
    return 8 if gpu_mib is not None and gpu_mib < 25_000 else 160


@MAX_BS.since("0.4.1", source="sglang 0.4.4, server_args")
def max_bs_8_80_160(s: Settings, gpu_mib: int | None) -> int | None:
    """8 (tp < 4) or 80 below 25,000 MiB, else 160."""
    if gpu_mib is not None and gpu_mib < 25_000:
        return 8 if s.tp < 4 else 80
    return 160


@MAX_BS.since("0.4.5.post3", source="sglang 0.4.5.post3, server_args")
def max_bs_8_80(s: Settings, gpu_mib: int | None) -> int | None:
    """8 (tp < 4) or 80 below 25,000 MiB, else no limit."""
    return max_bs_8_80_160(s, gpu_mib) if gpu_mib is not None and gpu_mib < 25_000 else None


@MAX_BS.since("0.4.7.post1", source="sglang 0.4.7.post1, server_args")
def max_bs_35(s: Settings, gpu_mib: int | None) -> int | None:
    """8 (tp < 4) or 80 below 35 GiB, else no limit."""
    if gpu_mib is not None and gpu_mib < 35 * KIB:
        return 8 if s.tp < 4 else 80
    return None


def _max_bs_by_class(s: Settings, gpu_mib: int | None, small: tuple[int, int]) -> int:
    if gpu_mib is None:
        return 160
    if gpu_mib < 20 * KIB:
        return 8
    if gpu_mib < 35 * KIB:
        return small[0] if s.tp < 4 else small[1]
    if gpu_mib < 60 * KIB:
        return 32 if s.tp < 4 else 160
    return 256 if gpu_mib < 160 * KIB and s.tp < 4 else 512


@MAX_BS.since("0.5.3", source="sglang 0.5.3, server_args, _handle_gpu_memory_settings")
def max_bs_16(s: Settings, gpu_mib: int | None) -> int | None:
    """By classes of 20, 35, 60 and 160 GiB and tp < 4; 16 or 80 in the class of 20..35 GiB."""
    return _max_bs_by_class(s, gpu_mib, (16, 80))


@MAX_BS.since("0.5.4.post1", source="sglang 0.5.5.post1, server_args")
def max_bs_24(s: Settings, gpu_mib: int | None) -> int | None:
    """24 or 80 in the class of 20..35 GiB."""
    return _max_bs_by_class(s, gpu_mib, (24, 80))


@MAX_BS.since("0.5.20", source="sglang 0.5.20, arg_groups/memory_hook")
def max_bs_48(s: Settings, gpu_mib: int | None) -> int | None:
    """48 or 160 in the class of 20..35 GiB."""
    return _max_bs_by_class(s, gpu_mib, (48, 160))


@MAX_BS.since("0.5.22", source="sglang 0.5.22, arg_groups/memory_hook")
def max_bs_clipped(s: Settings, gpu_mib: int | None) -> int | None:
    """As before, never above a given --max-running-requests."""
    return min(_max_bs_by_class(s, gpu_mib, (48, 160)), s.max_running_requests or 1 << 30)


# mem_fraction_static ----------------------------------------------------------------------------------------


def _by_size(parallel: int) -> float:
    return next(f for least, f in ((16, 0.79), (8, 0.81), (4, 0.85), (2, 0.87), (0, 0.88)) if parallel >= least)


@FRACTION.since("≤0.4.0", source="sglang 0.4.0, server_args")
def fraction_by_tp(s: Settings, gpu_mib: int | None, mla: bool) -> float:
    """By tp_size alone: 0.88, 0.87 (2), 0.85 (4), 0.81 (8), 0.79 (16)."""
    return _by_size(s.tp)


@FRACTION.since("0.4.5.post3", source="sglang 0.4.5.post3, server_args")
def fraction_less_13(s: Settings, gpu_mib: int | None, mla: bool) -> float:
    """By tp_size up to 81,920 MiB; above, 13 GiB stay free."""
    return _by_size(s.tp) if gpu_mib is None or gpu_mib <= 81920 else (gpu_mib - 13 * KIB) / gpu_mib


def _large(base: float, gpu_mib: int, reserve_mib: int) -> float:
    return min(base + 48 * KIB * (1 - base) / gpu_mib, (gpu_mib - reserve_mib) / gpu_mib)


@FRACTION.since("0.4.6.post2", source="sglang 0.4.6.post2, server_args")
def fraction_less_18(s: Settings, gpu_mib: int | None, mla: bool) -> float:
    """By N up to 81,920 MiB, else 0.88; above 96 GiB at most 18 GiB stay free."""
    base = _by_size(s.tp * s.pp) if gpu_mib is not None and gpu_mib <= 81920 else 0.88
    return _large(base, gpu_mib, 18 * KIB) if gpu_mib is not None and gpu_mib > 96 * KIB else base


@FRACTION.since("0.4.7", source="sglang 0.4.7, server_args")
def fraction_less_20(s: Settings, gpu_mib: int | None, mla: bool) -> float:
    """As before; 0.79 above 180,000 MiB; with speculation 20 GiB, or 5 % less on smaller GPUs."""
    base = _by_size(s.tp * s.pp) if gpu_mib is not None and gpu_mib <= 81920 else 0.88
    if gpu_mib is not None and gpu_mib > 180_000:
        return 0.79
    if gpu_mib is not None and gpu_mib > 96 * KIB:
        return _large(base, gpu_mib, (20 if s.speculative else 18) * KIB)
    return base * 0.95 if s.speculative else base


@FRACTION.since("0.4.7.post1", source="sglang 0.4.7.post1 and 0.5.2, server_args")
def fraction_reserved(s: Settings, gpu_mib: int | None, mla: bool) -> float:
    """round((gpu - R) / gpu, 3), R by classes: 2.8 + N/10 GiB below 35 GiB, 9.5 + N/2 below 90, 12 + N/2 below
    160, else 32; +2 GiB speculative (+6 STANDALONE), +4 GiB DP attention."""
    if gpu_mib is None:
        return 0.88
    n = s.tp * s.pp
    classes = ((35, 2.8 + n / 10), (90, 9.5 + n / 2), (160, 12 + n / 2))
    reserved: float = next((r for limit, r in classes if gpu_mib < limit * KIB), 32) * KIB
    if s.speculative:
        reserved += (6 if s.speculative_algorithm == "STANDALONE" else 2) * KIB
    reserved += 4 * KIB if s.dp_attention else 0
    return round((gpu_mib - reserved) / gpu_mib, 3)


@FRACTION.since("0.5.3", source="sglang 0.5.3..0.5.14, server_args, _handle_gpu_memory_settings")
def fraction_by_work(s: Settings, gpu_mib: int | None, mla: bool) -> float:
    """round((gpu - R) / gpu, 3) with R = 512 + 1.5 chunk + 2 max_bs + N/8 GiB, DP attention and prefill graphs,
    at least 10 GiB on GPUs above 60 GiB, and the drafts' share (MiB)."""
    if gpu_mib is None:
        return 0.88
    max_bs = s.cuda_graph_max_bs or 0
    reserved = 512 + activation_tokens(s) * 1.5 + max_bs * 2 + s.tp * s.pp / 8 * KIB
    reserved += padding_mib(s) if s.dp_attention else 0
    if at_least(s.release, "0.5.8"):
        reserved += prefill_graphs_mib(s, mla)
    reserved = max(reserved, 10 * KIB) if gpu_mib > 60 * KIB else reserved
    reserved += draft_reserve_mib(s)
    if not at_least(s.release, "0.5.8"):
        reserved += prefill_graphs_mib(s, mla)
    return round((gpu_mib - reserved) / gpu_mib, 3)


@FRACTION.since("0.5.15", source="sglang 0.5.16 server_args, 0.5.23 arg_groups/memory_hook")
def fraction_by_mode(s: Settings, gpu_mib: int | None, mla: bool) -> float:
    """As before, by serving mode: no decode terms on a prefill server, none of prefill graphs on a decode one;
    DeepEP +2 GiB after the floor (MiB)."""
    if gpu_mib is None:
        return 0.95 if at_least(s.release, "0.5.20") else 0.88
    reserved = 512 + activation_tokens(s) * 1.5 + s.tp * s.pp / 8 * KIB
    decodes = s.disaggregation_mode != "prefill"
    reserved += (s.cuda_graph_max_bs or 0) * 2 if decodes and s.decode_graphs else 0
    reserved += padding_mib(s) if decodes and s.dp_attention else 0
    reserved += prefill_graphs_mib(s, mla) if s.disaggregation_mode != "decode" else 0
    reserved = max(reserved, 10 * KIB) if gpu_mib > 60 * KIB else reserved
    reserved += 2 * KIB if decodes and s.decode_graphs and s.moe_a2a_backend == "deepep" else 0
    return round((gpu_mib - reserved) / gpu_mib, 3)


def activation_tokens(s: Settings) -> int:
    """Tokens that the activations of a forward pass scale with, at least 2048."""
    if s.disaggregation_mode == "decode" and at_least(s.release, "0.5.15"):
        return max((s.max_running_requests or s.cuda_graph_max_bs or 1) * (s.draft_tokens or 1), 2048)
    chunk = s.chunked_prefill_size or 0
    return max(chunk if chunk > 0 else s.max_prefill_tokens, 2048)


def padding_mib(s: Settings) -> float:
    """DP attention pads: 3 MiB x max_bs x dp, 4.5 where max_bs > 300."""
    max_bs = s.cuda_graph_max_bs or 0
    return max_bs * s.dp * (4.5 if max_bs > 300 else 3)


def draft_reserve_mib(s: Settings) -> int:
    """Flat share for draft weights and graphs: STANDALONE 6 GiB, NGRAM none, others 2 GiB, 4 from 0.5.10 on;
    nothing from 0.5.14 on, which charges the draft to the pool."""
    if not s.speculative or s.speculative_algorithm == "NGRAM" or at_least(s.release, "0.5.14"):
        return 0
    if s.speculative_algorithm == "STANDALONE":
        return 6 * KIB
    return (4 if at_least(s.release, "0.5.10") else 2) * KIB


def prefill_graphs_mib(s: Settings, mla: bool) -> float:
    """Share for prefill ("piecewise") graphs: tokens / 4 (0.5.5.post1..0.5.6.post2), / 8 (0.5.7), 8 MiB a size
    (0.5.8..), for MLA 1.5 GiB (0.5.10..); breakable graphs beside DeepEP 1 GiB more (0.5.17..)."""
    if not s.prefill_graphs or not at_least(s.release, "0.5.5.post1"):
        return 0
    if not at_least(s.release, "0.5.8"):
        return prefill_limit(s, mla) // (8 if at_least(s.release, "0.5.7") else 4)
    size = 1.5 * KIB if mla and at_least(s.release, "0.5.10") else len(s.prefill_graph_sizes) * 8
    deepep = s.moe_a2a_backend == "deepep" and at_least(s.release, "0.5.17")
    return size + (KIB if deepep else 0)


# vision -----------------------------------------------------------------------------------------------------

#: architectures whose vision tower is off unless --enable-multimodal is given (mm_disabled_models)
_VISION_OFF = (
    "Gemma3ForConditionalGeneration", "Llama4ForConditionalGeneration", "Step3VLForConditionalGeneration",
)  # fmt: skip
#: towers as SGLang's own config class names them where config.json has other keys (configs/kimi_k25.py)
_OWN_TOWERS = {"KimiK25ForConditionalGeneration": Vision(27, 1152)}


def is_multimodal(model: Model | None, s: Settings) -> bool:
    """True where the engine treats the model as multimodal."""
    if model is None or model.vision is None:
        return False
    wanted = s.enable_multimodal if s.enable_multimodal is not None else model.architecture not in _VISION_OFF
    return wanted and not (s.language_only and at_least(s.release, "0.5.9"))


def vision_factor(vision: Vision) -> float:
    """What the default fraction is multiplied with: 0.95 x clamp(1 - 0.1 (ratio - 1), 0.8, 1.05).

    ratio = layers x hidden^2 / (24 x 1024^2); attributes that the config does not have under these very names
    count as 24 and 1024 (sglang 0.4.9.post3.., adjust_mem_fraction_for_vlm).
    """
    layers = 24 if vision.num_hidden_layers is None else vision.num_hidden_layers
    hidden = 1024 if vision.hidden_size is None else vision.hidden_size
    ratio = layers * hidden**2 / (24 * 1024**2)
    return 0.95 * max(0.8, min(1.05, 1.0 - 0.1 * (ratio - 1.0)))


def for_vision(fraction: float, model: Model | None, s: Settings) -> float:
    """The default fraction of a multimodal model; x 0.9 in 0.4.9..0.4.9.post2, nothing before."""
    if not is_multimodal(model, s) or not at_least(s.release, "0.4.9") or model is None or model.vision is None:
        return fraction
    if s.disaggregation_mode == "decode" and at_least(s.release, "0.5.17"):
        return fraction
    tower = _OWN_TOWERS.get(model.architecture or "", model.vision)
    return fraction * (vision_factor(tower) if at_least(s.release, "0.4.9.post3") else 0.9)


# all of them ------------------------------------------------------------------------------------------------


def resolved(given: Settings, model: Model | None, host: Host) -> Settings:
    """``given`` with every default that the engine would fill in, as far as the host's memory is known.

    The order is the engine's: the chunk size is divided by dp_size only after the fraction has used it.
    """
    hopper = host.capability is not None and host.capability[0] == 9 and (host.gpu_mib or 0) >= 60 * KIB
    s = replace(_speculation(given, model), large_hopper=hopper)
    mla = bool(model and model.is_mla)
    backend = attention_backend(s, model, host.capability)
    s = replace(s, attention_backend=backend, page_size=page_size(s, model, backend, host.capability))
    chunk_given = s.chunked_prefill_size is not None
    if s.chunked_prefill_size is None and (host.gpu_mib or at_least(s.release, "0.4.7.post1")):
        s = replace(s, chunked_prefill_size=CHUNK.at(s.release)(s, host.gpu_mib))
    s = _graph_sizes(s, model, host.gpu_mib, mla, given.max_running_requests)
    if s.mem_fraction_static is None and host.gpu_mib is not None:
        s = replace(s, mem_fraction_static=for_vision(FRACTION.at(s.release)(s, host.gpu_mib, mla), model, s))
    if not (chunk_given and _from_log(given)):
        s = replace(s, chunked_prefill_size=chunk_per_group(s))
    if s.dp_attention and s.prefill_graph_sizes:
        sizes = tuple(size for size in s.prefill_graph_sizes if size <= (s.chunked_prefill_size or size))
        s = replace(s, prefill_graph_sizes=sizes)
    return replace(s, prefill_graphs=False, prefill_graph_sizes=()) if switched_off(s, model) else s


def _from_log(given: Settings) -> bool:
    """A log prints resolved values: both the fraction and the chunk are then known."""
    return given.mem_fraction_static is not None


def chunk_per_group(s: Settings) -> int | None:
    """The chunk of one attention group: / 2 under DP attention (..0.4.4), / dp_size (0.4.4.post1..)."""
    if not s.dp_attention or s.chunked_prefill_size is None:
        return s.chunked_prefill_size
    return s.chunked_prefill_size // (max(1, s.dp) if at_least(s.release, "0.4.4.post1") else 2)


def _speculation(s: Settings, model: Model | None) -> Settings:
    """Requests and draft shape of a speculative launch that does not state them."""
    if not s.speculative:
        return s
    requests = s.max_running_requests
    if requests is None and at_least(s.release, "0.4.3.post3"):
        requests = 48 if at_least(s.release, "0.4.4.post4") else 32
    steps, topk, draft = s.num_steps, s.topk, s.draft_tokens
    if steps is None and s.speculative_algorithm != "NGRAM":
        steps, topk, draft = draft_shape(s, model)
    if topk == 1 and steps is not None and s.speculative_algorithm != "NGRAM":
        draft = steps + 1
    if s.speculative_algorithm == "NGRAM":
        topk, draft = topk or 10, draft or 12
        steps = steps or (1 if at_least(s.release, "0.5.14") else None)
    return replace(s, max_running_requests=requests, num_steps=steps, topk=topk, draft_tokens=draft)


_LLAMA_GROK = ("LlamaForCausalLM", "Grok1ForCausalLM", "Grok1AForCausalLM")


def draft_shape(s: Settings, model: Model | None) -> tuple[int, int, int]:
    """(num_steps, topk, draft tokens) when none is given (0.4.4.post4.., auto_choose_speculative_params)."""
    architecture = (model.architecture if model else None) or ""
    if s.speculative_algorithm == "STANDALONE" and at_least(s.release, "0.5.2"):
        return 3, 1, 4
    if architecture in _LLAMA_GROK or not at_least(s.release, "0.4.7"):
        return 5, 4, 8
    if at_least(s.release, "0.5.8") or architecture.startswith("Deepseek"):
        return 3, 1, 4
    return 5, 4, 8


def _graph_sizes(
    s: Settings, model: Model | None, gpu_mib: int | None, mla: bool, max_running_requests: int | None
) -> Settings:
    max_bs = s.cuda_graph_max_bs
    if s.cuda_graph_bs and at_least(s.release, "0.5.3"):
        max_bs = max(s.cuda_graph_bs)
    elif max_bs is None and (gpu_mib is not None or at_least(s.release, "0.5.3")):
        max_bs = MAX_BS.at(s.release)(replace(s, max_running_requests=max_running_requests), gpu_mib)
    s = replace(s, cuda_graph_max_bs=max_bs)
    if not s.cuda_graph_bs:
        s = replace(s, cuda_graph_bs=tuple(capture_sizes(s, gpu_mib)))
    on = prefills_captured(s, model, is_multimodal(model, s))
    return replace(s, prefill_graphs=on, prefill_graph_sizes=tuple(prefill_sizes(s, mla)) if on else ())
