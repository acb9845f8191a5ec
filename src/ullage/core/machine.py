"""Machine: the GPUs a launch runs on."""

from __future__ import annotations

from msgspec import Struct

from ullage.core.units import Band


class Gpu(Struct, frozen=True):
    """One GPU. ``total_bytes`` is what the driver reports; ``capability`` is (major, minor), as in SM 12.0.

    ``cuda_bytes`` is the total that CUDA gives a process (vLLM's total; 0.3-1.1 GiB below the driver's) and
    ``free_bytes`` what is free once an engine has its context, both with the limits seen in public logs.
    ``used_bytes`` is what other processes hold of it (of a probed GPU).
    """

    name: str
    total_bytes: int | None = None
    capability: tuple[int, int] | None = None
    vendor: str = "nvidia"
    unified_memory: bool = False
    source: str = ""
    cuda_bytes: Band | None = None
    free_bytes: Band | None = None
    used_bytes: int | None = None


class Process(Struct, frozen=True):
    """A process that holds memory of a GPU; its size is unknown under WSL."""

    pid: int
    name: str = ""
    used_bytes: int | None = None


class Device(Struct, frozen=True):
    """One GPU as its driver describes it now: total = reserved (driver and firmware) + used + free.

    ``mig_total_bytes`` and ``mig_free_bytes`` are those of its smallest MIG instance, where MIG is on. ``ecc``,
    ``mig`` and ``persistence`` are None where the card has no such mode.
    """

    index: int
    name: str
    uuid: str = ""
    total_bytes: int | None = None
    reserved_bytes: int | None = None
    used_bytes: int | None = None
    free_bytes: int | None = None
    capability: tuple[int, int] | None = None
    mig: bool | None = None
    ecc: bool | None = None
    persistence: bool | None = None
    bus_id: str = ""
    pcie_generation: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    mig_total_bytes: int | None = None
    mig_free_bytes: int | None = None
    processes: tuple[Process, ...] = ()


class Machine(Struct, frozen=True):
    """``count`` GPUs of one kind and the host around them, as far as known.

    What follows ``host_bytes`` is known of a probed machine only: ``devices`` are those that CUDA shows, in
    its order; ``gpu`` is then the one with the least free memory. ``cuda`` is the newest CUDA release that
    the driver takes, ``worst_link`` the slowest link between two GPUs as ``nvidia-smi topo -m`` names it.
    """

    gpu: Gpu | None = None
    count: int | None = None
    nvlink: bool | None = None
    host_bytes: int | None = None
    devices: tuple[Device, ...] = ()
    driver: str | None = None
    cuda: str | None = None
    wsl: bool = False
    worst_link: str | None = None
    source: str = ""
