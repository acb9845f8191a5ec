"""Links: NVLink and its fabric, PCIe across the CPU, what IOMMU, ACS and variables do to direct copies."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ullage.core.finding import Evidence
from ullage.hardware.check.facts import Facts
from ullage.hardware.check.finding import CheckFinding, say
from ullage.hardware.check.gpus import numbers, quote
from ullage.hardware.outputs import Saved
from ullage.hardware.p2p import MEANINGS, refused

#: cards of NVSwitch hosts, whatever `topo` was saved
_SWITCHED = re.compile(r"(?:A100-SXM|A800-SXM|H100 80GB HBM3|H200|H800|H20\b|B100|B200|B300|GB200|GB300)")
_THROUGH = ("PHB", "NODE", "SYS")


def rules(known: Facts) -> Iterator[CheckFinding]:
    for rule in (_fabric, _nvlinks, _mesh, _own_all_reduce, _p2p, _acs, _iommu, _variables, _numa):
        yield from rule(known)


def _several(known: Facts) -> bool:
    return known.machine is not None and (known.machine.count or 0) > 1


def _fabric(known: Facts) -> Iterator[CheckFinding]:
    states = [
        (card, said)
        for card in known.cards
        if (said := card.first("fabric/state")) is not None and said.text not in ("Completed", "Not Started")
    ] + [
        (card, said)
        for card in known.cards
        if (said := card.first("fabric/status")) is not None
        and said.text not in ("Success",)
        and "fail" in said.text.lower()
    ]
    if states:
        yield say(
            "fabric-not-ready",
            quote(known, states[0][1]),
            state=states[0][1].text,
            gpus=numbers(card.index for card, _ in states),
        )
        return
    manager = known.host.fabric_manager
    switched = known.nvswitch or (
        len(known.devices) >= 8 and all(_SWITCHED.search(d.name) for d in known.devices)
    )
    done = any(
        (said := card.first("fabric/state")) is not None and said.text == "Completed" for card in known.cards
    )
    if manager is not None and manager.text != "active" and switched and not done:
        yield say("fabric-manager-inactive", manager.evidence, state=manager.text)


_LINK = re.compile(r"^\s*Link (\d{1,2}): (<inactive>|inactive|[\d.]+ GB/s)", re.IGNORECASE)
_GPU = re.compile(r"^GPU (\d{1,3}):")


def _nvlinks(known: Facts) -> Iterator[CheckFinding]:
    saved = known.outputs.of("nvlink")
    gpu, up, down = -1, dict[int, int](), dict[int, int]()
    line_of: dict[int, int] = {}
    for number, line in enumerate(saved.text.splitlines(), 1):
        if found := _GPU.match(line):
            gpu = int(found[1])
        elif gpu >= 0 and (found := _LINK.match(line)):
            side = down if "inactive" in found[2].lower() else up
            side[gpu] = side.get(gpu, 0) + 1
            if side is down:
                line_of.setdefault(gpu, number)
    bad = {gpu: count for gpu, count in down.items() if up}
    if bad:
        words = ", ".join(
            f"GPU {gpu}: {count} of {count + up.get(gpu, 0)}" for gpu, count in list(bad.items())[:8]
        )
        yield say("nvlink-down", *(saved.quote(line_of[gpu]) for gpu in list(bad)[:2]), links=words)


def _worst(known: Facts) -> Evidence | None:
    """A line of the matrix that shows the farthest link."""
    if known.links is None or known.links.worst_link is None:
        return None
    return _row(known.outputs.of("topology"), known.links.worst_link)


def _row(saved: Saved, link: str) -> Evidence | None:
    for number, line in enumerate(saved.text.splitlines(), 1):
        words = line.split()
        if words and re.fullmatch(r"GPU\d{1,3}", words[0]) and (link in words or f"{link}" in words):
            return saved.quote(number)
    return None


def _mesh(known: Facts) -> Iterator[CheckFinding]:
    links = known.links
    if links is None or not links.pairs or links.nvlink_mesh or known.amd:
        return
    pairs = links.pairs
    joined = sum(link.startswith("NV") for link in pairs)
    crossing = sum(link in _THROUGH for link in pairs)
    if joined:
        yield say("nvlink-partial", _worst(known), joined=joined, pairs=len(pairs), worst=links.worst_link)
    elif crossing and not _two_on_amd(known):
        who = "the two GPUs" if len(pairs) == 1 else f"{crossing} of {len(pairs)} pairs of GPUs"
        yield say("links-through-host", _worst(known), who=who, worst=links.worst_link)


def _two_on_amd(known: Facts) -> bool:
    """NCCL lets two GPUs on an AMD CPU copy directly across it."""
    cpu = known.host.cpu
    return known.links is not None and len(known.links.gpus) == 2 and cpu is not None and "AMD" in cpu.text


def _own_all_reduce(known: Facts) -> Iterator[CheckFinding]:
    links = known.links
    count = known.machine.count if known.machine is not None else None
    if links is not None and links.pairs and not links.nvlink_mesh and (count or 0) > 2 and not known.amd:
        yield say("custom-all-reduce-off", _worst(known), count=count)


def _p2p(known: Facts) -> Iterator[CheckFinding]:
    no = refused(known.p2p)
    if not no:
        return
    saved = known.outputs.of("p2p_read")
    words = f"{len(no)} of {len(known.p2p)} pairs" if len(no) > 1 else f"GPU {no[0].one} and GPU {no[0].other}"
    consumer = any("GeForce" in device.name for device in known.devices)
    helps = (
        "NVIDIA's own driver gives GeForce cards of these generations none: NCCL goes through host memory "
        "(via SHM); "
        "set NCCL_P2P_DISABLE=1 if it hangs, and prefer groups of two."
        if consumer
        else "Look at ACS and IOMMU, at MIG and at virtualisation; NCCL goes through host memory until then."
    )
    yield say(
        "p2p-refused",
        saved.quote(no[0].line),
        pairs=words,
        meaning=MEANINGS.get(no[0].says, no[0].says),
        helps=helps,
    )


def _acs(known: Facts) -> Iterator[CheckFinding]:
    on = [device for device in known.pci if device.bridge and device.acs]
    linked = known.links is not None and known.links.nvlink_mesh
    if on and (_several(known) or len(known.devices) > 1) and known.host.hypervisor is None:
        lspci = known.outputs.of("lspci")
        yield say(
            "acs-on",
            *(lspci.quote(device.acs_line) for device in on[:2]),
            count=len(on),
            severity="worth knowing" if linked else "slows",
        )


def _iommu(known: Facts) -> Iterator[CheckFinding]:
    linked = known.links is not None and known.links.nvlink_mesh
    if known.host.iommu == "translated" and _several(known) and not known.host.wsl:
        yield say(
            "iommu-translates", known.host.iommu_evidence, severity="worth knowing" if linked else "slows"
        )


def _variables(known: Facts) -> Iterator[CheckFinding]:
    for name, off in (("NCCL_P2P_DISABLE", ("1",)), ("NCCL_P2P_LEVEL", ("LOC", "0"))):
        value = known.variables.get(name, "")
        if value in off and _several(known) and known.p2p and not refused(known.p2p):
            yield say(
                "p2p-disabled-by-variable", known.outputs.of("variables").find(name), name=name, value=value
            )


def _numa(known: Facts) -> Iterator[CheckFinding]:
    links = known.links
    if links is None or len(links.gpus) < 2:
        return
    places: dict[int, list[int]] = {}
    for gpu, node in zip(links.gpus, links.numa, strict=True):
        if node is not None:
            places.setdefault(node, []).append(int(gpu[3:]))
    if len(places) > 1:
        words = ", ".join(f"{numbers(gpus)} on node {node}" for node, gpus in sorted(places.items()))
        firsts = [known.outputs.of("topology").find(f"GPU{gpus[0]}\t") for gpus in places.values()]
        yield say(
            "numa-two-nodes",
            *(firsts if all(firsts) else [_row(known.outputs.of("topology"), "X")]),
            nodes=" and ".join(map(str, sorted(places))),
            placement=words,
        )
