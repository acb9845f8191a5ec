"""Files to Lines: order, several files, progress bars, hostile input, and every log that is at hand."""

from __future__ import annotations

import io
import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import pytest

from ullage.core.run import Line
from ullage.logs.lines import lines_of, read

SHARED = Path(__file__).parents[3] / "shared"
FOUNDING = """\
[2026-02-10 10:00:00] server_args=ServerArgs(model_path='Kimi-K2.5', tp_size=8)
[2026-02-10 10:00:05 TP0] Init torch distributed begin.
[2026-02-10 10:00:15 TP0] Load weight begin. avail mem=94.08 GB
Loading safetensors checkpoint shards:   0% Completed | 0/64 [00:00<?, ?it/s]\rLoading safetensors checkpoint shards: 100% Completed | 64/64 [10:00<00:00, 9.4s/it]
[2026-02-10 10:10:15 TP0] Load weight end. type=KimiK25, dtype=torch.bfloat16, avail mem=21.78 GB, mem usage=72.30 GB.
[2026-02-10 10:10:16 TP0] Scheduler hit an exception: Traceback (most recent call last):
  File "sglang/srt/managers/scheduler.py", line 3130, in run_scheduler_process
    scheduler = Scheduler(
                ^^^^^^^^^^
  File "sglang/srt/model_executor/model_runner.py", line 640, in init_memory_pool
    raise RuntimeError(
RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. Current value: self.server_args.mem_fraction_static=0.55

[2026-02-10 10:10:17] Received sigquit from a child process. It usually means the child failed.
"""


def texts(lines: list[Line]) -> list[str]:
    return [line.text for line in lines]


def test_a_whole_founding_log() -> None:
    lines = lines_of(FOUNDING, "B.log")
    assert [line.source.line for line in lines] == [1, 2, 3, 4, 5, 6, 14]
    assert str(lines[4].source) == "B.log:5"
    assert lines[3].text.startswith("Loading safetensors checkpoint shards: 100%")
    assert lines[5].trace is not None
    assert lines[5].trace.message.startswith("Not enough memory")
    first, last = lines[0].time, lines[-1].time
    assert first is not None
    assert last is not None
    assert last - first == 617


def test_a_founding_log_cut_at_every_byte() -> None:
    whole = [line for line in lines_of(FOUNDING) if not line.trace]
    for cut in range(len(FOUNDING)):
        finished = FOUNDING[:cut].count("\n")
        part = [line for line in lines_of(FOUNDING[:cut]) if line.source.line <= finished]
        expected = [line for line in whole if line.source.line <= finished]
        assert [line for line in part if not line.text.startswith("Scheduler hit")] == expected
        for line in lines_of(FOUNDING[cut:]):
            assert line.trace is None or line.trace.exception in ("", "RuntimeError", "Error")


@pytest.mark.parametrize(
    ("raw", "found"),
    [
        ("\rLoading:   0%|  | 0/5 [00:00<?, ?it/s]\rLoading: 100%|##| 5/5 [00:01<00:00, 1.0it/s]", ["Loading: 100%|##| 5/5 [00:01<00:00, 1.0it/s]"]),
        ("Loading: 50%|# | 1/2 [00:01<00:01, 1.0it/s][2026-02-10 10:00:00 TP1] a", ["Loading: 50%|# | 1/2 [00:01<00:01, 1.0it/s]", "a"]),
        ("Capturing batches (bs=8 avail_mem=1.0 GB): 50%|# | 1/2 [00:01<00:01, 1.0it/s]\r[2026-02-10 10:00:00 TP1] a", ["Capturing batches (bs=8 avail_mem=1.0 GB): 50%|# | 1/2 [00:01<00:01, 1.0it/s]", "a"]),
        ("Loading: 50%|# | 1/2 [00:01<00:01, 1.0it/s](Worker_TP0 pid=1) INFO 02-10 10:00:00 [a.py:1] a", ["Loading: 50%|# | 1/2 [00:01<00:01, 1.0it/s]", "a"]),
        ("Loading: 50%|# | 1/2 [00:01<00:01, 1.0it/s]INFO 02-10 10:00:00 [a.py:1] a", ["Loading: 50%|# | 1/2 [00:01<00:01, 1.0it/s]", "a"]),
        ("[2026-02-10 10:00:00 TP1] a\rLoading: 50%|# | 1/2 [00:01<00:01, 1.0it/s]", ["a", "Loading: 50%|# | 1/2 [00:01<00:01, 1.0it/s]"]),
        ("[2026-02-10 10:00:00 TP0] a[2026-02-10 10:00:00 TP1] b", ["a", "b"]),
        ("a\r\n\r\nb\r\n", ["a", "", "b"]),
        ("\x1b]0;title\x07\x1b[1;31m[2026-02-10 10:00:00 TP0]\x1b[0m a\x1b[K", ["a"]),
        ("[2026-02-10 10:00:00 TP0] see [2026-02-10] for more", ["see [2026-02-10] for more"]),
    ],
)  # fmt: skip
def test_bars_and_glued_lines(raw: str, found: list[str]) -> None:
    assert texts(lines_of(raw)) == found


