"""The fits of fabrics.toml as structs; the file's head says what each figure is and where it is from."""

from __future__ import annotations

from functools import cache
from typing import Literal

from msgspec import Struct

from ullage.comm.links import Fabric
from ullage.core.tables import load

Backend = Literal[
    "nccl", "custom", "custom_v2", "pcie_oneshot", "pcie_ipc", "flashinfer_fused", "torch_symm_mem",
    "nccl_symm_mem", "quick", "mscclpp", "aiter",
]  # fmt: skip


class FabricFit(Struct, frozen=True, forbid_unknown_fields=True):
    """A fit of NCCL over one fabric; the head of fabrics.toml says what each figure is."""

    fabric: Fabric
    base_us: float
    hop_us: float
    ll_gbs: float
    ll_sharing: float
    simple_base_us: float
    simple_hop_us: float
    simple_gbs: float
    simple_sharing: float
    ring_gbs: float
    low: float
    high: float
    source: str
    least_capability: tuple[int, int] = (0, 0)
    pcie_generation: int | None = None


class HostFit(Struct, frozen=True, forbid_unknown_fields=True):
    us_at_2: float
    us_power: float
    k_at_2: float
    k_power: float
    power_at_2: float
    power_at_8: float
    low_at_2: float
    high_at_2: float
    low: float
    high: float
    source: str


class EagerFit(Struct, frozen=True, forbid_unknown_fields=True):
    us: float
    low_us: float
    high_us: float
    source: str


class NetFit(Struct, frozen=True, forbid_unknown_fields=True):
    ring_gbs: float
    low: float
    high: float
    source: str


class KernelFit(Struct, frozen=True, forbid_unknown_fields=True):
    """A fit of a kernel over one fabric."""

    backend: Backend
    fabric: Fabric
    least_capability: tuple[int, int]
    us: float
    gbs: float
    two_us: float
    two_gbs: float
    low: float
    high: float
    source: str
    us_per_rank: float = 0.0
    most_ranks: int | None = None
    one_shot_only: bool = False
    two_from_bytes: int | None = None


class Fits(Struct, frozen=True, forbid_unknown_fields=True):
    """fabrics.toml; its head says what the figures mean."""

    fabric: list[FabricFit]
    host: HostFit
    eager: EagerFit
    net: NetFit
    kernel: list[KernelFit]


@cache
def fits() -> Fits:
    table: Fits = load("ullage.comm", "fabrics.toml", Fits)
    return table
