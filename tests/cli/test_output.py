"""Where --html writes: a file whole, with the mode that it has, behind the link that leads to it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ullage.cli.output import write
from ullage.core.errors import InputError


def test_a_file_keeps_its_mode_and_a_link_its_target(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("old")
    target.chmod(0o600)
    link.symlink_to(target)
    write(str(link), "new")
    assert link.is_symlink() and target.read_text() == "new" and target.stat().st_mode & 0o777 == 0o600
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "target"]


def test_what_is_no_file_is_written_to_and_stays(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write(str(pipe), "text")
    assert os.read(reader, 100) == b"text" and pipe.is_fifo()
    os.close(reader)


@pytest.mark.parametrize("path", ["", ".", "no-such/x", "a\0b", "x" * 300])
def test_where_nothing_can_be_written(path: str, tmp_path: Path) -> None:
    with pytest.raises(InputError):
        write(str(tmp_path / path) if path not in ("", ".") else path, "text")
    assert list(tmp_path.iterdir()) == []