def test_a_bar_keeps_the_prefix_of_its_process() -> None:
    (line,) = lines_of(
        "(Worker_TP3 pid=7) \rLoading:   0%|  | 0/5 [00:00<?, ?it/s]\rLoading: 100%|##| 5/5 [00:01<00:00, 1.0it/s]"
    )
    assert line.rank.tp == 3
    assert line.text.startswith("Loading: 100%")


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_files_with_times_are_merged(tmp_path: Path) -> None:
    one = write(tmp_path, "a", "[2026-02-10 10:00:00 TP0] a1\nno time\n[2026-02-10 10:00:04 TP0] a2\n")
    two = write(tmp_path, "b", "[2026-02-10 10:00:01 TP1] b1\n[2026-02-10 10:00:02 TP1] b2\n")
    lines = list(read([one, two]))
    assert texts(lines) == ["a1", "no time", "b1", "b2", "a2"]
    assert [str(line.source) for line in lines][:3] == [f"{one}:1", f"{one}:2", f"{two}:1"]


def test_files_without_times_follow_one_another(tmp_path: Path) -> None:
    one, two = write(tmp_path, "a", "a1\na2\n"), write(tmp_path, "b", "[2026-02-10 10:00:01 TP1] b1\n")
    reader = read([one, two, one])
    assert texts(list(reader)) == ["a1", "a2", "b1"]
    assert (reader.num_lines, reader.num_bytes) == (3, 6 + two.stat().st_size)


def test_stdin_beside_files(tmp_path: Path) -> None:
    path = write(tmp_path, "a", "[2026-02-10 10:00:01 TP1] a\n")
    lines = list(read([path, "-"], stdin=io.BytesIO(b"[2026-02-10 10:00:00 TP0] b\n")))
    assert [(line.text, line.source.file) for line in lines] == [("b", "stdin"), ("a", str(path))]


def test_empty_inputs(tmp_path: Path) -> None:
    assert list(read([write(tmp_path, "a", "")])) == []
    assert lines_of("") == []
    assert list(read([])) == []


def test_binary_is_read_and_said(tmp_path: Path) -> None:
    path = tmp_path / "core"
    path.write_bytes(bytes(range(256)) * 4_000)
    reader = read([path])
    assert sum(1 for _ in reader) >= 0
    (note,) = reader.notes
    assert "% of the bytes are not text" in note


def test_invalid_utf_8_stays_readable() -> None:
    line = next(iter(read(["-"], stdin=io.BytesIO(b"[2026-02-10 10:00:00 TP0] a\xff\xfeb\0c\n"))))
    assert line.text == "a\\xff\\xfebc"
    assert line.rank.tp == 0


