"""Weights and non-torch memory of one rank: as printed, else tensor by tensor, else by the checkpoint's
bytes."""

from __future__ import annotations

import re

from msgspec.structs import replace

from ullage.core.deployment import Deployment
from ullage.core.model import Model
from ullage.core.patterns import lazy
from ullage.core.units import GIB, Band
from ullage.engines.vllm.options import count
from ullage.engines.vllm.outside import non_torch
from ullage.engines.vllm.readings import Term, read
from ullage.engines.vllm.settings import Settings
from ullage.engines.vllm.weights import draft_weights
from ullage.engines.vllm.weights import weights as weights_by_tensor


def weights_terms(deployment: Deployment, s: Settings, rank: str | None) -> tuple[Term | None, Term | None]:
    """(weights, non-torch memory). From 0.27.0 the engine reads both together from the driver ("consumed")."""
    weights = read(deployment, "weights_gib", "weights", "weights", rank)
    other = read(deployment, "non_torch_gib", "profile", "non-torch", rank)
    consumed = read(deployment, "consumed_gib", "weights", "weights and non-torch", rank)
    if consumed is not None and (weights is None or other is None):
        if weights is None:
            return replace(consumed, name="weights and non-torch"), _zero_other(consumed)
        band = Band(
            consumed.band.value - weights.band.value, consumed.band.low - weights.band.high,
            consumed.band.high - weights.band.low,
        )  # fmt: skip
        return weights, Term("profile", "non-torch", band, "observed", consumed.source)
    if weights is None:
        weights = weights_estimate(deployment, s)
    if other is None:
        nvlink = linked(deployment, s)
        other = Term("profile", "non-torch", non_torch(s, nvlink), "estimated", "public logs")
    return weights, other


#: parts that come with NVLink between more than two; all others of more than two ranks talk over PCIe
_LINKED = lazy(r"\b(?:[AHB]\d{3}|H20|GB\d{3}|GH200|V100)\b|sxm|hgx|dgx", re.IGNORECASE)


def linked(deployment: Deployment, s: Settings) -> bool | None:
    """True or False where it is known whether the ranks have NVLink: GeForce and workstation cards have none
    among more than two; None where the name does not tell."""
    machine = deployment.machine
    if machine is None or machine.nvlink is not None or s.cache.tp <= 2:
        return machine.nvlink if machine else None
    name = machine.gpu.name if machine.gpu else ""
    return False if name.startswith("NVIDIA") and not _LINKED.search(name) else None


def _zero_other(consumed: Term) -> Term:
    return Term("profile", "non-torch", Band(0.0, 0.0, 0.0), "observed", consumed.source)


def weights_estimate(deployment: Deployment, s: Settings) -> Term | None:
    """Weights of a rank where no line shows them: by the tensors and the sharding rules (weights.py), with the
    draft's; else bytes of the checkpoint / (tp x pp), with what ranks repeat."""
    counted = weights_by_tensor(deployment)
    if counted is not None:
        draft = draft_weights(deployment) or Band(0.0, 0.0, 0.0)
        band = Band(counted.value + draft.value, counted.low + draft.low, counted.high + draft.high)
        return Term("weights", "weights", band, "estimated", "tensors of the checkpoint by the sharding rules")
    model = deployment.model
    size = weight_bytes(model, deployment, s) if model is not None else None
    if model is None or size is None:
        return None
    ranks = s.cache.tp * s.cache.pp
    share = spread(size, model, ranks, max(1, count(deployment.launch, "data_parallel_size", 65536) or 1))
    offloaded = (deployment.launch.number("cpu_offload_gb") or 0.0) * GIB
    repeated, padded = 1.03 if ranks == 1 else 1.12, 1.0
    kind = f"{model.quantization} {model.id}".lower()
    if "fp4" in kind and ranks > 1:
        repeated = 1.35  # experts are padded to the kernel's multiples: up to 31 % at TP 8
    if "mxfp4" in kind:
        padded, repeated = 1.07, max(repeated, 1.12)  # gpt-oss: 6 to 9 % on one GPU
    beside = 0.2 * GIB + (1.5 * GIB / s.cache.tp if s.cache.num_speculative_tokens else 0.0)
    band = Band(
        max(0.0, padded * share.value + 0.03 * GIB - offloaded), max(0.0, share.low * 0.97 - 1.1 * offloaded),
        max(0.0, share.high * repeated + beside - 0.9 * offloaded),
    )  # fmt: skip
    return Term("weights", "weights", band, "estimated", f"checkpoint of {size.value / GIB:.2f} GiB / {ranks}")


#: bits a weight in checkpoints whose names say so; some layers always stay in 16 bits
_BITS = (
    (r"nvfp4|mxfp4|fp4|int4|4bit|w4a16|w4a4|awq|gptq|q4", 4.5, 6.5),
    (r"fp8|int8|w8a8|w8a16|8bit|q8", 8.0, 10.0),
)


def spread(size: Band, model: Model, ranks: int, dp: int) -> Band:
    """Bytes of one rank: size / (tp x pp); data-parallel engines share the experts, while attention is whole in
    each (model_executor/layers/fused_moe/config.py)."""
    if dp == 1 or not model.num_experts:
        return size.scaled(1 / ranks)
    whole = size.scaled(1 / ranks)
    return Band(
        whole.value * (0.06 + 0.94 / dp), whole.low / dp, whole.high * (0.15 + 0.85 / dp)
    )  # fmt: skip


def weight_bytes(model: Model, deployment: Deployment, s: Settings) -> Band | None:
    """Bytes of all weights once loaded: the checkpoint's, unless the launch or the name says another format."""
    size, count = model.checkpoint_bytes, model.parameters
    if s.cache.model_dtype == "float32" and count:
        return Band(4.0 * count, 4.0 * count, 4.0 * count)
    asked = deployment.launch.text("quantization") or ""
    for pattern, low, high in _BITS:
        if count and re.search(pattern, f"{deployment.launch.model or model.id} {asked}", re.IGNORECASE):
            if size and size * 8 <= 1.15 * high * count:
                break  # the checkpoint itself is in this format
            return Band(count * (low + high) / 16, count * low / 8, count * high / 8)
    if size:
        return Band(size, size, size)
    return Band(2.0 * count, 2.0 * count, 2.0 * count) if count else None
