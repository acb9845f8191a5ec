"""SGLang's own defaults, all together, and chunked_prefill_size and cuda_graph_max_bs by release.

``gpu_mib`` is the smallest ``memory.total`` that nvidia-smi prints for any GPU of the host, in MiB; None where
the engine cannot tell. N is tp_size (..0.4.6.post1) or tp_size x pp_size. Read: server_args (..0.5.18) and
arg_groups/memory_hook (0.5.19..), each release of tests/oracle.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from ullage.core.model import Model
from ullage.core.versions import Rules
from ullage.engines.sglang.backends import COMPRESSED, attention_backend, is_sparse_mla, page_size, radix_off
from ullage.engines.sglang.captured import (
    aligned,
    capture_sizes,
    prefill_sizes,
    prefills_captured,
    switched_off,
)
from ullage.engines.sglang.compressed import REQUESTS
from ullage.engines.sglang.fraction import FRACTION
from ullage.engines.sglang.settings import Settings, at_least
from ullage.engines.sglang.vision import for_vision, is_multimodal

KIB = 1024


class Host(Struct, frozen=True):
    """What the heuristics ask of the machine: the smallest GPU in MiB, its compute capability, whether it is
    AMD's."""

    gpu_mib: int | None = None
    capability: tuple[int, int] | None = None
    amd: bool = False


CHUNK: Rules[[Settings, int | None], int] = Rules("chunked_prefill_size")
MAX_BS: Rules[[Settings, int | None], int | None] = Rules("cuda_graph_max_bs")


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


def resolved(given: Settings, model: Model | None, host: Host) -> Settings:
    """``given`` with every default that the engine would fill in, as far as the host's memory is known.

    The order is the engine's: the chunk size is divided by dp_size only after the fraction has used it.
    """
    hopper = host.capability is not None and host.capability[0] == 9 and (host.gpu_mib or 0) >= 60 * KIB
    s = _sparse_of_053(replace(_speculation(given, model), large_hopper=hopper), model)
    mla = bool(model and model.is_mla)
    s = _backend(s, given, model, host)
    if s.chunked_prefill_size is None and (host.gpu_mib or at_least(s.release, "0.4.7.post1")):
        s = replace(s, chunked_prefill_size=CHUNK.at(s.release)(s, host.gpu_mib))
    s = _graph_sizes(s, model, host.gpu_mib, mla, given.max_running_requests)
    if s.mem_fraction_static is None and host.gpu_mib is not None:
        s = replace(s, mem_fraction_static=for_vision(FRACTION.at(s.release)(s, host.gpu_mib, mla), model, s))
    s = _dp_of_sparse(s, model)
    if not given.chunk_settled:
        s = replace(s, chunked_prefill_size=chunk_per_group(s))
    s = _prefills_of_group(s, mla)
    if switched_off(s, model, host.capability):
        s = replace(s, prefill_graphs=False, prefill_graph_sizes=())
    return s


def _prefills_of_group(s: Settings, mla: bool) -> Settings:
    """Under DP attention no prefill graph is larger than the chunk of one group; the list is made anew."""
    if not s.dp_attention or not s.prefill_graph_sizes:
        return s
    fresh = prefill_sizes(replace(s, moe_a2a_backend="none"), mla) if aligned(s) else s.prefill_graph_sizes
    sizes = tuple(size for size in fresh if size <= (s.chunked_prefill_size or size))
    return replace(s, prefill_graph_sizes=sizes)


def _sparse_of_053(s: Settings, model: Model | None) -> Settings:
    """0.5.3 alone: sparse MLA runs with DP attention on every rank and a fraction of 0.8, whatever is given."""
    if not is_sparse_mla(model) or not at_least(s.release, "0.5.3") or at_least(s.release, "0.5.3.post1"):
        return s
    return replace(s, dp_attention=True, dp=s.tp, mem_fraction_static=0.8)


def _dp_of_sparse(s: Settings, model: Model | None) -> Settings:
    """0.5.3.post1..0.5.5: sparse MLA turns DP attention on for every rank, once the fraction is settled."""
    if not is_sparse_mla(model) or not at_least(s.release, "0.5.3.post1") or at_least(s.release, "0.5.6"):
        return s
    return replace(s, dp_attention=True, dp=s.tp)


