"""An out-of-memory failure: the figures that the allocator prints, and where in the start it happened."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal

from msgspec import Struct

from ullage.core.finding import Case, Refuted
from ullage.core.units import GIB, MIB, parse_size
from ullage.engines.vllm.causes._case import gib, mib, ran, says

#: phrases of an allocation that failed on the device: torch's allocator (CUDA, HIP, XPU), the driver, cumem
OOM = (
    r"(?<!ray\.exceptions\.)OutOfMemoryError|(?:CUDA|HIP|XPU|NPU) out of memory"
    r"|(?:CUDA|HIP)(?: driver)? error: out of memory"
    r"|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation|hipErrorOutOfMemory"
    r"|CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_(?:ALLOC_FAILED|INTERNAL_ERROR_HOST_ALLOCATION_FAILED)"
    r"|HIPBLAS_STATUS_ALLOC_FAILED|cuMemCreate[^\n]*out of memory"
    r"|UR_RESULT_ERROR_OUT_OF_(?:DEVICE_)?(?:MEMORY|RESOURCES)|NVML_SUCCESS == r INTERNAL ASSERT"
)
#: the communicator's own allocation, made outside torch (NCCL 2.19-2.30, src/include/alloc.h)
NCCL_OOM = (
    r"Failed to CUDA (?:calloc|malloc|host alloc)(?: async)? \d+ bytes|Cuda failure (?:\d+ )?'out of memory'"
    r"|(?:NCCL WARN|ncclUnhandledCudaError|unhandled cuda error)[^\n]*out of memory"
)
_SIZE = r"([\d.]+ ?(?:[KMGT]i?B|bytes))"
_PARTS = {
    "tried": rf"Tried to allocate {_SIZE}",
    "total": rf"(?:total capacity of |[GNX]PU \d+; ){_SIZE}",
    "free": rf"(?:of which|allocated;|active;) {_SIZE}(?: is)? free",
    "process": rf"this process has {_SIZE} memory in use",
    "allocated": rf"(?:allocated memory|total capacity;) {_SIZE} (?:is allocated by PyTorch|already allocated)",
    "pools": rf"with {_SIZE} allocated in private pools",
    "unallocated": rf"{_SIZE} is reserved by PyTorch but unallocated",
}
_OTHER = re.compile(rf"Process \d+ has {_SIZE} memory in use")

Place = Literal[
    "device", "weights", "repack", "profile", "encoder", "workspace",
    "sampler", "capture", "kv_pool", "serving", "unknown",
]  # fmt: skip
#: frames that decide a place, the most particular in front (vLLM 0.6.0-0.33.0, both model runners)
_PLACES: tuple[tuple[Place, str], ...] = (
    ("sampler", r":_dummy_sampler_run|:_dummy_pooler_run|v1/sample/|worker/gpu/sample/|flashinfer/sampling"),
    ("encoder", r":(?:embed_multimodal|get_multimodal_embeddings|_execute_mm_encoder|_profile_multimodal"
                r"|profile_encoder_cudagraph\w*|_process_(?:image|video|audio)_input|get_image_features|get_cross_attention_states)$"
                r"|mm_encoder_attention|vit_attn_wrappers"
                r"|models/\S*(?:vit|siglip|clip|vision|pixtral|audio|whisper)\S*\.py:\w+$"),
    ("capture", r":(?:capture_model|_?capture_cudagraphs|_warmup_and_capture|graph_capture|capture_graph\w*"
                r"|_capture_\w*graph\w*)$|cudagraph_utils\.py:capture|compilation/cuda_?graph\.py"),
    ("repack", r":process_weights_after_loading$|:_?repack_\w+$"),
    ("weights", r"model_executor/model_loader/|:(?:load_model|create_weights|load_weights|initialize_model)$"),
    ("device", r":(?:init_device|set_device|_lazy_init|init_worker_distributed_environment)$"),
    ("kv_pool", r":(?:_allocate_kv_cache\w*|initialize_kv_cache\w*|allocate_kv_cache\w*|_init_cache_engine"
                r"|_reshape_kv_cache\w*|init_kv_cache\w*)$"),
    ("workspace", r"fused_moe|modular_kernel|v1/worker/workspace\.py|deep_gemm|:fused_experts|indexer"
                  r"|sparse_attn"),
    ("profile", r":(?:profile_run|determine_available_memory|determine_num_available_blocks"
                r"|profile_cudagraph_memory)$"),
    ("serving", r":(?:execute_model|run_busy_loop|_process_engine_step|step_with_batch_queue|engine_step"
                r"|wake_up)$"),
)  # fmt: skip
#: the place that a phase means where no frame tells it
_OF_PHASE: dict[str, Place] = {
    "init": "device", "weights": "weights", "profile": "profile", "kv_pool": "kv_pool",
    "graph_capture": "capture", "warmup": "sampler", "serving": "serving",
}  # fmt: skip


class Oom(Struct, frozen=True):
    """Bytes as the message prints them; None for a part that this build does not print."""

    tried: int | None = None
    total: int | None = None
    free: int | None = None
    process: int | None = None
    allocated: int | None = None
    pools: int | None = None
    unallocated: int | None = None
    named_others: int = 0

    @property
    def others(self) -> int | None:
        """Bytes that other processes hold: what is neither free nor this process's."""
        if self.total is None or self.free is None or self.process is None:
            return self.named_others or None
        return max(0, self.total - self.free - self.process)

    @property
    def story(self) -> str:
        """The figures in one sentence; empty where the message has none."""
        parts = []
        if self.tried is not None:
            parts.append(f"{mib(self.tried)} were asked for")
        if self.free is not None:
            parts.append(f"{mib(self.free)} were free")
        if self.total is not None and parts:
            parts.append(f"of {gib(self.total / GIB)} in all")
        return " ".join([", ".join(parts[:2]), *parts[2:]]).strip() + "." if parts else ""


