"""The host: shared memory, limits, containers, WSL, and what its log complains of."""

from __future__ import annotations

from collections.abc import Iterator

from ullage.core.units import GIB, KIB, MIB, gib_text
from ullage.hardware.check.facts import Facts
from ullage.hardware.check.finding import CheckFinding, say
from ullage.hardware.host import UNLIMITED

#: below this NCCL's segments (some 9.2 MiB a channel and peer) and the engines' queues fail to be made
SHM_LEAST = 256 * MIB
SHM_EASY = 2 * GIB
MEMLOCK_LEAST = 64 * MIB
NOFILE_WANTED = 8192


def rules(known: Facts) -> Iterator[CheckFinding]:
    for rule in (
        _shm,
        _memlock,
        _nofile,
        _cgroup,
        _hugepages,
        _short,
        _wsl,
        _governor,
        _balancing,
    ):
        yield from rule(known)


def _count(known: Facts) -> int:
    return len(known.machine.devices) if known.machine is not None else 0


def _shm(known: Facts) -> Iterator[CheckFinding]:
    shm, count = known.host.shm, _count(known)
    if shm is None or not count:
        return
    if shm.value < SHM_LEAST and count > 1:
        yield say("shm-small", shm.evidence, size=size_text(shm.value), count=count)
    elif shm.value < SHM_EASY:
        yield say("shm-tight", shm.evidence, size=size_text(shm.value))


def size_text(num_bytes: int) -> str:
    """A size in the unit that suits it: limits span from KiB to TiB."""
    return f"{num_bytes / KIB:.0f} KiB" if num_bytes < MIB else (
        f"{num_bytes / MIB:.0f} MiB" if num_bytes < GIB else gib_text(num_bytes, 1)
    )  # fmt: skip


def _memlock(known: Facts) -> Iterator[CheckFinding]:
    limit = known.host.memlock
    cards = known.links is not None and bool(known.links.nics)
    if limit is not None and limit.value < MEMLOCK_LEAST and cards:
        yield say("memlock-low", limit.evidence, size=size_text(limit.value))


def _nofile(known: Facts) -> Iterator[CheckFinding]:
    soft, hard = known.host.nofile, known.host.nofile_hard
    reachable = hard.value if hard is not None else (soft.value if soft is not None else UNLIMITED)
    if soft is not None and reachable < NOFILE_WANTED and known.devices:
        yield say("nofile-low", soft.evidence, soft=soft.value, hard=reachable)


def _cgroup(known: Facts) -> Iterator[CheckFinding]:
    limit, total = known.host.cgroup, known.host.total
    gpus = sum(device.total_bytes or 0 for device in known.devices)
    if limit is None or not gpus or (total is not None and limit.value >= total.value):
        return
    if limit.value < gpus / 2:
        yield say("cgroup-memory", limit.evidence, limit=gib_text(limit.value, 0),
                  total=gib_text(total.value, 0) if total else "memory")  # fmt: skip


def _hugepages(known: Facts) -> Iterator[CheckFinding]:
    held, total = known.host.hugepages, known.host.total
    if held is not None and total is not None and held.value > total.value * 0.1:
        yield say("hugepages-hold", held.evidence, size=gib_text(held.value, 0), total=gib_text(total.value, 0))


def _short(known: Facts) -> Iterator[CheckFinding]:
    available = known.host.available
    gpu = known.machine.gpu if known.machine is not None else None
    if available is None or gpu is None or gpu.unified_memory or not gpu.total_bytes:
        return
    if available.value < gpu.total_bytes:
        yield say("host-memory-short", available.evidence, available=gib_text(available.value, 1),
                  gpu=gib_text(gpu.total_bytes, 0))  # fmt: skip


def _wsl(known: Facts) -> Iterator[CheckFinding]:
    if not known.host.wsl or known.host.kernel is None or not known.devices:
        return
    if _count(known) > 1:
        yield say("wsl-several-gpus", known.host.kernel.evidence, count=_count(known))
    yield say("wsl", known.host.kernel.evidence)


def _governor(known: Facts) -> Iterator[CheckFinding]:
    governor = known.host.governor
    if governor is not None and governor.text in ("powersave", "conservative", "ondemand") and known.devices:
        intel = known.host.cpu is not None and "intel" in known.host.cpu.text.lower()
        if not (intel and governor.text == "powersave"):  # intel_pstate's powersave scales as others' schedutil
            yield say("governor-slow", governor.evidence, governor=governor.text)


def _balancing(known: Facts) -> Iterator[CheckFinding]:
    balancing = known.host.numa_balancing
    if balancing is not None and balancing.value == 1 and known.amd:
        yield say("numa-balancing", balancing.evidence)
