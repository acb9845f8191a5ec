"""NCCL's variables and the host they meet: units, memory of the buffers, P2P across a host bridge.

Read: NCCL 2.19.3 to 2.30.7 (src/init.cc, src/transport/p2p.cc, src/graph/paths.cc), sglang 0.5.9 and vllm
0.33.0 (device_communicators/custom_all_reduce.py).
"""

from __future__ import annotations

from collections.abc import Iterator

from ullage.core.finding import Hazard
from ullage.core.units import KIB, MIB
from ullage.hardware.compat.subject import Subject
from ullage.hardware.nccl import (
    SIMPLE_BYTES,
    USUAL_NVLINK,
    Buffers,
    channel_limits,
    channels_of,
    ring_and_tree_bytes,
    whole,
)

#: from this per-communicator sum on the buffers are worth a word
MUCH_BYTES = 512 * MIB
_LEVELS = ("LOC", "NVL", "PIX", "PXB", "PHB", "SYS", "PXN", "NVB", "P2C", "DIS", "NVLINK")
_BUFFERS = "NCCL 2.19.3 to 2.30.7, src/transport/p2p.cc"
_PATHS = "NCCL 2.19.3 to 2.30.7, src/graph/paths.cc"


def hazards(asked: Subject) -> list[Hazard]:
    """What the NCCL variables of the launch, and the links of the machine, bring with them."""
    if asked.gpu is not None and asked.gpu.vendor != "nvidia":
        return []
    rules = (_units, _memory, _channels, _ll128, _level, _disabled, _shared_memory, _host_bridge)
    return [hazard for rule in rules for hazard in rule(asked)]


def _units(asked: Subject) -> Iterator[Hazard]:
    size = whole(asked.launch.env, "NCCL_BUFFSIZE")
    if size is None or size >= MIB:
        return
    if size < 64 * KIB:
        yield Hazard(
            "nccl-buffsize-units",
            f"NCCL_BUFFSIZE is in bytes: {size} is a buffer of {size} bytes, which makes the chunks tiny. "
            f"Leave it out, or write bytes (4194304 is NCCL's own value).", _BUFFERS,
        )  # fmt: skip
    else:
        saved = Buffers().connection_bytes - Buffers(simple=size).connection_bytes
        yield Hazard(
            "nccl-buffsize-saves-little",
            f"NCCL_BUFFSIZE={size} saves {saved // MIB} MiB a connection at most: the LL and LL128 buffers, "
            "5.2 MiB "
            f"beside it, stay. Fewer channels (NCCL_MAX_NCHANNELS) save more; neither mends a KV pool that is "
            f"gigabytes short.", _BUFFERS,
        )  # fmt: skip


def _memory(asked: Subject) -> Iterator[Hazard]:
    size = whole(asked.launch.env, "NCCL_BUFFSIZE")
    least, most = channel_limits(asked.launch.env)
    if size is None and most is None and least is None:
        return
    channels = channels_of(asked.launch.env, most or USUAL_NVLINK)
    taken = ring_and_tree_bytes(channels, Buffers(simple=size or SIMPLE_BYTES))
    if taken >= MUCH_BYTES and (asked.group or 2) > 1:
        yield Hazard(
            "nccl-buffers-large",
            f"With {channels} channels{'' if most or least else ' (a usual number)'} and a buffer of "
            f"{(size or SIMPLE_BYTES) // MIB} MiB NCCL takes up to {taken // MIB} MiB of each GPU for every "
            "communicator, "
            f"outside the engine's share: channels x 2 x (receive + send side). Count it when you set the "
            "fraction.",
            _BUFFERS, certain=False,
        )  # fmt: skip


def _channels(asked: Subject) -> Iterator[Hazard]:
    least, most = channel_limits(asked.launch.env)
    if least and most and least > most:
        yield Hazard(
            "nccl-channels-min-over-max",
            f"NCCL_MIN_NCHANNELS={least} wins over NCCL_MAX_NCHANNELS={most}: NCCL copies channels until the "
            f"minimum is met. Drop one of the two.", "NCCL 2.19.3 to 2.30.7, src/graph/connect.cc",
        )  # fmt: skip


