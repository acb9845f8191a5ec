"""The runs that were launched from here: each is a ``ullage run`` of its own, which keeps the record, and ends
with this server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import anyio
import msgspec
from anyio.abc import Process

from ullage.core.errors import InputError
from ullage.core.secrets import masked
from ullage.lab.records import Folder, Record, Store
from ullage.mcp.schemas import RUN

#: runs at once; seconds that a server gets to stop in, and that its record gets to appear
MOST, GRACE_S, RECORD_S = 8, 10.0, 30.0
_LOOK_S, _TAIL_BYTES, _LINE = 0.1, 64 << 10, 1000


class Launches:
    """Runs by name. All are asked to end when this server does."""

    def __init__(self) -> None:
        self._running: dict[str, Process] = {}

    async def start(self, name: str, options: Sequence[str], words: Sequence[str]) -> None:
        """Launch, and wait until its record is there. Raises InputError where there is none."""
        for known, process in list(self._running.items()):
            if process.returncode is not None:
                del self._running[known]
        if len(self._running) >= MOST:
            raise InputError(f"{MOST} runs go on already", where="run", hint="run_stop one of them")
        if Store().find(name) is not None:
            raise InputError("there is a run of that name already", where=name)
        process = await self._process(name, options, words)
        limit = time.monotonic() + RECORD_S
        while Store().find(name) is None:
            if process.returncode is not None or time.monotonic() > limit:
                await self.stop(name)
                raise InputError(
                    f"`ullage run` ended with code {process.returncode} before it kept a record", where=name,
                    hint="run it in a terminal to see why",
                )  # fmt: skip
            await anyio.sleep(_LOOK_S)

    async def _process(self, name: str, options: Sequence[str], words: Sequence[str]) -> Process:
        own = ["--name", name, "--grace", str(GRACE_S), *options]
        # shielded: a process that is started must be known, or nobody ends it
        with anyio.CancelScope(shield=True):
            process = await anyio.open_process(
                [sys.executable, "-P", "-m", "ullage.mcp.launcher", str(os.getpid()), *own, "--", *words],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                start_new_session=True,
            )  # fmt: skip
            self._running[name] = process
        return process

    async def wait(self, name: str, seconds: float) -> None:
        """Until the run is ready or over, at most so long."""
        folder = Store().get(name)
        with anyio.move_on_after(seconds):
            while (record := folder.read()) is not None and record.outcome == "running" and not record.ready_s:
                await anyio.sleep(_LOOK_S)

    async def stop(self, name: str) -> None:
        """End a run of ours, and wait until it is over. Raises InputError for another one."""
        process = self._running.get(name)
        if process is None:
            Store().get(name)
            raise InputError("was not launched from here, or is over", where=name[:100])
        await _ended([process])
        del self._running[name]

    async def close(self) -> None:
        """End them all."""
        await _ended(list(self._running.values()))
        self._running.clear()


def new_name() -> str:
    """A name for a run: when it was launched, and what tells it from others of that second."""
    return f"mcp-{time.strftime('%m%d-%H%M%S')}-{os.urandom(2).hex()}"


async def _ended(processes: Sequence[Process]) -> None:
    """Ask them to end, and wait; asked thrice, ``ullage run`` kills what does not go."""
    for _ in range(3):
        for process in processes:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    process.send_signal(signal.SIGTERM)
        with anyio.move_on_after(GRACE_S + 2, shield=True):
            for process in processes:
                await process.wait()
            return


def state(name: str, lines: int) -> tuple[dict[str, Any], Record]:
    """The object that the tools return of a run. Raises StoreError where there is none of that name."""
    folder = Store().get(name)
    record = folder.read()
    if record is None:
        raise InputError("its record cannot be read", where=name[:100])
    return {
        "schema": RUN, "run": msgspec.to_builtins(record), "ready": record.ready_s is not None,
        "state": "running" if record.outcome == "running" and folder.locked else "over",
        "log": tail(folder, lines),
    }, record  # fmt: skip


def tail(folder: Folder, lines: int) -> list[str]:
    """The last lines of the run's log, each cut to a length that can be read."""
    try:
        with folder.log.open("rb") as stream:
            stream.seek(0, os.SEEK_END)
            stream.seek(max(0, stream.tell() - _TAIL_BYTES))
            found = stream.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return []
    return [masked(line[:_LINE]) for line in found[len(found) - min(lines, len(found)) :]]
