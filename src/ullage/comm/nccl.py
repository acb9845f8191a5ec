"""One communicator of a launch -> its device bytes on one GPU.

Read at the tags v2.19.3-1 to v2.30.7-1: src/transport/p2p.cc, shm.cc, nvls.cc. All sizes are bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct
from packaging.version import Version

from ullage.core.launch import Launch
from ullage.core.units import KIB, MIB, Band
from ullage.core.versions import Span
from ullage.hardware.nccl import USUAL_NVLINK, Buffers, at_least, buffers_of, positive

#: slots of each buffer (NCCL_STEPS)
STEPS = 8
Transport = Literal["p2p", "shm", "net"]
#: (engine, releases, variable, value, flags that leave it alone): sglang 0.5.9, entrypoints/engine.py,
#: _set_envs_and_config; vllm 0.6.0 to 0.10.1.1, env_override.py
_SET_BY_ENGINES: tuple[tuple[str, Span, str, str, tuple[str, ...]], ...] = (
    ("sglang", Span("≤0.4.0"), "NCCL_CUMEM_ENABLE", "0", ("enable_symm_mem",)),
    ("sglang", Span("≤0.4.0"), "NCCL_NVLS_ENABLE", "0", ("enable_symm_mem", "enable_nccl_nvls")),
    ("vllm", Span("≤0.6.0", "0.10.2"), "NCCL_CUMEM_ENABLE", "0", ()),
)


class Communicator(Struct, frozen=True):
    """What decides the memory of one communicator in one host. ``channels`` None: not known. ``peers``: other
    ranks that send/recv or all-to-all really use (0: none); ``nvls_channels`` 0: no NVLS."""

    ranks: int
    channels: int | None = None
    transport: Transport = "p2p"
    buffers: Buffers = Buffers()
    trees: bool = True
    nvls_channels: int = 0
    nvls_buffer_bytes: int = MIB
    peers: int = 0
    channels_per_peer: int = 2


class Memory(Struct, frozen=True):
    """Device bytes by what holds them; ``basis`` is the formula with its numbers."""

    rings_and_trees: Band
    nvls_bytes: int
    peer_bytes: int
    basis: str

    @property
    def total(self) -> Band:
        more, band = self.nvls_bytes + self.peer_bytes, self.rings_and_trees
        return Band(band.value + more, band.low + more, band.high + more)


def nvls_bytes(ranks: int, channels: int, buffer_bytes: int = MIB) -> int:
    """Two buffers a channel and head; a head for each GPU of the host (transport/nvls.cc)."""
    return 2 * channels * ranks * buffer_bytes


def nvls_channels(capability: tuple[int, int], release: Version | None, *, nodes: int = 1) -> int:
    """16 on SM90; on SM100 32 in 2.25 and 2.26 and between hosts, else 24. 0 where there is no multicast."""
    if not 9 <= capability[0] <= 10:
        return 0
    if capability[0] == 9:
        return 16
    return 32 if nodes > 1 or not at_least(release, "2.27") else 24


def nvls_buffer_bytes(release: Version | None, environment: Mapping[str, str]) -> int:
    """NCCL_NVLS_CHUNKSIZE x 8 steps (1 MiB); in 2.19 the Simple buffer."""
    if not at_least(release, "2.20"):
        return buffers_of(environment).simple
    return (positive(environment, "NCCL_NVLS_CHUNKSIZE") or 128 * KIB) * STEPS


def environment_of(launch: Launch) -> dict[str, str]:
    """The variables as the ranks see them: what the engine sets itself (rows below), then the launch's own."""
    release = launch.release
    own = {
        name: value for engine, span, name, value, unless in _SET_BY_ENGINES
        if engine == launch.engine and span.holds(release) and not any(launch.flag(flag) for flag in unless)
    }  # fmt: skip
    return {**own, **launch.env}


def memory(of: Communicator) -> Memory:
    """Device memory of one communicator on one GPU; a band where the channels are not known (4 to 32 over
    NVLink-like links). SHM keeps its payload in host memory; NET is taken as the p2p case (GPUDirect)."""
    nvls = nvls_bytes(of.ranks, of.nvls_channels, of.nvls_buffer_bytes) if of.nvls_channels else 0
    peers = of.peers * of.channels_per_peer * of.buffers.connection_bytes if of.transport == "p2p" else 0
    if of.ranks <= 1:
        return Memory(Band(0, 0, 0), 0, 0, "one rank: no communicator")
    each = (2 if of.trees else 1) * of.buffers.connection_bytes
    if of.transport == "shm":
        return Memory(Band(0, 0, each), nvls, peers, "via SHM: the buffers lie in host memory")
    if of.channels is None:
        band = Band(USUAL_NVLINK * each, 2 * each, 32 * each)
        return Memory(band, nvls, peers, f"2 to 32 channels (not known) x {each // MIB} MiB")
    size = of.channels * each
    return Memory(Band(size, size, size), nvls, peers, f"{of.channels} channels x {each // MIB} MiB")


def at_init(release: Version | None, environment: Mapping[str, str], *, cumem: bool = True) -> bool:
    """Whether rings and trees take their memory when the communicator starts; else at the first collective
    (from 2.22.3 with cuMem; NCCL_CUMEM_ENABLE=0 or NCCL_RUNTIME_CONNECT=0 make it eager again)."""
    if not at_least(release, "2.22"):
        return True
    off = environment.get("NCCL_CUMEM_ENABLE") == "0" or environment.get("NCCL_RUNTIME_CONNECT") == "0"
    return off or not cumem
