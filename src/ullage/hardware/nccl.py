"""NCCL's variables as numbers, and what its buffers take: device bytes of rings and trees on one GPU.

Read at the tags v2.19.3-1 to v2.30.7-1: src/init.cc (buffer sizes), src/transport/p2p.cc,
src/include/device.h (MAXCHANNELS), src/graph/connect.cc (channels). All sizes are bytes.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct
from packaging.version import Version

from ullage.core.units import MIB

#: 8 lines x 512 threads x 8 steps x 16 B; 120 elements x 640 threads x 8 steps x 8 B; Simple
LL_BYTES, LL128_BYTES, SIMPLE_BYTES = 524_288, 4_915_200, 4_194_304
#: ncclSendMem and ncclRecvMem, and what an allocation is rounded up to (CUDA_IPC_MIN)
HEAD_BYTES, ROUND_BYTES = 4096, 2 * MIB
#: channels that are common on NVLink (rings doubled) and over PCIe; the figure of a log beats both
USUAL_NVLINK, USUAL_PCIE = 16, 4
#: no host has more; a larger value of a variable is a slip
MOST_BYTES = 1 << 36


class Buffers(Struct, frozen=True):
    """The buffers of one connection, in bytes. ``read``: the sender keeps the Simple buffer (compute capability
    8.0 over NVLink, or NCCL_P2P_READ_ENABLE=1)."""

    ll: int = LL_BYTES
    ll128: int = LL128_BYTES
    simple: int = SIMPLE_BYTES
    read: bool = False

    @property
    def receive_bytes(self) -> int:
        return _rounded(HEAD_BYTES + self.ll + self.ll128 + (0 if self.read else self.simple))

    @property
    def send_bytes(self) -> int:
        return _rounded(HEAD_BYTES + (self.simple if self.read else 0))

    @property
    def connection_bytes(self) -> int:
        """One channel to one peer, both directions: R + S (12 MiB by default)."""
        return self.receive_bytes + self.send_bytes


def ring_bytes(channels: int, buffers: Buffers) -> int:
    """Rings alone: each channel has one predecessor and one successor."""
    return channels * buffers.connection_bytes


def ring_and_tree_bytes(channels: int, buffers: Buffers) -> int:
    """Rings and trees in one host: the tree is a chain in ring order, its reverse edges need the second
    direction of each connection."""
    return channels * 2 * buffers.connection_bytes


def max_channels(release: Version | None) -> int:
    """MAXCHANNELS: 32 to 2.24.3, 64 from 2.25.1 (src/include/device.h)."""
    return 64 if at_least(release, "2.25") else 32


def channel_limits(environment: Mapping[str, str]) -> tuple[int | None, int | None]:
    """(least, most) channels that the variables ask for: NCCL_MIN_NCHANNELS and NCCL_MAX_NCHANNELS, or their
    aliases NCCL_MIN_NRINGS and NCCL_MAX_NRINGS."""
    least, most = (
        positive(environment, f"NCCL_{which}_NCHANNELS") or positive(environment, f"NCCL_{which}_NRINGS")
        for which in ("MIN", "MAX")
    )
    return least, most


def channels_of(environment: Mapping[str, str], found: int, release: Version | None = None) -> int:
    """Channels after the variables: capped by the most, then copied until the least is met (so the least wins).
    ``found``: what the search found, doubled."""
    limit = max_channels(release)
    least, most = channel_limits(environment)
    return max(1, min(limit, max(min(found, most or limit), least or 1)))


def buffers_of(environment: Mapping[str, str], capability: tuple[int, int] | None = None) -> Buffers:
    """The buffers that the variables ask for (bytes)."""
    read = environment.get("NCCL_P2P_READ_ENABLE")
    return Buffers(
        positive(environment, "NCCL_LL_BUFFSIZE") or LL_BYTES,
        positive(environment, "NCCL_LL128_BUFFSIZE") or LL128_BYTES,
        positive(environment, "NCCL_BUFFSIZE") or SIMPLE_BYTES,
        read == "1" or (read is None and capability == (8, 0)),
    )


def whole(environment: Mapping[str, str], name: str) -> int | None:
    """A variable as a whole number; None where it is absent or none."""
    text = environment.get(name, "").strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else None


def positive(environment: Mapping[str, str], name: str) -> int | None:
    """A variable as a positive whole number; None where it is absent, none or absurd."""
    number = whole(environment, name)
    return number if number and number <= MOST_BYTES else None


def at_least(release: Version | None, since: str) -> bool:
    """True from release ``since`` on; a release that is not known is taken as the newest."""
    return release is None or release >= Version(since)


def _rounded(num_bytes: int) -> int:
    return -(-num_bytes // ROUND_BYTES) * ROUND_BYTES
