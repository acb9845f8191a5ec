"""Devices of a probe -> the Machine that an engine meets: which it sees, in which order, what is free."""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec.structs import replace

from ullage.core.machine import Device, Gpu, Machine
from ullage.core.units import GIB, MIB, Band
from ullage.hardware import gpus
from ullage.hardware.smi import Described
from ullage.hardware.topology import Topology

#: what a CUDA context of an engine takes, where the GPU's row does not tell (public logs)
CONTEXT = Band(0.45 * GIB, 0.25 * GIB, 0.9 * GIB)
#: CUDA's total is the driver's less what it reserves, to within what logs round
ROUNDED = 20 * MIB
#: a total that differs more from the row's is of another card of that name (a rebuilt one, a vGPU)
_ALIKE = 0.03


def machine_of(
    found: Described, environment: Mapping[str, str], memory: tuple[int, int] | None,
    links: Topology | None, source: str,
) -> Machine | None:  # fmt: skip
    """The machine of those devices that ``environment`` leaves visible; ``memory`` is the host's (total,
    available) in bytes. None where no device is left."""
    devices = visible(found.devices, environment)
    if not devices:
        return None
    devices = tuple(_unified(device, memory) for device in devices)
    of_these = links.of(tuple(device.index for device in devices)) if links is not None else None
    machine = Machine(
        count=len(devices), host_bytes=memory[0] if memory else None, devices=devices, driver=found.driver,
        cuda=found.cuda, worst_link=of_these.worst_link if of_these else None, source=source,
    )  # fmt: skip
    linked = of_these.nvlink_mesh if of_these is not None and of_these.pairs else None
    return replace(_decided(machine), nvlink=linked)


def narrowed(machine: Machine, num_ranks: int, first: int = 0) -> Machine:
    """The machine for ``num_ranks`` ranks from its device ``first`` on: the least free of those decides."""
    used = machine.devices[first : first + num_ranks]
    if not used or num_ranks < 1:
        return machine
    decided = _decided(replace(machine, devices=used))
    return replace(decided, devices=machine.devices, count=len(machine.devices))


def _decided(machine: Machine) -> Machine:
    """The machine with the GPU that has the least free memory: the engines take the minimum over ranks."""
    known = [(gpu_of(device, machine.source), device) for device in machine.devices]
    gpu = min((gpu for gpu, _ in known), key=lambda g: g.free_bytes.value if g.free_bytes else float("inf"))
    row = gpus.find(gpu.name)
    return replace(
        machine, gpu=gpu, nvlink=machine.nvlink if machine.nvlink is not None else row and row.nvlink
    )


def visible(devices: tuple[Device, ...], environment: Mapping[str, str]) -> tuple[Device, ...]:
    """The devices that CUDA shows, in its order: fastest first unless CUDA_DEVICE_ORDER=PCI_BUS_ID (among alike
    ones that is the order of nvidia-smi), then as CUDA_VISIBLE_DEVICES (AMD: HIP_, ROCR_) lists them, by number
    or by the start of the UUID. As in CUDA, the list ends before the first entry that names no device."""
    if environment.get("CUDA_DEVICE_ORDER", "").upper() != "PCI_BUS_ID":
        devices = tuple(sorted(devices, key=lambda device: (-_speed(device), device.index)))
    names = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
    listed = next((environment[name] for name in names if name in environment), None)
    if listed is None:
        return devices
    shown: list[Device] = []
    for entry in listed[:8192].split(","):
        device = _named(devices, entry.strip())
        if device is None or device in shown:
            break
        shown.append(device)
    return tuple(shown)


def _speed(device: Device) -> float:
    """Larger is faster, as far as capability and memory tell."""
    major, minor = device.capability or (0, 0)
    return round((device.total_bytes or 0) / GIB) + (major + minor / 10) / 1000


def _named(devices: tuple[Device, ...], entry: str) -> Device | None:
    if re.fullmatch(r"\d{1,4}", entry, re.ASCII):
        return devices[int(entry)] if int(entry) < len(devices) else None
    alike = [device for device in devices if len(entry) > 4 and device.uuid.startswith(entry)]
    if not alike and entry.startswith("MIG-"):
        alike = [device for device in devices if device.mig]
    return alike[0] if len(alike) == 1 else None


def _unified(device: Device, memory: tuple[int, int] | None) -> Device:
    """A GPU whose memory is the host's (GB10, Thor, Orin) reports none of its own: both engines then take what
    the host has available."""
    row = gpus.find(device.name)
    shares = row is not None and row.gpu is not None and row.gpu.unified_memory
    if device.total_bytes or not shares or memory is None:
        return device
    total, available = memory
    return replace(device, total_bytes=total, used_bytes=total - available, free_bytes=available)


def gpu_of(device: Device, source: str) -> Gpu:
    """The GPU as planned with: the table's row under the name, corrected by what the driver says."""
    found = gpus.find(device.name)
    row = found.gpu if found is not None and found.gpu is not None else Gpu(device.name)
    if device.mig and device.mig_total_bytes:
        device = replace(device, total_bytes=device.mig_total_bytes, reserved_bytes=None,
                         used_bytes=None, free_bytes=device.mig_free_bytes)  # fmt: skip
    total = device.total_bytes or row.total_bytes
    alike = bool(total and row.total_bytes and abs(total - row.total_bytes) <= _ALIKE * total)
    if not alike:
        row = replace(row, cuda_bytes=None if device.total_bytes else row.cuda_bytes,
                      free_bytes=None if device.total_bytes else row.free_bytes)  # fmt: skip
    whole = _whole(device, row, total)
    return replace(
        row, name=device.name, total_bytes=total, capability=device.capability or row.capability,
        cuda_bytes=whole, free_bytes=_free(device, row), used_bytes=device.used_bytes, source=source,
    )  # fmt: skip


def _whole(device: Device, row: Gpu, total: int | None) -> Band | None:
    """What CUDA calls the total: the driver's less its reserve; unified memory is whole; else the row's."""
    if device.total_bytes and device.reserved_bytes is not None:
        value = device.total_bytes - device.reserved_bytes
        return Band(value, value - ROUNDED, value + ROUNDED)
    if row.unified_memory and total:
        return Band(total, total - ROUNDED, total)
    return row.cuda_bytes or (Band(total * 0.99, total * 0.975, total) if total else None)


def _free(device: Device, row: Gpu) -> Band | None:
    """Free now, less the context that the engine's own process will take (estimated)."""
    if device.free_bytes is None:
        return row.free_bytes
    context = CONTEXT
    if row.free_bytes is not None and row.cuda_bytes is not None and not row.unified_memory:
        whole, idle = row.cuda_bytes, row.free_bytes
        context = Band(max(0, whole.value - idle.value), max(0, whole.low - idle.high), whole.high - idle.low)
    free = device.free_bytes
    return Band(max(0, free - context.value), max(0, free - context.high), max(0, free - context.low))
