"""The memory of GPUs: held by others, unlike, cut by MIG, or shared with the host."""

from __future__ import annotations

from collections.abc import Iterator

from ullage.core.finding import Evidence
from ullage.core.machine import Device
from ullage.core.units import MIB, gib_text
from ullage.hardware.check.facts import Facts
from ullage.hardware.check.finding import CheckFinding, say
from ullage.hardware.check.gpus import first_line, numbers, quote, those

#: memory of other processes that is worth a word: a display takes less (bytes)
HELD = 512 * MIB
#: SGLang's check of free memory over the ranks (model_runner.py, later distributed/bootstrap.py)
BALANCED = 0.9


def rules(known: Facts) -> Iterator[CheckFinding]:
    for rule in (_held, _mig, _unified):
        yield from rule(known)


def _held(known: Facts) -> Iterator[CheckFinding]:
    devices = known.machine.devices if known.machine is not None else ()
    if known.machine is not None and known.machine.gpu is not None and known.machine.gpu.unified_memory:
        return
    busy = [device for device in devices if (device.used_bytes or 0) >= HELD]
    free = [device for device in devices if device.free_bytes is not None and device.total_bytes]
    if len(free) > 1:
        yield from _unbalanced(known, free)
    if busy:
        words = "; ".join(_who(device) for device in busy[:4]) + (
            f"; {len(busy) - 4} more" if len(busy) > 4 else ""
        )
        much = any((d.used_bytes or 0) >= (d.total_bytes or 0) * 0.05 for d in busy)
        yield say(
            "gpu-memory-held", *_shown(known, busy), severity="slows" if much else "worth knowing", held=words
        )


def _unbalanced(known: Facts, free: list[Device]) -> Iterator[CheckFinding]:
    low = min(free, key=lambda device: device.free_bytes or 0)
    high = max(free, key=lambda device: device.free_bytes or 0)
    if (low.free_bytes or 0) < BALANCED * (high.free_bytes or 0):
        share = (low.free_bytes or 0) / (high.free_bytes or 1)
        refuses = known.installed is not None and known.installed.of("sglang") is not None
        yield say(
            "gpus-unbalanced",
            *_shown(known, [low]),
            severity="stops" if refuses else "slows",
            low=gib_text(low.free_bytes or 0, 1),
            low_gpu=low.index,
            high=gib_text(high.free_bytes or 0, 1),
            high_gpu=high.index,
            factor=f"{1 - share:.0%}",
        )


def _who(device: Device) -> str:
    named = ", ".join(f"{process.name or 'unknown'} (pid {process.pid})" for process in device.processes[:2])
    more = f" and {len(device.processes) - 2} more" if len(device.processes) > 2 else ""
    total = f" of {gib_text(device.total_bytes, 1)}" if device.total_bytes else ""
    return f"GPU {device.index}: {gib_text(device.used_bytes or 0, 1)}{total} in use" + (
        f" by {named}{more}" if named else ""
    )


def _shown(known: Facts, devices: list[Device]) -> list[Evidence | None]:
    """The lines that print their memory."""
    found: list[Evidence | None] = []
    for device in devices[:2]:
        card = known.of_card(device.index)
        used = card.first("fb memory usage/used") if card is not None else None
        if used is not None:
            found.append(quote(known, used))
        elif device.used_bytes is not None:
            found.append(
                known.outputs.of("smi").find(f"{device.used_bytes // MIB}MiB /")
                or known.outputs.of("gpus").find(f"{device.index}, ")
            )
    return found


def _mig(known: Facts) -> Iterator[CheckFinding]:
    on = [device for device in known.devices if device.mig]
    made = [device for device in on if device.mig_total_bytes]
    lines = [quote(known, said) for _, said in those(known, "mig mode/current", lambda s: s.text == "Enabled")][
        :2
    ]
    if made:
        size = gib_text(min(device.mig_total_bytes or 0 for device in made), 1)
        yield say("mig-on", *lines, gpus=numbers(device.index for device in made), size=size)
    elif on and known.outputs.text("report"):
        yield say("mig-without-instance", *lines, gpus=numbers(device.index for device in on))


def _unified(known: Facts) -> Iterator[CheckFinding]:
    gpu = known.machine.gpu if known.machine is not None else None
    if gpu is not None and gpu.unified_memory:
        total = gib_text(gpu.total_bytes, 0) if gpu.total_bytes else "size unknown"
        line = known.outputs.of("smi").find("Not Supported") or first_line(known)
        yield say("unified-memory", line, gpu=gpu.name, total=total)
