"""What a deployment runs with: each setting as given, as the log says, or as the release would choose."""

from __future__ import annotations

import json
import math
import re
from typing import Any, Literal

from msgspec import Struct
from packaging.version import Version

from ullage.core.deployment import Deployment
from ullage.core.launch import Launch
from ullage.core.model import Layer, Model
from ullage.core.units import GIB, Band
from ullage.engines.vllm import defaults
from ullage.engines.vllm.kv_specs import Cache, MambaMode, ssm_dtype

Core = Literal["V0", "V1"]
#: speculative methods whose draft layers keep a KV cache of their own beside the target's
DRAFTING = ("eagle", "eagle3", "mtp", "draft_model", "dflash", "extract_hidden_states")
_LENGTH = re.compile(r"(\d+(?:\.\d+)?)\s*([kKmMgG]?)")
_UNITS = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


class Settings(Struct, frozen=True):
    """The settings that memory depends on. None where neither the launch nor a default tells.

    ``graph_sizes`` is empty without CUDA graphs; ``subtracts_graphs`` says whether the estimate comes off the
    budget; ``unknown`` names what was assumed for want of knowledge.
    """

    release: Version | None
    core: Core
    utilization: float
    utilization_given: bool
    total: Band | None
    max_model_len: int | None
    auto_fit: bool
    max_num_batched_tokens: int
    max_num_seqs: int
    cache: Cache
    eager: bool
    full_graphs: bool
    graph_sizes: tuple[int, ...]
    subtracts_graphs: bool
    kv_bytes: int | None
    draft: tuple[Layer, ...] = ()
    unknown: tuple[str, ...] = ()


def since(release: Version | None, first: str) -> bool:
    """True if ``release`` is ``first`` or later; an unknown release is the newest."""
    return release is None or release >= Version(first)


def settings(deployment: Deployment) -> Settings:
    """The settings in force, by the rules of the launch's release."""
    launch, release = deployment.launch, deployment.launch.release
    total = total_bytes(deployment)
    length, auto_fit = max_model_len(deployment)
    core = engine_core(deployment)
    tokens, seqs = batch_limits(deployment, core, total, length)
    eager = launch.flag("enforce_eager")
    mode = str(config(launch, "compilation_config").get("cudagraph_mode", "")).upper()
    graphs = not eager and "NONE" not in mode
    given = launch.number("gpu_memory_utilization")
    spec, unknown = num_speculative_tokens(launch), []
    draft = draft_layers(deployment)
    if spec and not draft and speculative_method(launch) not in ("ngram", "suffix", "[ngram]"):
        unknown.append("the draft model's layers")
    return Settings(
        release, core, given if given is not None else defaults.UTILIZATION.at(release)(), given is not None,
        total, length, auto_fit, tokens, seqs, kv_cache(deployment, tokens, spec), not graphs,
        graphs and since(release, "0.11.0") and mode != "PIECEWISE",
        tuple(graph_sizes(deployment, seqs, tokens, spec)) if graphs else (),
        graphs and subtracts_graphs(launch, deployment.model), launch.integer("kv_cache_memory_bytes"),
        draft, tuple(unknown),
    )  # fmt: skip


def total_bytes(deployment: Deployment) -> Band | None:
    """Bytes of the device as CUDA reports them: a reading, else the GPU's row, else a little under its product size."""
    read = deployment.reading("total_gib")
    if read is not None:
        return read.scaled(GIB)
    gpu = deployment.machine.gpu if deployment.machine else None
    if gpu is None:
        return None
    if gpu.cuda_bytes is not None:
        return gpu.cuda_bytes
    return Band(gpu.total_bytes * 0.99, gpu.total_bytes * 0.975, gpu.total_bytes) if gpu.total_bytes else None


def engine_core(deployment: Deployment) -> Core:
    """V0 to 0.7.3 (V1 on request), V1 from 0.8.0 (V0 as a silent fall-back to 0.10.2), V1 only from 0.11.0."""
    launch, release = deployment.launch, deployment.launch.release
    told = launch.text("engine_core") or launch.text("core")
    if told in ("V0", "V1"):
        return "V0" if told == "V0" else "V1"
    if since(release, "0.11.0"):
        return "V1"
    if "cpu_blocks" in deployment.readings or launch.env.get("VLLM_USE_V1") == "0":
        return "V0"
    if launch.env.get("VLLM_USE_V1") == "1" or since(release, "0.8.0"):
        return "V1"
    return "V0"


