"""CUDA graphs: what the pool takes once captured, and what the engine's rehearsal takes off the budget for it.

All sizes in bytes of one rank.
"""

from __future__ import annotations

from ullage.core.model import Model
from ullage.core.units import GIB, MIB, Band
from ullage.engines.vllm.options import since
from ullage.engines.vllm.settings import Settings


def estimate(first: dict[str, float], second: dict[str, float], counts: dict[str, int]) -> float:
    """The engine's own graph estimate in bytes, from the first two captures of each mode.

    max over modes of the first + sum over modes of (count - 1) x max(second, 1 MiB)
    (vllm 0.18.0 on, v1/worker/gpu_model_runner.py, profile_cudagraph_memory)
    """
    rest = sum((counts[mode] - 1) * max(second[mode], MIB) for mode in counts)
    return max(first.values(), default=0.0) + rest


def first_graph_bytes(s: Settings) -> float:
    """Bytes of the first capture: the pool's own buffers and what the largest batch keeps, 0.06 GiB at 16
    tokens and 0.26 at 512 in public logs (0.18 to 0.28)."""
    return (0.06 + 0.2 * min(2.0, s.graph_sizes[-1] / 512)) * GIB


def each_graph_bytes(s: Settings, model: Model | None) -> float:
    """Bytes of every further graph: 0.18 MiB a layer (6 MiB for 32 layers, 14 for 80; public logs of 0.18 to
    0.28); a draft's layers are captured too."""
    layers = (model.num_layers if model and model.num_layers else 40) / s.cache.pp + len(s.draft)
    return 0.18 * MIB * layers


def estimate_bytes(s: Settings, model: Model | None) -> float:
    """What the engine's estimate comes to: see ``estimate``; a quarter more with experts (1.0 to 1.9 times,
    seven public logs)."""
    further = sum(count - 1 for count in s.num_graphs if count)
    size = first_graph_bytes(s) + further * each_graph_bytes(s, model)
    return size * (1.25 if model is not None and model.num_experts else 1.0)


def is_nvfp4(model: Model) -> bool:
    """True for experts in NVFP4, as the checkpoint or one of its layers says or as its name implies."""
    config = model.checkpoint.config if model.checkpoint else {}
    forms = model.checkpoint.facts.get("forms") if model.checkpoint else None
    return "nvfp4" in f"{model.quantization} {config.get('quantization_config')} {forms}".lower()


def graph_bytes(s: Settings, model: Model | None = None) -> Band:
    """Bytes of the graph pool after capture: 0.8 to 1.7 GiB for 51 + 51 graphs of 28 to 80 layers.

    Public logs show 5 % more than the estimate's rule for dense models, 10 % with experts (0.8 to 2 times).
    """
    if not s.graph_sizes:
        return Band(0.0, 0.0, 0.0)
    value = estimate_bytes(s, model) * (1.1 if model is not None and model.num_experts else 1.05)
    return Band(value, min(0.4 * value, 0.05 * GIB), 1.8 * value + 0.2 * GIB)


def estimated_graphs(s: Settings, model: Model | None = None) -> Band:
    """Bytes that the release subtracts for graphs.

    NVFP4 experts outside Marlin set their work space up in the first capture, so that the estimate counts it:
    1.2 GiB at 7 + 5 graphs, 4.8 to 6.8 at 35 + 11 to 33 + 33 in public logs of 0.20, 0.4 at 8 in one of 0.26.
    """
    if not s.subtracts_graphs or not s.graph_sizes:
        return Band(0.0, 0.0, 0.0)
    value = estimate_bytes(s, model)
    if s.release is None:
        return Band(value, 0.0, 1.6 * value + 0.6 * GIB)  # older releases subtract nothing
    experts = model is not None and model.num_experts > 0
    low, high = 0.5 * value, 1.6 * value + (0.6 if experts else 0.15) * GIB
    if s.unified:
        low, high = low - 5 * GIB, high + 5 * GIB  # -4.7 and 5.1 GiB in logs of a GB10: the host's use moves
    if experts and not s.marlin and model is not None and is_nvfp4(model):
        first = 0.3 if since(s.release, "0.22.0") else 1.0
        return Band(value + first * GIB, low, high + (1.5 if first < 1 else 4.0) * GIB)
    return Band(value, low, high)
