"""Which sizes SGLang captures CUDA graphs for: decode batch sizes and prefill token counts, by release."""

from __future__ import annotations

from msgspec.structs import replace

from ullage.core.model import Model
from ullage.core.versions import Rules
from ullage.engines.sglang.backends import is_sparse_mla
from ullage.engines.sglang.settings import Settings, at_least

#: beyond it a list of sizes is a typing error
MOST_SIZES = 4096
DECODE: Rules[[Settings, int | None], list[int]] = Rules("captured batch sizes")
PREFILL: Rules[[int], list[int]] = Rules("captured prefill sizes")


def capture_sizes(s: Settings, gpu_mib: int | None) -> list[int]:
    """Batch sizes of the decode graphs, ascending, before they are clipped to the request table."""
    if not s.decode_graphs and not at_least(s.release, "0.5.3"):
        return []
    if s.cuda_graph_max_bs is not None:
        s = replace(s, cuda_graph_max_bs=min(s.cuda_graph_max_bs, MOST_SIZES))
    return DECODE.at(s.release)(s, gpu_mib)


@DECODE.since("≤0.4.0", source="sglang 0.4.4, cuda_graph_runner, get_batch_sizes_to_capture")
def to_160(s: Settings, gpu_mib: int | None) -> list[int]:
    """[1, 2, 4] and 8..160 by 8, up to max_bs."""
    return _upto([1, 2, 4, *range(8, 161, 8)], s.cuda_graph_max_bs)


def _extended(s: Settings, sizes: list[int]) -> list[int]:
    """Up to max_bs; where the list ends below it, on by 16 (0.4.6.post4..)."""
    limit = s.cuda_graph_max_bs
    if limit is not None and max(sizes) < limit:
        sizes = sizes + list(range(max(sizes), limit + 1, 16))
    return sorted(set(_upto(sizes, limit)))


@DECODE.since("0.4.4.post4", source="sglang 0.4.6.post5, cuda_graph_runner")
def to_256(s: Settings, gpu_mib: int | None) -> list[int]:
    """[1, 2, 4, 8] and 16..160 by 8, ..256 on large GPUs; speculative: every size to 8, by 2 to 32, by 16."""
    sizes = [1, 2, 4, 8, *range(16, 161, 8)]
    if s.speculative:
        sizes = [*range(1, 9), *range(10, 33, 2), *range(40, 161, 16)]
    limit_mib = 98304 if at_least(s.release, "0.4.6.post2") else 81920
    if gpu_mib is not None and gpu_mib > limit_mib and at_least(s.release, "0.4.5.post3"):
        sizes += range(160, 257, 8)
    return _extended(s, sizes)


@DECODE.since("0.4.7", source="sglang 0.4.7 and 0.5.2, cuda_graph_runner")
def to_512(s: Settings, gpu_mib: int | None) -> list[int]:
    """As before; 272..512 by 16 above 180,000 MiB (160,000 from 0.4.7.post1 on)."""
    later = at_least(s.release, "0.4.7.post1")
    sizes = [1, 2, 4, 8, *range(16, 161, 8)]
    if s.speculative:
        sizes = [*range(1, 9), *range(10, 33, 2), 40, 48, 56, *range(80, 161, 16)]
    if gpu_mib is not None and gpu_mib > (90 * 1024 if later else 98304):
        sizes += range(160, 257, 8)
    if gpu_mib is not None and gpu_mib > (160_000 if later else 180_000):
        sizes += range(256, 513, 16)
    return _extended(s, sizes)


@DECODE.since("0.5.3", source="sglang 0.5.3, server_args, _generate_cuda_graph_batch_sizes")
def by_max_bs(s: Settings, gpu_mib: int | None) -> list[int]:
    """[1, 2, 4, 8, 12], by 8 to 256, by 16 to 496, by 32; speculative: denser to 64; max_bs too (0.5.10..)."""
    limit = s.cuda_graph_max_bs or 0
    if not s.graph_padding:
        return list(range(1, limit + 1))
    if not s.speculative:
        sizes = [1, 2, 4, 8, 12, *range(16, 257, 8), *range(272, 512, 16), *range(512, limit + 1, 32)]
    else:
        middle = range(40, 65, 4) if at_least(s.release, "0.5.5") else range(40, 61, 4)
        sizes = [*range(1, 9), *range(10, 33, 2), *middle, *range(72, 257, 8), *range(272, limit + 1, 16)]
    sizes = _upto(sizes, limit)
    if at_least(s.release, "0.5.10") and limit and limit not in sizes:
        sizes.append(limit)
    return sizes


