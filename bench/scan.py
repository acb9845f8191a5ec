"""How long ``ullage why`` takes for a large server log, against ``rg -c -F -f`` over the same phrases.

    python bench/scan.py [--mib 1024] [--rounds 3] [--reader] [--pure]

Writes two logs into a temporary folder: hours of decode lines with a crash at the end, and a crash early
followed by as many lines of noise. Each is read by ripgrep and by ullage in turn, all on one core; the best of
the rounds counts. ``--reader`` times the log reader alone; ``--pure`` does so without hyperscan. Exit code 1 if
the ratio is above 1.5 or ullage's memory above 200 MB.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

GOAL_RATIO = 1.5
GOAL_MIB = 200
READ = """
import sys
from pathlib import Path
from ullage.logs import scan, search
from ullage.logs.lines import read
if sys.argv[3] == "pure":
    scan.search_for = search.RegexSearch
lines = read([sys.argv[1]], Path(sys.argv[2]).read_bytes().splitlines())
print(sum(line.trace is not None for line in lines), "tracebacks in", lines.num_lines, "lines", *lines.notes)
"""
#: phrases where no engine is installed yet; the real list is engines.literals()
PHRASES = [
    "Traceback (most recent call last)", "OutOfMemoryError", "Not enough memory. Please try to increase",
    "Received sigquit from a child process", "Capture cuda graph failed", "Load weight begin.",
    "Load weight end.", "server_args=",
    "KV Cache is allocated.", "Memory pool end.", "max_total_num_tokens=", "The server is fired up",
    "Watchdog timeout", "NCCL WARN", "Segmentation fault", "exit code", "Available KV cache memory",
]  # fmt: skip


TYPE = "type=LlamaForCausalLM, dtype=torch.bfloat16"
SUMMARY = (
    "max_total_num_tokens=412345, chunked_prefill_size=8192, max_prefill_tokens=16384, "
    "max_running_requests=2048, context_len=8192, available_gpu_mem=6.10 GB"
)
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.99 GiB. GPU {} has 79 GiB"


def start(stamp: str) -> Iterator[str]:
    yield f"[{stamp}] server_args=ServerArgs(model_path='m', tp_size=2, mem_fraction_static=0.88)"
    for rank in range(2):
        head = f"[{stamp} TP{rank}] "
        yield head + "Init torch distributed begin."
        yield head + "Load weight begin. avail mem=78.50 GB"
        yield head + f"Load weight end. {TYPE}, avail mem=43.10 GB, mem usage=35.40 GB."
        yield head + "KV Cache is allocated. #tokens: 412345, K size: 16.80 GB, V size: 16.80 GB"
        yield head + "Memory pool end. avail mem=8.90 GB"
    yield f"[{stamp} TP0] {SUMMARY}"
    yield f"[{stamp}] The server is fired up and ready to roll!"


def crash(stamp: str) -> Iterator[str]:
    for rank in (1, 0):
        yield f"[{stamp} TP{rank}] Scheduler hit an exception: Traceback (most recent call last):"
        for number in range(30):
            yield f'  File "sglang/srt/layers/linear.py", line {number}, in forward'
            yield "    return self.quant_method.apply(self, input)"
        yield OOM.format(rank)
    yield f"[{stamp}] Received sigquit from a child process. It usually means the child failed."


def routine(n: int, stamp: str) -> str:
    load = f"token usage: 0.{n % 100:02}, "
    if n % 11 == 0:
        return f'[{stamp}] INFO:     10.0.0.{n % 250}:{n % 60000} - "POST /v1/chat/completions HTTP/1.1" 200 OK'
    if n % 9 == 0:
        new = f"#new-seq: {n % 7}, #new-token: {n % 8192}, #cached-token: {n % 4096}, "
        return f"[{stamp} TP0] Prefill batch. {new}{load}#running-req: {n % 64}, #queue-req: 0, "
    speed = f"cuda graph: True, gen throughput (token/s): {n % 2000}.{n % 100:02}, "
    used = f"#running-req: {n % 64}, #token: {n % 100000}, "
    return f"[{stamp} TP0] Decode batch. {used}{load}{speed}#queue-req: 0, "


def stamp_of(number: int) -> str:
    day, second = divmod(number, 86400)
    return f"2026-02-{1 + day % 28:02} {second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}"


def write_log(path: Path, size: int, *, early: bool) -> None:
    """A log of ``size`` bytes; the same bytes each time."""
    written = number = 0
    with path.open("w", encoding="utf-8") as file:
        written += file.write("\n".join(start(stamp_of(0))) + "\n")
        while written < size:
            lines = [routine(n, stamp_of(n)) for n in range(number, number + 20_000)]
            if early and number == 200_000:
                lines += crash(stamp_of(number))
            number += 20_000
            written += file.write("\n".join(lines) + "\n")
        if not early:
            file.write("\n".join(crash(stamp_of(number))) + "\n")


def phrases() -> list[bytes]:
    try:
        from ullage import engines

        return sorted({phrase for name in engines.NAMES for phrase in engines.get(name).literals()})
    except (ImportError, AttributeError):
        return [phrase.encode() for phrase in PHRASES]


def timed(command: list[str]) -> tuple[float, int, str]:
    """Seconds, peak memory in MiB and output of a command."""
    began = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        out = process.stdout.read()
        _, _, usage = os.wait4(process.pid, 0)
        process.returncode = 0
    return time.perf_counter() - began, usage.ru_maxrss // 1024, out.decode(errors="replace").strip()


def said(output: str) -> str:
    """What ullage found, in a few words: both logs must give the same."""
    try:
        answer = json.loads(output)
    except ValueError:
        return output.partition("\n")[0]
    return ", ".join(str(answer.get(key)) for key in ("outcome", "phase", "cause", "certainty"))


def compare(log: Path, wanted: Path, ours: list[str], rounds: int) -> bool:
    rg = ["rg", "-c", "-F", "-f", str(wanted), str(log)]
    runs = [(timed(rg), timed(ours)) for _ in range(rounds)]
    theirs, mine = min(r[0][0] for r in runs), min(r[1][0] for r in runs)
    memory = max(r[1][1] for r in runs)
    print(f"{log.name}: rg {theirs:.2f} s, ullage {mine:.2f} s = {mine / theirs:.2f} x, {memory} MiB")
    print(f"  {said(runs[0][1][2])}")
    return mine / theirs <= GOAL_RATIO and memory < GOAL_MIB


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=1024, help="size of each log")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--reader", action="store_true", help="time the log reader alone")
    parser.add_argument("--pure", action="store_true", help="the reader alone, without hyperscan")
    options = parser.parse_args()
    if shutil.which("rg") is None:
        parser.error("ripgrep (rg) is not on the path")
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    good = True
    with tempfile.TemporaryDirectory() as folder:
        wanted = Path(folder, "phrases")
        wanted.write_bytes(b"\n".join(phrases()) + b"\n")
        print(f"{len(phrases())} phrases, {options.mib} MiB a log, best of {options.rounds}")
        for early in (False, True):
            log = Path(folder, f"crash-{'early' if early else 'late'}.log")
            write_log(log, options.mib << 20, early=early)
            reader = [sys.executable, "-c", READ, str(log), str(wanted), "pure" if options.pure else "fast"]
            why = [str(Path(sys.executable).with_name("ullage")), "why", "--json", str(log)]
            good &= compare(log, wanted, reader if options.reader or options.pure else why, options.rounds)
            log.unlink()
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
