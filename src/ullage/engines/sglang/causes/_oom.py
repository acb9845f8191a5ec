"""An allocation that failed on the GPU: its figures, and where in the start or the service it happened."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Literal

from msgspec import Struct

from ullage.core.finding import Case, Refuted
from ullage.core.run import Failure
from ullage.core.units import GIB, MIB, parse_size

#: the allocator of torch (CUDA, HIP, XPU, NPU), the driver, NCCL; not SGLang's own token pool ("Prefill out of
#: memory. Try to lower your batch size.") and not the host ("Cannot allocate memory")
_OOM = re.compile(
    r"(?:CUDA|HIP|XPU|NPU) out of memory|OutOfMemoryError|(?:CUDA|HIP|NPU)(?: driver)? error: out of memory"
    r"|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation|hipErrorOutOfMemory|CUBLAS_STATUS_ALLOC_FAILED"
    r"|\[CUDA\]: out of memory",
    re.IGNORECASE,
)
#: pinned host memory: CUDA says "out of memory", but the host refused the pages
_HOST = re.compile(r"memory_pool_host|pool_host/|:alloc_with_pin\w*|:alloc_with_host_register|cudaHost\w+")
_SIZE = r"([\d.]+ ?(?:[KMGT]i?B|bytes))"
_PARTS = {
    "asked": rf"Tried to allocate {_SIZE}",
    "total": rf"total capacity of {_SIZE}",
    "free": rf"of which {_SIZE} is free",
    "process": rf"(?:this process has|Process \d+ has) {_SIZE} memory in use",
    "torch": rf"Of the allocated memory {_SIZE} is allocated by PyTorch",
    "idle": rf"{_SIZE} is reserved by PyTorch but unallocated",
}

Place = Literal[
    "vision", "logits", "graphs", "draft", "load", "workspace", "pool", "prefill", "decode", "unknown"
]
#: frames "file:function" that decide a place, the most particular in front (SGLang 0.4.0-0.5.23)
_PLACES: tuple[tuple[Place, str], ...] = (
    ("graphs", r"(?:cuda|cpu)_graph_(?:runner|setup)\w*\.py|graph_runner\.py|:capture(?:_one_\w+)?$"
               r"|:init_(?:device|cuda)_graphs?$"
               r"|model_executor/runner/"),
    ("pool", r"mem_cache/|:init_memory_pool$|:_init_pools$|kv_cache_configurator|:_?create_\w*buffers?$"),
    ("workspace", r"layers/attention/\w+_backend\.py:(?:__init__|init_cuda_graph_state)"
                  r"|:init_attention_backend$"
                  r"|:_get_attention_backend\w*$"),
    ("load", r"model_loader/|:load_model$|:load_weights$|:create_weights$"
             r"|:process_weights_after_loading$|:initialize_model$"),
    ("vision", r":get_(?:image|video|audio)_feature|layers/attention/vision\.py|models/\w*(?:vit|vision"
               r"|siglip|clip|visual)\w*\.py"
               r"|:encode_(?:image|video)|:vision_tower|multimodal/|Vi(?:T|sion)"),
    ("logits", r"logits_processor\.py|layers/sampler\.py|:_get_logits|:compute_\w*logprobs"),
    ("prefill", r":forward_extend|:forward_split_prefill|:_?prefill|vocab_parallel_embedding\.py"
                r"|:forward_batch_embedding"),
    ("decode", r":forward_decode|:forward_idle|:draft_forward|:verify$"),
)  # fmt: skip
_DRAFT = re.compile(
    r"speculative/|eagle\w*worker|draft_worker|multi_layer_eagle|:init_draft|dflash", re.IGNORECASE
)
_OF_PHASE: dict[str, Place] = {
    "init": "load", "weights": "load", "kv_pool": "pool", "graph_capture": "graphs",
    "warmup": "prefill", "serving": "unknown",
}  # fmt: skip


class Oom(Struct, frozen=True):
    """Bytes as the message prints them (None: not printed), the place, and whether the draft worker was at
    work."""

    asked: int | None = None
    total: int | None = None
    free: int | None = None
    process: int | None = None
    torch: int | None = None
    idle: int | None = None
    place: Place = "unknown"
    draft: bool = False

    @property
    def lacking(self) -> int:
        """Bytes by which the allocation missed; 0 where the message does not tell."""
        return max(0, (self.asked or 0) - (self.free or 0)) if self.asked is not None else 0

    @property
    def story(self) -> str:
        """The figures in a sentence; empty where the message has none."""
        parts = [f"{size(self.asked)} were asked for"] if self.asked is not None else []
        if self.free is not None:
            parts.append(f"{size(self.free)} were free")
        text = ", ".join(parts)
        if text and self.total is not None:
            text += f" of {size(self.total)} in all"
        return f"{text}. " if text else ""


def size(num_bytes: float) -> str:
    """Bytes for people: MiB below one GiB."""
    return f"{num_bytes / MIB:,.0f} MiB" if abs(num_bytes) < GIB else f"{num_bytes / GIB:,.2f} GiB"


def oom(case: Case) -> Oom | None:
    """The GPU allocation that failed, or None where the root is another fault.

    A process may report the same shortage twice (an asynchronous error first): the report with figures counts.
    """
    if case.root is None or not _OOM.search(case.text):
        return None
    reports = [case.root, *(f for f in case.failures if not f.cascade and _OOM.search(_text(f)))]
    best = next((f for f in reports if "Tried to allocate" in _text(f)), case.root)
    text = _text(best)
    frames = _frames(best) or case.frames
    if _HOST.search(frames) and "Tried to allocate" not in text:
        return None
    return Oom(
        **{name: _read(pattern, text) for name, pattern in _PARTS.items()},
        place=_place(frames, case), draft=bool(_DRAFT.search(frames)),
    )  # fmt: skip


def _text(failure: Failure) -> str:
    trace = failure.trace
    texts = [failure.text, failure.message]
    while trace is not None:
        texts.append(trace.text)
        trace = trace.cause
    return "\n".join(texts)


def _frames(failure: Failure) -> str:
    lines, trace = [], failure.trace
    while trace is not None:
        lines += [f"{frame.file}:{frame.function}" for frame in trace.frames]
        trace = trace.cause
    return "\n".join(lines)


def _read(pattern: str, text: str) -> int | None:
    match = _compiled(pattern).search(text)
    try:
        return parse_size(match[1]) if match else None
    except ValueError:
        return None


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.MULTILINE)


def _place(frames: str, case: Case) -> Place:
    """By the frames; "Capture cuda graph failed" wraps whatever failed in it; else by the phase."""
    if re.search(r"Capture [\w ]*graph failed|CUDA graph failed", case.text):
        return "graphs"
    for name, pattern in _PLACES:
        if _compiled(pattern).search(frames) and not (name in ("pool", "graphs", "load") and _serves(case)):
            return name
    return _OF_PHASE.get(case.phase or "", "unknown")


def _serves(case: Case) -> bool:
    """True if requests are being served: then mem_cache and graph frames are those of a step."""
    return case.phase == "serving"


def not_these(failure: Oom) -> Iterator[Refuted]:
    """What people suspect, with the figure that rules it out."""
    if failure.idle is not None and failure.asked is not None and failure.idle < failure.asked:
        yield Refuted(
            "fragmentation",
            f"{size(failure.idle)} are reserved and unused, less than the {size(failure.asked)} asked for",
        )
    if failure.total is not None and failure.free is not None and failure.process is not None:
        others = failure.total - failure.free - failure.process
        if others < 256 * MIB:
            yield Refuted(
                "another process on the card",
                f"this process holds {size(failure.process)}, {size(failure.free)} are free of "
                f"{size(failure.total)}",
            )
    yield Refuted("host memory (the OOM killer)", "the message is CUDA's; a kill by the kernel prints none")