def max_model_len(deployment: Deployment) -> tuple[int | None, bool]:
    """(the length in force, whether the engine chooses it). What the log prints beside the concurrency wins."""
    given = deployment.launch.get("max_model_len")
    length = as_length(given)
    auto = length == -1 or (isinstance(given, str) and given.strip().lower() == "auto")
    read = deployment.reading("max_concurrency_len") or deployment.reading("max_len")
    if read is not None and read.value > 0:
        return int(read.value), False
    if length is not None and length > 0:
        return length, False
    return (deployment.model.max_context if deployment.model else None), auto


def as_length(value: object) -> int | None:
    """A length as the flag takes it: 32k is 32000, 32K is 32768 (vllm 0.10 on, engine/arg_utils.py)."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int | float):
        return int(value) if math.isfinite(value) else None
    match = _LENGTH.fullmatch(value.strip()) if isinstance(value, str) and len(value) < 32 else None
    return int(float(match[1]) * _UNITS[match[2]]) if match else (-1 if value == "-1" else None)


def batch_limits(deployment: Deployment, core: Core, total: Band | None, length: int | None) -> tuple[int, int]:
    """(max_num_batched_tokens, max_num_seqs). Defaults by release and GPU, then the engine's adjustments:

    chunked prefill off: tokens at least L; tokens <= seqs * L (0.11.1+); seqs <= tokens (0.10.1+).
    """
    launch, release = deployment.launch, deployment.launch.release
    tokens, seqs = launch.integer("max_num_batched_tokens"), launch.integer("max_num_seqs")
    gpu = deployment.machine.gpu if deployment.machine else None
    device = defaults.Device(
        gpu.name if gpu else "", int(total.value) if total else 0, gpu.capability if gpu else None
    )
    if core == "V0":
        chunked = launch.flag("enable_chunked_prefill")
        default_tokens, default_seqs = defaults.v0_batch(length or 0, chunked, release)
    else:
        default_tokens, default_seqs = defaults.BATCH.at(release)(device)
        if launch.get("enable_chunked_prefill") is False and length:
            default_tokens = max(default_tokens, length) if since(release, "0.11.1") else length
    limit = tokens or default_tokens
    if tokens is None and seqs and length and core == "V1" and since(release, "0.11.1"):
        limit = min(limit, seqs * length)
    if seqs is None and since(release, "0.10.1"):
        default_seqs = min(default_seqs, limit)
    return max(1, limit), max(1, seqs or default_seqs)


def graph_sizes(deployment: Deployment, seqs: int, tokens: int, spec: int) -> list[int]:
    """The sizes captured: those given, else the release's own list up to the given largest one."""
    launch = deployment.launch
    compilation = config(launch, "compilation_config")
    given = (
        compilation.get("cudagraph_capture_sizes")
        or launch.get("cudagraph_capture_sizes")
        or launch.get("cuda_graph_sizes")
    )
    sizes = [int(n) for n in given if isinstance(n, int)] if isinstance(given, list) else []
    if len(sizes) > 1:
        return sorted(set(sizes))
    gpu = deployment.machine.gpu if deployment.machine else None
    family = gpu.capability[0] * 10 if gpu and gpu.capability else 90
    made = defaults.graph_sizes(launch.release, seqs, tokens, spec, family)
    largest = (
        compilation.get("max_cudagraph_capture_size")
        or launch.integer("max_cudagraph_capture_size")
        or (sizes or [0])[0]
    )
    return [n for n in made if n <= largest] if isinstance(largest, int) and largest > 0 else made


def subtracts_graphs(launch: Launch, model: Model | None) -> bool:
    """True if the graph estimate comes off the KV budget.

    By default from 0.20.0, on request from 0.18.0 (VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS); the second model
    runner estimated nothing in 0.22.0 to 0.28.0.
    """
    release = launch.release
    if not since(release, "0.18.0"):
        return False
    asked = launch.env.get("VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS")
    if asked == "0" or (asked != "1" and not since(release, "0.20.0")):
        return False
    return since(release, "0.29.0") or not second_runner(launch, model)


def second_runner(launch: Launch, model: Model | None) -> bool:
    """True if the second model runner is likely in charge (vllm, config/vllm.py, use_v2_model_runner).

    0.22: dense Qwen3; 0.23: Llama and Mistral too, unquantised; 0.24: quantised too; 0.25 to 0.28: all dense
    generative models; 0.29.0 on: all.
    """
    release, asked = launch.release, launch.env.get("VLLM_USE_V2_MODEL_RUNNER")
    if asked in ("0", "1"):
        return asked == "1"
    if since(release, "0.29.0"):
        return True
    if not since(release, "0.22.0") or model is None or model.is_hybrid:
        return False
    if since(release, "0.25.0"):
        return model.num_experts == 0
    names = ("Qwen3For", "LlamaFor", "MistralFor") if since(release, "0.23.0") else ("Qwen3For",)
    plain = model.quantization is None or since(release, "0.24.0")
    return plain and (model.architecture or "").startswith(names)


