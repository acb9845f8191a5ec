"""The settings that shape the KV cache, as given or as the release and the model decide."""

from __future__ import annotations

from ullage.core.deployment import Deployment
from ullage.core.launch import Launch
from ullage.core.model import Model
from ullage.engines.vllm.kv_specs import Cache, MambaMode, ssm_dtype
from ullage.engines.vllm.options import (
    count,
    num_speculative_tokens,
    second_runner,
    since,
    size,
    speculative_method,
)


def kv_cache(deployment: Deployment, tokens: int, spec: int) -> Cache:
    """The settings that shape the KV cache."""
    launch, model = deployment.launch, deployment.model
    return Cache(
        tp=size(launch, "tensor"),
        pp=size(launch, "pipeline"),
        dcp=max(1, count(launch, "decode_context_parallel_size", 65536) or 1),
        block_size=block_size(deployment), dtype=cache_dtype(launch, model), model_dtype=model_dtype(launch),
        max_num_batched_tokens=tokens, in_flight=in_flight(launch, model), hybrid=hybrid_manager(launch, model),
        mamba_mode=mamba_mode(launch, model),
        ssm_dtype=launch.text("mamba_ssm_cache_dtype") or (ssm_dtype(model) if model else "auto"),
        num_speculative_tokens=spec, partition=partition(launch),
        latent_align=256 if since(launch.release, "0.7.2") and not since(launch.release, "0.8.0") else 1,
        num_gpu_blocks_override=count(launch, "num_gpu_blocks_override"),
    )  # fmt: skip


def partition(launch: Launch) -> tuple[int, ...]:
    """Layers of each stage by VLLM_PP_LAYER_PARTITION; () where it is not set or not for this many stages."""
    parts = launch.env.get("VLLM_PP_LAYER_PARTITION", "")[:4096].split(",")
    counts = tuple(int(part) for part in parts if part.strip().isdecimal() and len(part) < 9)
    return counts if len(counts) == len(parts) == size(launch, "pipeline") else ()


def model_dtype(launch: Launch) -> str:
    """fp32 only where it is asked for: "auto" casts fp32 checkpoints to half precision."""
    return "float32" if launch.text("dtype") in ("float32", "float") else "bfloat16"


def block_size(deployment: Deployment) -> int:
    """Tokens in a block: 16; MLA back ends on Hopper and data-centre Blackwell force 64 (0.8.0 on)."""
    launch, model = deployment.launch, deployment.model
    given = count(launch, "block_size")
    if given and given > 0:
        return given
    gpu = deployment.machine.gpu if deployment.machine else None
    major = gpu.capability[0] if gpu and gpu.capability else 9
    sparse = model is not None and any(layer.index_dim for layer in model.layers)
    latent = model is not None and model.is_mla and since(launch.release, "0.8.0")
    if model is not None and any(layer.kind == "compressed" for layer in model.layers):
        return 256  # DeepSeek-V4: the only size of its back ends (v1/attention/backends/mla/sparse_swa.py)
    return 64 if sparse or (latent and major in (9, 10)) else 16


def cache_dtype(launch: Launch, model: Model | None) -> str:
    """The KV dtype. "auto" follows the model, or the checkpoint's own KV scheme (0.14.0+ ModelOpt, 0.17.0+
    all)."""
    given = launch.text("kv_cache_dtype") or "auto"
    if given == "auto" and model is not None and model.kv_quantization and since(launch.release, "0.17.0"):
        return "nvfp4" if "nvfp4" in model.kv_quantization.lower() else "fp8"
    return given


def in_flight(launch: Launch, model: Model | None) -> int:
    """Batches scheduled at once: 2 with async scheduling on one stage, pp or pp + 1 on several
    (config/vllm.py)."""
    pp = size(launch, "pipeline")
    asked = launch.get("async_scheduling")
    method = speculative_method(launch)
    default = since(launch.release, "0.14.0") and (
        method is None or method.startswith(("eagle", "mtp")) or "mtp" in method
    )
    if not (asked if isinstance(asked, bool) else default):
        return pp
    return pp + 1 if pp == 1 or second_runner(launch, model) else pp


def hybrid_manager(launch: Launch, model: Model | None) -> bool:
    """True if windows and states get their own groups. Off: on request, with KV transfer, with KV events to
    0.19.1, and for chunked attention (Llama 4) by default in 0.10.1 to 0.13.0."""
    if launch.flag("disable_hybrid_kv_cache_manager") or launch.get("kv_transfer_config"):
        return False
    if launch.get("kv_events_config") and not since(launch.release, "0.20.0"):
        return False
    chunked = model is not None and any(layer.kind == "chunked" for layer in model.layers)
    off = chunked and since(launch.release, "0.10.1") and not since(launch.release, "0.14.0")
    return not off or launch.env.get("VLLM_ALLOW_CHUNKED_LOCAL_ATTN_WITH_HYBRID_KV_CACHE") == "1"


def mamba_mode(launch: Launch, model: Model | None) -> MambaMode:
    """How states are cached: "none" without prefix caching, which hybrids have by default from 0.28.0 on.

    With it "align"; Mamba 1 and 2 use "all" to 0.31 (model_executor/models/config.py, MambaModelConfig).
    """
    given = launch.text("mamba_cache_mode")
    if given in ("none", "align", "all"):
        return "none" if given == "none" else "align" if given == "align" else "all"
    asked = launch.get("enable_prefix_caching")
    if not (asked if isinstance(asked, bool) else since(launch.release, "0.28.0")):
        return "none"
    kinds = {layer.state.kind for layer in model.layers if layer.state} if model else set()
    older = not since(launch.release, "0.32.0") and not num_speculative_tokens(launch)
    return "all" if older and kinds and kinds <= {"mamba1", "mamba2"} else "align"
