"""Work: what one rank reads, multiplies and waits for in one forward pass, as numbers.

Bytes and parameters are those of one rank, over all layers of the model; with pipeline stages a token still
goes through all of them, so that a step is the sum over the stages.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Arithmetic = Literal["bf16", "fp8", "fp4"]


class Matrices(Struct, frozen=True):
    """Weights that every token meets: read once a pass, multiplied once a row. ``packed``: stored narrower than
    the kernel multiplies."""

    name: str
    bytes: float
    params: float
    arithmetic: Arithmetic = "bf16"


class Experts(Struct, frozen=True):
    """Routed experts. ``bytes`` and ``params``: all that one rank holds; ``num`` and ``per_token`` are those of
    the whole model; ``ranks`` hold whole experts each (1: every rank holds a slice of all)."""

    bytes: float
    params: float
    num: int
    per_token: int
    layers: int
    ranks: int = 1
    arithmetic: Arithmetic = "bf16"


class Cache(Struct, frozen=True):
    """What attention of one kind reads for a request: ``bytes_per_token`` of its last ``window`` tokens (None:
    all), and ``state_bytes`` of recurrent state, read and
    written. ``flops_per_token``: multiplications and additions for each row and token of context. ``shared``:
    the rows of a verify pass read it once together; else each by itself (sparse attention picks tokens for each
    row; kernels that take one query a request see each row as a request)."""

    name: str
    bytes_per_token: float = 0.0
    window: int | None = None
    state_bytes: float = 0.0
    flops_per_token: float = 0.0
    layers: int = 0
    shared: bool = True

    def tokens(self, context: int) -> int:
        return context if self.window is None else min(context, self.window)


class Work(Struct, frozen=True):
    """One model's forward pass on one rank. ``layers`` of it run one after the other, ``moe_layers`` of them
    with experts; ``stages`` of a pipeline."""

    matrices: tuple[Matrices, ...]
    caches: tuple[Cache, ...]
    layers: int
    experts: Experts | None = None
    latent_layers: int = 0
    stages: int = 1

    @property
    def moe_layers(self) -> int:
        return self.experts.layers if self.experts else 0

    @property
    def read_bytes(self) -> float:
        """Bytes of weights that every pass reads, whatever its rows."""
        return sum(item.bytes for item in self.matrices)
