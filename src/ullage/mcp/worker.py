"""A process that computes for the server: one question at a time on stdin, one answer on stdout.

A message is its length in four bytes and JSON. The process ends with the server, however that ends: its stdin
is read by a thread of its own, which ends it at once where the server is gone.
"""

from __future__ import annotations

import gc
import os
import queue
import struct
import sys
import threading
from typing import BinaryIO

import msgspec
from msgspec import Raw, Struct

from ullage.core.errors import UllageError

#: the largest answer that is passed on; beyond that something is wrong
MOST_BYTES = 32 << 20


class Settings(Struct, frozen=True):
    """What a server was started with."""

    roots: tuple[str, ...]
    hub: bool = False


class Question(Struct, frozen=True):
    tool: str
    arguments: Raw


class Answer(Struct, frozen=True):
    """``error``: what a person can mend, in one line; else the ``found`` object and a short text."""

    text: str = ""
    found: Raw = Raw(b"null")
    error: str | None = None


def frame(message: bytes) -> bytes:
    return struct.pack("<I", len(message)) + message


def answered(question: Question, settings: Settings) -> Answer:
    """The answer; whatever goes wrong is one line."""
    from ullage.core.secrets import masked
    from ullage.mcp import answers

    try:
        found = answers.answer(question, settings)
    except UllageError as error:
        return Answer(error=masked(error.line)[:2000])
    except MemoryError:
        return Answer(error="there is not enough memory for this")
    except Exception as error:
        what = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        return Answer(error=masked(f"a fault of ullage itself, please report it: {what}"))
    if len(found.found) > MOST_BYTES:
        return Answer(error="the answer is larger than 32 MiB; the command line has it all")
    return found


def main() -> None:
    """Serve until stdin ends. The settings come first."""
    out = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # whatever prints must not come between the answers
    settings = msgspec.json.decode(_read(sys.stdin.buffer) or b"{}", type=Settings)
    os.chdir(settings.roots[0])
    waiting: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(waiting,), daemon=True).start()
    while True:
        question = msgspec.json.decode(waiting.get(), type=Question)
        out.write(frame(msgspec.json.encode(answered(question, settings))))
        gc.collect()


def _listen(waiting: queue.SimpleQueue[bytes]) -> None:
    while (message := _read(sys.stdin.buffer)) is not None:
        waiting.put(message)
    os._exit(0)


def _read(stream: BinaryIO) -> bytes | None:
    head = stream.read(4)
    if len(head) < 4:
        return None
    (size,) = struct.unpack("<I", head)
    body = stream.read(size)
    return body if len(body) == size else None


if __name__ == "__main__":
    main()
