"""A folder that both sides of a batch job see: stages one way, the wish to stop and signs of life the other.

The job ends itself when the other side has shown no sign for ``SILENT_S`` seconds: a campaign that was killed
leaves nothing running, and a job that only starts after that ends at once.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from pathlib import Path

import msgspec

from ullage.lab.campaign.experiment import Stage
from ullage.lab.campaign.job import Stop

#: seconds between two signs of life, and without one after which the other side is taken for gone
BEAT_S, SILENT_S = 2.0, 60.0


class Beat:
    """The campaign's signs of life, in a thread of their own, until ``stop``."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = folder / "alive"
        self._end = threading.Event()
        self._file.touch()
        self._thread = threading.Thread(target=self._run, name="signs of life", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._end.wait(BEAT_S):
            with suppress(OSError):
                self._file.touch()

    def stop(self) -> None:
        self._end.set()
        self._thread.join(BEAT_S)
        with suppress(OSError):
            self._file.unlink()


class Board:
    """One experiment's part of the folder."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, name
        self._stages = folder / f"{name}.stages"
        self._stop = folder / f"{name}.stop"

    # the job's side

    def tell(self, stage: Stage, run: str) -> None:
        with suppress(OSError), self._stages.open("ab") as stream:
            stream.write(msgspec.json.encode((stage, run)) + b"\n")

    def wish(self) -> Stop:
        """Whether to stop, asked at most once a second; gone is as stop."""
        last = [0.0, 0]

        def ask() -> int:
            now = time.monotonic()
            if now - last[0] >= 1.0:
                last[:] = [now, self._now()]
            return int(last[1])

        return ask

    def _now(self) -> int:
        with suppress(OSError, ValueError):
            return int(self._stop.read_text() or 0)
        try:
            silent = time.time() - (self.folder / "alive").stat().st_mtime
        except OSError:
            return 1
        return 1 if silent > SILENT_S else 0

    # the campaign's side

    def stages(self, seen: int) -> list[tuple[Stage, str]]:
        """What was told since the first ``seen``."""
        with suppress(OSError, msgspec.MsgspecError):
            lines = self._stages.read_bytes().splitlines()[seen:]
            return [msgspec.json.decode(line, type=tuple[Stage, str]) for line in lines]
        return []

    def stop(self, level: int) -> None:
        with suppress(OSError):
            self._stop.write_text(str(level))
