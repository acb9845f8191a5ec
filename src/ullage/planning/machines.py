"""The machine of a plan, asked and not named: "here", "ssh:HOST", or no --gpu where this one has GPUs."""

from __future__ import annotations

import os
import time
from functools import lru_cache

from msgspec.structs import replace

from ullage.core.deployment import Deployment, Reading
from ullage.core.errors import InputError
from ullage.core.ledger import Entry
from ullage.core.machine import Device, Machine
from ullage.core.report import Caution
from ullage.core.units import GIB, MIB, Measured, gib_text

#: memory of other processes that is worth a word: a display takes less
HELD = 512 * MIB
#: seconds for which what a probe found is taken for what is
FRESH_S = 20
#: variables that choose devices
CHOOSE = ("CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
_TOOLS = ("nvidia-smi", "rocm-smi")


def asked(name: str | None, environment: dict[str, str]) -> tuple[bool, Machine | None]:
    """(whether --gpu ``name`` asks a machine, what it is). ``environment`` is the launch's own (it chooses
    devices). Raises InputError where the machine that is named has no GPU or cannot be asked."""
    if name is None:
        return True, _if_any(environment)
    words = name.strip()
    if words.lower() == "here":
        return True, _found(_here(environment), "--gpu here")
    if words.lower().startswith("ssh:"):
        from ullage.hardware import probe

        host = words[4:].strip()
        return True, _found(probe.probe_ssh(host, environment=environment), f"--gpu ssh:{host[:60]}")
    return False, None


def _found(machine: Machine | None, where: str) -> Machine:
    if machine is None:
        raise InputError(
            "no GPU is found there, or none is visible", where=where,
            hint='nvidia-smi must work there; else name the GPUs: --gpu "8x H100"',
        )  # fmt: skip
    return machine


def _if_any(environment: dict[str, str]) -> Machine | None:
    """This machine where it has GPUs; a driver that does not answer is as none: nobody asked for it."""
    folders = os.environ.get("PATH", "").split(os.pathsep)
    if not any(os.access(f"{folder}/{tool}", os.X_OK) for folder in folders if folder for tool in _TOOLS):
        return None
    try:
        return _here(environment)
    except InputError:
        return None


def _here(environment: dict[str, str]) -> Machine | None:
    both = {**os.environ, **environment}
    chosen = tuple((name, both[name]) for name in CHOOSE if name in both)
    return _probed(chosen, int(time.monotonic() // FRESH_S))


@lru_cache(maxsize=1)
def _probed(environment: tuple[tuple[str, str], ...], moment: int) -> Machine | None:
    """This machine: many plans of one moment (a sweep) ask it once."""
    from ullage.hardware import probe

    return probe.probe(environment=dict(environment))


def fitted(deployment: Deployment, num_ranks: int) -> Deployment:
    """The deployment on the devices that its ranks take; what others hold on them is a reading for the engines
    that compare free memory with a share of the total."""
    machine = deployment.machine
    if machine is None or not machine.devices:
        return deployment
    from ullage.hardware.devices import narrowed

    first = max(0, deployment.launch.integer("base_gpu_id") or 0)
    machine = narrowed(machine, num_ranks, first)
    deployment = replace(deployment, machine=machine)
    gpu, name = machine.gpu, "free_at_start_gib"
    busy = any((device.used_bytes or 0) >= HELD for device in machine.devices[first : first + num_ranks])
    if not busy or gpu is None or gpu.free_bytes is None or gpu.unified_memory or name in deployment.readings:
        return deployment
    free = gpu.free_bytes
    step = round((free.high - free.low) / GIB, 3)
    reading = Reading(name, Measured(round(free.value / GIB, 3), step), machine.source)
    return replace(deployment, readings={**deployment.readings, name: reading})


def held(machine: Machine | None) -> Entry | None:
    """What other processes hold of the GPU that decides, as the ledger's first entry."""
    gpu = machine.gpu if machine is not None else None
    used = gpu.used_bytes if gpu is not None else None
    if used is None or used < HELD or machine is None:
        return None
    return Entry("init", "other processes", used, used, used, "observed", machine.source)


def cautions(machine: Machine | None) -> list[Caution]:
    """What other processes hold on the devices of a probed machine."""
    if machine is None or (machine.gpu is not None and machine.gpu.unified_memory):
        return []
    busy = [_busy(device) for device in machine.devices if (device.used_bytes or 0) >= HELD]
    more = f"; and {len(busy) - 8} more" if len(busy) > 8 else ""
    return [Caution("gpu-busy", "; ".join(busy[:8]) + more)] if busy else []


def _busy(device: Device) -> str:
    named = ", ".join(f"{process.name or '?'} (pid {process.pid})" for process in device.processes[:3])
    return f"GPU {device.index}: {gib_text(device.used_bytes or 0)} in use{f' by {named}' if named else ''}"
