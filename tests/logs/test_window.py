"""Lines by their numbers: the same as reading the whole, wherever a chunk ends."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ullage.core.errors import InputError
from ullage.logs import window as module
from ullage.logs.window import window

LINES = st.lists(st.text("ab \té", max_size=9), max_size=40)


@given(LINES, st.integers(-2, 45), st.integers(0, 10), st.integers(1, 20), st.booleans(), st.booleans())
@settings(max_examples=150)
def test_any_window_is_that_part_of_the_whole(
    tmp_path_factory: pytest.TempPathFactory,
    lines: list[str],
    first: int,
    count: int,
    chunk: int,
    ends: bool,
    packed: bool,
) -> None:
    path = tmp_path_factory.mktemp("w") / "a.log"
    data = ("\n".join(lines) + ("\n" if ends and lines else "")).encode()
    path.write_bytes(gzip.compress(data) if packed else data)
    with pytest.MonkeyPatch.context() as patch:
        if not packed:
            patch.setattr(module, "CHUNK_BYTES", chunk)
            patch.setattr("ullage.logs.source.CHUNK_BYTES", chunk)
        module._index.cache_clear()
        got = window(str(path), first, count)
    whole = data.decode().split("\n")
    if whole[-1] == "":
        whole.pop()
    assert got.total == len(whole)
    if whole:
        begin = max(1, min(first, len(whole)))
        assert got.first == begin
        assert list(got.lines) == whole[begin - 1 : begin - 1 + count]


def test_a_line_of_ten_megabytes_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "long.log"
    path.write_bytes(b"one\n" + b"x" * 10_000_000 + b"\nthree\n")
    got = window(str(path), 1, 5)
    assert [line[:5] for line in got.lines] == ["one", "xxxxx", "three"]
    assert len(got.lines[1]) < 3000
    assert got.lines[1].endswith("(10,000,000 bytes in this line)")


def test_what_is_no_file_is_an_error(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent.log"):
        with pytest.raises(InputError):
            window(str(path), 1, 5)
