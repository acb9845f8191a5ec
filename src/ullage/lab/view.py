"""A start as a live view shows it: its stages, how far each is, and how long it will still take."""

from __future__ import annotations

from msgspec import Struct

from ullage.core.run import Phase


class Stage(Struct, frozen=True):
    """One stage of the start. Times in seconds; ``usual_s`` is how long it took in earlier runs of the command.
    ``done`` of ``total`` are shards or graphs. Bytes are those of the fullest rank."""

    phase: Phase
    state: str  # "done", "open", "to come"
    seconds: float | None = None
    usual_s: float | None = None
    done: int | None = None
    total: int | None = None
    predicted_bytes: int | None = None
    observed_bytes: int | None = None

    @property
    def fraction(self) -> float | None:
        """How far it is, 0 to 1: by its bar, else by its usual time."""
        if self.state == "done":
            return 1.0
        if self.state == "to come":
            return 0.0
        if self.total:
            return min(1.0, (self.done or 0) / self.total)
        if self.usual_s and self.seconds is not None:
            return min(0.99, self.seconds / self.usual_s)
        return None


class View(Struct, frozen=True):
    """What a live view shows. ``left_s``: seconds until it is ready, as far as earlier runs tell."""

    stages: tuple[Stage, ...]
    elapsed_s: float
    left_s: float | None = None
    ready: bool = False
    last: str = ""
