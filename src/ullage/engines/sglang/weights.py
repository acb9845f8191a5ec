"""SGLang's weights on one rank: what each rank holds of a checkpoint, and what loading adds to it.

Read: sglang 0.5.9 (layers/linear.py, vocab_parallel_embedding.py, moe/fused_moe_triton/layer.py, models/*.py,
distributed/utils.py, server_args.py), other releases where a rule names them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from msgspec.structs import replace
from packaging.version import Version

from ullage.core.deployment import Deployment
from ullage.core.model import Model, TensorGroup
from ullage.core.patterns import lazy
from ullage.core.units import GIB, Band
from ullage.engines.runtime.loading import cast_of, converted, doubt, groups_of, rope_bytes
from ullage.engines.runtime.mxfp4 import Kernel, padded
from ullage.engines.runtime.shards import VISION, Cuts, Stage, parts, repacked
from ullage.engines.sglang.layout import Layout, cuts_of, layout, stages_of
from ullage.engines.sglang.settings import at_least, of_launch


def rank_bytes(groups: Sequence[TensorGroup], model: Model, at: Layout, stage: Stage) -> list[tuple[str, int]]:
    """(part, bytes) on each rank of ``stage``, the largest first: the target model without its MTP layers.

    With MLA the products w_kc and w_vc of kv_b_proj stay beside it in 16 bit:
    heads / attn_tp x (nope + v) x kv_lora_rank x 2 B a layer (models/deepseek_v2.py, post_load_weights).
    """
    cuts = cuts_of(model, at)
    kept = _on_gpu(groups, at)
    kernel = _mxfp4_kernel(model, at)

    def change(group: TensorGroup) -> int | None:
        return padded(group, cuts, model.hidden_size, model.intermediate_size, kernel) if kernel else None

    found = parts(
        converted(kept, at.online, cast_of(model, at.dtype)), cuts, stage, model.num_layers,
        tied=model.tied_embeddings,
        change=change,
    )  # fmt: skip
    copies = absorbed_bytes(groups, cuts, stage)
    if copies:
        found["absorbed MLA copies"] = copies
    return sorted(found.items(), key=lambda item: -item[1])


def _on_gpu(groups: Sequence[TensorGroup], at: Layout) -> list[TensorGroup]:
    """What is on the GPU: no tower with --language-only; with KTransformers the routed experts are on the host,
    but --kt-num-gpu-experts of each layer."""
    kept = [g for g in groups if not (at.language_only and g.part in VISION)]
    if at.fp8_experts or at.wide_scales:
        kept = [_unpacked(g, at) if g.part == "experts" else g for g in kept]
    if at.gpu_experts is None:
        return kept
    return [
        _fewer(g, at.gpu_experts) if g.part == "experts" else g
        for g in kept
        if at.gpu_experts or g.part != "experts"
    ]


def _unpacked(group: TensorGroup, at: Layout) -> TensorGroup:
    """DeepSeek-V4's routed experts: scales of 32 in float32 (Hopper, SM120 of early releases), or a checkpoint
    converted to FP8 (SGLANG_DSV4_FP4_EXPERTS=0): twice the bytes, and hardly any scales."""
    if group.dtype == "F8_E8M0":
        if at.fp8_experts:
            return replace(group, dtype="F32", shape=(-(-group.shape[0] // 128), -(-group.shape[-1] // 4)))
        return replace(group, dtype="F32")
    if at.fp8_experts and group.dtype == "I8":
        return replace(group, dtype="F8_E4M3", shape=(*group.shape[:-1], 2 * group.shape[-1]))
    return group


def _fewer(group: TensorGroup, count: int) -> TensorGroup:
    if group.stacked:
        return replace(group, shape=(min(count, group.shape[0]), *group.shape[1:]))
    return replace(group, experts=min(count, group.experts))


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


# --- bands --------------------------------------------------------------------------------------------------


_GFX950 = lazy(r"MI35[05]X|gfx950", re.IGNORECASE)


@lru_cache(maxsize=64)
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
    rule = sum(size for _, size in found) + _rope(model, deployment.launch.release)
    low, value, high = doubt(model)
    more = 2.2 * GIB if rule > 8 * GIB and rewritten_on_amd(deployment, model) else 0.0
    copy = left_of_repacking(model, layout(deployment))
    return Band(
        rule * (1 + value) + min(0.08 * GIB, 0.02 * GIB + 0.01 * rule) + more / 2 + 0.35 * copy,
        rule * (1 - low) - 0.02 * GIB,
        rule * (1 + high) + 0.25 * GIB + more,
    )  # fmt: skip


def rewritten_on_amd(deployment: Deployment, model: Model) -> bool:
    """True where AMD's kernels take the quantised weights in another form, whose making leaves memory behind:
    all but FP8 on gfx950, whose FP8 is the checkpoint's own (28.49 GiB of Qwen3.8-27B-FP8 in a public log of an
    MI355X, 28.47 on an H100)."""
    gpu = deployment.machine.gpu if deployment.machine else None
    if gpu is None or gpu.vendor != "amd" or not model.quantization:
        return False
    return not (_GFX950.search(gpu.name) and "fp8" in model.quantization)


def _rope(model: Model, release: Version | None) -> int:
    """Rotary tables in fp32; those of mrope are no longer than others. Gemma-3 works its angles out in each
    pass and keeps none up to 0.5.9 (models/gemma3_causal.py)."""
    kind = model.model_type or ""
    gemma3 = kind.startswith("gemma3") and not kind.startswith("gemma3n")
    return 0 if gemma3 and not at_least(release, "0.5.10") else rope_bytes(model, 4, mrope=1)


def left_of_repacking(model: Model, at: Layout) -> int:
    """Bytes of a layer's 4-bit experts that are rewritten for their kernel: part of the copy stays behind until
    something collects it (..0.5.18; 0.5.19 does before it measures). Kimi-K2.5 at tp 8: 0.25 of 0.66 GiB."""
    if at_least(at.release, "0.5.19"):
        return 0
    four = [g for g in groups_of(model) if g.part == "experts" and g.dtype in ("I32", "U8")]
    return repacked(four, cuts_of(model, at)) if four else 0


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


def load_peak(deployment: Deployment) -> Band | None:
    """Bytes that loading takes for a moment beyond what stays: quantised experts are rewritten for their kernel
    layer by layer, gate and up of a layer at a time; None where the model is not known. Estimated."""
    model = deployment.model
    groups = groups_of(model) if model is not None else ()
    if model is None or not groups:
        return None
    copy = repacked(groups, cuts_of(model, layout(deployment)))
    return Band(copy, 0, 2 * copy + 0.3 * GIB)
