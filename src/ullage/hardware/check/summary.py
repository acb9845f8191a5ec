"""The machine in a dozen lines: what is known of it, in words, whatever is wrong with it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from msgspec import Struct

from ullage.core.machine import Device
from ullage.core.units import GIB, gib_text
from ullage.hardware.check.facts import Facts
from ullage.hardware.check.gpus import numbers
from ullage.hardware.check.host import size_text
from ullage.hardware.check.software import cuda_of
from ullage.hardware.environment import Installed, parts
from ullage.hardware.host import UNLIMITED, Host
from ullage.hardware.p2p import refused
from ullage.hardware.topology import DISTANCES

_IOMMU = {"off": "IOMMU off", "passthrough": "IOMMU passes through", "translated": "IOMMU translates"}


class Row(Struct, frozen=True):
    """A line of the summary."""

    name: str
    text: str


def machine(known: Facts) -> tuple[Row, ...]:
    """GPUs, links and host, as far as they are known."""
    rows = (
        ("GPUs", _gpus(known)), ("memory", _memory(known)), ("PCIe", _pcie(known)), ("links", _links(known)),
        ("P2P", _p2p(known)), ("now", _now(known)), ("driver", _driver(known)), ("host", _host(known.host)),
        ("limits", _limits(known.host)),
        ("nvcc", f"CUDA {known.host.nvcc.text}" if known.host.nvcc else ""), ("variables", _variables(known)),
    )  # fmt: skip
    return tuple(Row(name, text) for name, text in rows if text)


def software(installed: Installed | None) -> tuple[Row, ...]:
    """The releases that matter, in the order of packages.toml."""
    if installed is None:
        return ()
    rows = [("Python", installed.python or "")]
    for part in parts().values():
        package = installed.of(part.id)
        if package is None or not part.shown:
            continue
        text = package.version
        if part.id == "torch" and (cuda := cuda_of(installed, package)) and "+" not in package.version:
            text += f" (for CUDA {cuda})"
        if package.where.startswith("what "):
            text += f", {package.where}"
        rows.append((part.name, text))
    if installed.cuda and installed.of("cuda") is None:
        rows.append(("CUDA toolkit", installed.cuda))
    return tuple(Row(name, text) for name, text in rows if text)


def title(known: Facts) -> str:
    """The GPUs in a few words."""
    if not known.devices:
        return "no GPU found"
    kinds = Counter(device.name for device in known.devices)
    return ", ".join(f"{count} x {name}" if len(known.devices) > 1 else name for name, count in kinds.items())


def _gpus(known: Facts) -> str:
    if not known.devices:
        return ""
    capability = known.capability
    architecture = f", SM{capability[0]}{capability[1]}" if capability else ""
    hidden = len(known.devices) - (len(known.machine.devices) if known.machine else 0)
    return title(known) + architecture + (f" ({hidden} hidden by CUDA_VISIBLE_DEVICES)" if hidden > 0 else "")


def _memory(known: Facts) -> str:
    devices = known.machine.devices if known.machine is not None else known.devices
    sized = [device for device in devices if device.total_bytes]
    if not sized:
        return ""
    each = " each" if len(sized) > 1 else ""
    words = [f"{_range([d.total_bytes or 0 for d in sized])}{each}"]
    free = [device.free_bytes for device in sized if device.free_bytes is not None]
    if free:
        words.append(f"{_range(free)} free")
    if known.machine is not None and known.machine.gpu is not None and known.machine.gpu.unified_memory:
        words.append("shared with the host")
    words += [text for text in (_mode(sized, "ecc", "ECC"), _mode(sized, "mig", "MIG")) if text]
    return ", ".join(words)


def _mode(devices: list[Device], field: str, name: str) -> str:
    """ "ECC on", "MIG on (GPU 3)"; nothing where no card has it, or MIG is off."""
    on = [device.index for device in devices if getattr(device, field)]
    if not on:
        off = any(getattr(device, field) is False for device in devices)
        return f"{name} off" if off and field == "ecc" else ""
    return f"{name} on" + (f" ({numbers(on)})" if len(on) < len(devices) else "")


def _range(sizes: list[int]) -> str:
    low, high = min(sizes), max(sizes)
    if high - low < GIB // 10:
        return gib_text(low, 1)
    return f"{low / GIB:.1f} to {gib_text(high, 1)}"


def _pcie(known: Facts) -> str:
    if known.machine is not None and known.machine.gpu is not None and known.machine.gpu.unified_memory:
        return ""
    words = Counter(
        f"generation {d.pcie_generation or '?'} x{d.pcie_width or '?'}"
        + (f" of x{d.pcie_width_max}" if d.pcie_width_max and d.pcie_width_max != d.pcie_width else "")
        for d in known.devices if d.pcie_width or d.pcie_generation
    )  # fmt: skip
    many = len(words) > 1
    text = ", ".join(f"{count} x {word}" if many else word for word, count in words.items())
    now = {
        said.text for card in known.cards if (said := card.first("pci/gpu link info/pcie generation/current"))
    }
    most = {str(d.pcie_generation) for d in known.devices}
    return text + (
        f" (now generation {', '.join(sorted(now))}: it rises under load)"
        if text and now and now != most
        else ""
    )


def _links(known: Facts) -> str:
    links = known.links
    if known.amd:
        counts = Counter(known.outputs.text("amd_links").partition("Link Type between")[2].split())
        told = [
            f"{name} {counts[word] // 2}" for word, name in (("XGMI", "xGMI"), ("PCIE", "PCIe")) if counts[word]
        ]
        return f"pairs by link: {', '.join(told)}" if told else ""
    if links is None or not links.pairs:
        return ""
    if links.nvlink_mesh:
        kinds = ", ".join(sorted(set(links.pairs)))
        return (
            f"NVLink between all ({kinds})" + (", through NVSwitches" if known.nvswitch else "") + _nics(known)
        )
    counted = Counter("NV" if link.startswith("NV") else link for link in links.pairs)
    order = sorted(counted, key=lambda link: DISTANCES.index(link) if link in DISTANCES else len(DISTANCES))
    words = ", ".join(f"{link} {counted[link]}" for link in order)
    return ("" if "NV" in counted else "no NVLink; ") + f"pairs by distance: {words}" + _nics(known)


def _nics(known: Facts) -> str:
    count = len(known.links.nics) if known.links is not None else 0
    return f"; {count} network card{'s' if count > 1 else ''}" if count else ""


def _p2p(known: Facts) -> str:
    if not known.p2p:
        return ""
    no = refused(known.p2p)
    return "allowed between all" if not no else f"refused between {len(no)} of {len(known.p2p)} pairs"


def _now(known: Facts) -> str:
    states = Counter(said.text for card in known.cards if (said := card.first("performance state")))
    words = [f"performance state {', '.join(sorted(states))}"] if states else []
    limits = {
        card.number("gpu power readings/current power limit", "power readings/power limit")
        for card in known.cards
    }
    watts = sorted(limit for limit in limits if limit)
    if watts:
        words.append(
            f"power limit {watts[0]:.0f} W"
            if len(watts) == 1
            else f"power limits {watts[0]:.0f} to {watts[-1]:.0f} W"
        )
    if known.cards and not any(card.active() for card in known.cards):
        words.append("clocks not lowered")
    persistence = {device.persistence for device in known.devices} - {None}
    if len(persistence) == 1:
        words.append("persistence mode on" if persistence == {True} else "persistence mode off")
    return ", ".join(words)


def _driver(known: Facts) -> str:
    words = [known.driver] if known.driver else []
    if known.cuda:
        words.append(f"takes CUDA up to {known.cuda}")
    if known.host.module is not None:
        words.append(f"{known.host.module.text} kernel module")
    if known.host.fabric_manager is not None and known.nvswitch:
        words.append(f"fabric manager {known.host.fabric_manager.text}")
    return ", ".join(words)


def _host(host: Host) -> str:
    words = [host.cpu.text] if host.cpu else []
    if host.kernel is not None:
        words.append(
            f"Linux {host.kernel.text}" + (" (WSL)" if host.wsl and "WSL" not in host.kernel.text else "")
        )
    if host.total is not None:
        words.append(f"{gib_text(host.total.value, 0)} memory")
    if host.numa_nodes is not None and host.numa_nodes.value > 1:
        words.append(f"{host.numa_nodes.value} NUMA nodes")
    if host.iommu is not None:
        words.append(_IOMMU[host.iommu])
    if host.hypervisor is not None:
        words.append(f"virtual ({host.hypervisor.text})")
    if host.governor is not None:
        words.append(f"governor {host.governor.text}")
    return ", ".join(words)


def _limits(host: Host) -> str:
    words = [f"/dev/shm {size_text(host.shm.value)}"] if host.shm is not None else []
    if host.memlock is not None:
        words.append(
            "memlock " + ("unlimited" if host.memlock.value >= UNLIMITED else size_text(host.memlock.value))
        )
    if host.nofile is not None:
        words.append(f"open files {host.nofile.value:,}")
    if host.stack is not None:
        words.append("stack " + ("unlimited" if host.stack.value >= UNLIMITED else size_text(host.stack.value)))
    if host.cgroup is not None:
        words.append(f"container memory {gib_text(host.cgroup.value, 0)}")
    return ", ".join(words)


def _variables(known: Facts) -> str:
    heads = ("NCCL_", "RCCL_", "CUDA_VISIBLE", "CUDA_DEVICE", "HIP_VISIBLE", "ROCR_VISIBLE")
    found: Iterator[str] = (
        f"{name}={value[:60]}" for name, value in known.variables.items() if name.startswith(heads)
    )
    return ", ".join(list(found)[:12])
