"""The measured constants of the time ledger: peaks of GPUs, efficiencies, what an engine adds to each step."""

from __future__ import annotations

from functools import lru_cache

from msgspec import Struct

from ullage.core.tables import load
from ullage.spec.work import Arithmetic


class Peak(Struct, frozen=True, forbid_unknown_fields=True):
    """A GPU's limits; ``flops`` falls back to the next wider arithmetic that the GPU has."""

    name: str
    bandwidth_gbs: float
    source: str
    bf16_tflops: float | None = None
    fp8_tflops: float | None = None
    fp4_tflops: float | None = None

    @property
    def bytes_per_us(self) -> float:
        return self.bandwidth_gbs * 1e3

    def flops_per_us(self, arithmetic: Arithmetic) -> float | None:
        """Dense peak, operations a microsecond; None where it is not known."""
        order = {"fp4": (self.fp4_tflops, self.fp8_tflops, self.bf16_tflops),
                 "fp8": (self.fp8_tflops, self.bf16_tflops), "bf16": (self.bf16_tflops,)}  # fmt: skip
        found = next((value for value in order[arithmetic] if value), None)
        return found * 1e6 if found else None


class Constant(Struct, frozen=True, forbid_unknown_fields=True):
    """A row of constants.toml: a figure with the limits seen and where it is from."""

    name: str
    value: float
    low: float
    high: float
    source: str


class Runtime(Struct, frozen=True, forbid_unknown_fields=True):
    """A row of constants.toml: what an engine's code costs beside reading and multiplying, microseconds.

    ``layer_us`` is what a layer of attention and MLP takes at the least inside a CUDA graph (start of its
    kernels and their gaps), ``moe_layer_us`` and ``latent_layer_us`` what experts and latent attention add to
    it, ``eager_layer_us`` what the host needs to launch a layer without a graph. ``host_us`` and
    ``host_row_us`` are the scheduler and the sampler of a step and of each request in it; ``draft_us`` is a
    draft forward, ``round_us`` and ``round_row_us`` choosing, comparing and cutting back, of a round of
    speculation. ``eager_draft_us`` is a draft forward where nothing is captured.
    """

    engine: str
    layer_us: float
    moe_layer_us: float
    latent_layer_us: float
    eager_layer_us: float
    host_us: float
    host_row_us: float
    draft_us: float
    eager_draft_us: float
    round_us: float
    round_row_us: float
    source: str


class _Constants(Struct, frozen=True, forbid_unknown_fields=True):
    constant: tuple[Constant, ...]
    runtime: tuple[Runtime, ...]


class _Peaks(Struct, frozen=True, forbid_unknown_fields=True):
    peak: tuple[Peak, ...]


def peak_of(gpu: str) -> Peak | None:
    """The peaks of a GPU by its name in gpus.toml; of several ("A or B") the slowest. None where not known."""
    table: _Peaks = load("ullage.spec", "peaks.toml", _Peaks)
    by_name = {row.name: row for row in table.peak}
    found = [by_name[name] for name in gpu.split(" or ") if name in by_name]
    return min(found, key=lambda row: row.bandwidth_gbs, default=None)


@lru_cache(maxsize=1)
def constants() -> dict[str, Constant]:
    return {row.name: row for row in _table().constant}


def runtime_of(engine: str) -> Runtime:
    """The costs of an engine; of one without a row those of the first."""
    rows = _table().runtime
    return next((row for row in rows if row.engine == engine), rows[0])


def _table() -> _Constants:
    found: _Constants = load("ullage.spec", "constants.toml", _Constants)
    return found
