"""The processes that compute, as the server sees them: a large log holds up no other question, and a question
that is withdrawn ends its process."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from contextlib import suppress

import anyio
import msgspec
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

from ullage.mcp.worker import Answer, Question, Settings, frame

#: seconds that one answer may take: a log of many gigabytes is read in less
MOST_S = 600.0
#: answers so large are not read at all
_MOST_BYTES = 64 << 20


class Workers:
    """At most ``many`` processes, each started when it is first needed and kept."""

    def __init__(self, many: int, settings: Settings) -> None:
        self._settings = msgspec.json.encode(settings)
        self._limit = anyio.CapacityLimiter(many)
        self._idle: list[Process] = []
        self._all: set[Process] = set()

    async def ask(self, question: Question) -> Answer:
        """The answer. Cancelled, or past its time, the process that works on it is killed."""
        async with self._limit:
            with anyio.move_on_after(MOST_S):
                return await self._asked(question)
            return Answer(error=f"no answer within {MOST_S:.0f} s")

    async def _asked(self, question: Question) -> Answer:
        process = await self._one()
        try:
            return await self._exchange(process, msgspec.json.encode(question))
        except (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.IncompleteRead,
                anyio.EndOfStream):  # fmt: skip
            self._all.discard(process)
            await _end(process)
            return Answer(error="the process that worked on it died; ask once more, or for less at once")
        except BaseException:
            self._all.discard(process)
            with anyio.CancelScope(shield=True):
                await _end(process)
            raise

    async def _exchange(self, process: Process, question: bytes) -> Answer:
        assert process.stdin is not None and process.stdout is not None
        await process.stdin.send(frame(question))
        stream = BufferedByteReceiveStream(process.stdout)
        (size,) = struct.unpack("<I", await stream.receive_exactly(4))
        if size > _MOST_BYTES:
            raise anyio.IncompleteRead
        answer = msgspec.json.decode(await stream.receive_exactly(size), type=Answer)
        self._idle.append(process)
        return answer

    async def _one(self) -> Process:
        while self._idle:
            process = self._idle.pop()
            if process.returncode is None:
                return process
            self._all.discard(process)
            await _end(process)
        with anyio.CancelScope(shield=True):
            process = await anyio.open_process(
                [sys.executable, "-P", "-m", "ullage.mcp.worker"], start_new_session=True,
                stderr=None if os.environ.get("ULLAGE_DEBUG") else subprocess.DEVNULL,
            )  # fmt: skip
            self._all.add(process)
        assert process.stdin is not None
        with suppress(OSError, anyio.BrokenResourceError):
            await process.stdin.send(frame(self._settings))
        return process

    async def close(self) -> None:
        """End them all."""
        for process in list(self._all):
            await _end(process)
        self._all.clear()
        self._idle.clear()


async def _end(process: Process) -> None:
    with suppress(ProcessLookupError):
        process.kill()
    await process.aclose()
