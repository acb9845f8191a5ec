"""What one collective takes on a backend: time with its band, and the memory that the backend holds.

fabrics.toml holds the fits and their sources; ``tuner`` says which protocol NCCL picks. Times are in
microseconds of one call inside a CUDA graph unless ``eager`` says otherwise.
"""

from __future__ import annotations

from math import hypot

from msgspec import Struct
from packaging.version import Version

from ullage.comm import tuner
from ullage.comm.collectives import Collective
from ullage.comm.fits import Backend as Backend
from ullage.comm.fits import FabricFit, KernelFit, fits
from ullage.comm.links import Fabric, Links
from ullage.core.units import KIB, MIB, Band

#: the size at which the host row's k holds: one all-reduce of the founding case's verify pass
HOST_BYTES = 43_008
#: the largest message of most measurements behind the fits: the band widens beyond it
FITTED_BYTES = MIB
#: how many times faster or slower than the middle a backend without any figure may be
_UNKNOWN = (0.4, 2.5)


class Settings(Struct, frozen=True):
    """What else decides a time: NCCL's release and variables, the engine's all-reduce limits."""

    nccl_release: Version | None = None
    environment: dict[str, str] = {}
    eager: bool = False


class Timed(Struct, frozen=True):
    """A time in us, how it comes about in words ("Ring, LL"), and where its fit is from."""

    band: Band
    how: str
    source: str


def time_us(
    collective: Collective, links: Links, backend: Backend = "nccl", settings: Settings | None = None
) -> Band:
    """Microseconds of ONE call of ``collective`` over ``links`` on ``backend``, with its band (about 90 %).

    ``backend`` "nccl" serves every kind; the others only all-reduces (other kinds are then NCCL's too).
    ``collective.count`` does not matter: multiply.
    """
    return timed(collective, links, backend, settings).band


def timed(
    collective: Collective, links: Links, backend: Backend = "nccl", settings: Settings | None = None
) -> Timed:
    """As ``time_us``, with how and from where."""
    settings = settings or Settings()
    if collective.ranks <= 1 or collective.bytes <= 0 or not collective.count:
        return Timed(Band(0.0, 0.0, 0.0), "nothing to do", "")
    if backend == "nccl" or collective.kind != "all_reduce":
        found = _nccl(collective, links, settings)
    else:
        found = _kernel(collective, links, backend)
    return _eager(found) if settings.eager else found


# --- NCCL ---


def _nccl(collective: Collective, links: Links, settings: Settings) -> Timed:
    if links.nodes > 1 and collective.ranks > links.num_gpus:
        return _between_hosts(collective, links, settings)
    if links.fabric == "host":
        return _host(collective, links)
    if links.fabric == "unknown_pcie":
        return _unknown(collective, links, settings)
    found = fitted(collective, links, row_of(links), settings)
    return found if links.fabric != "sockets" or links.p2p else _maybe_bounced(found, collective, links)


def _maybe_bounced(found: Timed, collective: Collective, links: Links) -> Timed:
    """Across sockets NCCL uses no P2P by itself (its default level is PXB): the path may be the host's."""
    band = found.band
    high = max(band.high, 2 * _host(collective, links).band.value)
    return Timed(Band(band.value, band.low, high), f"{found.how}; perhaps through host memory", found.source)


def row_of(links: Links) -> FabricFit:
    """The fit of a fabric: NVLink by the GPUs' generation, PCIe by its own."""
    fabric: Fabric = "pcie" if links.fabric == "unknown_pcie" else links.fabric
    rows = [row for row in fits().fabric if row.fabric == fabric]
    if fabric == "nvlink":
        capability = links.capability or (9, 0)
        return ([row for row in rows if row.least_capability <= capability] or rows[:1])[-1]
    wanted = max(4, links.pcie_generation or 5)
    exact = [row for row in rows if row.pcie_generation == min(5, wanted)]
    return (exact or rows)[0]


