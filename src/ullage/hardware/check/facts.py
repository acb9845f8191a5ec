"""The saved outputs of one machine -> what is known of it."""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from ullage.core.errors import InputError
from ullage.core.finding import Evidence
from ullage.core.machine import Device, Machine
from ullage.hardware import card, collected, gpus, p2p, pcie, smi, topology
from ullage.hardware.devices import machine_of
from ullage.hardware.environment import Installed
from ullage.hardware.host import Host, host
from ullage.hardware.listed import of_outputs
from ullage.hardware.outputs import Outputs, Saved
from ullage.hardware.saved import telling
from ullage.hardware.smi import Described


class Facts(Struct, frozen=True):
    """A machine as its outputs tell it. ``machine`` is None where no GPU is found; ``devices`` are all that the
    driver shows, whatever variables hide. ``refusal`` is what a tool says in place of GPUs. ``missing`` names
    the outputs that would tell more."""

    outputs: Outputs
    machine: Machine | None
    devices: tuple[Device, ...]
    cards: tuple[card.Card, ...]
    host: Host
    links: topology.Topology | None = None
    p2p: tuple[p2p.Pair, ...] = ()
    pci: tuple[pcie.PciDevice, ...] = ()
    installed: Installed | None = None
    variables: dict[str, str] = {}
    driver: str | None = None
    cuda: str | None = None
    amd: bool = False
    refusal: Evidence | None = None
    missing: tuple[str, ...] = ()

    @property
    def capability(self) -> tuple[int, int] | None:
        """Of the GPU that decides."""
        gpu = self.machine.gpu if self.machine is not None else None
        return gpu.capability if gpu is not None else None

    @property
    def nvswitch(self) -> bool:
        """True where GPUs meet in an NVSwitch: more than four, each linked to each other one by NVLink."""
        return self.links is not None and self.links.nvlink_mesh and len(self.links.gpus) > 4

    def of_card(self, index: int) -> card.Card | None:
        return next((one for one in self.cards if one.index == index), None)


def facts(
    found: Outputs, installed: Installed | None = None, environment: Mapping[str, str] | None = None
) -> Facts:
    """What the outputs tell. ``installed`` is the environment where it is asked for; else the saved one.
    Raises InputError for an output of a known name that cannot be it."""
    installed = installed or of_outputs(collected.spread(found))
    found = collected.spread(found) if found.text("collected") else found
    bus = pcie.parse(found.text("lspci"))
    variables = _variables(found) if environment is None else dict(environment)
    about, links = host(found), _links(found)
    described, amd = _described(found)
    described = replace(described, devices=tuple(map(_completed, described.devices)))
    memory = (about.total.value, about.available.value) if about.total and about.available else None
    machine = machine_of(described, variables, memory, links, found.source)
    if machine is not None:
        machine = replace(machine, wsl=about.wsl)
    return Facts(
        found,
        machine,
        described.devices,
        card.cards(found.text("report")),
        about,
        links,
        p2p.parse(found.text("p2p_read")),
        bus,
        installed,
        variables,
        described.driver or _loaded(found.text("module")),
        described.cuda,
        amd,
        _refusal(found) if not described.devices else None,
        tuple(_missing(found, described.devices, amd, bus)),
    )


def _described(found: Outputs) -> tuple[Described, bool]:
    """(GPUs, whether they are AMD's), from the output that tells most."""
    report = found.of("report")
    full = card.described(report.text) if "<nvidia_smi_log" in report.text[:2000] else _report(report)
    query = found.of("gpus") if found.text("gpus").strip() else found.of("gpus_old")
    asked = _query(query)
    if asked.devices:
        devices = smi.with_processes(asked.devices, found.text("apps"))
        parts = {device.bus_id.lower(): device for device in full.devices}
        devices = tuple(_with_mig(device, parts.get(device.bus_id.lower())) for device in devices)
        return Described(
            devices, asked.driver or full.driver, full.cuda or smi.boxed(found.text("smi")).cuda
        ), False
    for one in (full, smi.boxed(found.text("smi")), collected.described(found.text("collected"))):
        if one.devices:
            return replace(one, driver=one.driver or full.driver, cuda=one.cuda or full.cuda), _amd(one.devices)
    rocm = found.of("rocm")
    if (start := rocm.text.find("{")) >= 0:  # a warning may stand in front
        return smi.rocm(rocm.text[start:], rocm.label), True
    return Described(driver=full.driver, cuda=full.cuda), False


