"""NCCL_DEBUG=INFO lines in a server's log: transport, channels and buffers in ``why``."""

from __future__ import annotations

from pathlib import Path

import pytest

from ullage.core.ledger import Entry, Ledger
from ullage.core.units import GIB, MIB
from ullage.diagnose import nccl
from ullage.diagnose.why import why

HEAD = "[2026-02-10 10:00:00] server_args=ServerArgs(model_path='m/m', tp_size=8, mem_fraction_static=0.88)\n"
TAIL = "[2026-02-10 10:11:31] The server is fired up and ready to roll!\n"


def lines(via: str, channels: int, extra: str = "") -> str:
    text = "".join(
        f"box:4242:4999 [{rank}] NCCL INFO Channel {c:02d}/0 : {rank}[{rank}] -> {(rank + 1) % 8}[{(rank + 1) % 8}] via {via}\n"
        for rank in range(8) for c in range(channels)
    )  # fmt: skip
    return (
        f"{extra}{text}box:4242:4999 [0] NCCL INFO {channels} coll channels, 0 collnet channels, 0 nvls channels,"
        f" {channels} p2p channels, 2 p2p channels per peer\n"
    )


def notes(tmp_path: Path, text: str) -> str:
    path = tmp_path / "server.log"
    path.write_text(HEAD + text + TAIL)
    return " ".join(why([str(path)]).notes)


def test_shared_memory(tmp_path: Path) -> None:
    found = notes(tmp_path, lines("SHM/direct/direct", 2))
    assert "2 channels, via SHM; its buffers lie in host memory" in found
    assert "NCCL_P2P_LEVEL=SYS" in found


@pytest.mark.parametrize(
    ("extra", "size"),
    [
        ("", "384.00 MiB"),
        ("box:1:1 [0] NCCL INFO NCCL_BUFFSIZE set by environment to 16777216.\n", "768.00 MiB"),
    ],
)
def test_peer_to_peer_has_the_formulas_memory(tmp_path: Path, extra: str, size: str) -> None:
    found = notes(tmp_path, lines("P2P/IPC", 16, extra))
    gib = {"384.00 MiB": "0.38 GiB", "768.00 MiB": "0.75 GiB"}[size]
    assert f"16 channels, via P2P/IPC; {gib} of each GPU" in found
    assert "NCCL_P2P_LEVEL" not in found


def test_one_pair_through_the_host_decides(tmp_path: Path) -> None:
    assert "via SHM" in notes(tmp_path, lines("P2P/CUMEM", 4) + lines("SHM/direct/direct", 4))


def test_many_ranks_and_channels_leave_no_count_behind(tmp_path: Path) -> None:
    assert "were counted, not kept" not in notes(tmp_path, lines("P2P/IPC", 32))


def test_a_log_without_such_lines_says_nothing(tmp_path: Path) -> None:
    assert "NCCL" not in notes(tmp_path, "")


def test_the_ledger_parts_what_was_held_before_the_engine_looked() -> None:
    """Entries and what is left add up as before; too small an entry is left alone."""
    seen = nccl.Seen("P2P/IPC", 16, environment={}, source="log:3")
    held = Entry("init", "taken before the start", GIB, GIB, GIB, "observed", "log:1")
    (found,) = nccl.parted([Ledger("TP0", 10 * GIB, (held,))], seen)
    assert [(e.name, e.bytes) for e in found.entries] == [
        ("NCCL buffers", 384 * MIB), ("taken before the start", GIB - 384 * MIB)
    ]  # fmt: skip
    assert found.used_bytes == GIB
    small = Ledger("TP0", 10 * GIB, (Entry.exact("init", "x", MIB, "log:1"),))
    assert nccl.parted([small], seen) == (small,)
    assert nccl.parted([small], nccl.Seen("SHM", 16)) == (small,)


def test_multicast_buffers_are_those_of_the_line() -> None:
    seen = nccl.Seen("P2P/CUMEM", 16, nvls_bytes=256 * MIB, source="log:3")
    assert seen.memory is not None
    assert seen.memory.total.value == (384 + 256) * MIB