def kv_cache(deployment: Deployment, tokens: int, spec: int) -> Cache:
    """The settings that shape the KV cache."""
    launch, model = deployment.launch, deployment.model
    return Cache(
        tp=max(1, launch.integer("tensor_parallel_size") or 1),
        pp=max(1, launch.integer("pipeline_parallel_size") or 1),
        dcp=max(1, launch.integer("decode_context_parallel_size") or 1),
        block_size=block_size(deployment), dtype=cache_dtype(launch, model), model_dtype=model_dtype(launch),
        max_num_batched_tokens=tokens, in_flight=in_flight(launch, model), hybrid=hybrid_manager(launch, model),
        mamba_mode=mamba_mode(launch, model),
        ssm_dtype=launch.text("mamba_ssm_cache_dtype") or (ssm_dtype(model) if model else "auto"),
        num_speculative_tokens=spec, num_gpu_blocks_override=launch.integer("num_gpu_blocks_override"),
    )  # fmt: skip


def model_dtype(launch: Launch) -> str:
    """fp32 only where it is asked for: "auto" casts fp32 checkpoints to half precision."""
    return "float32" if launch.text("dtype") in ("float32", "float") else "bfloat16"


def block_size(deployment: Deployment) -> int:
    """Tokens in a block: 16; MLA back ends on Hopper and data-centre Blackwell force 64 (0.8.0 on)."""
    launch, model = deployment.launch, deployment.model
    given = launch.integer("block_size")
    if given and given > 0:
        return given
    gpu = deployment.machine.gpu if deployment.machine else None
    major = gpu.capability[0] if gpu and gpu.capability else 9
    sparse = model is not None and any(layer.index_dim for layer in model.layers)
    latent = model is not None and model.is_mla and since(launch.release, "0.8.0")
    return 64 if sparse or (latent and major in (9, 10)) else 16


def cache_dtype(launch: Launch, model: Model | None) -> str:
    """The KV dtype. "auto" follows the model, or the checkpoint's own KV scheme (0.14.0+ ModelOpt, 0.17.0+ all)."""
    given = launch.text("kv_cache_dtype") or "auto"
    if given == "auto" and model is not None and model.kv_quantization and since(launch.release, "0.17.0"):
        return "nvfp4" if "nvfp4" in model.kv_quantization.lower() else "fp8"
    return given


def in_flight(launch: Launch, model: Model | None) -> int:
    """Batches scheduled at once: 2 with async scheduling on one stage, pp or pp + 1 on several (config/vllm.py)."""
    pp = max(1, launch.integer("pipeline_parallel_size") or 1)
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


def config(launch: Launch, name: str) -> dict[str, Any]:
    """A setting that is a JSON object; {} where it is none or not readable."""
    value: object = launch.get(name)
    if isinstance(value, str) and value.lstrip().startswith("{") and len(value) < 100_000:
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return {}
    return {str(key): item for key, item in value.items()} if isinstance(value, dict) else {}


def num_speculative_tokens(launch: Launch) -> int:
    """Draft tokens a step; 0 without speculation."""
    value = config(launch, "speculative_config").get(
        "num_speculative_tokens", launch.get("num_speculative_tokens")
    )
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 10_000 else 0


def speculative_method(launch: Launch) -> str | None:
    """The method of speculation as given; a draft model without one is "draft_model" (or an EAGLE head)."""
    given = config(launch, "speculative_config")
    method = given.get("method")
    if isinstance(method, str):
        return method
    model = given.get("model") or launch.get("speculative_model")
    if not isinstance(model, str):
        return None
    name = model.lower()
    return (
        "eagle3"
        if "eagle3" in name
        else "eagle"
        if "eagle" in name
        else name
        if "ngram" in name
        else "draft_model"
    )


def draft_layers(deployment: Deployment) -> tuple[Layer, ...]:
    """The attention layers that a draft head adds: an MTP head repeats the model's last attention layer; an EAGLE
    head is taken to look like it too. Unknown (empty) for separate draft models."""
    launch, model = deployment.launch, deployment.model
    method = speculative_method(launch)
    if model is None or not method or not num_speculative_tokens(launch):
        return ()
    attention = [layer for layer in model.layers if layer.kind in ("full", "mla", "sliding", "chunked")]
    if not attention:
        return ()
    full = [layer for layer in attention if layer.kind in ("full", "mla")] or attention
    if "mtp" in method:
        return (full[-1],) * max(1, min(model.num_nextn_layers or 1, 8))
    return (full[-1],) if method.startswith("eagle") else ()
