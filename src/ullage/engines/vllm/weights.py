"""vLLM's weights on one rank: what each rank holds of a checkpoint, and what loading adds to it.

Read: vllm 0.16.0 (model_executor/layers/linear.py, vocab_parallel_embedding.py, fused_moe/config.py,
quantization/mxfp4.py, distributed/utils.py), other releases where a rule names them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from msgspec.structs import replace

from ullage.core.deployment import Deployment
from ullage.core.model import Model, TensorGroup
from ullage.core.units import GIB, Band
from ullage.core.versions import Rules
from ullage.engines.runtime.adapters import lora_bytes
from ullage.engines.runtime.loading import cast_of, converted, doubt, groups_of, rope_bytes
from ullage.engines.runtime.mxfp4 import Kernel, padded
from ullage.engines.runtime.shards import VISION, Cuts, Stage, parts
from ullage.engines.vllm.drafts import draft_model, guessed_weights
from ullage.engines.vllm.layout import Layout, cuts_of, layout, stages_of
from ullage.engines.vllm.options import config, count, num_speculative_tokens, since, speculative_method


def _loaded(group: TensorGroup, model: Model) -> TensorGroup:
    """LLaVA reads the last layer but one of its tower; the last is not made (models/llava.py, clip.py)."""
    if model.model_type in ("llava", "llava_next") and group.part in VISION and len(group.layers) > 1:
        return replace(group, layers=group.layers[:-1])
    return group


def rank_bytes(groups: Sequence[TensorGroup], model: Model, at: Layout, stage: Stage) -> list[tuple[str, int]]:
    """(part, bytes) on each rank of ``stage``, the largest first: the target model without its MTP layers.

    With MLA and a quantised kv_b_proj the absorbed W_UK and W_UV stay beside it in 16 bit; a plain one is
    viewed (attention/mla_attention.py, process_weights_after_loading).
    """
    cuts = cuts_of(model, at)
    kept = [_loaded(g, model) for g in groups if not (at.language_only and g.part in VISION)]
    kernel = mxfp4_kernel(model, at)

    def change(group: TensorGroup) -> int | None:
        return padded(group, cuts, model.hidden_size, model.intermediate_size, kernel) if kernel else None

    found = parts(
        converted(kept, at.online, cast_of(model, at.dtype)), cuts, stage, model.num_layers,
        tied=model.tied_embeddings,
        change=change,
    )  # fmt: skip
    copies = ABSORBED.at(at.release)(groups, model, cuts, stage)
    if copies:
        found["absorbed MLA copies"] = copies
    return sorted(found.items(), key=lambda item: -item[1])


ABSORBED: Rules[[Sequence[TensorGroup], Model, Cuts, Stage], int] = Rules("absorbed MLA matrices")


@ABSORBED.since("≤0.6.0", source="vllm 0.6.6, models/deepseek_v2.py")
def none_yet(groups: Sequence[TensorGroup], model: Model, cuts: Cuts, stage: Stage) -> int:
    """No latent attention yet: keys and values are made in full."""
    return 0


@ABSORBED.since("0.7.1", source="vllm 0.7.3, attention/backends/mla/utils.py, process_weights_after_loading")
def products(groups: Sequence[TensorGroup], model: Model, cuts: Cuts, stage: Stage) -> int:
    """W_Q_UK, W_UV_O and W_QR: heads x (kv_lora_rank x (q_lora_rank + hidden) x b + q_lora_rank x rope x 2)
    a layer, b = 1 where the checkpoint is FP8, else 2."""
    layer = next((layer for layer in model.layers if layer.kind == "mla"), None)
    kv_b = next((g for g in groups if g.name.endswith(".kv_b_proj.weight")), None)
    if layer is None or kv_b is None:
        return 0
    shapes = {
        g.name.rsplit(".", 2)[1]: g.shape for g in groups if ".self_attn." in g.name and len(g.shape) == 2
    }
    into = shapes.get("q_b_proj", shapes.get("q_proj", (0, model.hidden_size)))[1]
    width = 1 if kv_b.dtype == "F8_E4M3" else 2
    each = layer.kv_lora_rank * (into + model.hidden_size) * width + into * layer.rope_dim * 2
    return stage.num_layers * model.num_heads * each // cuts.of("attention")


@ABSORBED.since("0.8.0", source="vllm 0.16.0, attention/mla_attention.py, process_weights_after_loading")
def dequantised(groups: Sequence[TensorGroup], model: Model, cuts: Cuts, stage: Stage) -> int:
    """W_UK and W_UV where kv_b_proj is quantised: it once more in 16 bit."""
    total = 0
    for group in groups:
        if group.dtype not in ("F8_E4M3", "U8", "I8", "I32") or not group.name.endswith(_KV_B):
            continue
        elements = group.shape[0] * group.shape[-1] * {"I32": 8, "U8": 2}.get(group.dtype, 1)
        inside = sum(1 for n in group.layers if stage.first_layer <= n < min(stage.end_layer, model.num_layers))
        total += inside * elements * 2 // cuts.of("attention")
    return total


_KV_B = (".kv_b_proj.weight", ".kv_b_proj.weight_packed", ".kv_b_proj.qweight")


def mxfp4_kernel(model: Model, at: Layout) -> Kernel | None:
    """gpt-oss's kernel by GPU: data-centre Blackwell FlashInfer, Hopper Triton's (from 0.11.0, Marlin with
    LoRA), all others Marlin (quantization/mxfp4.py, get_mxfp4_backend)."""
    if model.model_type != "gpt_oss" or "mxfp4" not in (model.quantization or ""):
        return None
    if at.vendor != "nvidia":
        return on_amd(at) if at.vendor == "amd" else "plain"
    if at.mxfp4_kernel is not None and not at.lora:
        return {"marlin": "marlin", "cutlass": "cutlass", "trtllm": "trtllm"}[at.mxfp4_kernel]  # type: ignore[return-value]
    major = at.capability[0] if at.capability else None
    if major == 10 and not at.lora:
        return "trtllm"
    return "triton-hopper" if major == 9 and since(at.release, "0.11.0") and not at.lora else "marlin"


def on_amd(at: Layout) -> Kernel:
    """AMD's widths: 128 without the hidden size (0.10.1), with it (0.10.2), 256 (0.11.0), then 256 on gfx950
    and 128 elsewhere (quantization/mxfp4.py, create_weights; mxfp4_utils.py, get_padding_alignment)."""
    if not since(at.release, "0.10.2"):
        return "rocm-width"
    all_256 = since(at.release, "0.11.0") and not since(at.release, "0.11.1")
    return "rocm-256" if all_256 or at.gfx950 else "rocm-128"


# --- bands --------------------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def fullest(model: Model, at: Layout) -> list[tuple[str, int]] | None:
    """The parts of the rank that holds most."""
    groups = groups_of(model)
    if not groups or not model.num_layers:
        return None
    ranks = [rank_bytes(groups, model, at, stage) for stage in stages_of(model.num_layers, at)]
    return max(ranks, key=lambda found: sum(held for _, held in found))


def weights(deployment: Deployment) -> Band | None:
    """Bytes that torch has allocated once the target model is loaded ("Model loading took"), on the fullest
    rank.

    The tensors, the rotary tables, and what 46 public loads show beside them (up to 1 MiB a tensor that the
    allocator does not split); wider where the quantisation is a guess by the name. --cpu-offload-gb comes off.
    """
    model = deployment.model
    at = layout(deployment)
    found = fullest(model, at) if model is not None else None
    if model is None or found is None:
        return None
    rule = sum(held for _, held in found) + rope_bytes(model, 2)
    rule = max(0, rule - round(at.offload_bytes * 1.008))  # whole parameters, until the budget is passed
    low, value, high = doubt(model)
    slots = lora_slots(deployment) or Band(0.0, 0.0, 0.0)
    return Band(
        rule * (1 + value) + min(0.015 * GIB, 0.01 * rule) + slots.value,
        rule * (1 - low) - 0.02 * GIB + slots.low,
        rule * (1 + high) + 0.1 * GIB + slots.high,
    )  # fmt: skip


def draft_weights(deployment: Deployment) -> Band | None:
    """Bytes that a draft adds to "Model loading took" on the fullest rank; None without one, or where its shape
    is not known. ``value`` is without the embedding and head that it shares with the target once loaded;
    releases
    that share less keep them (``high``)."""
    launch, model = deployment.launch, deployment.model
    method = speculative_method(launch)
    if not method or model is None or not num_speculative_tokens(launch):
        return None
    at = layout(deployment)
    if "mtp" in method:
        return _kept(_mtp_parts(model, at))
    draft = draft_model(launch)
    if draft is None:
        return guessed_weights(model, method, at.tp)
    tp = config(launch, "speculative_config").get("draft_tensor_parallel_size")
    at = replace(at, pp=1, tp=tp) if isinstance(tp, int) and 0 < tp <= at.tp else replace(at, pp=1)
    if "eagle" in method:
        groups, layers = groups_of(draft), max(1, draft.num_layers)
        return _kept(parts(groups, cuts_of(draft, at), Stage(0, layers), layers), own_head=True)
    found = fullest(draft, at)
    return _kept({part: held for part, held in found if part != "embedding"}) if found else None


def _mtp_parts(model: Model, at: Layout) -> dict[str, int]:
    cuts = cuts_of(model, at)
    return parts(groups_of(model), cuts, Stage(0, model.num_layers), model.num_layers, mtp=True)


def _kept(found: dict[str, int], *, own_head: bool = False) -> Band | None:
    if not found:
        return None
    loaded = sum(found.values())
    kept = loaded - found.get("embedding", 0) - (0 if own_head else found.get("head", 0))
    return Band(kept * 1.003, kept, loaded * 1.03 + 0.05 * GIB)


def lora_slots(deployment: Deployment) -> Band | None:
    """Bytes of the adapter slots that "Model loading took" includes; None without LoRA."""
    launch, model = deployment.launch, deployment.model
    if model is None or not launch.flag("enable_lora"):
        return None
    at = layout(deployment)
    slots, rank = count(launch, "max_loras", 4096) or 1, count(launch, "max_lora_rank", 4096) or 16
    stage = max(stages_of(model.num_layers, at), key=lambda stage: stage.num_layers)
    held = lora_bytes(groups_of(model), cuts_of(model, at), stage, slots, rank)
    return Band(held, held * 0.8, held * 1.3) if held else None
