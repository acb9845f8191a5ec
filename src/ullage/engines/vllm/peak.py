"""What a rank needs beside weights and KV cache: the profile's peak, graphs, workspaces, communicators.

Where the engine has a formula it is given; else a band with the place it was measured. All sizes in bytes
of one rank.
"""

from __future__ import annotations

from packaging.version import Version

from ullage.core.deployment import Deployment
from ullage.core.ledger import Entry
from ullage.core.model import Model
from ullage.core.units import GIB, MIB, Band
from ullage.core.versions import Rules
from ullage.engines.vllm.kv_specs import element_bytes
from ullage.engines.vllm.options import second_runner, since
from ullage.engines.vllm.settings import Settings

SAMPLER_UNITS: Rules[[float], float] = Rules("sampler_units")


@SAMPLER_UNITS.since(
    "≤0.6.0", source="vllm 0.15.0 and 0.16.0, logs of Qwen3-14B: v1/sample/ops/topk_topp_sampler.py"
)
def sorting(logit_bytes: float) -> float:
    """Copies of the logits in fp32 alive at once, in rows x vocabulary x 4 bytes: top-p by sorting."""
    return 9.4


@SAMPLER_UNITS.since("0.17.0", source="vllm 0.18 and 0.19, 20 logs on H100: Triton top-k/top-p")
def without_sorting(logit_bytes: float) -> float:
    """logit bytes / 4 + 3."""
    return logit_bytes / 4 + 3


def sampler_bytes(
    max_num_seqs: int, vocab: int, release: Version | None = None, logit_bytes: float = 2, *, v2: bool = False
) -> Band:
    """Bytes that sampling for ``max_num_seqs`` rows takes at its peak: units x rows x vocabulary x 4.

    The second model runner keeps the logits and one fp32 copy (1.5 to 2 units). Logits are gathered: tp
    does not divide.
    """
    one = max_num_seqs * vocab * 4.0
    if v2:
        return Band(1.5 * one, 1.4 * one, 2.1 * one)
    units = SAMPLER_UNITS.at(release)(logit_bytes)
    return Band(units * one, 0.93 * units * one, 1.06 * units * one)


def activation_peak(deployment: Deployment, s: Settings) -> Band | None:
    """Bytes of the profile run's peak above the weights: max(transformer pass, sampler pass).

    sampler: sampler_bytes(min(S, MNBT)) + 2 x MNBT x hidden x elem + 0.05 GiB;
    transformer: MNBT x (3 x intermediate / tp + 3 x hidden) x elem, and the up-projected context of MLA.
    None where the model is not known.
    """
    model = deployment.model
    if model is None or not model.hidden_size or not model.vocab_size:
        return None
    elem = element_bytes("auto", s.cache.model_dtype)
    v2 = second_runner(deployment.launch, model)
    rows = min(s.max_num_seqs, s.max_num_batched_tokens)
    hidden = 2 * s.max_num_batched_tokens * model.hidden_size * elem + 0.05 * GIB
    sampler = sampler_bytes(rows, model.vocab_size, s.release, elem, v2=v2)
    dense = transformer_bytes(model, s, elem)
    value = max(sampler.value + hidden, dense)
    high = max(sampler.high + 1.3 * hidden, 1.5 * dense)
    low = max(sampler.low + 0.8 * hidden, 0.7 * dense)
    if s.core == "V0":
        low, high = 0.7 * value, 1.4 * high  # of the driver's rank, which samples; the others need less
    elif s.release is None:
        low, high = either_runner(rows, model.vocab_size, elem, low, high, hidden)
    if model.num_experts:
        value, high = value + 0.4 * GIB, high + 1.6 * GIB
    if model.vision is not None:
        value, high = value + 0.2 * GIB, high + 1.5 * GIB
    return Band(value, min(low, value), high)


def either_runner(
    rows: int, vocab: int, elem: float, low: float, high: float, hidden: float
) -> tuple[float, float]:
    """Limits that hold for both model runners and both samplers: where the release is not known."""
    least = sampler_bytes(rows, vocab, None, elem, v2=True).low + 0.8 * hidden
    most = sampler_bytes(rows, vocab, Version("0.16.0"), elem).high + 1.3 * hidden
    return min(low, least), max(high, most)


def transformer_bytes(model: Model, s: Settings, elem: float) -> float:
    """Bytes of activations of one batch in the widest layer: three times hidden, and the MLP's or experts'."""
    tokens, tp = s.max_num_batched_tokens, s.cache.tp
    dense = 0 if model.num_experts and not model.is_mla else 3 * model.intermediate_size / tp
    wide = 3 * model.hidden_size + max(dense, expert_elements(model, tp))
    return tokens * wide * elem + mla_profile_bytes(model, s) + indexer_bytes(model, s)


def expert_elements(model: Model, tp: int) -> float:
    """Elements that the fused experts need for a token: top-k x (max(2 I / tp, hidden) + I / tp).

    Two workspaces, the first of which holds gate and up and then the output (vllm 0.9 on, fused_moe.py).
    """
    if not model.num_experts:
        return 0.0
    inner = (model.moe_intermediate_size or model.intermediate_size) / tp
    return max(1, model.experts_per_token) * (max(2 * inner, model.hidden_size) + inner)