def _backend(s: Settings, given: Settings, model: Model | None, host: Host) -> Settings:
    """Attention backend, page size and radix cache: chosen while the draft's depth is still as given."""
    asked = replace(s, topk=given.topk)
    backend = attention_backend(asked, model, host.capability, amd=host.amd)
    page = page_size(asked, model, backend, host.capability)
    return replace(s, attention_backend=backend, page_size=page, radix_off=radix_off(asked, model, backend))


def chunk_per_group(s: Settings) -> int | None:
    """The chunk of one attention group: / 2 under DP attention (..0.4.4), / dp_size (0.4.4.post1..)."""
    if not s.dp_attention or s.chunked_prefill_size is None:
        return s.chunked_prefill_size
    return s.chunked_prefill_size // (max(1, s.dp) if at_least(s.release, "0.4.4.post1") else 2)


def _speculation(s: Settings, model: Model | None) -> Settings:
    """Requests and draft shape of a speculative launch that does not state them."""
    if not s.speculative:
        compressed = model is not None and model.architecture in COMPRESSED and s.max_running_requests is None
        return replace(s, max_running_requests=REQUESTS) if compressed else s
    requests = s.max_running_requests
    if requests is None and at_least(s.release, "0.4.3.post3"):
        requests = 48 if at_least(s.release, "0.4.4.post4") else 32
    if model is not None and model.architecture in COMPRESSED:
        requests = s.max_running_requests or REQUESTS
    steps, topk, draft = s.num_steps, s.topk, s.draft_tokens
    if steps is None and s.speculative_algorithm != "NGRAM":
        steps, topk, draft = draft_shape(s, model)
    if (
        (s.page_size or 1) > 1
        and (topk or 1) > 1
        and not at_least(s.release, "0.4.9")
        and at_least(s.release, "0.4.5.post3")
    ):
        topk = 1  # paged caches take no tree
    if topk == 1 and steps is not None and s.speculative_algorithm != "NGRAM":
        draft = steps + 1
    if s.speculative_algorithm == "NGRAM":
        topk, draft = topk or 10, draft or 12
        steps = steps or (1 if at_least(s.release, "0.5.14") else None)
    return replace(s, max_running_requests=requests, num_steps=steps, topk=topk, draft_tokens=draft)


#: architectures drafted with (3, 1, 4) like DeepSeek, by release
_SHALLOW = {
    "0.5.1": ("GptOssForCausalLM",), "0.5.4": ("BailingMoeForCausalLM", "BailingMoeV2ForCausalLM"),
    "0.5.7": (
        "Glm4MoeForCausalLM", "MistralLarge3ForCausalLM", "PixtralForConditionalGeneration",
        "MiMoV2FlashForCausalLM",
    ),
}  # fmt: skip
_LLAMA_GROK = ("LlamaForCausalLM", "Grok1ForCausalLM", "Grok1AForCausalLM")


def draft_shape(s: Settings, model: Model | None) -> tuple[int, int, int]:
    """(num_steps, topk, draft tokens) when none is given (0.4.4.post4.., auto_choose_speculative_params)."""
    architecture = (model.architecture if model else None) or ""
    if s.speculative_algorithm == "STANDALONE" and at_least(s.release, "0.5.2"):
        return 3, 1, 4
    if architecture in _LLAMA_GROK or not at_least(s.release, "0.4.7"):
        return 5, 4, 8
    shallow = architecture.startswith("Deepseek") or any(
        architecture in names and at_least(s.release, since) for since, names in _SHALLOW.items()
    )
    if at_least(s.release, "0.5.8") or shallow:
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
    if max_bs is not None and s.dp_attention and not at_least(s.release, "0.4.0.post2"):
        max_bs = min(max_bs, 96)
    s = replace(s, cuda_graph_max_bs=max_bs)
    if not s.cuda_graph_bs:
        s = replace(s, cuda_graph_bs=tuple(capture_sizes(s, gpu_mib)))
    on = prefills_captured(s, model, is_multimodal(model, s))
    return replace(s, prefill_graphs=on, prefill_graph_sizes=tuple(prefill_sizes(s, mla)) if on else ())
