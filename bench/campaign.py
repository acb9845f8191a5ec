"""What ``ullage run`` costs over the bare launch, as ratios in one run: the time until the server is ready, and
how fast its output comes through.

    python bench/campaign.py [--rounds 3] [--start-s 25] [--engine .venv-engine/bin/vllm]

The server is the stub of the tests: it logs lines as the engines do, through Python's logging, and opens its
port after ``--start-s`` seconds (the start of a 5 MB model takes vLLM 24 s); ``--engine`` measures a real vLLM
as well. Beside it, how fast a flood of output is taken, against ``tee``, which keeps it too. Bare and under
``ullage run`` by turns; the output goes through a pipe to a reader that keeps nothing, as to a service's
journal. The best of the rounds counts. Exit code 1 above 1.02.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.e2e import tiny_model  # noqa: E402
from tests.e2e.engine import ENVIRONMENT, SERVE  # noqa: E402
from tests.lab import stub_server  # noqa: E402

GOAL = 1.02
TIMEOUT_S = 600.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def under(command: list[str]) -> list[str]:
    return [str(Path(sys.executable).with_name("ullage")), "run", "--", *command]


def ready_s(words: list[str], port: int, env: dict[str, str], out: Path) -> float:
    """Seconds until the health route answers; the server is then stopped."""
    with out.open("wb") as stream:
        start = time.perf_counter()
        process = subprocess.Popen(words, env=env, stdout=stream, stderr=subprocess.STDOUT)
        try:
            while not healthy(port):
                if process.poll() is not None or time.perf_counter() - start > TIMEOUT_S:
                    raise SystemExit(f"not ready: {out.read_text(errors='replace')[-2000:]}")
                time.sleep(0.01)
            return time.perf_counter() - start
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


def healthy(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1) as answer:
            return answer.status == 200
    except OSError:
        return False


def printed_s(words: list[str], env: dict[str, str], reader: list[str]) -> float:
    """Seconds in which the server prints everything into a pipe that ``reader`` empties, measured by the server
    itself: from its first byte to its last."""
    process = subprocess.Popen(words, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    read = subprocess.Popen(reader, stdin=process.stdout, stdout=subprocess.DEVNULL)
    assert process.stdout is not None
    process.stdout.close()
    process.wait(TIMEOUT_S)
    read.wait(TIMEOUT_S)
    return float(Path(env["STUB_TOOK"]).read_text())


def by_turns(bare: list[str], rounds: int, measure) -> tuple[float, float]:  # type: ignore[no-untyped-def]
    """The best of bare and of under ullage."""
    best = [float("inf"), float("inf")]
    for _ in range(rounds):
        for index, words in enumerate((bare, under(bare))):
            best[index] = min(best[index], measure(words))
    return best[0], best[1]


def show(what: str, bare: float, run: float, *, goal: bool = True) -> bool:
    ratio = run / bare
    print(f"{what:<46} {bare:8.2f} s  {run:8.2f} s  {ratio:6.3f}{f'  (goal <= {GOAL})' if goal else ''}")
    return ratio <= GOAL


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--lines", type=int, default=200_000)
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--start-s", type=float, default=25.0)
    parser.add_argument("--engine", type=Path)
    asked = parser.parse_args()
    fine = True
    print(f"{'':<46} {'bare':>10}  {'ullage run':>10}  {'ratio':>6}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        program, port = str(stub_server.install(folder / "bin") / "vllm"), free_port()
        words = [program, "serve", "m", "--port", str(port)]
        env = {**os.environ, "ULLAGE_HOME": str(folder / "home"), "STUB_TOOK": str(folder / "took")}
        told = env | {"STUB_LOG_LINES": str(asked.lines), "STUB_EXIT": "0"}
        bare, run = by_turns(words, asked.rounds, lambda w: printed_s(w, told, ["cat"]))
        fine &= show(f"{asked.lines:,} lines through logging", bare, run)
        told = env | {"STUB_BYTES": str(asked.megabytes * 1_000_000), "STUB_EXIT": "0"}
        tee = ["sh", "-c", 'exec "$0" "$@" | tee "$KEPT"', *words]
        told["KEPT"] = str(folder / "kept")
        bare = min(printed_s(tee, told, ["cat"]) for _ in range(asked.rounds))
        run = min(printed_s(under(words), told, ["cat"]) for _ in range(asked.rounds))
        show(f"{asked.megabytes} MB at once, bare through tee to a file", bare, run, goal=False)
        told = env | {
            "STUB_PAUSE_S": str(asked.start_s),
            "STUB_LOG": str(ROOT / "examples/founding/baseline.log"),
        }
        bare, run = by_turns(words, asked.rounds, lambda w: ready_s(w, port, told, folder / "out"))
        fine &= show(f"until ready, a start of {asked.start_s:g} s", bare, run)
        if asked.engine:
            model = tiny_model.write(folder / "model")
            words = [
                str(asked.engine),
                "serve",
                str(model),
                *SERVE,
                "--max-model-len",
                "1024",
                "--port",
                str(port),
            ]
            told = env | ENVIRONMENT
            bare, run = by_turns(words, asked.rounds, lambda w: ready_s(w, port, told, folder / "out"))
            fine &= show("until ready, vLLM on the CPU", bare, run)
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
