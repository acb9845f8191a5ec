"""What a deployment runs with: each setting as given, as the log says, or as the release would choose."""

from __future__ import annotations

import re
from typing import Literal

from msgspec import Struct
from packaging.version import Version

from ullage.core.deployment import Deployment
from ullage.core.launch import Launch
from ullage.core.machine import Gpu
from ullage.core.model import Layer, Model
from ullage.core.patterns import lazy
from ullage.core.units import GIB, Band
from ullage.engines.vllm import defaults
from ullage.engines.vllm.drafts import draft_layers
from ullage.engines.vllm.kv_settings import kv_cache
from ullage.engines.vllm.kv_specs import Cache
from ullage.engines.vllm.options import (
    as_length,
    config,
    count,
    num_speculative_tokens,
    second_runner,
    since,
    size,
    speculative_method,
)

Core = Literal["V0", "V1"]


class Settings(Struct, frozen=True):
    """The settings that memory depends on. None where neither the launch nor a default tells.

    ``graph_sizes`` is empty without CUDA graphs; ``subtracts_graphs`` says whether the estimate comes off the
    budget; ``marlin`` that 4-bit experts run through Marlin; ``unified`` that GPU and host share their memory,
    ``ampere`` that the GPU is older than SM90; ``expert_ways`` counts the ranks that share one expert;
    ``unknown`` names what was assumed for want of knowledge.
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
    marlin: bool = False
    unified: bool = False
    ampere: bool = False
    expert_ways: int = 1
    length_given: bool = True
    draft: tuple[Layer, ...] = ()
    unknown: tuple[str, ...] = ()

    @property
    def num_graphs(self) -> tuple[int, ...]:
        """Graphs of each mode: piecewise for all sizes, and full ones for batches of decodes only, which have
        at most max_num_seqs x (1 + speculative tokens) tokens (v1/cudagraph_dispatcher.py, 0.11.0 on)."""
        decode = self.max_num_seqs * (1 + self.cache.num_speculative_tokens)
        full = sum(1 for size in self.graph_sizes if size <= decode)
        return (len(self.graph_sizes), full) if self.full_graphs else (len(self.graph_sizes),)


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
    given = given if given is not None and 0 < given < 10 else None
    spec, unknown = num_speculative_tokens(launch), []
    draft = draft_layers(deployment)
    gpu = deployment.machine.gpu if deployment.machine else None
    if spec and not draft and speculative_method(launch) not in ("ngram", "suffix", "[ngram]"):
        unknown.append("the draft model's layers")
    return Settings(
        release, core, given if given is not None else defaults.UTILIZATION.at(release)(), given is not None,
        total, length, auto_fit, tokens, seqs, kv_cache(deployment, tokens, spec), not graphs,
        graphs and since(release, "0.11.0") and mode != "PIECEWISE",
        tuple(graph_sizes(deployment, core, seqs, tokens, spec)) if graphs else (),
        graphs and subtracts_graphs(launch, deployment.model), count(launch, "kv_cache_memory_bytes"),
        marlin=marlin(deployment), unified=gpu is not None and gpu.unified_memory,
        ampere=gpu is not None and gpu.capability is not None and gpu.capability < (9, 0),
        expert_ways=1 if launch.flag("enable_expert_parallel") else size(launch, "tensor"),
        length_given=length_given(deployment), draft=draft, unknown=tuple(unknown),
    )  # fmt: skip


def total_bytes(deployment: Deployment) -> Band | None:
    """Bytes of the device as CUDA reports them: a reading, else the GPU's row, else a little under its
    product size."""
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
    if {"cpu_blocks", "peak_torch_gib"} & deployment.readings.keys() or launch.env.get("VLLM_USE_V1") == "0":
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


def length_given(deployment: Deployment) -> bool:
    """True if the length in force is known: typed, printed, or left to the model by a whole command line."""
    if deployment.reading("max_concurrency_len") or deployment.reading("max_len"):
        return True
    return deployment.launch.get("max_model_len") is not None or deployment.launch.command is not None


def batch_limits(deployment: Deployment, core: Core, total: Band | None, length: int | None) -> tuple[int, int]:
    """(max_num_batched_tokens, max_num_seqs). Defaults by release and GPU, then the engine's adjustments:

    chunked prefill off: tokens at least L; tokens <= seqs * L (0.11.1+); seqs <= tokens (0.10.1+).
    """
    launch, release = deployment.launch, deployment.launch.release
    tokens, seqs = count(launch, "max_num_batched_tokens"), count(launch, "max_num_seqs")
    gpu = deployment.machine.gpu if deployment.machine else None
    size_seen = 0 if carved_out(gpu, release) or unread(gpu, release) else int(total.value) if total else 0
    device = defaults.Device(gpu.name if gpu else "", size_seen, gpu.capability if gpu else None)
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


def marlin(deployment: Deployment) -> bool:
    """True where 4-bit experts surely run through Marlin: as asked, or for want of FP4 hardware below SM100."""
    gpu = deployment.machine.gpu if deployment.machine else None
    older = gpu is not None and gpu.capability is not None and gpu.capability < (10, 0)
    return older or deployment.launch.text("moe_backend") == "marlin"


_APU = lazy(r"unified|ryzen|strix|radeon 8\d\d\ds", re.IGNORECASE)


def carved_out(gpu: Gpu | None, release: Version | None) -> bool:
    """True for an AMD part that shares the host's memory: the batch defaults go by the VRAM that amdsmi names,
    a small carve-out, though PyTorch may use far more (0.24.0 on, platforms/rocm.py,
    get_device_total_memory)."""
    if gpu is None or not since(release, "0.24.0"):
        return False
    amd = gpu.vendor == "amd" or re.search(r"\b(?:amd|rocm|radeon)\b", gpu.name, re.IGNORECASE) is not None
    return amd and (gpu.unified_memory or _APU.search(gpu.name) is not None)


def unread(gpu: Gpu | None, release: Version | None) -> bool:
    """True for a GB10 before 0.33.0: NVML does not tell its memory, and the batch defaults are those of a small
    GPU (engine/arg_utils.py, get_batch_defaults, catches the error; "max_num_batched_tokens=2048" in logs)."""
    return gpu is not None and gpu.capability == (12, 1) and not since(release, "0.33.0")


def graph_sizes(deployment: Deployment, core: Core, seqs: int, tokens: int, spec: int) -> list[int]:
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
    if core == "V0":
        return defaults.v0_graph_sizes(seqs)
    gpu = deployment.machine.gpu if deployment.machine else None
    family = gpu.capability[0] * 10 if gpu and gpu.capability else 90
    largest = (
        compilation.get("max_cudagraph_capture_size")
        or count(launch, "max_cudagraph_capture_size")
        or (sizes or [0])[0]
    )
    asked = min(largest, 1 << 16) if isinstance(largest, int) and largest > 0 else None
    return defaults.graph_sizes(launch.release, seqs, tokens, spec, family, asked)


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
