"""Machine: the GPUs a launch runs on."""

from __future__ import annotations

from msgspec import Struct


class Gpu(Struct, frozen=True):
    """One GPU. ``total_bytes`` is what the driver reports; ``capability`` is (major, minor), as in SM 12.0."""

    name: str
    total_bytes: int | None = None
    capability: tuple[int, int] | None = None
    vendor: str = "nvidia"
    unified_memory: bool = False
    source: str = ""


class Machine(Struct, frozen=True):
    """``count`` GPUs of one kind and the host around them, as far as known."""

    gpu: Gpu | None = None
    count: int | None = None
    nvlink: bool | None = None
    host_bytes: int | None = None