def _amd(devices: tuple[Device, ...]) -> bool:
    return all(re.search(r"\bAMD\b|Instinct|Radeon", device.name) for device in devices)


def _report(saved: Saved) -> Described:
    try:
        return smi.report(saved.text, saved.label)
    except InputError:
        return Described()


def _query(saved: Saved) -> Described:
    """The query's rows; what a tool says in place of them is no fault of the reader."""
    try:
        return smi.query(saved.text, saved.label)
    except InputError:
        return Described()


def _with_mig(device: Device, part: Device | None) -> Device:
    if part is None or not device.mig:
        return device
    return replace(device, mig_total_bytes=part.mig_total_bytes, mig_free_bytes=part.mig_free_bytes)


def _completed(device: Device) -> Device:
    """The compute capability of the table's row where the driver did not print it."""
    row = gpus.find(device.name)
    known = row.gpu.capability if row is not None and row.gpu is not None else None
    return device if device.capability else replace(device, capability=known)


def _links(found: Outputs) -> topology.Topology | None:
    try:
        return topology.parse(found.text("topology"))
    except InputError:
        return None


def _loaded(text: str) -> str | None:
    """The release of the kernel module, which is there where nvidia-smi fails too."""
    release = re.search(r"NVRM version:.*?\s(\d{3}\.\d{1,4}(?:\.\d{1,3})?)\s", text[:2000])
    return release[1] if release else None


def _variables(found: Outputs) -> dict[str, str]:
    rows = (line.removeprefix("export ").partition("=") for line in found.text("variables").splitlines()[:4096])
    return {
        name.strip(): value.strip().strip("\"'")
        for name, equals, value in rows
        if equals and telling(name.strip())
    }


_REFUSALS = (
    "couldn't communicate with the NVIDIA driver",
    "Failed to initialize NVML",
    "No devices were found",
    "Unable to determine the device handle",
    "driver/library version mismatch",
    "not found",
)


def _refusal(found: Outputs) -> Evidence | None:
    for name in ("smi", "gpus", "report"):
        for phrase in _REFUSALS:
            if (said := found.of(name).find(phrase)) is not None:
                return said
    return None


_WANTED = {
    "report": "nvidia-smi -q (clocks, errors, PCIe links)",
    "topology": "nvidia-smi topo -m (links between GPUs)",
    "p2p_read": "nvidia-smi topo -p2p r (may GPUs copy directly)",
    "shm": "df /dev/shm",
    "limits": "/proc/self/limits",
    "kernel": "/proc/version",
    "cmdline": "/proc/cmdline (IOMMU)",
    "lspci": "lspci -vvv as root (ACS)",
}


def _missing(
    found: Outputs, devices: tuple[Device, ...], amd: bool, bus: tuple[pcie.PciDevice, ...]
) -> list[str]:
    """What was not printed and would tell more of this machine, in words."""
    alone = ("topology", "p2p_read", "lspci", "cmdline")
    denied = any(device.denied for device in bus) and not any(device.acs is not None for device in bus)
    if not devices:
        return []
    return [
        words
        for name, words in _WANTED.items()
        if (not found.text(name).strip() or (name == "lspci" and denied))
        and not (len(devices) < 2 and name in alone)
        and not (amd and "nvidia" in words)
        and not (name == "kernel" and found.text("collected"))
    ]
