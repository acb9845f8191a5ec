"""Machine: the GPUs a launch runs on."""

from __future__ import annotations

from msgspec import Struct

from ullage.core.units import Band


class Gpu(Struct, frozen=True):
    """One GPU. ``total_bytes`` is what the driver reports; ``capability`` is (major, minor), as in SM 12.0.

    ``cuda_bytes`` is the total that CUDA gives a process (vLLM's total; 0.3-1.1 GiB below the driver's) and
    ``free_bytes`` what is free once an engine has its context, both with the limits seen in public logs.
    """

    name: str
    total_bytes: int | None = None
    capability: tuple[int, int] | None = None
    vendor: str = "nvidia"
    unified_memory: bool = False
    source: str = ""
    cuda_bytes: Band | None = None
    free_bytes: Band | None = None


class Machine(Struct, frozen=True):
    """``count`` GPUs of one kind and the host around them, as far as known."""

    gpu: Gpu | None = None
    count: int | None = None
    nvlink: bool | None = None
    host_bytes: int | None = None
