"""How vLLM spreads a model over its ranks: pipeline stages, and how many ranks share each part.

Read: vllm 0.16.0 (model_executor/layers/linear.py, vocab_parallel_embedding.py, fused_moe/config.py,
distributed/utils.py), other releases where a rule names them.
"""

from __future__ import annotations

import re

from msgspec import Struct
from packaging.version import Version

from ullage.core.deployment import Deployment
from ullage.core.model import Model
from ullage.core.patterns import lazy
from ullage.core.units import GIB
from ullage.core.versions import Rules
from ullage.engines.runtime.shards import VISION, Cuts, Stage, stages
from ullage.engines.vllm.options import config, count, size

PP_SPLIT: Rules[[int, int], list[int]] = Rules("layers of a pipeline stage")


#: towers of which only the attention is cut (models/kimi_k25_vit.py, moonvit.py)
_MOONVIT = ("kimi_k25", "kimi_vl")


@PP_SPLIT.since("≤0.6.0", source="vllm 0.7.3, distributed/utils.py, get_pp_indices")
def rest_to_last(num_layers: int, pp: int) -> list[int]:
    """The last stage takes the remainder: 61 on 3 is 20, 20, 21."""
    each = num_layers // pp
    return [each] * (pp - 1) + [num_layers - each * (pp - 1)]


@PP_SPLIT.since("0.8.0", source="vllm 0.8.5 and 0.16.0, distributed/utils.py, get_pp_indices")
def one_more_before_last(num_layers: int, pp: int) -> list[int]:
    """The stages before the last take one more each: 61 on 3 is 20, 21, 20."""
    each, rest = divmod(num_layers, pp)
    return [each + (pp - 1 - rest <= index < pp - 1) for index in range(pp)]


_GFX950 = lazy(r"MI35[05]X|gfx950", re.IGNORECASE)


class Layout(Struct, frozen=True):
    """The settings of a launch that decide what a rank holds."""

    release: Version | None = None
    tp: int = 1
    pp: int = 1
    dp: int = 1
    expert_parallel: bool = False
    redundant_experts: int = 0
    tower_data_parallel: bool = False
    partition: tuple[int, ...] = ()
    capability: tuple[int, int] | None = None
    vendor: str = "nvidia"
    online: str | None = None
    dtype: str | None = None
    offload_bytes: float = 0.0
    language_only: bool = False
    lora: bool = False
    mxfp4_kernel: str | None = None
    gfx950: bool = False


def layout(deployment: Deployment) -> Layout:
    """What ``deployment`` says of the way weights are spread."""
    launch = deployment.launch
    gpu = deployment.machine.gpu if deployment.machine else None
    return Layout(
        launch.release, size(launch, "tensor"), size(launch, "pipeline"), size(launch, "data"),
        expert_parallel=launch.flag("enable_expert_parallel"),
        redundant_experts=_redundant(deployment),
        tower_data_parallel=launch.text("mm_encoder_tp_mode") == "data",
        partition=_partition(launch.env.get("VLLM_PP_LAYER_PARTITION")),
        capability=gpu.capability if gpu else None, vendor=gpu.vendor if gpu else "nvidia",
        online=launch.text("quantization"), dtype=launch.text("dtype"),
        offload_bytes=min(max(0.0, launch.number("cpu_offload_gb") or 0.0), 1e6) * GIB,
        language_only=launch.flag("language_model_only"), lora=launch.flag("enable_lora"),
        mxfp4_kernel=_asked_kernel(launch.env),
        gfx950=gpu is not None and _GFX950.search(gpu.name) is not None,
    )  # fmt: skip


def _redundant(deployment: Deployment) -> int:
    given = config(deployment.launch, "eplb_config").get("num_redundant_experts")
    number = given if isinstance(given, int) else count(deployment.launch, "num_redundant_experts")
    return min(max(0, number or 0), 1 << 16)


def _asked_kernel(env: dict[str, str]) -> str | None:
    """The kernel that a variable asks for on gpt-oss's experts."""
    asked = {
        "VLLM_MXFP4_USE_MARLIN": "marlin", "VLLM_USE_FLASHINFER_MOE_MXFP4_BF16": "cutlass",
        "VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8_CUTLASS": "cutlass",
        "VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8": "trtllm",
    }  # fmt: skip
    return next((kernel for name, kernel in asked.items() if env.get(name) == "1"), None)


def _partition(text: str | None) -> tuple[int, ...]:
    words = (text or "").split(",")[:256]
    return tuple(int(word) for word in words) if words and all(w.strip().isdecimal() for w in words) else ()


def stages_of(num_layers: int, at: Layout) -> list[Stage]:
    """The pipeline stages; VLLM_PP_LAYER_PARTITION where it adds up."""
    pp = min(max(1, at.pp), max(1, num_layers))
    if len(at.partition) == pp and sum(at.partition) == num_layers:
        return stages(at.partition)
    return stages(PP_SPLIT.at(at.release)(num_layers, pp))


def cuts_of(model: Model, at: Layout) -> Cuts:
    """How many ranks share each part. Data parallel ranks each hold all but the experts, which go over tp x dp:
    whole with --enable-expert-parallel, else cut (fused_moe/config.py, FusedMoEParallelConfig.make)."""
    over = at.tp * at.dp
    ranks, ways = (over, 1) if at.expert_parallel and over > 1 else (1, over)
    tower = {part: _tower_ways(model, part, at) for part in VISION}
    return Cuts(
        tower, default=at.tp, kv_heads=_kv_heads(model), expert_ranks=ranks, expert_ways=ways,
        redundant=at.redundant_experts if ranks > 1 else 0,
    )  # fmt: skip


def _tower_ways(model: Model, part: str, at: Layout) -> int:
    if at.tower_data_parallel:
        return 1
    return 1 if model.model_type in _MOONVIT and part != "vision attention" else at.tp


def _kv_heads(model: Model) -> int:
    return max((layer.kv_heads for layer in model.layers if layer.kind != "mla"), default=0) or model.num_heads
