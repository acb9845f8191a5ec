"""``ullage run --on HOST``, to an sshd on loopback: the same as here, and nothing left when the connection goes."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.lab.started import WORKED, Launched, free_port, until
from ullage.core.errors import InputError
from ullage.lab import remote


class Sshd:
    """An sshd of its own keys and port, and an ``ssh`` whose config knows it as "box"."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        for key in ("host", "user"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key)], check=True)
        shutil.copy(folder / "user.pub", folder / "authorized")
        config = folder / "sshd_config"
        config.write_text(
            f"Port {self.port}\nListenAddress 127.0.0.1\nHostKey {folder}/host\nPidFile none\nUsePAM no\n"
            f"AuthorizedKeysFile {folder}/authorized\nStrictModes no\nPermitRootLogin yes\n"
            "AcceptEnv STUB_*\nLogLevel ERROR\n"
        )
        (folder / "ssh_config").write_text(
            f"Host gone\n  Port 1\nHost box gone\n  HostName 127.0.0.1\n  Port {self.port}\n  IdentityFile {folder}/user\n"
            f"  UserKnownHostsFile {folder}/known\n  StrictHostKeyChecking no\n  SendEnv STUB_*\n  LogLevel ERROR\n"
        )
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)
        program = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin") or ""
        with (folder / "log").open("wb") as log:
            self.process = subprocess.Popen(
                [program, "-D", "-e", "-f", str(config)], stdout=subprocess.DEVNULL, stderr=log
            )
        self.bin = folder / "bin"
        self.bin.mkdir()
        real = shutil.which("ssh")
        (self.bin / "ssh").write_text(f'#!/bin/sh\nexec {real} -F "{folder}/ssh_config" "$@"\n')
        (self.bin / "ssh").chmod(0o755)

    def cut(self) -> None:
        """End every connection that it serves, as a network that breaks: its processes, not what they started."""
        for child in psutil.Process(self.process.pid).children(recursive=True):
            if child.name().startswith("sshd"):
                child.kill()

    def stop(self) -> None:
        self.cut()
        self.process.terminate()
        self.process.wait(10)


@pytest.fixture
def box(lab: Launched) -> Iterator[Sshd]:
    if not shutil.which("ssh") or not shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin"):
        pytest.skip("ssh and sshd are not installed (Debian: openssh-server)")
    folder = lab.folder / "ssh"
    folder.mkdir(mode=0o700)
    found = Sshd(folder)
    lab.env["PATH"] = f"{found.bin}:{os.environ['PATH']}"
    try:
        for _ in range(50):
            done = subprocess.run(
                [str(found.bin / "ssh"), "-o", "BatchMode=yes", "box", "true"], stderr=subprocess.DEVNULL,
                stdin=subprocess.DEVNULL, check=False,
            )  # fmt: skip
            if done.returncode == 0:
                break
            time.sleep(0.1)
        else:
            pytest.skip(f"sshd on loopback lets nobody in: {(folder / 'log').read_text()[-200:]}")
        yield found
    finally:
        found.stop()


def test_there_as_here(lab: Launched, box: Sshd) -> None:
    process = lab.start("--on", "box", "--request", log=WORKED, children=1, orphans=1)
    lab.wait_said("a request of one token was answered")
    process.terminate()
    out, _ = process.communicate(timeout=30)
    assert process.returncode == 0
    assert out == WORKED.read_bytes() + b"stub: signal 15\n"
    record = lab.record()
    assert (record.where, record.outcome, record.exit_code) == ("ssh:box", "stopped", 0)
    lab.nothing_left()


def test_the_exit_code_of_there(lab: Launched, box: Sshd) -> None:
    assert lab.run("--on", "box", exit=7)[0] == 7
    assert lab.run("--on", "box", exit=-9)[0] == 137
    code, _, _ = lab.run("--on", "box", launch=("/no/such/program",))
    assert code == 127
    assert "cannot be started there" in lab.store.records()[-1][0].log.read_text()


def test_a_lost_connection_leaves_nothing_there(lab: Launched, box: Sshd) -> None:
    process = lab.start("--on", "box", "--grace", "2", log=WORKED, children=1, orphans=1, ignore=1)
    lab.wait_said("ready at")
    box.cut()
    process.communicate(timeout=40)
    assert process.returncode == 255
    record = lab.record()
    assert record.outcome == "lost"
    assert any("the connection to box was lost" in note for note in record.notes)
    lab.nothing_left(10)


def test_kill_9_here_leaves_nothing_there(lab: Launched, box: Sshd) -> None:
    process = lab.start("--on", "box", "--grace", "2", children=1, orphans=1)
    lab.wait_said("ready at")
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=20)
    until(lambda: not lab.left(), 15, "the other side to end everything by itself")
    code, _, said = lab.run(launch=("sh", "-c", "exit 0"))
    assert code == 0 and "was abandoned" in said and "processes ended at box" in said


def test_no_connection_is_told(lab: Launched, box: Sshd) -> None:
    code, _, _ = lab.run("--on", "gone")
    assert code == 255 and lab.record().outcome == "lost"
    assert not lab.pids()


@pytest.mark.parametrize("host", ["-oProxyCommand=touch x", "a b", "", "$(id)"])
def test_what_is_no_host_is_refused(host: str) -> None:
    with pytest.raises(InputError, match="is no host"):
        remote.command(host)
