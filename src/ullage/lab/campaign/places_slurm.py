"""Experiments as Slurm jobs, through submitit. The campaign's folder must lie on a file system that the nodes
share."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from ullage.core.errors import InputError, UllageError
from ullage.lab.campaign import durations
from ullage.lab.campaign.approach import Command
from ullage.lab.campaign.board import Beat, Board
from ullage.lab.campaign.file import Where
from ullage.lab.campaign.job import Given, Job, Stop, Tell

#: seconds between two looks at a job
LOOK_S = 1.0


def run(job: bytes, folder: str, name: str) -> bytes:
    """Runs inside the job: one experiment on its node."""
    from ullage.lab.campaign.perform import perform
    from ullage.lab.campaign.places_local import with_port

    board = Board(Path(folder), name)
    found = msgspec.json.decode(job, type=Job)
    try:
        moved = replace(found, command=with_port(found.command, 0))
        given = perform(moved, board.tell, board.wish())
    except UllageError as error:
        given = Given(end="crashed", why=error.line)
    return msgspec.json.encode(given)


class Slurm:
    """A cluster behind ``sbatch``; ``cluster`` "local" runs the jobs as processes of this machine, for
    tests."""

    def __init__(self, where: Where, base: Command, folder: Path, cluster: str = "slurm") -> None:
        self.slots = where.side_by_side
        self._where, self._folder, self._cluster = where, folder, cluster
        self._name = f"ullage-{hashlib.blake2b(str(folder).encode(), digest_size=6).hexdigest()}"
        self._submitit = _submitit()
        try:
            self._beat = Beat(folder)
        except OSError as error:
            raise InputError(f"cannot be written: {error.strerror}", where=str(folder)) from None

    def prepare(self) -> list[str]:
        """Cancel what an earlier campaign of this folder has queued; what runs ends by itself."""
        for left in self._folder.glob("*.stop"):
            left.unlink(missing_ok=True)
        scancel = shutil.which("scancel")
        if self._cluster == "slurm" and scancel:
            subprocess.run([scancel, "--quiet", f"--name={self._name}", "--me"], timeout=60, check=False,
                           stdin=subprocess.DEVNULL, capture_output=True)  # fmt: skip
        return []

    def can(self, num_gpus: int) -> str | None:
        return None

    def gpu(self) -> str | None:
        return None

    def perform(self, job: Job, num_gpus: int, tell: Tell, stop: Stop) -> Given:
        name = hashlib.blake2b(
            f"{job.experiment} {job.attempt} {time.time()}".encode(), digest_size=8
        ).hexdigest()
        board = Board(self._folder, name)
        submitted = self._executor(num_gpus).submit(run, msgspec.json.encode(job), str(self._folder), name)
        seen, asked = 0, 0
        while not submitted.done():
            for stage, run_name in board.stages(seen):
                seen += 1
                tell(stage, run_name)
            if (level := stop()) > asked:
                asked = level
                board.stop(level)
                if seen == 0:  # it waits in the queue
                    submitted.cancel()
            time.sleep(LOOK_S if self._cluster == "slurm" else 0.1)
        return self._result(submitted, board, seen, tell, stop)

    def _result(self, submitted: Any, board: Board, seen: int, tell: Tell, stop: Stop) -> Given:
        for stage, run_name in board.stages(seen):
            tell(stage, run_name)
        try:
            return msgspec.json.decode(submitted.result(), type=Given)
        except Exception as error:  # submitit raises what it likes: a job that was cancelled, killed or lost
            if stop():
                return Given(end="stopped", why="stopped before it was done")
            said = " ".join(str(error).split())[:200]
            return Given(end="lost", why=f"the job {submitted.job_id} was lost: {said}")

    def _executor(self, num_gpus: int) -> Any:
        slurm = self._where.slurm
        executor = self._submitit.AutoExecutor(folder=self._folder / "jobs", cluster=self._cluster)
        gpus = num_gpus if self._where.gpus_each is None else self._where.gpus_each
        asked: dict[str, Any] = {
            "name": self._name, "timeout_min": max(1, round(durations.seconds(slurm.time) / 60)),
            "cpus_per_task": max(1, round(self._where.cpus_each)), "gpus_per_node": gpus or None,
        }  # fmt: skip
        if self._cluster == "slurm":
            asked |= {
                "slurm_partition": slurm.partition,
                **{f"slurm_{k}": v for k, v in slurm.parameters.items()},
            }
        executor.update_parameters(**{name: value for name, value in asked.items() if value is not None})
        return executor

    def close(self) -> None:
        self._beat.stop()


def _submitit() -> Any:
    try:
        import submitit
    except ImportError:
        raise InputError("needs submitit", where="where.kind", hint='pip install "ullage[slurm]"') from None
    return submitit
