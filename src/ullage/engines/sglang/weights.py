"""SGLang's weights on one rank: what each rank holds of a checkpoint, and what loading adds to it.

Read: sglang 0.5.9 (layers/linear.py, vocab_parallel_embedding.py, moe/fused_moe_triton/layer.py, models/*.py,
distributed/utils.py, server_args.py), other releases where a rule names them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from msgspec import Struct
from msgspec.structs import replace
from packaging.version import Version

from ullage.core.deployment import Deployment
from ullage.core.errors import InputError
from ullage.core.launch import Launch
from ullage.core.model import Model, TensorGroup
from ullage.core.units import GIB, Band
from ullage.core.versions import Rules
from ullage.engines.runtime.adapters import lora_bytes
from ullage.engines.runtime.loading import converted, doubt, rope_bytes
from ullage.engines.runtime.mxfp4 import Kernel, padded
from ullage.engines.runtime.shards import VISION, Cuts, Stage, parts, repacked, stages
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


def layout(deployment: Deployment) -> Layout:
    """What ``deployment`` says of the way weights are spread."""
    launch, s = deployment.launch, of_launch(deployment.launch)
    gpu = deployment.machine.gpu if deployment.machine else None
    dense = _count(launch, "moe_dense_tp_size")
    return Layout(
        release=launch.release, tp=s.tp, pp=s.pp, ep=_ep(launch, s.tp, s.moe_a2a_backend), attn_tp=s.attn_tp,
        dp_attention=s.dp_attention, a2a=s.moe_a2a_backend, moe_dense_tp=dense,
        dp_lm_head=launch.flag("enable_dp_lm_head"), dp_encoder=launch.flag("mm_enable_dp_encoder"),
        redundant_experts=_count(launch, "ep_num_redundant_experts") or 0,
        moe_runner=launch.text("moe_runner_backend") or "auto",
        partition=_partition(launch.env.get("SGLANG_PP_LAYER_PARTITION")),
        capability=gpu.capability if gpu else None, online=launch.text("quantization"),
        dtype=launch.text("dtype"),
        language_only=s.language_only,
    )  # fmt: skip


def _ep(launch: Launch, tp: int, a2a: str) -> int:
    """An all-to-all back end, and the older --enable-ep-moe, spread the experts over all ranks."""
    if a2a in _A2A or launch.flag("enable_ep_moe") or launch.flag("enable_flashinfer_moe_ep"):
        return tp
    given = _count(launch, "ep_size") or _count(launch, "expert_parallel_size") or 1
    return given if 1 <= given <= tp else 1


def _count(launch: Launch, name: str) -> int | None:
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


def rank_bytes(groups: Sequence[TensorGroup], model: Model, at: Layout, stage: Stage) -> list[tuple[str, int]]:
    """(part, bytes) on each rank of ``stage``, the largest first: the target model without its MTP layers.

    With MLA the products w_kc and w_vc of kv_b_proj stay beside it in 16 bit:
    heads / attn_tp x (nope + v) x kv_lora_rank x 2 B a layer (models/deepseek_v2.py, post_load_weights).
    """
    cuts = cuts_of(model, at)
    kept = [g for g in groups if not (at.language_only and g.part in VISION)]
    kernel = _mxfp4_kernel(model, at)

    def change(group: TensorGroup) -> int | None:
        return padded(group, cuts, model.hidden_size, model.intermediate_size, kernel) if kernel else None

    found = parts(
        converted(kept, at.online, _cast(model, at)), cuts, stage, model.num_layers, tied=model.tied_embeddings,
        change=change,
    )  # fmt: skip
    copies = absorbed_bytes(groups, cuts, stage)
    if copies:
        found["absorbed MLA copies"] = copies
    return sorted(found.items(), key=lambda item: -item[1])


def absorbed_bytes(groups: Sequence[TensorGroup], cuts: Cuts, stage: Stage) -> int:
    """Bytes of w_kc and w_vc: kv_b_proj once more in 16 bit, in the layers of ``stage``."""
    total = 0
    for group in groups:
        if ".kv_b_proj.weight" not in group.name or not group.name.endswith(("weight", "packed", "qweight")):
            continue
        elements = group.shape[0] * group.shape[-1] * {"I32": 8, "U8": 2}.get(group.dtype, 1)
        inside = sum(1 for n in group.layers or (0,) if stage.first_layer <= n < stage.end_layer)
        total += inside * elements * 2 // cuts.of("attention")
    return total


def _mxfp4_kernel(model: Model, at: Layout) -> Kernel | None:
    """gpt-oss: FlashInfer's kernel on data-centre Blackwell pads to 256, Triton's pad for Hopper's layout."""
    if model.model_type != "gpt_oss" or "mxfp4" not in (model.quantization or ""):
        return None
    if at.moe_runner == "flashinfer_mxfp4" or (
        at.moe_runner == "auto" and at.capability and at.capability[0] == 10
    ):
        return "trtllm"
    return "triton-hopper" if at.capability is None or at.capability[0] == 9 else "triton"


def _cast(model: Model, at: Layout) -> str | None:
    """The float type that plain weights are cast to, where it has another width than theirs."""
    if at.dtype in ("float32", "float"):
        return "F32"
    return "BF16" if (model.dtype or "").endswith("float32") else None


# --- bands --------------------------------------------------------------------------------------------------