def _upto(sizes: list[int], limit: int | None) -> list[int]:
    return sizes if limit is None else [size for size in sizes if size <= limit]


# prefill graphs -----------------------------------------------------------------------------------------------


@PREFILL.since("0.5.3.post2", source="sglang 0.5.6, server_args, _generate_piecewise_cuda_graph_tokens")
def by_128(limit: int) -> list[int]:
    """To 512 by 4, 16 and 32; 640..4096 by 128; beyond by 256."""
    sizes = [*range(4, 33, 4), *range(48, 257, 16), *range(288, 513, 32), *range(640, 4097, 128)]
    return _upto(sizes + list(range(4352, limit + 1, 256)), limit)


@PREFILL.since("0.5.8", source="sglang 0.5.8, server_args")
def by_256(limit: int) -> list[int]:
    """To 512 by 4, 16 and 32; 640..1024 by 64; 1280..4096 by 256; beyond by 512."""
    return _tail(limit, 640)


@PREFILL.since("0.5.9", source="sglang 0.5.9, server_args")
def from_576(limit: int) -> list[int]:
    """As before, with 576."""
    return _tail(limit, 576)


def _tail(limit: int, first: int) -> list[int]:
    head = [*range(4, 33, 4), *range(48, 257, 16), *range(288, 513, 32), *range(first, 1025, 64)]
    return _upto([*head, *range(1280, 4097, 256), *range(4608, limit + 1, 512)], limit)


def prefill_limit(s: Settings, mla: bool) -> int:
    """The largest token count captured: 4096 (..0.5.6.post2), the chunk size (0.5.7..), for MLA 2048
    (0.5.8..0.5.22) or min(8192, chunk) (0.5.23..); clipped to --max-total-tokens (0.5.10..) and to
    --context-length (0.5.13..0.5.16)."""
    if not at_least(s.release, "0.5.7"):
        return 4096
    chunk = s.chunked_prefill_size or 0
    limit = chunk
    if mla and at_least(s.release, "0.5.8"):
        limit = min(8192, chunk) if at_least(s.release, "0.5.23") else 2048
    if s.max_total_tokens is not None and at_least(s.release, "0.5.10"):
        limit = min(limit, s.max_total_tokens)
    clipped = at_least(s.release, "0.5.13") and not at_least(s.release, "0.5.17")
    return min(limit, s.context_length) if clipped and s.context_length else limit


def aligned(s: Settings) -> bool:
    """Sizes fixed early for DeepEP (0.5.17..): multiples of 8, whatever the chunk is."""
    return s.moe_a2a_backend == "deepep" and at_least(s.release, "0.5.17")