def indexer_bytes(model: Model, s: Settings) -> float:
    """Bytes that a sparse-attention indexer reserves in the profile: 40 x max_model_len keys of 132 bytes (of
    compressed layers one for each 4 tokens), from 0.18.0 on VLLM_SPARSE_INDEXER_MAX_LOGITS_MB (512) MiB of
    logits (v1/attention/backends/mla/indexer.py)."""
    indexed = [layer for layer in model.layers if layer.index_dim]
    if not indexed:
        return 0.0
    ratio = min((layer.compress_ratio for layer in indexed if layer.compress_ratio), default=1)
    logits = 512 * MIB if since(s.release, "0.18.0") else 0
    return (s.max_model_len or model.max_context or 0) * 40 * 132.0 / ratio + logits


def mla_profile_bytes(model: Model, s: Settings) -> float:
    """Bytes of the up-projected chunk of context in the profile of MLA models: n x heads / tp x (nope + v) x 2.

    n = mla_context_tokens; nope + v = 256 for DeepSeek and Kimi (vllm 0.8.0+ V0, 0.11.0+ V1).
    """
    if not model.is_mla or not since(s.release, "0.11.0"):
        return 0.0
    return mla_context_tokens(s) * max(1, model.num_heads // s.cache.tp) * 256 * 2.0


def mla_context_tokens(s: Settings) -> int:
    """Tokens of context that an MLA layer projects at once: min(max(8 L, 4 S block), cap), at least S x block.

    cap 131072 in 0.8.0 to 0.10.2, 65536 from 0.11.0 (v1/attention/backends/mla/common.py).
    """
    cap = 65536 if since(s.release, "0.11.0") else 131072
    length, rows = s.max_model_len or cap, s.max_num_seqs * s.cache.block_size
    return max(min(max(8 * length, 4 * rows), cap), rows)


def non_torch(s: Settings, nvlink: bool | None = None) -> Band:
    """Bytes outside PyTorch that the profile sees grow: libraries, lazily made communicators.

    One GPU: 0.02 to 0.13 GiB, from 0.18.0 on, where the graph rehearsal runs inside the measured region, 0.25
    to 0.27. Tensor parallel: on NVLink 0.6, from 0.18.0 on 2.07 to 2.21; over PCIe 0.2 to 0.3; before 0.11.0
    NCCL and the custom all-reduce are in it (0.2 to 3.6). Public logs.
    """
    rehearsed = since(s.release, "0.18.0")
    if s.cache.tp == 1:
        low, value, high = (0.06, 0.25, 0.45) if rehearsed else (0.0, 0.1, 0.6)
        if s.release is None:
            low, value = 0.02, 0.15
        if s.cache.pp > 1:
            low, value, high = 0.02, 0.1, 1.0
    elif nvlink is False:
        low, value, high = 0.1, (1.0 if rehearsed else 0.3), (2.4 if rehearsed else 1.6)
        value = 0.6 if s.release is None else value
    else:
        low, value, high = (0.3, 2.1 if nvlink else 1.2, 2.4) if rehearsed else (0.05, 0.6, 2.4)
    if s.release is not None and not since(s.release, "0.7.0"):
        value, high = value + 0.3, high + 1.6
    return Band(value * GIB, low * GIB, high * GIB)


def before_baseline(s: Settings) -> Band:
    """Bytes taken before the engine looks at free memory: CUDA context; from 0.11.0 NCCL and custom
    all-reduce too."""
    context = Band(0.5 * GIB, 0.25 * GIB, 0.75 * GIB)
    if s.cache.tp * s.cache.pp == 1 or not since(s.release, "0.11.0"):
        return context
    return Band(context.value + 0.6 * GIB, context.low + 0.1 * GIB, context.high + 2.0 * GIB)


def estimate(first: dict[str, float], second: dict[str, float], counts: dict[str, int]) -> float:
    """The engine's own graph estimate in bytes, from the first two captures of each mode.

    max over modes of the first + sum over modes of (count - 1) x max(second, 1 MiB)
    (vllm 0.18.0 on, v1/worker/gpu_model_runner.py, profile_cudagraph_memory)
    """
    rest = sum((counts[mode] - 1) * max(second[mode], MIB) for mode in counts)
    return max(first.values(), default=0.0) + rest


def graph_bytes(s: Settings, model: Model | None = None) -> Band:
    """Bytes of the graph pool after capture: 0.8 to 1.2 GiB for 51 + 51 graphs of a dense 8-14B model.

    Public logs show 0.1 to 1.9 GiB, a few MiB to some 25 MiB a graph; more layers, more bytes.
    """
    if not s.graph_sizes:
        return Band(0.0, 0.0, 0.0)
    sets = 2 if s.full_graphs else 1
    count = len(s.graph_sizes) * sets
    layers = (model.num_layers if model and model.num_layers else 40) / 40 / s.cache.pp
    return Band(
        count * 8 * MIB * layers + 0.1 * GIB, 0.03 * GIB, count * 22 * MIB * max(1.0, layers) + 0.3 * GIB
    )


def estimated_graphs(s: Settings, model: Model | None = None) -> Band:
    """Bytes that the release subtracts for graphs; its estimate is 1 to 5 times what the capture then takes."""
    if not s.subtracts_graphs:
        return Band(0.0, 0.0, 0.0)
    actual = graph_bytes(s, model)
    return Band(1.3 * actual.value, 0.5 * actual.low, 3 * actual.high)


def workspaces(deployment: Deployment, s: Settings) -> list[Entry]:
    """What is allocated after the budget was fixed and so must fit beside the requested share."""
    model, out = deployment.model, []
    if model is not None and model.is_mla and s.core == "V1":
        latent = next(layer for layer in model.layers if layer.kind == "mla")
        size = (
            mla_context_tokens(s)
            * (latent.kv_lora_rank + latent.rope_dim)
            * element_bytes("auto", s.cache.model_dtype)
        )
        out.append(Entry("graph_capture", "MLA context workspace", int(size), 0, int(size), "estimated",
                         "vllm, mla/common.py: tokens x 576 x elem"))  # fmt: skip
    flashinfer = flashinfer_bytes(deployment, s)
    if flashinfer is not None:
        out.append(Entry("graph_capture", "FlashInfer workspace", int(flashinfer.value), int(flashinfer.low),
                         int(flashinfer.high), "estimated", "vllm, backends/flashinfer.py"))  # fmt: skip
    return out


def flashinfer_bytes(deployment: Deployment, s: Settings) -> Band | None:
    """The FlashInfer workspace: 256 MiB to 0.11.0, then 394 MiB (VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE); used
    by default on capability 10.x, or where the back end is asked for. None where it is not used."""
    launch = deployment.launch
    asked = f"{launch.text('attention_backend') or ''} {launch.env.get('VLLM_ATTENTION_BACKEND', '')}".upper()
    gpu = deployment.machine.gpu if deployment.machine else None
    blackwell = gpu is not None and gpu.capability is not None and gpu.capability[0] == 10
    if "FLASHINFER" not in asked and (asked.strip() or not blackwell):
        return None
    given = launch.env.get("VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE", "")
    default = (394 if since(s.release, "0.11.1") else 256) * MIB
    size = int(given) if given.isascii() and given.isdigit() and len(given) < 13 else default
    return Band(size, 0 if not asked.strip() else size, size)


def custom_all_reduce(deployment: Deployment, s: Settings) -> Entry | None:
    """24 MiB and some metadata a rank where the custom all-reduce is used: 2 GPUs, or 4, 6, 8 with full
    NVLink."""
    if s.cache.tp not in (2, 4, 6, 8) or deployment.launch.flag("disable_custom_all_reduce"):
        return None
    nvlink = deployment.machine.nvlink if deployment.machine else None
    if s.cache.tp > 2 and nvlink is False:
        return None
    low = 0 if s.cache.tp > 2 and nvlink is None else 24 * MIB
    return Entry("init", "custom all-reduce", 24 * MIB, low, 26 * MIB, "estimated",
                 "vllm, custom_all_reduce.py: buffer, scratch and rank data of 8 MiB each")  # fmt: skip


def beside(deployment: Deployment, s: Settings) -> list[Entry]:
    """Everything that must fit into what the requested share leaves free: graphs where they are not subtracted,
    workspaces, and the sampler warm-up as far as it exceeds the room that the profile's peak leaves in the
    share."""
    out = [] if s.subtracts_graphs else [graphs_entry(deployment, s)]
    return (
        [entry for entry in out if entry.high > 0] + workspaces(deployment, s) + sampler_beyond(deployment, s)
    )


def graphs_entry(deployment: Deployment, s: Settings) -> Entry:
    read = deployment.readings.get("graphs_gib")
    if read is not None:
        band = read.value.band.scaled(GIB)
        return Entry("graph_capture", "CUDA graphs", int(band.value), int(band.low), int(band.high), "observed",
                     read.source)  # fmt: skip
    band = graph_bytes(s, deployment.model)
    return Entry("graph_capture", "CUDA graphs", int(band.value), int(band.low), int(band.high), "estimated",
                 "sizes captured x bytes a graph in public logs")  # fmt: skip


def sampler_beyond(deployment: Deployment, s: Settings) -> list[Entry]:
    """The sampler warm-up of the first model runner runs after the capture (0.8.0 on). The profile took the
    same room, so normally nothing is left over; the high limit is one buffer of logits, lost to
    fragmentation."""
    model = deployment.model
    if model is None or not model.vocab_size or s.core == "V0" or second_runner(deployment.launch, model):
        return []
    rows = min(s.max_num_seqs, s.max_num_batched_tokens)
    one = rows * model.vocab_size * 4
    return [Entry("warmup", "sampler warm-up beyond the profile's peak", 0, 0, one, "estimated",
                  "max_num_seqs x vocabulary x 4 bytes")]  # fmt: skip