@lru_cache(maxsize=32)
def groups_of(model: Model) -> tuple[TensorGroup, ...]:
    """The tensors of a model; () where they are not known."""
    from ullage.models.tensors import of_model

    try:
        return of_model(model)
    except (InputError, RecursionError, OverflowError, MemoryError):
        return ()


def fullest(model: Model, at: Layout) -> list[tuple[str, int]] | None:
    """The parts of the rank that holds most."""
    groups = groups_of(model)
    if not groups or not model.num_layers:
        return None
    ranks = [rank_bytes(groups, model, at, stage) for stage in stages_of(model.num_layers, at)]
    return max(ranks, key=lambda found: sum(size for _, size in found))


def weights(deployment: Deployment) -> Band | None:
    """Bytes by which loading the target model lowers the free memory of the fullest rank ("mem usage").

    The tensors, the rotary tables in fp32, and what 41 public loads show beside them: rounding to 2 MiB
    segments, kernels loaded on first use, workspaces; wider where the quantisation is a guess by the name.
    """
    model = deployment.model
    found = fullest(model, layout(deployment)) if model is not None else None
    if model is None or found is None:
        return None
    rule = sum(size for _, size in found) + rope_bytes(model, 4)
    low, value, high = doubt(model)
    vendor = deployment.machine.gpu.vendor if deployment.machine and deployment.machine.gpu else "nvidia"
    more = 2.2 * GIB if vendor == "amd" and model.quantization and rule > 8 * GIB else 0.0
    return Band(
        rule * (1 + value) + min(0.08 * GIB, 0.02 * GIB + 0.01 * rule) + more / 2,
        rule * (1 - low) - 0.02 * GIB,
        rule * (1 + high) + 0.25 * GIB + more,
    )  # fmt: skip


def draft_weights(deployment: Deployment) -> Band | None:
    """Bytes that the draft keeps on the fullest rank; None without one, or where its shape is not known.

    ``value`` is without the embedding (and, of an MTP layer, the head) that a draft makes and then gives up for
    the target's; ``high`` is with them, as the draft's own "mem usage" shows it.
    """
    s, at = of_launch(deployment.launch), layout(deployment)
    if not s.speculative or s.speculative_algorithm == "NGRAM":
        return None
    path, model = deployment.launch.text("speculative_draft_model_path"), deployment.model
    if path is None or path == deployment.launch.model:
        return _kept(_mtp_parts(model, at)) if model is not None else None
    from ullage.models.catalogue import find

    draft = find(path)
    if draft is None:
        return None
    if s.speculative_algorithm == "STANDALONE":
        return weights(replace(deployment, model=draft))
    return _kept(_head_parts(draft, at, model))


def _mtp_parts(model: Model, at: Layout) -> dict[str, int]:
    groups, cuts = groups_of(model), cuts_of(model, at)
    after = Stage(model.num_layers, 1 << 30)
    found = parts(groups, cuts, Stage(0, model.num_layers), model.num_layers, mtp=True)
    if found:
        found["absorbed MLA copies"] = absorbed_bytes(groups, cuts, after)
    return found


def _head_parts(draft: Model, at: Layout, target: Model | None) -> dict[str, int]:
    """An EAGLE head; one without an embedding of its own still makes one on loading."""
    groups, cuts = groups_of(draft), cuts_of(draft, at)
    found = parts(groups, cuts, Stage(0, max(1, draft.num_layers)), max(1, draft.num_layers))
    if found and "embedding" not in found and target is not None:
        found["embedding"] = target.vocab_size * draft.hidden_size * 2 // cuts.of("embedding")
    if found and draft.is_mla:
        found["absorbed MLA copies"] = absorbed_bytes(groups, cuts, Stage(0, 1))
    if "head" in found and "embedding" in found and draft.architecture == "LlamaForCausalLMEagle3":
        found["own head"] = found.pop("head")
    return found


def _kept(found: dict[str, int]) -> Band | None:
    if not found:
        return None
    loaded = sum(found.values())
    kept = loaded - found.get("embedding", 0) - found.get("head", 0)
    return Band(kept + min(0.1 * GIB, 0.05 * kept), kept, loaded * 1.06 + 0.5 * GIB)


def lora_pool(deployment: Deployment) -> Band | None:
    """Bytes of the adapter slots that follow the weights; None without LoRA. The targets are taken to be all
    projections of attention and MLP; a rank that is not given may be 8 to 64."""
    launch, model = deployment.launch, deployment.model
    if model is None or not (launch.flag("enable_lora") or launch.get("lora_paths")):
        return None
    at = layout(deployment)
    slots = _count(launch, "max_loras_per_batch") or 8
    rank = _count(launch, "max_lora_rank")
    stage = max(stages_of(model.num_layers, at), key=lambda stage: stage.num_layers)
    each = lora_bytes(groups_of(model), cuts_of(model, at), stage, min(slots, 4096), 1)
    value, low, high = (rank, rank // 2, rank) if rank else (16, 4, 64)
    return Band(each * value, each * low, each * high) if each else None


def load_peak(deployment: Deployment) -> Band | None:
    """Bytes that loading takes for a moment beyond what stays: quantised experts are rewritten for their kernel
    layer by layer, gate and up of a layer at a time; None where the model is not known. Estimated."""
    model = deployment.model
    groups = groups_of(model) if model is not None else ()
    if model is None or not groups:
        return None
    copy = repacked(groups, cuts_of(model, layout(deployment)))
    return Band(copy, 0, 2 * copy + 0.3 * GIB)
