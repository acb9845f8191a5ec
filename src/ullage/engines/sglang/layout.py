"""How SGLang spreads a model over its ranks: pipeline stages, and how many ranks share each part.

Read: sglang 0.5.9 (layers/linear.py, vocab_parallel_embedding.py, moe/fused_moe_triton/layer.py, models/*.py,
distributed/utils.py, server_args.py), other releases where a rule names them.
"""

from __future__ import annotations

from msgspec import Struct
from packaging.version import Version

from ullage.core.deployment import Deployment
from ullage.core.launch import Launch
from ullage.core.model import Model
from ullage.core.versions import Rules
from ullage.engines.runtime.shards import VISION, Cuts, Stage, stages
from ullage.engines.sglang.settings import at_least, of_launch

PP_SPLIT: Rules[[int, int], list[int]] = Rules("layers of a pipeline stage")


#: all-to-all back ends that make ep = tp and keep shared experts whole (server_args.py, _handle_a2a_moe)
_A2A = ("deepep", "mooncake", "mori", "flashinfer", "ascend_fuseep", "nixl")


#: towers of which only the attention is cut (models/kimi_k25.py, kimi_vl_moonvit.py)
_MOONVIT = ("kimi_k25", "kimi_vl")


@PP_SPLIT.since("≤0.4.0", source="sglang 0.4.6.post5, distributed/utils.py, get_pp_indices")
def rest_to_last(num_layers: int, pp: int) -> list[int]:
    """The last stage takes the remainder: 61 on 3 is 20, 20, 21, and 62 is 20, 20, 22."""
    each = num_layers // pp
    return [each] * (pp - 1) + [num_layers - each * (pp - 1)]


@PP_SPLIT.since("0.5.6", source="sglang 0.5.9, distributed/utils.py, get_pp_indices")
def one_more_to_last(num_layers: int, pp: int) -> list[int]:
    """The last stages take one more each: 62 on 3 is 20, 21, 21."""
    each, rest = divmod(num_layers, pp)
    return [each + (index >= pp - rest) for index in range(pp)]


class Layout(Struct, frozen=True):
    """The settings of a launch that decide what a rank holds. ``ep`` is the resolved one."""

    release: Version | None = None
    tp: int = 1
    pp: int = 1
    ep: int = 1
    attn_tp: int = 1
    dp_attention: bool = False
    a2a: str = "none"
    moe_dense_tp: int | None = None
    dp_lm_head: bool = False
    dp_encoder: bool = False
    redundant_experts: int = 0
    moe_runner: str = "auto"
    partition: tuple[int, ...] = ()
    capability: tuple[int, int] | None = None
    online: str | None = None
    dtype: str | None = None
    language_only: bool = False
    gpu_experts: int | None = None
    wide_scales: bool = False
    fp8_experts: bool = False


def layout(deployment: Deployment) -> Layout:
    """What ``deployment`` says of the way weights are spread."""
    launch, s = deployment.launch, of_launch(deployment.launch)
    hosted = launch.get("kt_weight_path")
    gpu = deployment.machine.gpu if deployment.machine else None
    dense = count(launch, "moe_dense_tp_size")
    return Layout(
        release=launch.release, tp=s.tp, pp=s.pp, ep=_ep(launch, s.tp, s.moe_a2a_backend), attn_tp=s.attn_tp,
        dp_attention=s.dp_attention, a2a=s.moe_a2a_backend, moe_dense_tp=dense,
        dp_lm_head=launch.flag("enable_dp_lm_head"), dp_encoder=launch.flag("mm_enable_dp_encoder"),
        redundant_experts=count(launch, "ep_num_redundant_experts") or 0,
        moe_runner=launch.text("moe_runner_backend") or "auto",
        partition=_partition(launch.env.get("SGLANG_PP_LAYER_PARTITION")),
        capability=gpu.capability if gpu else None, online=launch.text("quantization"),
        dtype=launch.text("dtype"),
        language_only=s.language_only,
        gpu_experts=count(launch, "kt_num_gpu_experts") or 0 if hosted else None,
        wide_scales=_wide_scales(launch, gpu.capability if gpu else None),
        fp8_experts=_fp8_experts(launch, deployment.model),
    )  # fmt: skip


