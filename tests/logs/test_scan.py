"""A long log: what comes through, with which line numbers, and how little memory it takes."""

from __future__ import annotations

import gzip
import io
import re
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from ullage.core.run import Line
from ullage.logs import scan
from ullage.logs.lines import LineReader, read
from ullage.logs.scan import Scan
from ullage.logs.search import HyperscanSearch, Nothing, RegexSearch, Search, routine_run, search_for

PHRASES = [b"Traceback (most recent call last)", b"OutOfMemoryError", b"Load weight end.", b"Received sigquit"]
DECODE = (
    b"[2026-02-01 10:00:00 TP0] Decode batch. #running-req: 3, #token: 100, gen throughput (token/s): 1.0, \n"
)
CRASH = (
    b"[2026-02-01 10:00:01 TP0] Scheduler hit an exception: Traceback (most recent call last):\n"
    + b"".join(b'  File "a.py", line %d, in f\n    call()\n' % i for i in range(40))
    + b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
    + b"[2026-02-01 10:00:01] Received sigquit from a child process.\n"
)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousandth of the real sizes."""
    monkeypatch.setattr(scan, "WHOLE", 400 << 10)
    monkeypatch.setattr(scan, "EVERY_LINE", 4 << 10)
    monkeypatch.setattr(scan, "HEAD", 40 << 10)
    monkeypatch.setattr(scan, "TAIL", 4 << 10)
    monkeypatch.setattr(scan, "MIDDLE", 32 << 10)


def through(data: bytes, *, step: int = 10_000) -> tuple[dict[int, bytes], Scan]:
    """The physical lines that come through, by number."""
    found: dict[int, bytes] = {}
    whole = Scan("x", (data[i : i + step] for i in range(0, len(data), step)), PHRASES)
    for block in whole.blocks():
        for number, line in enumerate(block.data.removesuffix(b"\n").split(b"\n"), block.line):
            assert number not in found
            found[number] = line
    assert list(found) == sorted(found)
    return found, whole


@pytest.fixture(params=["fast", "pure"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "pure":
        monkeypatch.setattr(scan, "search_for", RegexSearch)
    else:
        pytest.importorskip("hyperscan")


@pytest.mark.usefixtures("small", "engine")
@pytest.mark.parametrize("place", ["early", "middle", "late", "last"])
@pytest.mark.parametrize("step", [997, 10_000, 262_144])
def test_a_crash_comes_through_wherever_it_is(place: str, step: int) -> None:
    before = {"early": 600, "middle": 7_000, "late": 14_960, "last": 15_000}[place]
    data = DECODE * before + CRASH + DECODE * (15_000 - before)
    found, whole = through(data, step=step)
    every = data.splitlines()
    assert whole.num_lines == len(every)
    assert whole.num_bytes == len(data)
    assert all(every[number - 1] == line for number, line in found.items())
    assert all(number in found for number in range(before + 1, before + 1 + len(CRASH.splitlines())))
    assert len(found) < 1_000 or step > 200_000
    assert found[len(every)] == every[-1]


@pytest.mark.usefixtures("small")
def test_both_searches_agree() -> None:
    pytest.importorskip("hyperscan")
    other = b"[2026-02-01 10:00:00 TP0] Something else, at length, of no interest.\n"
    data = (DECODE * 50 + other + DECODE * 77 + b"x Load weight end. y\n" + other * 3) * 60 + CRASH
    searches: list[Search] = [HyperscanSearch(PHRASES), RegexSearch(PHRASES)]
    lines = [{data.count(b"\n", 0, at) for at in search.find(data) or ()} for search in searches]
    assert lines[0] == lines[1]
    assert len(lines[0]) == 63


@pytest.mark.usefixtures("engine")
def test_too_many_hits_are_not_counted_out() -> None:
    assert scan.search_for(PHRASES).find(b"OutOfMemoryError\n" * 10_000) is None


def test_no_phrases_find_nothing() -> None:
    assert isinstance(search_for([b"", b"a\nb"]), Nothing)


@pytest.mark.usefixtures("small", "engine")
def test_packed_and_piped_logs_give_the_same(tmp_path: Path) -> None:
    data = DECODE * 4_000 + CRASH + DECODE * 9_000
    plain, packed = tmp_path / "a", tmp_path / "b"
    plain.write_bytes(data)
    packed.write_bytes(gzip.compress(data, 1))

    def seen(reader: LineReader) -> list[tuple[int, Line]]:
        return [(line.source.line, line) for line in reader if line.trace or "sigquit" in line.text]

    one = seen(read([plain], PHRASES))
    assert len(one) == 2
    assert [n for n, _ in one] == [4_001, 4_083]
    assert [line.text for _, line in seen(read([packed], PHRASES))] == [line.text for _, line in one]
    assert [line.text for _, line in seen(read(["-"], PHRASES, stdin=io.BytesIO(data)))] == [
        line.text for _, line in one
    ]


@pytest.mark.usefixtures("small", "engine")
def test_many_tracebacks_are_bounded_and_said() -> None:
    data = (CRASH + DECODE * 3) * 2_000
    found, whole = through(data)
    assert sum(map(len, found.values())) < 400_000
    assert found[1].startswith(b"[2026")
    assert whole.num_lines in found
    assert any("left out" in note for note in whole.notes())


@pytest.mark.usefixtures("small", "engine")
def test_vllm_tracebacks_with_heads_come_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "MIDDLE", 128 << 10)
    head = b"(Worker_TP%d pid=7) ERROR 02-01 10:00:00 [multiproc_executor.py:949] "
    stats = b"(APIServer pid=1) INFO 02-01 10:00:00 [loggers.py:1] Engine 000: Avg prompt throughput: 1.0 tokens/s, Running: 1 reqs\n"
    crash = b"".join(head % (i % 8) + line + b"\n" for line in CRASH.splitlines()[1:-1] for i in range(8))
    data = stats * 5_000 + head % 0 + b"Traceback (most recent call last):\n" + crash + stats * 5_000
    found, _ = through(data)
    assert all(number in found for number in range(5_001, 5_001 + 1 + len(crash.splitlines())))


def test_a_short_log_comes_through_whole() -> None:
    found, whole = through(DECODE * 2_000 + b"end without newline")
    assert len(found) == whole.num_lines == 2_001


def test_routine_lines_of_a_longer_log_are_thinned() -> None:
    other = b"[2026-02-01 10:00:00 TP0] Something else.\n"
    found, whole = through(DECODE * 6_000 + other + DECODE * 6_000 + other)
    assert whole.num_lines == 12_002
    assert 6_001 in found
    assert 12_002 in found
    assert len(found) < 3_000
    assert all(number in found for number in range(1, 2_400))


def test_short_lines_are_bounded_too() -> None:
    found, whole = through(b"a\n" * 2_000_000, step=262_144)
    assert whole.num_lines == 2_000_000
    assert len(found) < 700_000


def test_routine_runs_are_whole_lines() -> None:
    (run,) = routine_run().finditer(b"a\n" + DECODE * 3 + b"b\n" + DECODE[:-1])
    assert run.group() == DECODE * 3


def test_a_long_line_takes_bounded_memory() -> None:
    def chunks() -> Iterator[bytes]:
        yield b"before\n"
        for _ in range(400):
            yield b"x" * (1 << 18)
        yield b"\nafter\n"

    tracemalloc.start()
    whole = Scan("x", chunks(), ())
    lines = [line for block in whole.blocks() for line in block.data.splitlines()]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert [len(line) for line in lines] == [6, scan.MAX_LINE, 5]
    assert whole.num_lines == 3
    assert peak < 4 << 20
    assert whole.num_cut == 1


def test_a_long_bar_keeps_what_it_ended_with() -> None:
    bar = b"".join(
        b"Loading:  %d%%|#| %d/100 [00:01<00:01, 1.0it/s]\r" % (i % 100, i % 100) for i in range(20_000)
    )
    whole = Scan(
        "x", [bar[i : i + 5_000] for i in range(0, len(bar), 5_000)] + [b"[2026-02-01 10:00:00 TP0] end\n"], ()
    )
    (line,) = b"".join(block.data for block in whole.blocks()).splitlines(keepends=False)[-1:]
    assert len(line) <= scan.MAX_LINE + 100
    assert re.search(rb"\[2026-02-01 10:00:00 TP0\] end$", line)
    assert whole.num_cut == 0