def _slower(links: Links, row: FabricFit) -> float:
    """How much slower than the fit's links these are, for a generation of PCIe that has no fit of its own."""
    if row.fabric == "nvlink" or row.pcie_generation is None:
        return 1.0
    return float(2 ** max(0, row.pcie_generation - (links.pcie_generation or row.pcie_generation)))


def _group(collective: Collective, links: Links, settings: Settings, ring_gbs: float) -> tuner.Group:
    env = settings.environment
    return tuner.Group(
        ranks=collective.ranks, link="nvlink" if links.nvlink else "pci",
        capability=links.capability or (9, 0), ring_gbs=ring_gbs,
        nodes=links.nodes if collective.ranks > links.num_gpus else 1,
        nvls=links.multicast and env.get("NCCL_NVLS_ENABLE") != "0", release=settings.nccl_release,
        algorithms=env.get("NCCL_ALGO", ""), protocols=env.get("NCCL_PROTO", ""),
    )  # fmt: skip


def fitted(collective: Collective, links: Links, row: FabricFit, settings: Settings) -> Timed:
    kind = collective.kind
    if kind in ("all_to_all", "send_recv"):
        return _point_to_point(collective, links, row)
    choice = tuner.choose(kind, collective.bytes, _group(collective, links, settings, row.ring_gbs))
    steps, n = tuner.num_steps(kind, collective.ranks), collective.ranks
    if choice.protocol == "Simple":
        latency = row.simple_base_us + row.simple_hop_us * steps
        moved = steps * collective.bytes / n**row.simple_sharing / (1000 * row.simple_gbs)
    else:
        latency = row.base_us + row.hop_us * steps
        moved = steps * collective.bytes / n**row.ll_sharing / (1000 * row.ll_gbs)
    if choice.algorithm == "NVLS":
        moved = collective.bytes / (1000 * choice.gbs)
    value = hypot(latency, moved * _slower(links, row))
    wider = max(1.0, collective.bytes / FITTED_BYTES) ** 0.15
    how = f"{choice.algorithm}, {choice.protocol}"
    return Timed(Band(value, value * row.low / wider, value * row.high * wider), how, row.source)


def _point_to_point(collective: Collective, links: Links, row: FabricFit) -> Timed:
    """Send and receive, grouped for an all-to-all: one trip, and the bytes that leave a GPU (a guess: wide)."""
    leaving = collective.bytes * (
        (collective.ranks - 1) / collective.ranks if collective.kind == "all_to_all" else 1
    )
    gbs = row.simple_gbs if row.fabric == "nvlink" else row.ring_gbs
    value = row.simple_base_us + 2 * row.simple_hop_us + leaving * _slower(links, row) / (1000 * gbs)
    return Timed(Band(value, value * 0.5, value * 2), "send and receive, Simple", row.source)


def _host(collective: Collective, links: Links) -> Timed:
    """Through host memory. The all-gather and reduce-scatter take half, as half the steps."""
    fit, n = fits().host, max(2, collective.ranks)
    share = min(1.0, (n - 2) / 6)
    power = fit.power_at_2 + (fit.power_at_8 - fit.power_at_2) * share
    latency = fit.us_at_2 * (n / 2) ** fit.us_power
    moved = fit.k_at_2 * (n / 2) ** fit.k_power * (collective.bytes / HOST_BYTES) ** power
    value = hypot(latency, moved) * (1.0 if collective.kind == "all_reduce" else 0.5)
    low = fit.low_at_2 + (fit.low - fit.low_at_2) * share
    high = fit.high_at_2 + (fit.high - fit.high_at_2) * share
    return Timed(Band(value, value * low, value * high), "through host memory (SHM)", fit.source)


def _unknown(collective: Collective, links: Links, settings: Settings) -> Timed:
    """PCIe of which nothing is known: a healthy host is the middle, switches and a bounced path the ends."""
    from msgspec.structs import replace

    middle = fitted(collective, links, row_of(links), settings)
    best = fitted(collective, links, row_of(replace(links, fabric="switch")), settings).band.low
    worst = _host(collective, links).band.value * 1.5
    value = middle.band.value
    band = Band(value, min(best, middle.band.low), max(worst, middle.band.high))
    return Timed(band, f"{middle.how}; the host's links are not known", middle.source)


