"""Which GPUs an experiment gets, and whether they are free again afterwards."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from ullage.core.machine import Device
from ullage.core.units import MIB, gib_text

#: asks the driver of this machine; () where there are no GPUs (lab/gpu_samples.ask)
Ask = Callable[[], tuple[Device, ...]]
#: what may stay in use beyond what was in use before: the driver's own rounding, a display
TOLERATED = 256 * MIB
#: seconds between two looks
LOOK_S = 0.5


class Pool:
    """GPUs, and how many experiments may run at once. Experiments get disjoint sets, the lowest numbers first.

    Without GPUs (``gpus`` is None) only the number of experiments counts.
    """

    def __init__(self, gpus: Sequence[int] | None, side_by_side: int) -> None:
        self._free = sorted(gpus) if gpus is not None else None
        self.total = len(self._free) if self._free is not None else None
        self._slots = list(range(side_by_side))
        self._changed = threading.Condition()

    def can(self, count: int) -> bool:
        """True if ``count`` GPUs exist at all."""
        return self.total is None or count <= self.total

    @contextmanager
    def taken(self, count: int, stop: Callable[[], int]) -> Iterator[tuple[int, tuple[int, ...] | None] | None]:
        """(slot, GPUs) while in use, once they are free; None where it was stopped before."""
        got = self._take(count, stop)
        try:
            yield got
        finally:
            if got is not None:
                self._give(got)

    def _take(self, count: int, stop: Callable[[], int]) -> tuple[int, tuple[int, ...] | None] | None:
        with self._changed:
            while not stop():
                if self._slots and (self._free is None or len(self._free) >= count):
                    gpus = None if self._free is None else tuple(self._free[:count])
                    if self._free is not None:
                        del self._free[:count]
                    return self._slots.pop(0), gpus
                self._changed.wait(0.2)
        return None

    def _give(self, got: tuple[int, tuple[int, ...] | None]) -> None:
        with self._changed:
            self._slots = sorted([*self._slots, got[0]])
            if self._free is not None:
                self._free = sorted([*self._free, *(got[1] or ())])
            self._changed.notify_all()


def used(devices: Sequence[Device]) -> dict[int, int]:
    """Bytes in use on each GPU."""
    return {device.index: device.used_bytes for device in devices if device.used_bytes is not None}


def held(devices: Sequence[Device], before: Mapping[int, int], gpus: Sequence[int] | None) -> list[str]:
    """Each GPU of ``gpus`` (None: all) that holds more than ``before``, in words."""
    found = []
    for device in devices:
        if gpus is not None and device.index not in gpus:
            continue
        more = (device.used_bytes or 0) - before.get(device.index, device.used_bytes or 0)
        if more > TOLERATED:
            by = ", ".join(f"{p.name or '?'} (pid {p.pid})" for p in device.processes[:3])
            found.append(
                f"GPU {device.index} still holds {gib_text(more)} more than before{f': {by}' if by else ''}"
            )
    return found


def wait_free(ask: Ask, before: Mapping[int, int], gpus: Sequence[int] | None, timeout_s: float) -> list[str]:
    """What the GPUs still hold after ``timeout_s`` seconds; nothing as soon as they are as free as
    ``before``."""
    until = time.monotonic() + timeout_s
    while True:
        left = held(ask(), before, gpus)
        if not left or time.monotonic() >= until:
            return left
        time.sleep(LOOK_S)
