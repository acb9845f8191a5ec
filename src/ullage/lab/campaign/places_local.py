"""Experiments on this machine, side by side on disjoint GPUs and with a port each."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from ullage.core.errors import InputError
from ullage.lab import endpoint as endpoints
from ullage.lab import processes, records
from ullage.lab.campaign import approach
from ullage.lab.campaign.approach import Command
from ullage.lab.campaign.file import Where
from ullage.lab.campaign.gpu_sets import Pool
from ullage.lab.campaign.job import Given, Job, Stop, Tell
from ullage.lab.campaign.perform import Seams, perform
from ullage.lab.reap import reap
from ullage.lab.run import beyond
from ullage.planning.plan import engine_of

#: ports that are looked at for a free one
_PORTS = 200


class Local:
    """This machine. GPUs are assigned where several experiments run at once or the file names them; else a
    launch sees what it would see by hand."""

    def __init__(
        self, where: Where, base: Command, seams: Seams | None = None, root: Path | None = None
    ) -> None:
        self.slots = where.side_by_side
        self._seams = seams or Seams()
        self._store = records.Store(root)
        if self.slots > 1 and base.contained:
            raise InputError("containers cannot run side by side: their ports are mapped by hand",
                             where="where.side_by_side")  # fmt: skip
        self._each = where.gpus_each  # 0: none at all
        self.pool = Pool(_gpus(where, self._seams), self.slots)
        self._moved = self.slots > 1

    def prepare(self) -> list[str]:
        return [found.text for found in reap(self._store, beyond)]

    def can(self, num_gpus: int) -> str | None:
        count = num_gpus if self._each is None else self._each
        return None if self.pool.can(count) else f"it needs {count} GPUs, and {self.pool.total} may be used"

    def gpu(self) -> str | None:
        return None

    def perform(self, job: Job, num_gpus: int, tell: Tell, stop: Stop) -> Given:
        with self.pool.taken(num_gpus if self._each is None else self._each, stop) as got:
            if got is None:
                return Given(end="stopped", why="stopped before it began")
            slot, gpus = got
            command = with_port(job.command, slot) if self._moved else job.command
            return perform(replace(job, command=command, gpus=gpus), tell, stop, self._seams)

    def close(self) -> None:
        """Nothing to let go."""


def _gpus(where: Where, seams: Seams) -> Sequence[int] | None:
    """The GPUs to share out; None: there are none, or one experiment at a time sees them all."""
    if where.gpus is not None:
        return where.gpus
    if where.side_by_side == 1:
        return None
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if listed and all(word.strip().isdecimal() for word in listed.split(",")):
        return [int(word) for word in listed.split(",")]
    found = [device.index for device in seams.ask_gpus()]
    return found or None


def with_port(command: Command, slot: int) -> Command:
    """``command`` on a port of its own: ``slot`` beyond its own, or the next free one. Raises InputError where
    none is free."""
    engine = engine_of(command.text)
    where = endpoints.of_launch(engine.parse(command.text, None))
    if where is None:
        return command
    # ten apart: engines take the ports next to their own for other things
    first = where.port + 10 * slot
    for port in range(first, first + _PORTS * 50, 50):
        if port < 65000 and processes.port_free(port):
            return replace(command, words=approach.with_flags(engine, command.words, {"port": port}))
    raise InputError(f"no free port above {first}", where="where.side_by_side")
