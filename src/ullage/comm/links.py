"""Links: what lies between the GPUs of a group, as far as a machine, its topology or a log tells."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from ullage.core.machine import Machine
from ullage.hardware.topology import Topology

#: what messages go through, from fast to slow. "nvlink": every pair (AMD: xGMI); "switch": PCIe, every pair
#: below switches (PIX, PXB) or tuned to be (an NCCL graph file); "pcie": PCIe through one CPU; "sockets": some
#: pairs across CPUs; "host": no P2P, so through host memory (SHM); "unknown_pcie": PCIe, no more is known
Fabric = Literal["nvlink", "switch", "pcie", "sockets", "host", "unknown_pcie"]
#: how far apart `nvidia-smi topo -m` says that the farthest pair is
_OF_LINK: dict[str, Fabric] = {
    "PIX": "switch", "PXB": "switch", "PHB": "pcie", "NODE": "pcie", "SYS": "sockets",
}  # fmt: skip


class Links(Struct, frozen=True):
    """The links of one group of GPUs.

    ``capability`` decides between generations of NVLink and NCCL's tables; ``pcie_generation`` is 4 or 5 (3
    counts as half of 4). ``p2p``: whether peers copy directly; None: not known. ``multicast``: NVSwitch with
    multicast (NVLS). ``nodes`` hosts. ``gpu`` is the GPU's name as its maker writes it. ``source`` says how the
    fabric is known, for people.
    """

    fabric: Fabric
    num_gpus: int
    capability: tuple[int, int] | None = None
    pcie_generation: int | None = None
    p2p: bool | None = None
    multicast: bool = False
    nodes: int = 1
    gpu: str = ""
    vendor: str = "nvidia"
    source: str = ""

    @property
    def nvlink(self) -> bool:
        return self.fabric == "nvlink"


def links_of(
    machine: Machine | None, num_gpus: int, *, topology: Topology | None = None, nodes: int = 1,
    environment: dict[str, str] | None = None, via: str | None = None,
) -> Links:  # fmt: skip
    """The links of ``num_gpus`` GPUs a node of ``machine``.

    ``topology`` beats what the machine knows; ``via`` is what an NCCL log shows ("SHM", "P2P/IPC") and beats
    both; ``environment`` holds the NCCL variables of the launch (NCCL_P2P_DISABLE, NCCL_P2P_LEVEL).
    """
    machine = machine or Machine()
    env = environment or {}
    gpu = machine.gpu
    fabric, source = _fabric(machine, topology)
    p2p = _p2p(machine, fabric, env, via)
    if p2p is False and fabric != "nvlink":
        fabric, source = "host", _why_host(env, via, source)
    elif via is not None and "P2P" in via and fabric in ("host", "unknown_pcie"):
        fabric, source = "pcie", f"the NCCL log shows via {via}"
    capability = gpu.capability if gpu else None
    return Links(
        fabric, max(1, num_gpus), capability, _generation(machine), p2p,
        multicast=fabric == "nvlink" and capability is not None and 9 <= capability[0] <= 10 and num_gpus > 2,
        nodes=max(1, nodes), gpu=gpu.name if gpu else "", vendor=gpu.vendor if gpu else "nvidia", source=source,
    )  # fmt: skip


def _fabric(machine: Machine, topology: Topology | None) -> tuple[Fabric, str]:
    if topology is not None and topology.pairs:
        if topology.nvlink_mesh:
            return "nvlink", "topology: NVLink between all"
        worst = topology.worst_link or ""
        return _OF_LINK.get(worst, "unknown_pcie"), f"topology: the farthest pair is {worst}"
    if machine.nvlink is not False and machine.gpu is not None and machine.gpu.vendor == "amd":
        return "nvlink", "xGMI between all, as on the usual hosts; the figures are those of NVLink"
    if machine.nvlink:
        return "nvlink", "the GPU's usual host joins all by NVLink"
    worst = machine.worst_link or ""
    if worst in _OF_LINK:
        return _OF_LINK[worst], f"nvidia-smi topo -m: the farthest pair is {worst}"
    return "unknown_pcie", "no topology is known (nvidia-smi topo -m): healthy PCIe hosts differ threefold"


def _p2p(machine: Machine, fabric: Fabric, env: dict[str, str], via: str | None) -> bool | None:
    if via is not None:
        return not via.upper().startswith(("SHM", "NET"))
    if env.get("NCCL_P2P_DISABLE") == "1" or env.get("NCCL_P2P_LEVEL", "").strip().upper() in ("LOC", "0"):
        return False
    if fabric == "nvlink":
        return True
    name = machine.gpu.name if machine.gpu else ""
    return False if "GeForce" in name else None


def _why_host(env: dict[str, str], via: str | None, source: str) -> str:
    if via is not None:
        return f"the NCCL log shows via {via}"
    if env.get("NCCL_P2P_DISABLE") == "1":
        return "NCCL_P2P_DISABLE=1: through host memory"
    if env.get("NCCL_P2P_LEVEL"):
        return f"NCCL_P2P_LEVEL={env['NCCL_P2P_LEVEL'][:10]}: through host memory"
    return f"the stock GeForce driver has no P2P between cards ({source})"


def _generation(machine: Machine) -> int | None:
    found = [device.pcie_generation for device in machine.devices if device.pcie_generation]
    if found:
        return min(found)
    capability = machine.gpu.capability if machine.gpu else None
    if capability is None:
        return None
    return 5 if capability >= (9, 0) else 4 if capability >= (8, 0) else 3
