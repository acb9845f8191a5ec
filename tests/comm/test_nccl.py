"""NCCL's buffers by its formula, and what its variables do."""

from __future__ import annotations

import pytest
from packaging.version import Version

from ullage.comm.nccl import (
    Communicator,
    at_init,
    environment_of,
    memory,
    nvls_buffer_bytes,
    nvls_bytes,
    nvls_channels,
)
from ullage.core.launch import Launch
from ullage.core.units import MIB
from ullage.hardware.nccl import (
    Buffers,
    buffers_of,
    channels_of,
    max_channels,
    ring_and_tree_bytes,
    ring_bytes,
)

#: channels, NCCL_BUFFSIZE, MiB of a connection, of rings, of rings and trees
ROWS = [
    (1, "131072", 8, 8, 16), (2, "131072", 8, 16, 32), (2, None, 12, 24, 48), (8, None, 12, 96, 192),
    (16, None, 12, 192, 384), (16, "16777216", 24, 384, 768), (32, None, 12, 384, 768),
]  # fmt: skip


@pytest.mark.parametrize(("channels", "buffsize", "connection", "ring", "both"), ROWS)
def test_p2p_buffers(channels: int, buffsize: str | None, connection: int, ring: int, both: int) -> None:
    buffers = buffers_of({"NCCL_BUFFSIZE": buffsize} if buffsize else {})
    assert buffers.connection_bytes == connection * MIB
    assert ring_bytes(channels, buffers) == ring * MIB
    assert ring_and_tree_bytes(channels, buffers) == both * MIB
    assert memory(Communicator(8, channels, buffers=buffers)).total.value == both * MIB


def test_the_sides_of_a_connection() -> None:
    assert (Buffers().receive_bytes, Buffers().send_bytes) == (10_485_760, 2_097_152)
    assert (Buffers(read=True).receive_bytes, Buffers(read=True).send_bytes) == (6 * MIB, 6 * MIB)
    assert buffers_of({}, (8, 0)).read
    assert not buffers_of({"NCCL_P2P_READ_ENABLE": "0"}, (8, 0)).read


@pytest.mark.parametrize(
    ("capability", "release", "nodes", "mib"),
    [((9, 0), "2.27.3", 1, 256), ((10, 0), "2.27.3", 1, 384), ((10, 0), "2.26.2", 1, 512),
     ((10, 0), "2.29.2", 2, 512), ((9, 0), "2.19.3", 1, 1024)],
)  # fmt: skip
def test_nvls_buffers_of_eight_gpus(capability: tuple[int, int], release: str, nodes: int, mib: int) -> None:
    version = Version(release)
    channels = nvls_channels(capability, version, nodes=nodes)
    assert nvls_bytes(8, channels, nvls_buffer_bytes(version, {})) == mib * MIB


def test_no_multicast_no_nvls() -> None:
    assert nvls_channels((12, 0), None) == nvls_channels((8, 9), None) == 0


def test_shared_memory_holds_next_to_nothing_of_the_gpu() -> None:
    """The founding case: from 16 channels of 16 MiB to 2 of 128 KiB moved 0.07 GiB, not the 0.72 of P2P."""
    before, after = (
        memory(Communicator(8, channels, "shm", Buffers(simple=size))).total.value
        for channels, size in ((16, 16_777_216), (2, 131_072))
    )
    assert before == after == 0


def test_unknown_channels_are_a_band() -> None:
    found = memory(Communicator(8)).total
    assert found.low < found.value < found.high


def test_point_to_point_adds_its_peers() -> None:
    found = memory(Communicator(8, 16, peers=7, channels_per_peer=32))
    assert found.peer_bytes == 7 * 32 * 12 * MIB


def test_the_minimum_of_channels_wins() -> None:
    assert channels_of({"NCCL_MIN_NCHANNELS": "8", "NCCL_MAX_NCHANNELS": "2"}, 16) == 8
    assert channels_of({"NCCL_MAX_NRINGS": "2"}, 16) == 2
    assert channels_of({"NCCL_MIN_NCHANNELS": "999"}, 16, Version("2.24.3")) == 32
    assert channels_of({"NCCL_MAX_NCHANNELS": "x"}, 16) == 16


def test_the_limit_of_channels_by_release() -> None:
    assert (max_channels(Version("2.24.3")), max_channels(Version("2.25.1"))) == (32, 64)


def test_when_the_memory_is_taken() -> None:
    assert at_init(Version("2.21.5"), {})
    assert not at_init(Version("2.22.3"), {})
    assert at_init(Version("2.27.5"), {"NCCL_CUMEM_ENABLE": "0"})
    assert at_init(Version("2.27.5"), {"NCCL_RUNTIME_CONNECT": "0"})


def test_what_an_engine_sets_itself() -> None:
    assert environment_of(Launch("sglang", "0.5.9"))["NCCL_CUMEM_ENABLE"] == "0"
    assert environment_of(Launch("sglang", "0.5.9", env={"NCCL_CUMEM_ENABLE": "1"}))["NCCL_CUMEM_ENABLE"] == "1"
    assert "NCCL_CUMEM_ENABLE" not in environment_of(Launch("vllm", "0.24.0"))
    assert environment_of(Launch("vllm", "0.8.5"))["NCCL_CUMEM_ENABLE"] == "0"
