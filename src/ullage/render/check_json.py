"""A check's answer to JSON (schema ullage.check/1). GiB here, bytes inside."""

from __future__ import annotations

import msgspec

from ullage.core.machine import Device
from ullage.core.secrets import masked, masked_value
from ullage.core.units import GIB
from ullage.hardware.check import CheckFinding, Facts
from ullage.hardware.environment import Installed
from ullage.hardware.host import UNLIMITED, Figure, Host, Word
from ullage.planning.checks import Checked
from ullage.render.json import Json

CHECK = "ullage.check/1"


def check(found: Checked) -> bytes:
    """The answer of ``check`` as one JSON object, with a newline at its end."""
    return msgspec.json.format(msgspec.json.encode(check_object(found)), indent=2) + b"\n"


def check_object(found: Checked) -> Json:
    known = found.facts
    machine = known.machine
    return {
        "schema": CHECK,
        "source": known.outputs.source,
        "outcome": "stops"
        if any(f.severity == "stops" for f in found.findings)
        else "ok"
        if known.devices
        else "unknown",
        "gpus": [_gpu(_whole(device, known), known) for device in known.devices],
        "visible": [device.index for device in machine.devices] if machine is not None else [],
        "capability": list(known.capability) if known.capability else None,
        "unified_memory": machine.gpu.unified_memory
        if machine is not None and machine.gpu is not None
        else None,
        "vendor": None if not known.devices else "amd" if known.amd else "nvidia",
        "driver": known.driver,
        "driver_cuda": known.cuda,
        "links": _links(known),
        "host": _host(known.host),
        "software": _software(known.installed),
        "variables": {name: masked_value(name, value) for name, value in sorted(known.variables.items())},
        "findings": [_finding(finding) for finding in found.findings],
        "engine": found.engine,
        "backends": [
            {
                "name": b.name,
                "result": b.result,
                "message": b.message or None,
                "text": b.text or None,
                "source": b.source,
            }
            for b in found.backends
        ],
        "missing": list(known.missing),
        "left_out": list(known.outputs.left_out),
    }


def _gpu(device: Device, known: Facts) -> Json:
    card = known.of_card(device.index)
    now = card.number("pci/gpu link info/pcie generation/current") if card is not None else None
    state = card.first("performance state") if card is not None else None
    return {
        "index": device.index,
        "name": device.name,
        "total_gib": _gib(device.total_bytes),
        "free_gib": _gib(device.free_bytes),
        "used_gib": _gib(device.used_bytes),
        "capability": list(device.capability) if device.capability else None,
        "ecc": device.ecc,
        "mig": device.mig,
        "persistence": device.persistence,
        "bus_id": device.bus_id or None,
        "pcie": {
            "generation": int(now) if now else None,
            "generation_max": device.pcie_generation,
            "width": device.pcie_width,
            "width_max": device.pcie_width_max,
        },
        "state": state.text if state is not None else None,
        "lowered": [name for name, _ in card.active()] if card is not None else [],
        "processes": [
            {"pid": p.pid, "name": masked(p.name), "used_gib": _gib(p.used_bytes)} for p in device.processes
        ],
    }


def _whole(device: Device, known: Facts) -> Device:
    """The device with the memory that it shares with the host, where it has none of its own."""
    devices = known.machine.devices if known.machine is not None else ()
    return next((one for one in devices if one.index == device.index), device)


def _gib(num_bytes: int | None) -> float | None:
    return round(num_bytes / GIB, 3) if num_bytes is not None else None


def _links(known: Facts) -> Json | None:
    links = known.links
    if links is None:
        return None
    return {
        "gpus": list(links.gpus),
        "matrix": [list(row) for row in links.links],
        "worst": links.worst_link,
        "nvlink_mesh": links.nvlink_mesh,
        "nics": list(links.nics),
        "numa": list(links.numa),
        "p2p": [{"gpus": [pair.one, pair.other], "says": pair.says} for pair in known.p2p],
    }


def _host(host: Host) -> Json:
    return {
        "kernel": _word(host.kernel),
        "wsl": host.wsl,
        "cpu": _word(host.cpu),
        "architecture": _word(host.architecture),
        "hypervisor": _word(host.hypervisor),
        "memory_gib": _size(host.total),
        "available_gib": _size(host.available),
        "hugepages_gib": _size(host.hugepages),
        "container_gib": _size(host.cgroup),
        "shm_gib": _size(host.shm),
        "memlock_gib": _size(host.memlock),
        "open_files": host.nofile.value if host.nofile else None,
        "stack_gib": _size(host.stack),
        "iommu": host.iommu,
        "governor": _word(host.governor),
        "numa_nodes": host.numa_nodes.value if host.numa_nodes else None,
        "nvcc": _word(host.nvcc),
        "kernel_module": _word(host.module),
        "fabric_manager": _word(host.fabric_manager),
    }


def _word(word: Word | None) -> str | None:
    return word.text if word is not None else None


def _size(figure: Figure | None) -> float | str | None:
    if figure is None:
        return None
    return "unlimited" if figure.value >= UNLIMITED else _gib(figure.value)


def _software(installed: Installed | None) -> Json | None:
    if installed is None:
        return None
    return {
        "source": installed.source,
        "python": installed.python,
        "cuda": installed.cuda,
        "packages": {name: package.version for name, package in sorted(installed.packages.items())},
        "notes": list(installed.notes),
    }


def _finding(finding: CheckFinding) -> Json:
    return {
        "id": finding.id,
        "severity": finding.severity,
        "text": finding.text,
        "remedy": finding.remedy,
        "message": finding.message or None,
        "source": finding.source,
        "evidence": [{"file": e.file, "line": e.line or None, "text": e.text} for e in finding.evidence],
    }
