"""What NCCL_DEBUG=INFO lines tell of a run: transport, channels, buffers; in sentences and in the ledgers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from ullage.comm import nccl
from ullage.core.ledger import Entry, Ledger
from ullage.core.run import Note, Run
from ullage.core.units import MIB, gib_text
from ullage.hardware.nccl import buffers_of

#: from near to far: the farthest that a log shows decides the time of an all-reduce
_FAR = ("P2P", "SHM", "NET")


class Seen(Struct, frozen=True):
    """NCCL as a log shows it. ``via`` is the farthest transport ("SHM", "P2P/IPC", "NET/Socket"), ``channels``
    those of the first communicator, ``nvls_bytes`` its multicast buffers; None: not shown. ``source`` is the
    line that tells the channels, else the transport."""

    via: str | None = None
    channels: int | None = None
    nvls_bytes: int = 0
    environment: dict[str, str] = {}
    source: str = ""

    @property
    def memory(self) -> nccl.Memory | None:
        """Device memory of one communicator by NCCL's formula; None where transport or channels are unknown."""
        if self.channels is None or self.via is None:
            return None
        transport: nccl.Transport = "shm" if self.via == "SHM" else "net" if "NET" in self.via else "p2p"
        buffers = buffers_of(self.environment)
        found = nccl.memory(nccl.Communicator(2, self.channels, transport, buffers))
        return replace(found, nvls_bytes=self.nvls_bytes)


def seen(run: Run, environment: dict[str, str]) -> Seen | None:
    """What the log of ``run`` shows of NCCL; None where it shows nothing. ``environment``: the launch's."""
    via, channels, nvls = (run.notes_named(f"nccl-{name}") for name in ("via", "channels", "nvls"))
    if not via and not channels:
        return None
    farthest = max((note.fields["via"] for note in via), key=_distance, default=None)
    told = {note.fields["variable"]: note.fields["value"] for note in run.notes_named("nccl-environment")}
    first: Note = (channels or via)[0]
    return Seen(
        farthest, _whole(channels[0].fields["coll"]) if channels else None,
        _whole(nvls[0].fields["total"]) or 0 if nvls else 0, {**environment, **told}, str(first.source),
    )  # fmt: skip


def sentences(found: Seen) -> Iterator[str]:
    """The same in words, with what follows from it."""
    channels = f"{found.channels} channels" if found.channels is not None else "channels not shown"
    via = f"via {found.via}" if found.via else "transport not shown"
    memory = found.memory
    yield f"NCCL ({found.source}): {channels}, {via}" + (f"; {_held(found, memory)}" if memory else "")
    if found.via == "SHM":
        yield (
            "NCCL goes through host memory (via SHM): channels and NCCL_BUFFSIZE then hold next to no memory of"
            " the GPU, and each all-reduce pays the way through the host. Try NCCL_P2P_LEVEL=SYS and look for"
            " `via P2P`; `ullage comm plan --via SHM` says what it would gain"
        )


def _held(found: Seen, memory: nccl.Memory) -> str:
    size = memory.total
    if found.via == "SHM":
        return "its buffers lie in host memory"
    nvls = f" + {memory.nvls_bytes // MIB} MiB of NVLS" if memory.nvls_bytes else ""
    return f"{gib_text(size.value)} of each GPU for a communicator ({memory.basis}{nvls})"


def parted(ledgers: Sequence[Ledger], found: Seen | None) -> tuple[Ledger, ...]:
    """The ledgers with NCCL's buffers taken out of what was held before the engine looked: entries and what is
    left add up as before."""
    memory = found.memory if found is not None else None
    size = round(memory.total.value) if memory is not None else 0
    if found is None or memory is None or not size:
        return tuple(ledgers)
    entry = Entry.exact("init", "NCCL buffers", size, f"{found.source}: {memory.basis}")
    return tuple(_parted(ledger, entry) for ledger in ledgers)


def _parted(ledger: Ledger, entry: Entry) -> Ledger:
    for index, held in enumerate(ledger.entries):
        if held.stage == "init" and held.bytes > entry.bytes:
            rest = replace(
                held, bytes=held.bytes - entry.bytes, low=max(0, held.low - entry.bytes),
                high=held.high - entry.bytes,
            )  # fmt: skip
            return replace(ledger, entries=(*ledger.entries[:index], entry, rest, *ledger.entries[index + 1 :]))
    return ledger


def _distance(via: str) -> int:
    return _FAR.index(via.partition("/")[0])


def _whole(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else None
