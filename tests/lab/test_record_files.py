"""Files of the store that are not what they should be, and what must not reach them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ullage.lab.durable import MOST_BYTES, StoreError
from ullage.lab.pump import Masker
from ullage.lab.records import Event, Folder, Record, Store
from ullage.lab.server import secrets_of


def folder_of(tmp_path: Path, name: str = "a") -> Folder:
    found = Folder(tmp_path / name)
    found.path.mkdir()
    return found


@pytest.mark.parametrize("kind", ["pipe", "folder", "device", "huge", "deep", "bytes"])
def test_a_record_that_is_none_is_passed_over(kind: str, tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    path = folder.path / "record.json"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "huge":
        with path.open("wb") as stream:
            stream.truncate(MOST_BYTES * 40)
    else:
        path.write_bytes(b"[" * 100_000 if kind == "deep" else b'{"id": "\xff"}')
    assert folder.read() is None and Store(tmp_path).records() == []
    with pytest.raises(StoreError, match=r"record\.json: cannot be read as the record of a run"):
        folder.record()


def test_a_variable_of_any_bytes_can_be_kept(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    folder.write(Record(id="1", name="a", command="c", environment={"VLLM_X": os.fsdecode(b"a\xff")}))
    assert folder.record().environment == {"VLLM_X": "a?"}


def test_events_hold_no_secret(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    folder.add_events([Event(at_s=1, kind="failure", text="api_key='abc' failed")])
    assert [event.text for event in folder.events()] == ["api_key='***' failed"]


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
def test_the_log_holds_no_secret_however_it_is_cut(size: int) -> None:
    told = b"a known-value b\nargs: api_key=['abc', 'def'], x=1\r50% \xff plain\npassword: abc"
    masker = Masker(["known-value"])
    out = b"".join(masker.feed(told[at : at + size]) for at in range(0, len(told), size)) + masker.close()
    assert out == b"a *** b\nargs: api_key=['***'], x=1\r50% \xff plain\npassword: '***'"


def test_a_line_without_an_end_is_not_gathered_for_ever() -> None:
    masker = Masker()
    out = [len(masker.feed(b"x" * (1 << 15))) for _ in range(100)]
    assert sum(out) + len(masker.close()) == 100 << 15 and sum(out) > 90 << 15


def test_all_keys_of_a_command_are_known() -> None:
    argv = ("vllm", "serve", "m", "--api-key", "one", "two", "--port", "1", "--hf-token=three")
    assert secrets_of(argv, {"OPENAI_API_KEY": "four", "A": "b"}) == ("four", "one", "two", "three")
