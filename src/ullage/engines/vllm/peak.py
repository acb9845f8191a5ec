"""The activation peak of the profile run: the transformer's pass over one batch, or the sampler's warm-up.

Where the engine has a formula it is given; else a band with the place it was measured. All sizes in bytes
of one rank.
"""

from __future__ import annotations

from packaging.version import Version

from ullage.core.deployment import Deployment
from ullage.core.model import Model
from ullage.core.units import GIB, MIB, Band
from ullage.core.versions import Rules
from ullage.engines.vllm.encoder import encoder_bytes
from ullage.engines.vllm.graphs import is_nvfp4
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

    sampler: sampler_bytes(min(S, MNBT)) + 2 x MNBT x hidden x elem + 0.05 GiB, and what the experts keep;
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
    held = held_by_experts(model, s, elem)
    value = max(sampler.value + hidden + held, dense)
    high = max(sampler.high + 1.3 * hidden + held, 1.5 * dense)
    low = max(sampler.low + 0.8 * hidden, 0.7 * dense)
    if s.core == "V0":
        low, high = 0.7 * value, 1.4 * high  # of the driver's rank, which samples; the others need less
    elif s.release is None:
        low, high = either_runner(rows, model.vocab_size, elem, low, high, hidden)
    if model.num_experts:
        more = 0.4 * GIB if s.core == "V0" or (is_nvfp4(model) and not s.marlin) else 0.0
        value, high = value + more, high + more + (1.2 if more else 1.6) * GIB
    kept, own = encoder_bytes(deployment.launch, model, s)
    if kept:
        value, high = max(value + kept, own), max(high + kept, own) + 1.3 * GIB
    return Band(value, min(low, value), high)


def either_runner(
    rows: int, vocab: int, elem: float, low: float, high: float, hidden: float
) -> tuple[float, float]:
    """Limits that hold for both model runners and both samplers: where the release is not known."""
    least = sampler_bytes(rows, vocab, None, elem, v2=True).low + 0.8 * hidden
    most = sampler_bytes(rows, vocab, Version("0.16.0"), elem).high + 1.3 * hidden
    return min(low, least), max(high, most)


def transformer_bytes(model: Model, s: Settings, elem: float) -> float:
    """Bytes of activations of one batch in the widest layer: three times hidden, and the MLP's, the experts' or
    the linear attention's. DeepSeek-V4 keeps four residual streams (models/deepseek_v4, hyper-connections)."""
    tokens, tp = s.max_num_batched_tokens, s.cache.tp
    dense = 0 if model.num_experts and not model.is_mla else 3 * model.intermediate_size / tp
    streams = 4 if any(layer.kind == "compressed" for layer in model.layers) else 1
    inner = max(dense, expert_elements(model, s.expert_ways), linear_elements(model, tp))
    wide = 3 * streams * model.hidden_size + inner
    return tokens * wide * elem + mla_profile_bytes(model, s) + indexer_bytes(model, s)


def linear_elements(model: Model, tp: int) -> float:
    """Elements that a recurrent layer needs for a token while it works off a batch in chunks.

    GDN and KDA, chunks of 64: the projections before and after the convolution, the gate, five values (q, k, v
    as used, w, u), the chunk's matrix in fp32, and one state for 64 tokens (layers/fla/ops, chunk.py). Mamba 2,
    chunks of 256: the projections, four values, one state in fp32 (layers/mamba/ops, ssd_combined.py); a public
    start with 262144 tokens in one batch took some 9 GiB on each of 4 ranks, 70,000 elements a token.
    """
    kinds = ("gdn", "kda", "mamba2")
    state = next((layer.state for layer in model.layers if layer.state and layer.state.kind in kinds), None)
    if state is None:
        return 0.0
    value = state.num_heads * state.head_dim
    if state.kind == "mamba2":
        return (2 * state.conv_dim + 4 * value + value * state.state_size / 128) / tp
    gates = 4 * state.num_heads * state.state_size if state.kind == "kda" else 0
    return (2 * state.conv_dim + 6 * value + 128 * state.num_heads + value * state.state_size / 64 + gates) / tp


def held_by_experts(model: Model, s: Settings, elem: float) -> float:
    """Bytes of the experts' workspaces that are still there when the sampler is warmed up: modular kernels keep
    theirs (0.10.1 on, fused_moe/modular_kernel.py, v1/worker/workspace.py); Marlin's and gpt-oss's own give
    them back. Public logs of 0.19.0 at 8192 tokens: 0.09 GiB at top-1, 0.33 at top-4, 0.54 at top-8.
    """
    if not model.num_experts or lends_workspaces(model, s):
        return 0.0
    return s.max_num_batched_tokens * (expert_elements(model, s.expert_ways) + model.hidden_size) * elem


def lends_workspaces(model: Model, s: Settings) -> bool:
    """True where the experts' kernel allocates for one pass alone: Marlin for whole numbers of 4 bits and, as
    asked or for want of hardware, NVFP4; MXFP4."""
    checkpoint = model.checkpoint
    config = checkpoint.config.get("quantization_config") if checkpoint else None
    forms = checkpoint.facts.get("forms") if checkpoint else None
    stored = f"{model.quantization} {config} {forms}".lower()
    whole = any(word in stored for word in ("gptq", "awq", "auto-round", "pack-quantized", "mxfp4"))
    return whole or (s.marlin and "nvfp4" in stored)


def expert_elements(model: Model, ways: int) -> float:
    """Elements that the fused experts need for a token: top-k x (max(2 I / ways, hidden) + I / ways).

    Two workspaces, the first of which holds gate and up and then the output (vllm 0.9 on, fused_moe.py).
    """
    if not model.num_experts:
        return 0.0
    inner = (model.moe_intermediate_size or model.intermediate_size) / ways
    return max(1, model.experts_per_token) * (max(2 * inner, model.hidden_size) + inner)


def indexer_bytes(model: Model, s: Settings) -> float:
    """Bytes that sparse attention reserves in the profile: the work space that its indexer and its prefill
    share, and from 0.18.0 on VLLM_SPARSE_INDEXER_MAX_LOGITS_MB (512) MiB of logits.

    Indexer: 40 x max_model_len keys of 132 bytes, of compressed or pooled layers one for several tokens
    (v1/attention/backends/mla/indexer.py). Prefill from an fp8 cache: 5 x max_model_len latents of 576 in 16
    bit, and the queries of one batch for 64 heads (flashmla_sparse.py, 0.11.1 on). Below SM90 only patched
    builds run it, with kernels of their own that keep none of it (peak 0.6 GiB in a public log of RTX 3090).
    """
    indexed = [layer for layer in model.layers if layer.index_dim]
    if not indexed or s.ampere:
        return 0.0
    ratio = min((layer.compress_ratio or layer.index_pool for layer in indexed), default=1)
    logits = 512 * MIB if since(s.release, "0.18.0") else 0
    length = s.max_model_len or model.max_context or 0
    prefill = 0.0
    if model.is_mla and s.cache.dtype.startswith("fp8") and ratio == 1:
        prefill = (5.0 * length + 64 * s.max_num_batched_tokens) * 576 * 2
    return max(length * 40 * 132.0 / ratio, prefill) + logits


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