def _between_hosts(collective: Collective, links: Links, settings: Settings) -> Timed:
    fit = fits().net
    choice = tuner.choose(collective.kind, collective.bytes, _group(collective, links, settings, fit.ring_gbs))
    value = choice.model_us
    return Timed(Band(value, value * fit.low, value * fit.high),
                 f"{choice.algorithm}, {choice.protocol}, between hosts", fit.source)  # fmt: skip


# --- kernels ---


def _kernel(collective: Collective, links: Links, backend: Backend) -> Timed:
    fit = _kernel_row(links, backend, collective.ranks)
    if fit is None:
        other = timed(collective, links, "nccl").band
        band = Band(other.value, other.value * _UNKNOWN[0], other.value * _UNKNOWN[1])
        return Timed(band, "no figure of it is known here: NCCL's, with a wide band", "")
    two = two_shot(collective.bytes, collective.ranks, fit.two_from_bytes) and not fit.one_shot_only
    n, size = collective.ranks, collective.bytes
    if two:
        value = fit.two_us + 2 * (n - 1) / n * size / (1000 * fit.two_gbs)
    else:
        value = fit.us + fit.us_per_rank * n + (n - 1) * size / (1000 * fit.gbs)
    slower = 1.0 if links.nvlink else 2.0 ** max(0, 5 - (links.pcie_generation or 5))
    value *= slower
    return Timed(Band(value, value * fit.low, value * fit.high), "two-shot" if two else "one-shot", fit.source)


def two_shot(num_bytes: int, ranks: int, from_bytes: int | None = None) -> bool:
    """Whether the custom kernel takes two stages: never for 2 ranks, from 512 KiB to 4, from 256 KiB to 8.

    Read: sglang 0.5.9 and vllm 0.33.0, csrc custom_all_reduce.cuh. ``from_bytes``: a kernel's own limit.
    """
    if from_bytes is not None:
        return num_bytes >= from_bytes
    if ranks <= 2:
        return False
    return num_bytes >= (512 * KIB if ranks <= 4 else 256 * KIB)


def _kernel_row(links: Links, backend: Backend, ranks: int) -> KernelFit | None:
    capability = links.capability or (9, 0)
    rows = [
        row for row in fits().kernel
        if row.backend == backend and row.least_capability <= capability
        and (row.most_ranks is None or ranks <= row.most_ranks)
    ]  # fmt: skip
    same = [row for row in rows if row.fabric == _kernel_fabric(links, backend)]
    return max(same, key=lambda row: row.least_capability, default=None)


def _kernel_fabric(links: Links, backend: Backend) -> Fabric:
    if links.nvlink:
        return "nvlink"
    if backend in ("pcie_oneshot", "pcie_ipc"):
        return "pcie"
    return "sockets" if links.fabric == "sockets" else "pcie"


def _eager(found: Timed) -> Timed:
    fit, band = fits().eager, found.band
    return Timed(
        Band(hypot(band.value, fit.us), hypot(band.low, fit.low_us), hypot(band.high, fit.high_us)),
        f"{found.how}, outside a CUDA graph", found.source,
    )  # fmt: skip


def memory_bytes(backend: Backend, ranks: int) -> int | None:
    """Device memory that a backend takes for itself on each GPU; None where it is not known.

    custom: metadata + 8 MiB, 8 MiB and 8 MiB (sglang 0.5.9, vllm 0.33.0: custom_all_reduce.py). NCCL's own
    buffers are ``nccl.memory``. What depends on the engine's settings is said in words (backends.toml).
    """
    return {
        "custom": 24 * MIB, "custom_v2": 2 * 16 * MIB, "torch_symm_mem": 64 * MIB if ranks <= 4 else 128 * MIB,
    }.get(backend)  # fmt: skip
