"""``ullage run --on HOST``, to an sshd on loopback: the same as here, and nothing left when the connection goes."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from tests.lab.sshd import Sshd, sshd
from tests.lab.started import WORKED, Launched, until
from ullage.core.errors import InputError
from ullage.lab import remote


@pytest.fixture
def box(lab: Launched) -> Iterator[Sshd]:
    with sshd(lab.folder / "ssh") as found:
        lab.env["PATH"] = f"{found.bin}:{os.environ['PATH']}"
        yield found


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