def prefill_sizes(s: Settings, mla: bool) -> list[int]:
    """Token counts of the prefill graphs; beside DeepEP to 2048, each a multiple of 8 (0.5.17..)."""
    if aligned(s):
        return sorted({-(-size // 8) * 8 for size in PREFILL.at(s.release)(2048)})
    limit = min(prefill_limit(s, mla), 256 * MOST_SIZES)
    return PREFILL.at(s.release)(limit) if at_least(s.release, "0.5.3.post2") else []


#: architectures without piecewise graphs (model_config, piecewise_cuda_graph_disabled_model_archs)
_NOT_PIECEWISE = (
    "DeepseekV32ForCausalLM", "DeepseekV4ForCausalLM", "DeepseekV4ForCausalLMNextN", "Qwen3NextForCausalLM",
    "GlmMoeDsaForCausalLM", "BailingMoeV2_5ForCausalLM", "LLaDAModelLM",
)  # fmt: skip


_DSA = ("DeepseekV32ForCausalLM", "GlmMoeDsaForCausalLM")
#: multimodal architectures whose prefill is captured all the same, and the release that began it
_MULTIMODAL = {
    "KimiK25ForConditionalGeneration": "0.5.16", "Cohere2VisionForConditionalGeneration": "0.5.14",
    "MiniMaxM3SparseForCausalLM": "0.5.14", "MiniMaxM3SparseForConditionalGeneration": "0.5.14",
    "Qwen3_5ForConditionalGeneration": "0.5.16", "Qwen3_5MoeForConditionalGeneration": "0.5.16",
    "KimiK3ForConditionalGeneration": "0.5.17", "InternS2MobiusForConditionalGeneration": "0.5.18",
    "MuseGlimmerForConditionalGeneration": "0.5.18", "PaddleOCRVLForConditionalGeneration": "0.5.19",
    "Glm5NextForConditionalGeneration": "0.5.20", "Qwen4ExpForConditionalGeneration": "0.5.22",
}  # fmt: skip


def prefills_captured(s: Settings, model: Model | None, multimodal: bool) -> bool:
    """Whether prefill passes are captured: on request (..0.5.9); by default from 0.5.10 on unless something
    that cannot be captured is in use (sglang 0.5.12 and 0.5.18 server_args, 0.5.23 arg_groups/cuda_graph_hook).
    """
    if not at_least(s.release, "0.5.10"):
        return s.piecewise_on
    stages = s.pp > 1 and (not at_least(s.release, "0.5.15") or at_least(s.release, "0.5.19"))
    if s.piecewise_off or stages or s.cp > 1 or (not s.decode_graphs and at_least(s.release, "0.5.14")):
        return False
    since = _MULTIMODAL.get((model.architecture if model else None) or "")
    if multimodal and (since is None or not at_least(s.release, since)):
        return False
    return _breakable(s, model) if at_least(s.release, "0.5.15") else _piecewise(s, model)


def _piecewise(s: Settings, model: Model | None) -> bool:
    drafts = s.speculative and not at_least(s.release, "0.5.11")
    blocked = (
        drafts or s.dp_attention or s.torch_compile or s.piecewise_blocked or s.disaggregation_mode != "null"
    )
    architecture = model.architecture if model else None
    able = architecture not in _NOT_PIECEWISE or (architecture in _DSA and at_least(s.release, "0.5.13"))
    return not blocked and s.moe_a2a_backend == "none" and able


def _breakable(s: Settings, model: Model | None) -> bool:
    """Breakable graphs: without MLA, DP attention and any A2A in 0.5.15 and 0.5.16; without dense MLA and
    Nemotron-H in 0.5.17; without DeepSeek-V4 in all, without KDA from 0.5.19 on."""
    architecture = (model.architecture if model else None) or ""
    if architecture.startswith("DeepseekV4"):
        return False
    if architecture == "KimiK25ForConditionalGeneration":
        return True  # piecewise instead of breakable graphs (0.5.16, 0.5.17), breakable ones later
    mla = bool(model and model.is_mla)
    if not at_least(s.release, "0.5.17"):
        prefill_only = s.disaggregation_mode == "prefill" and not at_least(s.release, "0.5.16")
        return not (mla or s.dp_attention or s.lora or prefill_only) and s.moe_a2a_backend == "none"
    if not at_least(s.release, "0.5.18"):
        dense = mla and not is_sparse_mla(model)
        return not dense and architecture != "NemotronHForCausalLM" and s.moe_a2a_backend in _A2A
    kda = at_least(s.release, "0.5.19") and any(
        layer.state is not None and layer.state.kind == "kda" for layer in (model.layers if model else ())
    )
    return not kda and s.moe_a2a_backend in _A2A


_A2A = ("none", "deepep", "megamoe", "flashinfer")


#: MoE architectures that run on flashinfer_trtllm on SM100, which prefill graphs of 0.5.10..0.5.12 cannot hold
_TRTLLM_MOE = (
    "Qwen3MoeForCausalLM", "Qwen3VLMoeForConditionalGeneration", "Qwen3NextForCausalLM",
    "Qwen3_5MoeForConditionalGeneration", "Qwen3_5ForConditionalGeneration",
)  # fmt: skip


def switched_off(s: Settings, model: Model | None, capability: tuple[int, int] | None = None) -> bool:
    """Prefill graphs that count for the default fraction but are not captured in the end: DeepSeek on
    trtllm_mla and Qwen's experts on SM100 (..0.5.12 by the MoE runner; DeepSeek 0.5.15.. by rule), and servers
    that only decode."""
    architecture = (model.architecture if model else None) or ""
    off = architecture.startswith("DeepseekV3") and s.attention_backend == "trtllm_mla" and not _between(s)
    early = at_least(s.release, "0.5.10") and not at_least(s.release, "0.5.13")
    if early and capability is not None and capability[0] == 10 and model and architecture in _TRTLLM_MOE:
        off = off or ((model.quantization or "") in ("", "fp8", "modelopt_fp4") and s.moe_a2a_backend == "none")
    return off or (s.disaggregation_mode == "decode" and at_least(s.release, "0.5.16"))


def _between(s: Settings) -> bool:
    return at_least(s.release, "0.5.13") and not at_least(s.release, "0.5.15")
