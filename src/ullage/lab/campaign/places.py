"""Where experiments run: one protocol, four places."""

from __future__ import annotations

from typing import Protocol

from ullage.lab.campaign.approach import Command
from ullage.lab.campaign.file import Loaded
from ullage.lab.campaign.job import Given, Job, Stop, Tell


class Place(Protocol):
    """Somewhere to run experiments, ``slots`` at once.

    ``prepare`` ends what an earlier, killed ullage left there, and says what it did. ``fitted`` is the
    command for
    one of several side by side: a port of its own. ``perform`` returns when nothing of the experiment is left.
    """

    slots: int

    def prepare(self) -> list[str]: ...
    def can(self, num_gpus: int) -> str | None:
        """Why so many GPUs cannot be had here; None where they can."""
        ...

    def gpu(self) -> str | None:
        """The machine's GPUs as ``plan --gpu`` takes them; None: this machine's, or unknown."""
        ...

    def perform(self, job: Job, num_gpus: int, tell: Tell, stop: Stop) -> Given: ...
    def close(self) -> None: ...


def of(loaded: Loaded, base: Command) -> Place:
    """The place that the file names."""
    kind = loaded.campaign.where.kind
    if kind == "local":
        from ullage.lab.campaign.places_local import Local

        return Local(loaded.campaign.where, base)
    if kind == "ssh":
        from ullage.lab.campaign.places_ssh import Ssh

        return Ssh(loaded.campaign.where, base)
    if kind == "ray":
        from ullage.lab.campaign.places_ray import Ray

        return Ray(loaded.campaign.where, base)
    from ullage.lab.campaign.places_slurm import Slurm

    return Slurm(loaded.campaign.where, base, loaded.folder("slurm"))
