"""A server that behaves as it is told: prints a real log, opens its port or does not, fails, hangs, leaves
children behind. No engine, a few milliseconds of CPU.

``install(folder)`` writes executables ``vllm`` and ``sglang`` that run it, so that a launch command is spelled as
a real one (``folder/vllm serve MODEL --port 8123``); what it does is told by the environment, so that no plan
sees it:

    STUB_LOG=FILE            print this file's lines, to stdout
    STUB_LINES_PER_S=N       at this speed; 0 (the default): as fast as they can be printed
    STUB_BYTES=N             then print so many bytes of routine lines
    STUB_LOG_LINES=N         then log so many lines through Python's logging, as the engines do
    STUB_TOOK=FILE           write there how many seconds the printing took
    STUB_PAUSE_S=S           then wait before the port opens or what follows happens
    STUB_EXIT=CODE           then exit with this code (negative: by this signal) instead of serving
    STUB_HANG=1              then sleep for ever, without a port
    STUB_SERVE_S=S           serve for so long, then exit (or die) as STUB_EXIT says
    STUB_HEALTH_ONLY=1       /health answers; a request never does
    STUB_REFUSE=1            /health answers; a request is answered with 500
    STUB_LATENCY_S=S         a request takes so long
    STUB_STOP_CODE=CODE      exit code after SIGTERM or SIGINT (0)
    STUB_STOP_S=S            how long it takes to stop then
    STUB_IGNORE=1            it and its children ignore SIGTERM, SIGINT and SIGHUP
    STUB_CHILDREN=N          start N children in its process group
    STUB_ORPHANS=N           start N children that leave: own session, no parent, empty environment
    STUB_PIDS=FILE           append the pid of every process of it
    STUB_STDIN=1             print what comes on stdin, with "stdin: " in front
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


def install(folder: Path) -> Path:
    """``folder`` with the executables ``vllm`` and ``sglang``."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("vllm", "sglang"):
        script = folder / name
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{Path(__file__).resolve()}" "$@"\n')
        script.chmod(0o755)
    return folder


def _told(name: str, default: float = 0) -> float:
    return float(os.environ.get(f"STUB_{name}") or default)


def _note(pid: int) -> None:
    if path := os.environ.get("STUB_PIDS"):
        with Path(path).open("a") as stream:
            stream.write(f"{pid}\n")


def _spawn() -> None:
    for _ in range(int(_told("CHILDREN"))):
        pid = os.fork()
        if pid == 0:
            _idle()
        _note(pid)
    for _ in range(int(_told("ORPHANS"))):
        pid = os.fork()
        if pid == 0:
            os.setsid()
            grandchild = os.fork()
            if grandchild:
                _note(grandchild)
                os._exit(0)
            os.execve("/bin/sleep", ["sleep", "1000"], {})
        os.waitpid(pid, 0)


def _idle() -> None:
    if not _told("IGNORE"):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    while True:
        time.sleep(100)


def _print_log() -> None:
    out = sys.stdout.buffer
    if path := os.environ.get("STUB_LOG"):
        pause = 1 / _told("LINES_PER_S") if _told("LINES_PER_S") else 0.0
        for line in Path(path).read_bytes().splitlines(keepends=True):
            out.write(line)
            if pause:
                out.flush()
                time.sleep(pause)
    line = b"(APIServer pid=1) INFO 11-29 20:00:00 [loggers.py:257] Engine 000: routine, nothing to see here\n"
    block, left = line * 640, int(_told("BYTES"))
    while left > 0:
        out.write(block)
        left -= len(block)
    out.flush()
    if count := int(_told("LOG_LINES")):
        _log_lines(count)


def _log_lines(count: int) -> None:
    import logging

    logging.basicConfig(
        stream=sys.stdout, format="%(levelname)s %(asctime)s [%(filename)s:%(lineno)d] %(message)s"
    )
    logger = logging.getLogger("stub")
    logger.setLevel(logging.INFO)
    for n in range(count):
        logger.info(
            "Engine 000: Avg prompt throughput: %.1f tokens/s, Running: %d reqs, Waiting: 0 reqs", n / 7, n
        )


class _Handler(BaseHTTPRequestHandler):
    model = "stub"

    def log_message(self, *args: object) -> None:
        """No line for each request."""

    def do_GET(self) -> None:
        if self.path == "/health":
            self._answer(200, None)
        elif self.path == "/v1/models":
            self._answer(200, {"data": [{"id": self.model}]})
        else:
            self._answer(404, None)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if _told("HEALTH_ONLY"):
            time.sleep(1000)
        time.sleep(_told("LATENCY_S"))
        if _told("REFUSE"):
            self._answer(500, {"error": "stub refuses"})
            return
        self._answer(200, {"choices": [{"text": "a"}], "usage": {"completion_tokens": 1}})

    def _answer(self, status: int, body: object) -> None:
        data = json.dumps(body).encode() if body is not None else b""
        with suppress(OSError):
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)


def _leave(code: int) -> None:
    sys.stdout.flush()
    if code < 0:
        os.kill(os.getpid(), -code)
        time.sleep(10)
    os._exit(code)


def _stop(number: int, frame: object) -> None:
    os.write(1, f"stub: signal {number}\n".encode())
    time.sleep(_told("STOP_S"))
    os._exit(int(_told("STOP_CODE")))


def _echo() -> None:
    for line in sys.stdin:
        print("stdin:", line.rstrip(), flush=True)
    print("stdin ended", flush=True)


def _option(words: list[str], name: str, default: str) -> str:
    for i, word in enumerate(words):
        if word == name and i + 1 < len(words):
            return words[i + 1]
        if word.startswith(f"{name}="):
            return word.partition("=")[2]
    return default


def main(words: list[str]) -> None:
    _note(os.getpid())
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, signal.SIG_IGN if _told("IGNORE") else _stop)
    _spawn()
    if _told("STDIN"):
        threading.Thread(target=_echo, daemon=True).start()
    began = time.perf_counter()
    _print_log()
    if path := os.environ.get("STUB_TOOK"):
        Path(path).write_text(str(time.perf_counter() - began))
    time.sleep(_told("PAUSE_S"))
    if _told("HANG"):
        while True:
            time.sleep(100)
    if os.environ.get("STUB_EXIT") and not _told("SERVE_S"):
        _leave(int(_told("EXIT")))
    positional = [word for word in words[1:] if not word.startswith("-")]
    _Handler.model = _option(words, "--served-model-name", positional[0] if positional else "stub")
    port = int(_option(words, "--port", "30000" if "sglang" in words[0] else "8000"))
    try:
        server = ThreadingHTTPServer((_option(words, "--host", "127.0.0.1"), port), _Handler)
    except OSError as error:
        print(f"OSError: {error}", flush=True)
        _leave(1)
        return
    server.daemon_threads = True
    if _told("SERVE_S"):
        threading.Thread(target=server.serve_forever, daemon=True).start()
        time.sleep(_told("SERVE_S"))
        _leave(int(_told("EXIT")))
    server.serve_forever()


if __name__ == "__main__":
    main(sys.argv[1:] or ["serve"])