def _ll128(asked: Subject) -> Iterator[Hazard]:
    size = whole(asked.launch.env, "NCCL_LL128_BUFFSIZE")
    if size is not None and (size == 0 or size % 120):
        yield Hazard(
            "nccl-ll128-buffsize",
            f"NCCL_LL128_BUFFSIZE={size} is no multiple of 120: all-reduces may hang or come out wrong. "
            "Leave it out.",
            "NVIDIA/nccl#1739",
        )  # fmt: skip


def _level(asked: Subject) -> Iterator[Hazard]:
    level = asked.launch.env.get("NCCL_P2P_LEVEL", "").strip()
    if not level or level.upper() in _LEVELS:
        return
    if level.isdigit():
        meaning = {"0": "LOC (no P2P)", "1": "PIX", "2": "PXB", "3": "PHB", "4": "SYS", "5": "SYS"}.get(
            level, "SYS"
        )
        text = f"NCCL_P2P_LEVEL={level[:20]} is the old spelling of {meaning}; write the word: tables differ."
    else:
        text = f"NCCL_P2P_LEVEL={level[:20]} is none of LOC, NVL, PIX, PXB, PHB, SYS: NCCL ignores it."
    yield Hazard("nccl-p2p-level-spelling", text, _PATHS)


def _disabled(asked: Subject) -> Iterator[Hazard]:
    """The engines' own all-reduce works between two GPUs with P2P, or a full NVLink mesh, by CUDA IPC."""
    if asked.launch.env.get("NCCL_P2P_DISABLE") != "1" or asked.launch.flag("disable_custom_all_reduce"):
        return
    group = asked.group or 1
    if group == 2 or (group > 2 and asked.nvlink):
        yield Hazard(
            "nccl-p2p-disable-not-custom-all-reduce",
            "NCCL_P2P_DISABLE=1 binds NCCL only; the engine's custom all-reduce still maps its peers' memory. "
            "Where P2P hangs or corrupts on this host, add --disable-custom-all-reduce.",
            "sglang 0.5.9 and vllm 0.33.0, device_communicators/custom_all_reduce.py: asks CUDA, not NCCL",
        )  # fmt: skip
    if asked.launch.env.get("NCCL_P2P_LEVEL"):
        yield Hazard(
            "nccl-p2p-disable-wins",
            "NCCL_P2P_DISABLE=1 wins over NCCL_P2P_LEVEL: no P2P at all. Drop one of the two.", _PATHS,
        )  # fmt: skip


def _shared_memory(asked: Subject) -> Iterator[Hazard]:
    env = asked.launch.env
    if env.get("NCCL_SHM_DISABLE") == "1" and (env.get("NCCL_P2P_DISABLE") == "1" or asked.nvlink is False):
        yield Hazard(
            "nccl-shm-disabled",
            "NCCL_SHM_DISABLE=1 without P2P sends every all-reduce of this host through the network: very "
            "slow, or "
            "it fails. Drop it (a container needs a large --shm-size instead).",
            "NCCL 2.19.3 to 2.30.7, src/transport.cc: P2P, then SHM, then NET", certain=False,
        )  # fmt: skip


def _host_bridge(asked: Subject) -> Iterator[Hazard]:
    """NCCL uses P2P up to PXB by itself; cards on different root ports are PHB or SYS apart."""
    env = asked.launch.env
    if asked.nvlink is not False or (asked.group or 1) <= 2 or asked.gpu is None or asked.gpu.unified_memory:
        return
    if env.get("NCCL_P2P_LEVEL") or env.get("NCCL_P2P_DISABLE"):
        return
    if "GeForce" in asked.gpu.name:
        return  # the stock driver has no P2P between these cards
    yield Hazard(
        "nccl-host-bridge-p2p",
        f"{asked.group} cards without NVLink: the engine's custom all-reduce is off (more than two PCIe "
        "cards), and "
        "NCCL uses no P2P across a CPU's host bridge by itself. If NCCL_DEBUG=INFO shows “via SHM”, try "
        "NCCL_P2P_LEVEL=SYS and measure: 25-34 µs against some 245 µs for 42 KiB have been seen.",
        f"{_PATHS}: the default level is PXB; public measurements of 8 RTX PRO 6000", certain=False,
    )  # fmt: skip
