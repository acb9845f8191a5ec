"""Logs made to harm: the whole command answers, in bounded memory and time."""

from __future__ import annotations

import gzip
import json
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

MIB = 1 << 20
TRACEBACK = (
    b"[2026-02-25 14:30:06 TP%d] Scheduler hit an exception: Traceback (most recent call last):\n"
    b'  File "/x/sglang/srt/managers/scheduler.py", line %d, in run\n    step()\n'
    b"RuntimeError: number %d\n"
)


def line_of_200_mib() -> Iterator[bytes]:
    for _ in range(200):
        yield b"x" * MIB


def a_million_tracebacks() -> Iterator[bytes]:
    for start in range(0, 1_000_000, 10_000):
        yield b"".join(TRACEBACK % (n % 8, n, n) for n in range(start, start + 10_000))


def binary() -> Iterator[bytes]:
    for _ in range(40):
        yield bytes(range(256)) * 4096


def bomb() -> Iterator[bytes]:
    """10 GiB of blanks in 10 MB."""
    block = gzip.compress(b" " * (64 * MIB), 9)
    for _ in range(160):
        yield block


def nested_json() -> Iterator[bytes]:
    yield b'{"log":' * 200_000 + b"1" + b"}" * 200_000 + b"\n"


def escapes() -> Iterator[bytes]:
    yield b"\x1b[" * MIB + b"\x1b]0;" * MIB + b"\r" * MIB + b"\x00" * MIB


def brackets() -> Iterator[bytes]:
    yield (b"[2026-02-25 14:30:06 TP0] server_args=ServerArgs(" + b"a=[(" * 200_000 + b"\n") * 2


CASES: list[tuple[str, Callable[[], Iterator[bytes]]]] = [
    ("line", line_of_200_mib),
    ("tracebacks", a_million_tracebacks),
    ("binary", binary),
    ("bomb", bomb),
    ("json", nested_json),
    ("escapes", escapes),
    ("brackets", brackets),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "make"), CASES, ids=[name for name, _ in CASES])
def test_answers_in_bounds(tmp_path: Path, name: str, make: Callable[[], Iterator[bytes]]) -> None:
    path = tmp_path / "hostile.log"
    with path.open("wb") as out:
        for block in make():
            out.write(block)
    code = (
        "import resource, sys; from ullage.cli import main\n"
        "try:\n    main(['why', sys.argv[1], '--json'])\n"
        "finally:\n    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, timeout=300, check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (240, 240)),
    )  # fmt: skip
    assert done.returncode in (0, 1, 3), done.stderr.decode()[-500:]
    assert b"fault of ullage" not in done.stderr, done.stderr.decode()
    assert json.loads(done.stdout)["schema"] == "ullage.why/1"
    peak_mib = int(done.stderr.split()[-1]) / 1024
    assert peak_mib < 200, f"{name}: {peak_mib:.0f} MiB"