class Endless(io.RawIOBase):
    """``count`` chunks, made as they are read."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> bytes:
        return next(self._chunks, b"")


def stream(chunks: Iterator[bytes]) -> BinaryIO:
    return Endless(chunks)  # type: ignore[return-value]


def test_one_huge_line_takes_bounded_memory() -> None:
    mib = int(os.environ.get("ULLAGE_TEST_LINE_MIB", "20"))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    reader = read(["-"], stdin=stream(b"x" * (1 << 18) for _ in range(mib * 4)))
    (line,) = reader
    assert len(line.text) == 64 << 10
    assert reader.num_bytes == mib << 20
    assert reader.notes == ["stdin: 1 line was longer than 64 KiB and cut"]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 16 << 10


def test_many_tracebacks_take_bounded_memory() -> None:
    number = int(os.environ.get("ULLAGE_TEST_TRACEBACKS", "20000"))
    trace = b'Traceback (most recent call last):\n  File "a.py", line 1, in f\nRuntimeError: x\n\n'
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    reader = read(["-"], [b"Traceback"], stdin=stream(trace * 100 for _ in range(number // 100)))
    assert sum(line.trace is not None for line in reader) > 0
    assert reader.num_lines == number * 4
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 150 << 10


def test_a_traceback_that_never_ends_is_let_go() -> None:
    body = "Traceback (most recent call last):\n  File 'x'\n" + "".join(
        f"[2026-02-10 10:00:00 TP1] line {i}\n" for i in range(3_000)
    )
    lines = lines_of(body)
    assert len(lines) == 3_001
    nested = "".join(
        f"[2026-02-10 10:00:00 TP{i}] x: Traceback (most recent call last):\n" for i in range(3_000)
    )
    assert len(lines_of(nested)) == 3_000


@pytest.mark.parametrize(
    "unit",
    [" ", "(", "(A ", "(a  ", "[", "[20", "{", '{"log":', "a.", "A", "-", "\r", "\x1b[", "\x1b]", "\x1bP", "| ", "0", ": ", "Traceback (most recent call last):", 'File "', "\\", "\xff", "[2026-02-10 10:00:00] ", "Error", "a pid=", "1:", " \t", "+ ", "x:1:1 [1] "],
)  # fmt: skip
def test_no_unit_repeated_takes_long(unit: str) -> None:
    began = time.process_time()
    for text in (
        unit * (60_000 // len(unit)),
        "(a" + unit * (60_000 // len(unit)),
        "[2026-02-10 10:00:00 TP0] " + unit * 5_000,
    ):
        lines_of(text)
    assert time.process_time() - began < 2


def test_a_log_of_another_program() -> None:
    raw = "Oct  3 12:00:00 host kernel: [12.5] usb 1-1: new device\n<?xml version='1.0'?>\nid,name\n1,2\n"
    assert texts(lines_of(raw)) == ["[12.5] usb 1-1: new device", "<?xml version='1.0'?>", "id,name", "1,2"]


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs the shared folder beside the checkout")
def test_every_log_at_hand_is_read_in_order() -> None:
    paths = sorted((SHARED / "cases").rglob("*.log")) + sorted((SHARED / "logs").rglob("*.log"))
    assert len(paths) > 200
    for path in paths:
        reader = read([path])
        numbers = [line.source.line for line in reader]
        assert numbers == sorted(numbers), path
        data = path.read_bytes()
        assert reader.num_lines == data.count(b"\n") + (not data.endswith(b"\n")), path
        assert reader.notes == [], path


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs the shared folder beside the checkout")
def test_whole_vllm_logs() -> None:
    lines = list(read([SHARED / "logs/vllm/tiny-llama-cpu-0.32.0-enginedead.log"]))
    traces = [line for line in lines if line.trace]
    assert [line.rank.process for line in traces] == ["Worker", "Worker", "EngineCore", "APIServer"]
    assert traces[0].text == "WorkerProc hit an exception."
    assert traces[0].trace is not None
    assert traces[0].trace.text.startswith("RuntimeError: Unsupported CPU attention configuration")
    started = list(read([SHARED / "logs/vllm/glm51-8x-rtx-pro-6000-dcp1-mtp0-startup.log"]))
    assert not [line for line in started if line.trace]