def _fp8_experts(launch: Launch, model: Model | None) -> bool:
    """DeepSeek-V4 with its experts converted to FP8: by the variable, or by the name of the conversion."""
    if model is None or model.model_type != "deepseek_v4":
        return False
    packed = launch.env.get("SGLANG_DSV4_FP4_EXPERTS", "").lower()
    return packed in ("0", "false", "no") or "fp8" in (launch.model or "").lower().rpartition("/")[2]


def _wide_scales(launch: Launch, capability: tuple[int, int] | None) -> bool:
    """True where the block scales of FP4 experts stay in float32 (DeepSeek-V4): the plain FP8 method on Hopper
    (..0.5.18) and SM120 (0.5.12). DeepGEMM on SM100, marlin and flashinfer_mxfp4 pack them to a byte.

    Read: sglang 0.5.12..0.5.23, layers/quantization/fp8 (create_weights), arg_groups' deepseek_v4 defaults.
    """
    if capability is None or (launch.text("moe_runner_backend") or "auto") not in (
        "auto",
        "triton",
        "deep_gemm",
    ):
        return False
    until = {9: "0.5.19", 12: "0.5.13"}.get(capability[0])
    return until is not None and not at_least(launch.release, until)


def _ep(launch: Launch, tp: int, a2a: str) -> int:
    """An all-to-all back end, and the older --enable-ep-moe, spread the experts over all ranks."""
    if a2a in _A2A or launch.flag("enable_ep_moe") or launch.flag("enable_flashinfer_moe_ep"):
        return tp
    given = count(launch, "ep_size") or count(launch, "expert_parallel_size") or 1
    return given if 1 <= given <= tp else 1


def count(launch: Launch, name: str) -> int | None:
    """A whole number of the launch; None where it is none, negative or absurd."""
    value = launch.number(name)
    return int(value) if value is not None and 0 <= value <= 1 << 16 else None


def _partition(text: str | None) -> tuple[int, ...]:
    words = (text or "").split(",")[:256]
    return tuple(int(word) for word in words) if words and all(w.strip().isdecimal() for w in words) else ()


def stages_of(num_layers: int, at: Layout) -> list[Stage]:
    """The pipeline stages; SGLANG_PP_LAYER_PARTITION where it adds up."""
    pp = min(max(1, at.pp), max(1, num_layers))
    if len(at.partition) == pp and sum(at.partition) == num_layers:
        return stages(at.partition)
    return stages(PP_SPLIT.at(at.release)(num_layers, pp))


def cuts_of(model: Model, at: Layout) -> Cuts:
    """How many ranks share each part.

    DP attention: attention over tp / dp ranks; the embedding whole before 0.5.8, over the same ranks since; the
    head over all of them unless --enable-dp-lm-head, and whole before 0.4.4.
    """
    attention = at.attn_tp if at.dp_attention else at.tp
    dense = at.moe_dense_tp if at.dp_attention and at.moe_dense_tp else at.tp
    shared = 1 if at.a2a in _A2A or _fp4_allgather(at) else at.tp
    ways = {
        "attention": attention, "linear attention": attention, "norms": attention, "mlp": dense,
        "shared experts": shared, "head": _head_ways(at, attention),
        "embedding": _embedding_ways(at, attention),
        **{part: _tower_ways(model, part, at) for part in VISION},
    }  # fmt: skip
    return Cuts(
        ways, default=at.tp, kv_heads=_kv_heads(model), expert_ranks=at.ep, expert_ways=max(1, at.tp // at.ep),
        redundant=at.redundant_experts,
    )  # fmt: skip


def _fp4_allgather(at: Layout) -> bool:
    return at.dp_attention and at.moe_runner == "flashinfer_cutlass" and at.a2a == "none"


def _head_ways(at: Layout, attention: int) -> int:
    if not at.dp_attention:
        return at.tp
    if not at_least(at.release, "0.4.4"):
        return 1
    return attention if at.dp_lm_head else at.tp


def _embedding_ways(at: Layout, attention: int) -> int:
    if not at.dp_attention:
        return at.tp
    return attention if at_least(at.release, "0.5.8") else 1


def _tower_ways(model: Model, part: str, at: Layout) -> int:
    if at.dp_encoder:
        return 1
    return 1 if model.model_type in _MOONVIT and part != "vision attention" else at.tp


def _kv_heads(model: Model) -> int:
    return max((layer.kv_heads for layer in model.layers if layer.kind != "mla"), default=0) or model.num_heads
