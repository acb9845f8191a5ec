"""The public measurements of measured.toml, and how far the fits are from them."""

from __future__ import annotations

from pathlib import Path

import msgspec
from packaging.version import Version

from ullage.comm import allreduce
from ullage.comm.collectives import Collective
from ullage.comm.links import Fabric, Links
from ullage.core.units import Band

HERE = Path(__file__).parent


class Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One host, backend and mode: times in us by size. ``fabric`` is what the source says of the host."""

    row: int
    ranks: int
    gpu: str
    capability: tuple[int, int]
    fabric: Fabric
    backend: allreduce.Backend
    host: str
    bytes: list[int]
    us: list[float]
    source: str
    pcie_generation: int | None = None
    nccl: str = ""
    eager: bool = False
    note: str = ""

    @property
    def links(self) -> Links:
        return Links(
            self.fabric, self.ranks, self.capability, self.pcie_generation, multicast=self.fabric == "nvlink"
        )

    @property
    def settings(self) -> allreduce.Settings:
        return allreduce.Settings(Version(self.nccl) if self.nccl else None, eager=self.eager)

    def bands(self) -> list[tuple[float, Band]]:
        """(measured, predicted) for each size."""
        return [
            (
                us,
                allreduce.time_us(
                    Collective("all_reduce", 1, b, self.ranks, ""), self.links, self.backend, self.settings
                ),
            )
            for b, us in zip(self.bytes, self.us, strict=True)
        ]


class _File(msgspec.Struct):
    row: list[Row]


def rows() -> list[Row]:
    return msgspec.toml.decode((HERE / "measured.toml").read_bytes(), type=_File).row
