"""Where bytes come from: plain, packed, recoded, damaged; and what is refused."""

from __future__ import annotations

import gzip
import io
import os
import sys
import zlib
from pathlib import Path

import pytest

from ullage.core.errors import InputError
from ullage.logs import source
from ullage.logs.lines import LineReader, read

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

TEXT = b"[2026-02-01 10:00:00 TP0] one\n[2026-02-01 10:00:01 TP0] two\n"


def texts(reader: LineReader) -> list[str]:
    return [line.text for line in reader]


@pytest.mark.parametrize(
    "data",
    [
        TEXT,
        gzip.compress(TEXT),
        gzip.compress(TEXT[:30]) + gzip.compress(TEXT[30:]),
        zstd.compress(TEXT),
        zstd.compress(TEXT[:30]) + zstd.compress(TEXT[30:]),
        TEXT.decode().encode("utf-16"),
        b"\xef\xbb\xbf" + TEXT,
        TEXT.replace(b"\n", b"\r\n"),
    ],
    ids=["plain", "gzip", "gzip-twice", "zstd", "zstd-twice", "utf-16", "utf-8-bom", "crlf"],
)
def test_packings_are_told_by_their_bytes(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "any.name"
    path.write_bytes(data)
    reader = read([path])
    assert texts(reader) == ["one", "two"]
    assert reader.notes == []
    assert texts(read(["-"], stdin=io.BytesIO(data))) == ["one", "two"]


@pytest.mark.parametrize("pack", [gzip.compress, zstd.compress], ids=["gzip", "zstd"])
def test_damaged_and_cut_packings_are_said(tmp_path: Path, pack: object) -> None:
    assert callable(pack)
    data = pack(os.urandom(50_000))
    path = tmp_path / "x"
    path.write_bytes(data[: len(data) // 2])
    reader = read([path])
    list(reader)
    assert any("ends in the middle" in note for note in reader.notes)
    path.write_bytes(data[:200] + b"\0" * 2000 + os.urandom(3000))
    reader = read([path])
    list(reader)
    assert any("damaged" in note or "middle" in note for note in reader.notes)


@pytest.mark.parametrize("pack", [zlib.compressobj(9, wbits=31), None], ids=["gzip", "zstd"])
def test_a_bomb_is_bounded_and_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pack: object) -> None:
    monkeypatch.setattr(source, "RATIO_FROM", 8 << 20)
    path = tmp_path / "bomb"
    with path.open("wb") as file:
        zeros = b"\0" * (1 << 20)
        packer = zlib.compressobj(9, wbits=31) if pack else zstd.ZstdCompressor()
        for _ in range(64):
            file.write(packer.compress(zeros))
        file.write(packer.flush())
    reader = read([path])
    assert sum(1 for _ in reader) <= 1
    assert reader.num_bytes < 20 << 20
    assert any(note.startswith("stopped reading") and "unpacked data" in note for note in reader.notes)


def test_what_cannot_be_opened_is_one_clear_line(tmp_path: Path) -> None:
    for bad in (tmp_path / "missing.log", tmp_path, "", "a\0b", "/dev/null"):
        with pytest.raises(InputError) as error:
            read([bad])
        assert "\n" not in error.value.line
    if os.geteuid() != 0:
        secret = tmp_path / "secret"
        secret.write_text("x")
        secret.chmod(0)
        with pytest.raises(InputError, match="ermission"):
            read([secret])


def test_a_read_error_ends_the_log_with_a_note() -> None:
    class Broken(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            raise OSError(5, "Input/output error")

    reader = read(["-"], stdin=Broken())
    assert list(reader) == []
    assert any("Input/output error" in note for note in reader.notes)


def test_sizes_for_progress(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(TEXT * 20_000)
    seen: list[tuple[int, int | None]] = []
    list(read([path], progress=lambda done, total: seen.append((done, total))))
    assert seen[-1] == (len(TEXT) * 20_000, len(TEXT) * 20_000)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    seen.clear()
    list(read(["-"], stdin=io.BytesIO(TEXT), progress=lambda done, total: seen.append((done, total))))
    assert seen[-1] == (len(TEXT), None)
