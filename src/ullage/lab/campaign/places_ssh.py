"""Experiments on other machines over ssh: one at a time on each host, driven from here."""

from __future__ import annotations

import queue
from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace

from ullage.core.errors import InputError
from ullage.lab import records, remote
from ullage.lab.campaign.approach import Command
from ullage.lab.campaign.file import Where
from ullage.lab.campaign.job import Given, Job, Stop, Tell
from ullage.lab.campaign.perform import perform
from ullage.lab.reap import reap
from ullage.lab.run import beyond


class Ssh:
    """Hosts by the names that ssh knows them by. The server and the benchmark run there; the record is kept
    here."""

    def __init__(self, where: Where, base: Command, root: Path | None = None) -> None:
        self._hosts: queue.SimpleQueue[str] = queue.SimpleQueue()
        for host in where.hosts:
            self._hosts.put(remote.checked_host(host))
        self.hosts = where.hosts
        self.slots = len(where.hosts)
        self._store = records.Store(root)
        self._gpu: str | None = None
        if base.contained:
            raise InputError("containers over ssh are not driven by a campaign", where="where.kind",
                             hint="ullage run --on HOST -- docker run ...")  # fmt: skip

    def prepare(self) -> list[str]:
        return [found.text for found in reap(self._store, beyond)]

    def can(self, num_gpus: int) -> str | None:
        return None

    def gpu(self) -> str | None:
        """The first host's GPUs, asked there; None where it has none."""
        from ullage.hardware import probe

        with suppress(InputError):
            if probe.probe_ssh(self.hosts[0]) is not None:
                return f"ssh:{self.hosts[0]}"
        return None

    def perform(self, job: Job, num_gpus: int, tell: Tell, stop: Stop) -> Given:
        host = self._next(stop)
        if host is None:
            return Given(end="stopped", why="stopped before it began")
        try:
            return perform(replace(job, host=host), tell, stop)
        finally:
            self._hosts.put(host)

    def _next(self, stop: Stop) -> str | None:
        while not stop():
            with suppress(queue.Empty):
                return self._hosts.get(timeout=0.2)
        return None

    def close(self) -> None:
        """Each connection ends with its experiment."""
