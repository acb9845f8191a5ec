"""Leave one host out: the fits made anew without a host's measurements, and asked about that host.

Base latency, latency a step and LL bandwidth of each fabric are fitted from NCCL's own constants as the start
(not from fabrics.toml), by coordinate descent on the squared logarithms of measured / predicted. The form, the
sharing exponents and the Simple protocol's figures stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import log
from statistics import median

from msgspec.structs import replace

from tests.comm.table import Row, rows
from ullage.comm import allreduce
from ullage.comm.allreduce import row_of
from ullage.comm.collectives import Collective
from ullage.comm.fits import FabricFit

#: NCCL's guesses for ring LL: base, hop, and half of what its search finds
START = {"nvlink": (6.6, 0.6, 115.0)}
OTHER = (6.6, 1.0, 12.0)


def key(row: Row) -> tuple[str, int]:
    """Rows that one fit serves: NVLink by the generation of the GPUs, PCIe by its own."""
    fabric = "pcie" if row.fabric == "unknown_pcie" else row.fabric
    return fabric, row.capability[0] if fabric == "nvlink" else row.pcie_generation or 5


def points(chosen: Iterable[Row]) -> list[tuple[Row, int, float]]:
    return [(row, b, us) for row in chosen for b, us in zip(row.bytes, row.us, strict=True)]


def predicted(row: Row, num_bytes: int, fit: FabricFit) -> float:
    one = Collective("all_reduce", 1, num_bytes, row.ranks, "")
    found = allreduce.fitted(one, row.links, fit, row.settings)
    return (allreduce._eager(found) if row.eager else found).band.value


def loss(fit: FabricFit, chosen: list[tuple[Row, int, float]]) -> float:
    return sum(min(2.0, abs(log(us / predicted(row, b, fit)))) for row, b, us in chosen)


def refitted(fit: FabricFit, chosen: list[tuple[Row, int, float]]) -> FabricFit:
    base, hop, gbs = START.get(fit.fabric, OTHER)
    best = replace(fit, base_us=base, hop_us=hop, ll_gbs=gbs)
    error, step = loss(best, chosen), 1.6
    while step > 1.02:
        moved = False
        for name in ("base_us", "hop_us", "ll_gbs"):
            for factor in (step, 1 / step):
                other = replace(best, **{name: getattr(best, name) * factor})
                if (found := loss(other, chosen)) < error - 1e-9:
                    best, error, moved = other, found, True
        step = step if moved else step**0.5
    return best


def held_out() -> tuple[list[float], list[str]]:
    """Relative errors at the sizes of every host that has like hosts; the hosts that have none."""
    nccl = [r for r in rows() if r.backend == "nccl" and r.fabric != "host"]
    errors: list[float] = []
    alone: list[str] = []
    for host in dict.fromkeys(row.host for row in nccl):
        for group in dict.fromkeys(key(row) for row in nccl if row.host == host):
            mine = [row for row in nccl if row.host == host and key(row) == group]
            others = [row for row in nccl if row.host != host and key(row) == group]
            if not others:
                alone.append(host)
                continue
            fit = refitted(row_of(mine[0].links), points(others))
            errors += [abs(predicted(row, b, fit) - us) / us for row, b, us in points(mine)]
    return errors, alone


if __name__ == "__main__":
    errors, alone = held_out()
    print(f"{len(errors)} points, median {median(errors):.3f}, alone: {alone}")
