"""The host around the GPUs: kernel, memory, limits, IOMMU, as the saved outputs tell them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal

from msgspec import Struct

from ullage.core.finding import Evidence
from ullage.core.units import KIB
from ullage.hardware.outputs import Outputs, Saved, plain

Iommu = Literal["off", "passthrough", "translated"]
#: what a limit of /proc/self/limits says for "no limit", and a cgroup that has none
UNLIMITED = 1 << 62


class Figure(Struct, frozen=True):
    """A whole number (bytes, or a count) and where it stands."""

    value: int
    evidence: Evidence


class Word(Struct, frozen=True):
    """A word and where it stands."""

    text: str
    evidence: Evidence


class Host(Struct, frozen=True):
    """What is known of the host; None: not printed. Sizes in bytes; limits are the soft ones unless named
    otherwise. ``hugepages`` is what reserved huge pages hold."""

    kernel: Word | None = None
    wsl: bool = False
    cpu: Word | None = None
    architecture: Word | None = None
    hypervisor: Word | None = None
    total: Figure | None = None
    available: Figure | None = None
    hugepages: Figure | None = None
    cgroup: Figure | None = None
    shm: Figure | None = None
    memlock: Figure | None = None
    nofile: Figure | None = None
    nofile_hard: Figure | None = None
    stack: Figure | None = None
    iommu: Iommu | None = None
    iommu_evidence: Evidence | None = None
    governor: Word | None = None
    numa_nodes: Figure | None = None
    numa_balancing: Figure | None = None
    nvcc: Word | None = None
    module: Word | None = None
    fabric_manager: Word | None = None


def host(found: Outputs) -> Host:
    """The host of the outputs. Never raises."""
    memory, cpu = found.of("memory"), found.of("lscpu")
    iommu, evidence = _iommu(found)
    kernel = _kernel(found)
    return Host(
        kernel=kernel,
        wsl=kernel is not None and "microsoft" in kernel.evidence.text.lower(),
        cpu=_word(cpu, r"^Model name:\s*(.{1,100})$"),
        architecture=_word(cpu, r"^Architecture:\s*(\S{1,20})"),
        hypervisor=_word(cpu, r"^Hypervisor vendor:\s*(\S{1,40})"),
        total=_figure(memory, r"^MemTotal:\s*(\d{1,15}) kB", KIB),
        available=_figure(memory, r"^MemAvailable:\s*(\d{1,15}) kB", KIB),
        hugepages=_hugepages(memory),
        cgroup=_cgroup(found.of("cgroup")),
        shm=_shm(found.of("shm")),
        memlock=_limit(found.of("limits"), "Max locked memory", r"max locked memory.*\(kbytes[^)]*\)", KIB),
        nofile=_limit(found.of("limits"), "Max open files", r"open files.*\(-n\)"),
        nofile_hard=_limit(found.of("limits"), "Max open files", "", hard=True),
        stack=_limit(found.of("limits"), "Max stack size", r"stack size.*\(kbytes[^)]*\)", KIB),
        iommu=iommu,
        iommu_evidence=evidence,
        governor=_word(found.of("governor"), r"^([a-z_]{3,20})$"),
        numa_nodes=_numa(found),
        numa_balancing=_figure(found.of("numa_balancing"), r"^([01])$"),
        nvcc=_word(found.of("nvcc"), r"release (\d{1,3}\.\d{1,3})"),
        module=_module(found.of("module")),
        fabric_manager=_word(found.of("fabric"), r"^(active|inactive|failed|activating|deactivating)\b"),
    )


def _matches(saved: Saved, pattern: str) -> Iterator[tuple[re.Match[str], int]]:
    compiled = re.compile(pattern, re.IGNORECASE)
    for number, line in enumerate(saved.text.splitlines(), 1):
        if found := compiled.search(line.strip()[:2000]):
            yield found, number


def _word(saved: Saved, pattern: str) -> Word | None:
    found = next(_matches(saved, pattern), None)
    return Word(plain(found[0][1]), saved.quote(found[1])) if found else None


def _figure(saved: Saved, pattern: str, unit: int = 1) -> Figure | None:
    found = next(_matches(saved, pattern), None)
    return Figure(int(found[0][1]) * unit, saved.quote(found[1])) if found else None


def _kernel(found: Outputs) -> Word | None:
    return _word(found.of("kernel"), r"^Linux (?:version )?(?:\S+ )??(\d{1,3}\.\S{1,80})") or _word(
        found.of("collected"), r"Python platform\s*:\s*Linux-(\S{1,80}?)(?:-(?:x86_64|aarch64)\S*)?$"
    )


def _hugepages(memory: Saved) -> Figure | None:
    size = _figure(memory, r"^Hugetlb:\s*(\d{1,15}) kB", KIB)
    return size if size and size.value else None


def _cgroup(saved: Saved) -> Figure | None:
    """The limit of version 2, or of version 1 (whose "none" is a number near 2**63)."""
    found = _figure(saved, r"^(\d{1,20})$")
    return found if found and found.value < UNLIMITED else None


def _shm(saved: Saved) -> Figure | None:
    """The size of /dev/shm in ``df -kP`` (KiB) or ``df -h``."""
    for found, number in _matches(saved, r"\s(\d{1,15}(?:\.\d)?)([KMGT]?)\s.*\s/dev/shm$"):
        unit = {"": KIB, "K": KIB, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}[found[2].upper()]
        return Figure(int(float(found[1]) * unit), saved.quote(number))
    return None


def _limit(saved: Saved, row: str, shell: str, unit: int = 1, *, hard: bool = False) -> Figure | None:
    """A limit of /proc/self/limits (soft, hard), else of ``ulimit -a`` (soft)."""
    wanted = rf"^{row}\s+(\d{{1,20}}|unlimited)\s+(\d{{1,20}}|unlimited)"
    for found, number in _matches(saved, wanted):
        return Figure(_count(found[2 if hard else 1]), saved.quote(number))
    for found, number in _matches(saved, rf"^{shell}\s+(\d{{1,20}}|unlimited)$") if shell else ():
        value = _count(found[1])
        return Figure(value if value == UNLIMITED else value * unit, saved.quote(number))
    return None


def _count(text: str) -> int:
    return UNLIMITED if text == "unlimited" else min(int(text), UNLIMITED)


_OFF = ("iommu=off", "amd_iommu=off", "intel_iommu=off")
_THERE = (
    "AMD-Vi: AMD IOMMU",
    "AMD-Vi: Found IOMMU",
    "DMAR: IOMMU enabled",
    "DMAR: Intel(R) Virtualization Technology",
)


def _iommu(found: Outputs) -> tuple[Iommu | None, Evidence | None]:
    """What the kernel does with the IOMMU: its command line where that turns it off, the type of its groups,
    its log (which names a default on hosts without any IOMMU too), then what the command line asks for."""
    groups, listed, line, log = (found.of(name) for name in ("iommu_type", "iommu", "cmdline", "dmesg"))
    words = line.text.split()
    if any(word in words for word in _OFF):
        return "off", line.quote(1)
    kind = groups.text.strip()
    if kind in ("DMA", "DMA-FQ", "identity"):
        return ("passthrough" if kind == "identity" else "translated"), groups.quote(1)
    units = re.search(r"\b(?:dmar|ivhd)\d", listed.text)
    if units or any(log.find(phrase) for phrase in _THERE):
        if said := log.find("default domain type: translated"):
            return "translated", said
        if said := log.find("default domain type: passthrough"):
            return "passthrough", said
    if "iommu=pt" in words or "iommu.passthrough=1" in words:
        return "passthrough", line.quote(1)
    if units:
        return "translated", listed.quote(1)
    if "intel_iommu=on" in words:
        return "translated", line.quote(1)
    return None, None


def _numa(found: Outputs) -> Figure | None:
    return _figure(found.of("numa"), r"^available: (\d{1,4}) nodes") or _figure(
        found.of("lscpu"), r"^NUMA node\(s\):\s*(\d{1,4})"
    )


def _module(saved: Saved) -> Word | None:
    """ "open" or "proprietary": which kernel module is loaded."""
    found = next(_matches(saved, r"NVRM version:\s*(.{1,200})"), None)
    if found is None:
        return None
    return Word("open" if "open kernel module" in found[0][1].lower() else "proprietary", saved.quote(found[1]))
