"""What holds for the log reader on any text."""

from __future__ import annotations

import io
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ullage.core.run import Line
from ullage.logs.lines import lines_of, read
from ullage.logs.scan import Scan
from ullage.logs.search import RegexSearch

HEADS = [
    "[2026-02-01 10:00:00 TP0] ", "[2026-02-01 10:00:00 DP1 TP3] ", "[2026-02-01 10:00:00] ", "", "  ",
    "(EngineCore pid=7) ", "(Worker_TP1 pid=8) ERROR 02-01 10:00:00 [core.py:1] ", "INFO 02-01 10:00:00 a.py:1] ",
    "[rank3]: ", "2026-02-01T10:00:00Z ", "2026-02-01T10:00:00Z stdout P ", "2026-02-01T10:00:00Z stderr F ", "llm-1  | ", "0: ",
    "[rank1]:[E201 10:00:00.1 x.cpp:1] ", "INFO:     ", "  | ", "  + ", "\x1b[31m",
]  # fmt: skip
TAILS = [
    "Traceback (most recent call last):", '  File "a.py", line 3, in f', "    ^^^^", "RuntimeError: x", "EOFError", "",
    "The above exception was the direct cause of the following exception:", "During handling of the above exception, another exception occurred:",
    "Load weight end. avail mem=1.00 GB", "more of it", "Exception Group Traceback (most recent call last):", "+-+--- 1 ---",
    "Loading:  5%|# | 1/20 [00:01<00:20, 1.0it/s]", "\rx\r", '{"log":"Traceback (most recent call last):\\n"}', "Scheduler hit an exception: Traceback (most recent call last):",
    "ray.exceptions.RayTaskError(ValueError): y", "File \"", "[", "{", "\x1b", "\0",
]  # fmt: skip
LOG_LINES = st.builds("{}{}{}".format, st.sampled_from(HEADS), st.sampled_from(HEADS), st.sampled_from(TAILS))
LOGS = st.lists(LOG_LINES, max_size=40).map("\n".join)


def check(lines: list[Line], num_lines: int) -> None:
    numbers = [line.source.line for line in lines]
    assert numbers == sorted(numbers)
    assert all(1 <= number <= num_lines for number in numbers)
    assert all("\n" not in line.text for line in lines)


@given(st.binary(max_size=2_000))
@settings(max_examples=200, deadline=None)
def test_any_bytes_are_read(data: bytes) -> None:
    reader = read(["-"], [b"Traceback"], stdin=io.BytesIO(data))
    check(list(reader), reader.num_lines)


@given(LOGS)
@settings(max_examples=300, deadline=None)
def test_any_log_is_read(text: str) -> None:
    reader = read(["-"], stdin=io.BytesIO(text.encode()))
    check(list(reader), reader.num_lines)


@given(LOGS, st.integers(0, 3_000))
@settings(max_examples=200, deadline=None)
def test_a_log_cut_anywhere_is_read(text: str, cut: int) -> None:
    for part in (text[:cut], text[cut:]):
        check(lines_of(part), part.count("\n") + 1)


@given(LOGS)
@settings(max_examples=100, deadline=None)
def test_colour_changes_nothing(text: str) -> None:
    plain = text.replace("\x1b[31m", "").replace("\x1b", "").rstrip("\n")
    coloured = "\n".join(f"\x1b[1;36m{line}\x1b[0m" for line in plain.split("\n")) if plain else ""
    assert lines_of(coloured) == lines_of(plain)


@given(st.lists(st.tuples(st.integers(1, 8), st.sampled_from(["RuntimeError: a", "OSError: b", "torch.OutOfMemoryError: c"])), unique_by=lambda r: r[0]), st.randoms(use_true_random=False))  # fmt: skip
@settings(max_examples=100, deadline=None)
def test_shuffled_ranks_keep_their_own_traceback(ranks: list[tuple[int, str]], shuffle: random.Random) -> None:
    """Any order of the lines that keeps each rank's own order."""
    left = {}
    for rank, error in ranks:
        head = f"(Worker_TP{rank} pid={100 + rank}) ERROR 02-01 10:00:00 [multiproc_executor.py:857] "
        body = [
            "WorkerProc failed to start.",
            "Traceback (most recent call last):",
            f'  File "a.py", line {rank}, in f',
            "    f()",
            error,
            "more",
            "",
        ]
        left[rank] = [head + text for text in body]
    order = [rank for rank, texts in left.items() for _ in texts]
    shuffle.shuffle(order)
    lines = lines_of("\n".join(left[rank].pop(0) for rank in order))
    found = {(line.rank.tp, line.trace.frames[0].line, line.trace.text) for line in lines if line.trace}
    assert found == {(rank, rank, f"{error}\nmore") for rank, error in ranks}
    assert len(lines) == len(ranks)


@given(st.binary(max_size=3_000), st.integers(1, 500))
@settings(max_examples=100, deadline=None)
def test_chunks_do_not_matter(data: bytes, step: int) -> None:
    def lines(size: int) -> list[bytes]:
        scan = Scan("x", (data[i : i + size] for i in range(0, len(data), size)), ())
        return [line for block in scan.blocks() for line in block.data.removesuffix(b"\n").split(b"\n")]

    assert lines(step) == lines(len(data) or 1)


@given(
    st.lists(
        st.sampled_from([b"Traceback", b"x\n", b"[a] Decode batch. 1\n", b"Load weight", b"\n", b"[a] Decode"]),
        max_size=50,
    ).map(b"".join)
)
@settings(max_examples=200, deadline=None)
def test_the_searches_agree_outside_routine_lines(data: bytes) -> None:
    hyperscan = pytest.importorskip("hyperscan")
    assert hyperscan
    from ullage.logs.search import HyperscanSearch, routine_run

    phrases = [b"Traceback", b"Load weight"]
    routine = [run.span() for run in routine_run().finditer(data)]

    def hits(found: list[int] | None) -> set[int]:
        return {data.count(b"\n", 0, at) for at in found or () if not any(a <= at < b for a, b in routine)}

    assert hits(HyperscanSearch(phrases).find(data)) == hits(RegexSearch(phrases).find(data))
