"""NVML through nvidia-ml-py (the extra "gpu"): the same facts as nvidia-smi, without starting a process."""

from __future__ import annotations

import importlib
import threading
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from ullage.core.machine import Device, Process
from ullage.hardware.smi import MOST_DEVICES, MOST_PROCESSES, Described

T = TypeVar("T")
#: nvmlMemory_v2 of nvml.h, for bindings that do not name it: it tells reserved memory apart from used
MEMORY_V2 = 0x02000028


def library() -> Any | None:
    """The binding, or None where it is not installed."""
    with warnings.catch_warnings(), suppress(Exception):
        warnings.simplefilter("ignore")
        return importlib.import_module("pynvml")
    return None


def described(nvml: Any, seconds: float) -> Described | None:
    """The devices, or None where NVML cannot say, or not within ``seconds``: a driver that hangs holds its
    caller, so that it is asked from a thread of its own, which ends with the process."""
    found: list[Described] = []

    def ask() -> None:
        with suppress(Exception):
            nvml.nvmlInit()
            try:
                found.append(_described(nvml))
            finally:
                nvml.nvmlShutdown()

    asking = threading.Thread(target=ask, name="nvml", daemon=True)
    asking.start()
    asking.join(seconds)
    return found[0] if found and found[0].devices else None


def _described(nvml: Any) -> Described:
    count = min(int(nvml.nvmlDeviceGetCount()), MOST_DEVICES)
    devices = tuple(_device(nvml, index, nvml.nvmlDeviceGetHandleByIndex(index)) for index in range(count))
    cuda = _try(lambda: int(nvml.nvmlSystemGetCudaDriverVersion()))
    version = f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else None
    return Described(devices, _text(_try(nvml.nvmlSystemGetDriverVersion)) or None, version)


def _device(nvml: Any, index: int, handle: Any) -> Device:
    memory = _try(lambda: nvml.nvmlDeviceGetMemoryInfo(handle, version=MEMORY_V2))
    memory = memory or _try(lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
    capability = _try(lambda: tuple(map(int, nvml.nvmlDeviceGetCudaComputeCapability(handle))))
    mig = _first(_try(lambda: nvml.nvmlDeviceGetMigMode(handle)))
    instances = _instances(nvml, handle) if mig else []
    pci = _try(lambda: nvml.nvmlDeviceGetPciInfo(handle))
    persistence = _try(lambda: nvml.nvmlDeviceGetPersistenceMode(handle))
    return Device(
        index, _text(nvml.nvmlDeviceGetName(handle)), _text(_try(lambda: nvml.nvmlDeviceGetUUID(handle))),
        _size(memory, "total"), _size(memory, "reserved"), _size(memory, "used"), _size(memory, "free"),
        capability if capability and len(capability) == 2 else None, mig,
        _first(_try(lambda: nvml.nvmlDeviceGetEccMode(handle))),
        None if persistence is None else bool(persistence),
        _text(getattr(pci, "busId", "")), _try(lambda: int(nvml.nvmlDeviceGetMaxPcieLinkGeneration(handle))),
        _try(lambda: int(nvml.nvmlDeviceGetCurrPcieLinkWidth(handle))),
        _try(lambda: int(nvml.nvmlDeviceGetMaxPcieLinkWidth(handle))),
        min((size for size, _ in instances), default=None), min((free for _, free in instances), default=None),
        _processes(nvml, handle),
    )  # fmt: skip


def _instances(nvml: Any, handle: Any) -> list[tuple[int, int]]:
    """(total, free) of each MIG instance, in bytes."""
    found = []
    for number in range(min(_try(lambda: int(nvml.nvmlDeviceGetMaxMigDeviceCount(handle))) or 0, 16)):
        with suppress(Exception):
            memory = nvml.nvmlDeviceGetMemoryInfo(nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number))
            found.append((int(memory.total), int(memory.free)))
    return found


def _processes(nvml: Any, handle: Any) -> tuple[Process, ...]:
    found = []
    for entry in (_try(lambda: nvml.nvmlDeviceGetComputeRunningProcesses(handle)) or [])[:MOST_PROCESSES]:
        pid = int(entry.pid)
        name = _text(_try(lambda pid=pid: nvml.nvmlSystemGetProcessName(pid)))  # type: ignore[misc]
        found.append(Process(pid, name, entry.usedGpuMemory))
    return tuple(found)


def _try(ask: Callable[[], T]) -> T | None:
    """What NVML answers, or None where this card or driver has no answer: that is its usual way to say N/A."""
    with suppress(Exception):
        return ask()
    return None


def _first(modes: Any) -> bool | None:
    """The current one of (current, pending)."""
    return bool(modes[0]) if modes else None


def _size(memory: Any, name: str) -> int | None:
    value = getattr(memory, name, None)
    return int(value) if value is not None else None


def _text(value: Any) -> str:
    """Old bindings give bytes."""
    text = value.decode("ascii", "replace") if isinstance(value, bytes) else str(value or "")
    return "".join(c if " " <= c <= "~" else " " for c in text[:200]).strip()
