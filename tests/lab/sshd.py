"""An sshd on loopback that knows one user: another machine, as far as ssh tells."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.lab.started import free_port

PROGRAM = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


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
        with (folder / "log").open("wb") as log:
            self.process = subprocess.Popen(
                [str(PROGRAM), "-D", "-e", "-f", str(config)], stdout=subprocess.DEVNULL, stderr=log
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

    def answers(self) -> bool:
        asked = [str(self.bin / "ssh"), "-o", "BatchMode=yes", "box", "true"]
        done = subprocess.run(asked, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, check=False)
        return done.returncode == 0


@contextmanager
def sshd(folder: Path) -> Iterator[Sshd]:
    """One that lets us in; the test is skipped where there is none."""
    if not shutil.which("ssh") or not PROGRAM:
        pytest.skip("ssh and sshd are not installed (Debian: openssh-server)")
    folder.mkdir(mode=0o700)
    found = Sshd(folder)
    try:
        for _ in range(50):
            if found.answers():
                break
            time.sleep(0.1)
        else:
            pytest.skip(f"sshd on loopback lets nobody in: {(folder / 'log').read_text()[-200:]}")
        yield found
    finally:
        found.stop()