def oom(case: Case) -> Oom | None:
    """The out-of-memory failure of the case; None where the root is another fault."""
    if not says(case, OOM) and not says(case, r"out of memory occurred when warming up"):
        return None
    text = _fullest(case)
    read = {name: _read(pattern, text) for name, pattern in _PARTS.items()}
    others = [parse_size(m) for m in _OTHER.findall(text)]
    if read["process"] is None and others:
        # inside a container the message names this process by its number on the host, and first
        read["process"], others = max(others), []
    return Oom(**read, named_others=sum(others))


def _fullest(case: Case) -> str:
    """The root failure's text; where it was shortened, that of the same failure printed again in full."""
    if _read(_PARTS["total"], case.text) is not None:
        return case.text
    tried = _read(_PARTS["tried"], case.text)
    for later in case.failures:
        text = f"{later.text}\n{later.message}"
        if _read(_PARTS["total"], text) is not None and tried in (None, _read(_PARTS["tried"], text)):
            return text
    return case.text


def _read(pattern: str, text: str) -> int | None:
    match = re.search(pattern, text)
    try:
        return parse_size(match[1]) if match else None
    except ValueError:
        return None


def place(case: Case) -> Place:
    """Where the failure happened: by its frames, else by the phase."""
    if says(case, r"out of memory occurred when warming up", anywhere=True):
        return "sampler"
    for name, pattern in _PLACES:
        if ran(case, pattern):
            return _serving_or(name, case)
    return _OF_PHASE.get(case.phase or "", "unknown")


def _serving_or(name: Place, case: Case) -> Place:
    """A kernel's frames tell the place only within the start; under load everything is serving."""
    under_load = case.phase == "serving" or (
        ran(case, r":(?:run_busy_loop|_process_engine_step)$") and not ran(case, r":_initialize_kv_caches$")
    )
    if under_load:
        return "serving"
    if name == "serving" and ran(case, r":(?:compile_or_warm_up_model|determine_available_memory)$"):
        return _OF_PHASE.get(case.phase or "", "sampler")
    if name == "workspace" and case.phase not in (None, "profile", "args", "init"):
        return _OF_PHASE.get(case.phase or "", "workspace")
    return name


def graphs_follow(case: Case) -> bool:
    """True if the pool is in place: lowering the share frees memory for what comes after it."""
    return case.phase in ("graph_capture", "warmup", "serving") or bool(
        case.run.figures("kv_tokens") or case.run.figures("gpu_blocks") or case.run.figures("graphs_gib")
    )


def not_these(case: Case, failure: Oom) -> Iterator[Refuted]:
    """What people suspect, each with the figure that rules it out."""
    if failure.unallocated is not None and failure.tried is not None and failure.unallocated < failure.tried:
        yield Refuted(
            "fragmentation",
            f"only {mib(failure.unallocated)} are reserved and unused, {mib(failure.tried)} were asked for",
        )
    if failure.others is not None and failure.total is not None and failure.others < 256 * MIB:
        yield Refuted(
            "another process on the card",
            f"this process holds {gib((failure.process or 0) / GIB)} of {gib(failure.total / GIB)}; "
            f"others have at most {mib(failure.others)}",
        )
    if failure.pools is not None and failure.tried is not None and failure.pools < 256 * MIB:
        yield Refuted("CUDA graphs fill the card", f"the graph pools hold {mib(failure.pools)}")


def crowded(failure: Oom) -> bool:
    """True if other processes hold a quarter of the card or more."""
    return failure.total is not None and (failure.others or 0) >= 0.25 * failure.total


def roomy(failure: Oom) -> bool:
    """True if more than twice of what was asked for is reported free: the device refused for another reason
    than its size (a limit on the process, or a driver that cannot make the memory resident)."""
    return failure.free is not None and failure.tried is not None and failure.free > 2 * failure.tried


def shared_with(failure: Oom) -> list[str]:
    """The contributing cause where other processes hold a noticeable part of the card."""
    return ["other-process-on-gpu"] if (failure.others or 0) >= 512 * MIB else []
