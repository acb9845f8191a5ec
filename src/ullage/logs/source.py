"""Bytes of a log from a file or stdin: plain, gzip or zstd, told apart by their first bytes, never by name.

A packed file is bounded: it ends with a note after ``MAX_UNPACKED`` bytes, or once it has grown more than
``MAX_RATIO`` times and past ``RATIO_FROM`` bytes (real logs shrink 10 to 60 times; gzip can reach 1,032).
"""

from __future__ import annotations

import codecs
import stat
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, Protocol

from ullage.core.errors import InputError
from ullage.core.units import GIB, MIB, gib_text

CHUNK_BYTES = 256 << 10
MAX_UNPACKED = 8 * GIB
RATIO_FROM = 256 * MIB
MAX_RATIO = 200

_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
_UTF16 = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}


class _Unpacker(Protocol):
    """What gzip and zstd decompressors share: one frame, at most ``max_length`` bytes a call."""

    @property
    def eof(self) -> bool: ...
    def unpack(self, data: bytes, max_length: int) -> bytes: ...
    def left(self) -> bytes: ...


class _Gzip:
    def __init__(self) -> None:
        self._inner = zlib.decompressobj(wbits=31)
        self._tail = b""

    @property
    def eof(self) -> bool:
        return self._inner.eof

    def unpack(self, data: bytes, max_length: int) -> bytes:
        out = self._inner.decompress(self._tail + data, max_length)
        self._tail = self._inner.unconsumed_tail
        return out

    def left(self) -> bytes:
        return self._inner.unused_data


class _Zstd:
    def __init__(self) -> None:
        if sys.version_info >= (3, 14):
            from compression.zstd import ZstdDecompressor
        else:
            from backports.zstd import ZstdDecompressor
        self._inner = ZstdDecompressor()

    @property
    def eof(self) -> bool:
        return self._inner.eof

    def unpack(self, data: bytes, max_length: int) -> bytes:
        return self._inner.decompress(data, max_length)

    def left(self) -> bytes:
        return self._inner.unused_data


class Source:
    """One input. ``chunks()`` yields its unpacked bytes once; ``notes`` say where it was cut or damaged.

    ``size`` is the size on disk in bytes, None for a stream; ``done`` counts the bytes read from disk.
    """

    def __init__(self, name: str, opener: Callable[[], BinaryIO], size: int | None) -> None:
        self.name = name
        self.size = size
        self.done = 0
        self.notes: list[str] = []
        self._opener = opener

    def chunks(self) -> Iterator[bytes]:
        try:
            self._stream = self._opener()
        except (OSError, ValueError) as error:
            self.notes.append(f"{self.name} cannot be read: {_reason(error)}")
            return
        with self._stream:
            first = self._read()
            if first.startswith(_GZIP):
                yield from self._unpacked(first, _Gzip, zlib.error)
            elif first.startswith(_ZSTD):
                yield from self._unpacked(first, _Zstd, Exception)
            elif encoding := _UTF16.get(first[:2]):
                yield from self._recoded(first[2:], encoding)
            else:
                yield first.removeprefix(codecs.BOM_UTF8)
                while chunk := self._read():
                    yield chunk

    def _read(self) -> bytes:
        try:
            chunk = self._stream.read(CHUNK_BYTES)
        except (OSError, ValueError) as error:
            self.notes.append(f"stopped reading {self.name}: {_reason(error)}")
            return b""
        self.done += len(chunk or b"")
        return chunk or b""

    def _recoded(self, first: bytes, encoding: str) -> Iterator[bytes]:
        """UTF-16, as PowerShell redirects it, as UTF-8."""
        decoder = codecs.getincrementaldecoder(encoding)("replace")
        chunk = first
        while chunk:
            yield decoder.decode(chunk).encode("utf-8", "replace")
            chunk = self._read()

    def _unpacked(self, first: bytes, kind: Callable[[], _Unpacker], fault: type[Exception]) -> Iterator[bytes]:
        unpacker, data, total = kind(), first, 0
        while True:
            try:
                out = unpacker.unpack(data, CHUNK_BYTES)
            except fault:
                self.notes.append(f"{self.name} is damaged after {total:,} unpacked bytes; its rest is unread")
                return
            total += len(out)
            if out:
                yield out
            if self._bomb(total):
                return
            data = b""
            if unpacker.eof:
                data = unpacker.left().lstrip(b"\0") or self._read()
                if not data:
                    return
                unpacker = kind()
            elif len(out) < CHUNK_BYTES:
                data = self._read()
                if not data:
                    self.notes.append(f"{self.name} ends in the middle of its packed data")
                    return

    def _bomb(self, total: int) -> bool:
        swollen = total > RATIO_FROM and total > MAX_RATIO * self.done
        if total <= MAX_UNPACKED and not swollen:
            return False
        self.notes.append(f"stopped reading {self.name} after {gib_text(total)} of unpacked data")
        return True


def open_source(path: str | Path, stdin: BinaryIO | None = None) -> Source:
    """The input named ``path`` ("-": stdin). Raises InputError where it cannot be opened."""
    name = str(path)
    if name == "-":
        return Source("stdin", lambda: stdin or sys.stdin.buffer, None)
    try:
        mode = Path(name).stat()
        if stat.S_ISDIR(mode.st_mode):
            raise InputError("is a folder", where=name, hint="name the log files in it")
        if stat.S_ISCHR(mode.st_mode) or stat.S_ISBLK(mode.st_mode):
            raise InputError("is a device, not a log", where=name, hint="use - for stdin")
        regular = stat.S_ISREG(mode.st_mode)
        if regular:
            Path(name).open("rb").close()  # a pipe can be opened once only
    except (OSError, ValueError) as error:
        raise InputError(f"cannot be read: {_reason(error)}", where=name or "''") from None
    return Source(name, lambda: Path(name).open("rb"), mode.st_size if regular else None)


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
