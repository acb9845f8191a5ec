"""A folder with a stub server, a load and a campaign file, and the installed command run in it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import psutil

from tests.lab import stub_server
from tests.lab.started import free_port

LOAD = Path(__file__).with_name("load.py")
#: approaches of which each ends in another way, and how
APPROACHES: dict[str, tuple[str, str]] = {
    "slow": ("env: {STUB_LATENCY_S: 0.05}", "done"),
    "alike": ("env: {NOTHING: 1}", "done"),
    "refused": ("flags: {max-num-seqs: 0}", "refused"),
    "crashes": ("env: {STUB_EXIT: 3}", "crashed"),
    "confounded": ("flags: {max-num-seqs: 1}", "done"),
}


def until_said(child: subprocess.Popen[bytes], words: str) -> None:
    """Wait until ``child`` has written ``words`` to stderr; the test's own timeout bounds it."""
    assert child.stderr is not None
    seen = b""
    while words.encode() not in seen:
        piece = child.stderr.readline()
        assert piece, f"ended without {words!r}: {seen.decode()}"
        seen += piece


class World:
    """One campaign of the stub. ``home`` is ULLAGE_HOME."""

    def __init__(self, folder: Path, *, name: str = "c", more: str = "", approaches: str | None = None,
                 latency: float = 0.01, load_env: str = "") -> None:  # fmt: skip
        self.folder, self.home, self.name = folder, folder / "home", name
        self.port = free_port()
        self.pids = folder / "pids"
        stub_server.install(folder / "bin")
        self.file = folder / f"{name}.yaml"
        listed = approaches if approaches is not None else "approaches:\n" + "\n".join(
            f"  - {{name: {each}, reason: to see, {change}}}" for each, (change, _) in APPROACHES.items()
        )  # fmt: skip
        self.file.write_text(f"""\
launch: STUB_PIDS={self.pids} STUB_LATENCY_S={latency} {folder}/bin/vllm serve m --host 127.0.0.1 --port {self.port} --max-num-seqs 8 --max-model-len 1024
{listed}
benchmark:
  kind: command
  command: {sys.executable} -S {LOAD} {{url}}
  env: {{LOAD_REQUESTS: 3 {load_env}}}
  metrics: {{request_throughput: {{json: request_throughput}}, median_e2el_ms: {{json: median_e2el_ms}}}}
least_effect: 0.3
limits: {{start: 20s, benchmark: 20s, stop: 2s, free: 1s}}
{more}
""")

    @property
    def env(self) -> dict[str, str]:
        return {**os.environ, "ULLAGE_HOME": str(self.home), "NO_COLOR": "1", "ULLAGE_OFFLINE": "1"}

    def start(self, *words: str, **kwargs: Any) -> subprocess.Popen[bytes]:
        env = {**self.env, **kwargs.pop("env", {})}
        return subprocess.Popen(
            [sys.executable, "-m", "ullage.cli", "campaign", *words], cwd=self.folder, env=env,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True, **kwargs,
        )  # fmt: skip

    def run(
        self, *words: str, env: Mapping[str, str] | None = None, timeout: float = 90
    ) -> tuple[int, str, str]:
        child = self.start(*words, env=dict(env or {}))
        try:
            out, err = child.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            raise
        assert b"Traceback" not in err, err.decode()
        assert b"fault of ullage" not in err, err.decode()
        return child.returncode, out.decode(), err.decode()

    def export(self) -> dict[str, Any]:
        code, out, err = self.run("export", self.file.name)
        assert code == 0, err
        found: dict[str, Any] = msgspec.json.decode(out)
        return found

    def begun(self) -> bool:
        """True once an experiment was begun: then only resume goes on."""
        code, out, _ = self.run("status", self.file.name, "--json")
        return code != 2 and any(e["attempt"] for e in msgspec.json.decode(out)["experiments"])

    def stages(self) -> dict[str, str]:
        return {each["name"]: each["stage"] for each in self.export()["experiments"]}

    def left(self) -> list[str]:
        """Processes of any stub or load of this world that are alive."""
        return list(_alive(str(self.folder), self.pids))

    def nothing_left(self, seconds: float = 3.0) -> None:
        until = time.monotonic() + seconds
        while (found := self.left()) and time.monotonic() < until:
            time.sleep(0.05)
        assert found == []
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", self.port))


def _alive(folder: str, pids: Path) -> Iterator[str]:
    noted = {int(text) for text in pids.read_text().split()} if pids.exists() else set()
    for process in psutil.process_iter(["pid", "cmdline", "environ", "status"]):
        if process.info["status"] == psutil.STATUS_ZOMBIE:
            continue
        words = " ".join(process.info["cmdline"] or ())
        stub = "stub_server.py" in words and folder in (process.info["environ"] or {}).get("STUB_PIDS", "")
        load = "load.py" in words and folder in (process.info["environ"] or {}).get("ULLAGE_HOME", "")
        if stub or load or (process.pid in noted and ("stub_server" in words or "sleep" in words)):
            yield f"{process.pid} {words[:100]}"
