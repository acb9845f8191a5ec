"""The record of a run: whole or not at all, whenever ullage is killed; one line where it cannot be kept."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ullage.lab import processes
from ullage.lab.durable import StoreError, replace_file
from ullage.lab.facts import kept_environment
from ullage.lab.records import Event, Folder, Record, Store, default_root, log_of


def record(name: str, **more: object) -> Record:
    return Record(id="1" * 16, name=name, command="vllm serve m", created_at=1.0, **more)  # type: ignore[arg-type]


def test_root_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ULLAGE_HOME", str(tmp_path / "own"))
    assert default_root() == tmp_path / "own"
    monkeypatch.delenv("ULLAGE_HOME")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert default_root() == tmp_path / "data" / "ullage"
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_root() == tmp_path / ".local" / "share" / "ullage"


def test_written_and_read_back(tmp_path: Path) -> None:
    store = Store(tmp_path / "runs")
    folder = store.create("Qwen/Qwen3-8B")
    assert folder.name.startswith("Qwen3-8B-")
    written = record(folder.name, stages={"weights": 1.5}, notes=("a", "b"), plan={"verdict": "starts"})
    folder.write(written)
    folder.add_events([Event(at_s=1, kind="stage", phase="weights"), Event(at_s=2, kind="figure", value=3.5)])
    assert store.get(folder.name).read() == written
    assert [event.kind for event in folder.events()] == ["stage", "figure"]
    assert (folder.path.stat().st_mode & 0o777, (folder.path / "record.json").stat().st_mode & 0o777) == (
        0o700, 0o600,
    )  # fmt: skip


def test_names_are_never_shared(tmp_path: Path) -> None:
    store = Store(tmp_path)
    names = {store.create("m").name for _ in range(5)}
    assert len(names) == 5
    with pytest.raises(StoreError, match="already"):
        store.create("m", next(iter(names)))


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".", "..", "-x", "a\nb", "x" * 101, "a\0b", "ä"])
def test_what_is_no_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(StoreError):
        Store(tmp_path).create("m", name)
    assert Store(tmp_path).find(name) is None


def test_the_lock_is_one_and_ends_with_its_process(tmp_path: Path) -> None:
    folder = Store(tmp_path).create("m", "one")
    assert folder.locked and not Folder(folder.path).lock()
    folder.unlock()
    script = (
        "import sys,time; from pathlib import Path; from ullage.lab.records import Folder;"
        "print(Folder(Path(sys.argv[1])).lock(), flush=True); time.sleep(60)"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", script, str(folder.path)], stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None and holder.stdout.readline() == "True\n"
    assert Folder(folder.path).locked
    with pytest.raises(StoreError, match="still runs"):
        Folder(folder.path).remove()
    holder.send_signal(signal.SIGKILL)
    holder.communicate(timeout=5)
    assert not Folder(folder.path).locked
    Folder(folder.path).remove()
    assert not folder.path.exists()


def test_killed_while_it_writes_the_record_is_whole(tmp_path: Path) -> None:
    folder = Store(tmp_path).create("m", "one")
    folder.write(record("one", why="0"))
    script = (
        "import sys; from pathlib import Path; from ullage.lab.records import Event, Folder, Record; f=Folder(Path(sys.argv[1]))\n"
        "for n in range(10**6):\n"
        "    f.write(Record(id='1', name='one', command='c', why=str(n) * 500)); f.add_events([Event(at_s=n, kind='k')])\n"
    )
    for delay in (0.4, 0.5, 0.63):
        writer = subprocess.Popen([sys.executable, "-c", script, str(folder.path)])
        time.sleep(delay)
        writer.kill()
        writer.wait(5)
        found = folder.read()
        assert found is not None and found.name == "one"
        assert all(event.kind == "k" for event in folder.events())


@given(st.binary(max_size=200))
def test_what_is_no_record_is_none(data: bytes) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "one"
        path.mkdir()
        (path / "record.json").write_bytes(data)
        (path / "events.jsonl").write_bytes(data)
        (path / "traces.json").write_bytes(data)
        assert Folder(path).read() is None
        assert Folder(path).traces() is None
        assert Folder(path).events() == []
        assert Store(Path(name)).records() == []


def test_two_writers_never_mix(tmp_path: Path) -> None:
    path = tmp_path / "file"

    def write(letter: bytes) -> None:
        for _ in range(50):
            replace_file(path, letter * 10_000, sync=False)

    threads = [threading.Thread(target=write, args=(letter,)) for letter in (b"a", b"b")]
    for thread in threads:
        thread.start()
    for _ in range(200):
        if path.exists():
            data = path.read_bytes()
            assert len(data) == 10_000 and len(set(data)) == 1
    for thread in threads:
        thread.join()
    assert [each.name for each in tmp_path.iterdir()] == ["file"], "nothing is left beside it"


def test_a_store_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError) as found:
        Store(tmp_path / "file" / "runs").create("m")
    assert "cannot be kept" in found.value.line and "ULLAGE_HOME" in found.value.line
    assert Store(tmp_path / "absent").records() == []


def test_a_log_by_the_runs_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path / "runs")
    folder = store.create("m", "one")
    folder.write(record("one"))
    monkeypatch.chdir(tmp_path)
    assert log_of("one", store) == str(folder.log)
    assert log_of("last", store) == str(folder.log)
    assert log_of("two", store) == "two"
    (tmp_path / "one").write_text("a file of that name wins")
    assert log_of("one", store) == "one"


def test_the_environment_is_kept_without_secrets() -> None:
    found = kept_environment(
        {
            "HF_TOKEN": "hf_secret",
            "NCCL_DEBUG": "INFO",
            "HOME": "/h",
            "MINE": "1",
            "VLLM_API_KEY": "k",
            "SHLVL": "1",
        },
        ["MINE"],
    )
    assert found == {"HF_TOKEN": "***", "NCCL_DEBUG": "INFO", "MINE": "1", "VLLM_API_KEY": "***"}


def test_traces_are_kept(tmp_path: Path) -> None:
    folder = Store(tmp_path).create("m")
    traces = processes.with_leader(processes.traces("id", (1, 2), (8000,)), os.getpid())
    folder.keep_traces(traces)
    assert folder.traces() == traces
