"""Experiments on a Ray cluster: each one a task with its GPUs. ullage must be installed on its nodes."""

from __future__ import annotations

import logging
import signal
import threading
import time
from typing import Any

import msgspec
from msgspec.structs import replace

from ullage.core.errors import InputError, UllageError
from ullage.lab.campaign.approach import Command
from ullage.lab.campaign.file import Where
from ullage.lab.campaign.gpu_sets import Pool
from ullage.lab.campaign.job import Given, Job, Stop, Tell

#: seconds between two looks at a task
LOOK_S = 0.2


class Board:
    """An actor between the campaign and its tasks: stages one way, the wish to stop the other."""

    def __init__(self) -> None:
        self.level = 0
        self.stages: dict[str, list[tuple[str, str]]] = {}

    def tell(self, task: str, stage: str, run: str) -> int:
        self.stages.setdefault(task, []).append((stage, run))
        return self.level

    def told(self, task: str, seen: int, level: int) -> list[tuple[str, str]]:
        """What a task told beyond the first ``seen``; also sets the wish."""
        self.level = max(self.level, level)
        return self.stages.get(task, [])[seen:]

    def wish(self) -> int:
        return self.level


def task(job: bytes, name: str, board: Any, slot: int) -> bytes:
    """Runs in a Ray worker: one experiment on its node. If the campaign is gone it ends what it started."""
    import ray

    from ullage.lab.campaign.perform import perform
    from ullage.lab.campaign.places_local import with_port
    from ullage.lab.reap import reap
    from ullage.lab.records import Store
    from ullage.lab.run import beyond

    reap(Store(), beyond)
    found = msgspec.json.decode(job, type=Job)
    last = [0.0, 0]

    def wish() -> int:
        if time.monotonic() - last[0] >= 1.0:
            try:
                last[:] = [time.monotonic(), ray.get(board.wish.remote(), timeout=20)]
            except Exception:  # of whatever kind: nobody waits for the result any more
                last[:] = [time.monotonic(), 2]
        return int(last[1])

    try:
        moved = replace(found, command=with_port(found.command, slot))
        given = perform(moved, lambda stage, run: ray.get(board.tell.remote(name, stage, run)), wish)
    except UllageError as error:
        given = Given(end="crashed", why=error.line)
    return msgspec.json.encode(given)


def reaped() -> list[str]:
    """Runs on each node: what a killed campaign left there."""
    from ullage.lab.reap import reap
    from ullage.lab.records import Store
    from ullage.lab.run import beyond

    return [found.text for found in reap(Store(), beyond)]


class Ray:
    """A cluster by its address ("auto": the one of this machine)."""

    def __init__(self, where: Where, base: Command) -> None:
        self.slots = where.side_by_side
        self._each, self._cpus = where.gpus_each, where.cpus_each
        self._ray = _connected(where.address or "auto")
        self._board = self._ray.remote(num_cpus=0)(Board).remote()
        self._slots = Pool(None, self.slots)
        self._mine = where.address != "already"

    def prepare(self) -> list[str]:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        looks = []
        for node in self._ray.nodes():
            if node["Alive"]:
                there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
                looks.append(self._ray.remote(num_cpus=0)(reaped).options(scheduling_strategy=there).remote())
        return list(dict.fromkeys(text for found in self._ray.get(looks, timeout=120) for text in found))

    def _gpus(self, num_gpus: int) -> int:
        return num_gpus if self._each is None else self._each

    def can(self, num_gpus: int) -> str | None:
        needed = self._gpus(num_gpus)
        most = max((node["Resources"].get("GPU", 0) for node in self._ray.nodes() if node["Alive"]), default=0)
        return (
            None
            if needed <= most
            else f"it needs {needed} GPUs, and no node of the cluster has more than {most:.0f}"
        )

    def gpu(self) -> str | None:
        return None

    def perform(self, job: Job, num_gpus: int, tell: Tell, stop: Stop) -> Given:
        with self._slots.taken(0, stop) as got:
            if got is None:
                return Given(end="stopped", why="stopped before it began")
            name = f"{job.experiment} #{job.attempt}"
            remote = self._ray.remote(num_cpus=self._cpus, num_gpus=self._gpus(num_gpus), max_retries=0)(task)
            waiting = remote.remote(msgspec.json.encode(job), name, self._board, got[0])
            return self._follow(waiting, name, tell, stop)

    def _follow(self, waiting: Any, name: str, tell: Tell, stop: Stop) -> Given:
        """Pass stages on until the task is done. A task or node that dies is lost, not crashed."""
        seen = 0
        while True:
            done, _ = self._ray.wait([waiting], timeout=LOOK_S)
            for stage, run in self._ray.get(self._board.told.remote(name, seen, stop())):
                seen += 1
                tell(stage, run)
            if done:
                break
            if stop() and seen == 0:
                self._ray.cancel(waiting, force=False)
        try:
            return msgspec.json.decode(self._ray.get(waiting), type=Given)
        except self._ray.exceptions.RayError as error:
            if stop():
                return Given(end="stopped", why="stopped before it began")
            return Given(end="lost", why=f"the task was lost: {' '.join(str(error).split())[:200]}")

    def close(self) -> None:
        """Leave the cluster; what runs there of this campaign has ended."""
        if self._mine:
            self._ray.shutdown()


def _connected(address: str) -> Any:
    try:
        import ray
    except ImportError:
        raise InputError("needs ray", where="where.kind", hint='pip install "ullage[ray]"') from None
    if ray.is_initialized():
        return ray
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, ignore_reinit_error=True)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise InputError(f"no Ray cluster there: {' '.join(str(error).split())[:160]}", where="where.address",
                         hint="ray start --head on one machine, then address: HOST:6379") from None  # fmt: skip
    finally:
        _given_back(before)
    return ray


def _given_back(before: dict[signal.Signals, Any]) -> None:
    """Ray takes SIGTERM for itself; the campaign ends its experiments first."""
    if threading.current_thread() is threading.main_thread():
        for number, handler in before.items():
            if handler is not None:
                signal.signal(number, handler)
