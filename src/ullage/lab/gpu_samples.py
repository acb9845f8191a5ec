"""Memory of the GPUs while a run goes on: a line a sample, through the binding that hardware/nvml asks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from ullage.core.machine import Device

#: seconds between two samples; samples after which a file is full (a week at two seconds)
EVERY_S, MOST_SAMPLES = 2.0, 300_000
#: asks the GPUs; () where there are none
Ask = Callable[[], tuple[Device, ...]]


class Sample(Struct, frozen=True, omit_defaults=True):
    """One GPU at one moment. ``at_s`` counts from the start of the run; ``processes``: pid -> its bytes."""

    at_s: float
    index: int
    used_bytes: int | None = None
    free_bytes: int | None = None
    processes: dict[str, int | None] = {}


def ask() -> tuple[Device, ...]:
    """The GPUs of this machine by NVML; () where the binding or the driver is missing."""
    from ullage.hardware import nvml

    binding = nvml.library()
    found = nvml.described(binding, 2.0) if binding is not None else None
    return found.devices if found is not None else ()


def sample(devices: tuple[Device, ...], at_s: float) -> list[Sample]:
    return [
        Sample(
            round(at_s, 3), device.index, device.used_bytes, device.free_bytes,
            {str(process.pid): process.used_bytes for process in device.processes},
        )
        for device in devices
    ]  # fmt: skip


class Sampler:
    """Writes samples to a file until it is stopped, in a thread of its own. Where there are no GPUs, or the
    disk is full, it ends by itself. ``peaks`` holds the most that each GPU had in use, in bytes."""

    def __init__(self, path: Path, ask: Ask = ask, every_s: float = EVERY_S) -> None:
        self._path, self._ask, self._every_s = path, ask, every_s
        self._stop = threading.Event()
        self._started = time.monotonic()
        self.peaks: dict[int, int] = {}
        self._thread = threading.Thread(target=self._run, name="gpu samples", daemon=True)

    def start(self) -> None:
        self._started = time.monotonic()
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(5.0)

    def _run(self) -> None:
        devices = self._ask()
        if not devices:
            return
        with suppress(OSError), self._path.open("ab") as stream:
            for _ in range(MOST_SAMPLES):
                for each in sample(devices, time.monotonic() - self._started):
                    self.peaks[each.index] = max(self.peaks.get(each.index, 0), each.used_bytes or 0)
                    stream.write(msgspec.json.encode(each) + b"\n")
                stream.flush()
                if self._stop.wait(self._every_s):
                    return
                devices = self._ask()


def read(path: Path) -> Iterator[Sample]:
    """The samples of a file; torn lines are skipped, a file that is not there holds none."""
    with suppress(OSError), path.open("rb") as stream:
        for line in stream:
            with suppress(msgspec.MsgspecError):
                yield msgspec.json.decode(line, type=Sample)
