"""What a checkpoint holds: groups of like tensors, from a config.json or from safetensors headers.

``facts`` are what config.json does not say: norms, router, scales, weight_shape (dtypes); redundant_head,
own_embedding, no_head, mtp_embedding, mtp_head_quantised (true or false); extra_norms (a number); gguf (a mix).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from math import prod

from ullage.core.model import Checkpoint, Model, TensorGroup
from ullage.models.builder import Builder, Source
from ullage.models.fields import Fields, text_fields
from ullage.models.ignore import filled
from ullage.models.stored import size_of, storage

Family = Callable[[Builder], None]

#: the function that knows a model type, by the type of the whole model first, of its text part then
FAMILIES: dict[str, str] = {
    **dict.fromkeys(
        ("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "mixtral", "qwen2_moe",
         "qwen3_moe", "glm4_moe", "minimax_m2", "seed_oss", "cohere", "cohere2", "ernie4_5", "ernie4_5_moe",
         "phimoe", "dots1", "hy_v3", "hunyuan_v1_dense", "hunyuan_v1_moe", "olmo2", "olmo3", "exaone4",
         "apertus",
         "granitemoe", "ministral3", "solar_open", "gpt_oss", "granite", "phi", "smollm3", "internlm2"),
        "decoder.causal",
    ),
    **dict.fromkeys(
        ("deepseek_v2", "deepseek_v3", "deepseek_v32", "kimi_k2", "glm_moe_dsa", "glm4_moe_lite"),
        "latent.latent",
    ),
    **dict.fromkeys(("qwen3_vl", "qwen3_vl_moe"), "towers.qwen3_vl"),
    **dict.fromkeys(("qwen3_5", "qwen3_5_moe"), "hybrid.qwen3_5"),
    **dict.fromkeys(("llava", "llava_next"), "towers.llava"),
    "phi3": "decoder.phi3", "opt": "decoder.opt", "llama4": "llama4.llama4", "gemma4": "gemma4.gemma4",
    "gemma3": "towers.gemma3", "kimi_k25": "towers.kimi_k25", "kimi_vl": "towers.kimi_vl",
    "qwen2_5_vl": "towers.qwen2_5_vl", "qwen2_vl": "towers.qwen2_vl", "mistral3": "towers.mistral3",
    "qwen3_next": "hybrid.gated_delta", "nemotron_h": "hybrid.nemotron_h",
    "granitemoehybrid": "hybrid.granite_hybrid", "kimi_linear": "hybrid.kimi_linear", "lfm2": "hybrid.lfm2",
    "deepseek_v4": "compressed.deepseek_v4",
    **dict.fromkeys(("minimax_m3", "minimax_m3_vl"), "sparse.minimax_m3"),
    **dict.fromkeys(("mimo_v2", "mimo_v2_flash"), "sparse.mimo_v2"),
    **dict.fromkeys(("step3p5", "step3p7", "laguna"), "sparse.step"),
    **dict.fromkeys(("inkling_mm_model", "inkling_text"), "sparse.inkling"),
    "longcat_flash": "sparse.longcat_flash", "qwen4_exp": "hyper.qwen4_exp", "glm5_next": "hyper.glm5_next",
    "kimi_k3": "hybrid.kimi_k3",
}  # fmt: skip
_DRAFTS = {
    "LlamaForCausalLMEagle3": "heads.eagle3", "Eagle3Speculator": "heads.eagle3",
    "Eagle3DeepseekV2ForCausalLM": "heads.eagle3", "Eagle3MlaForCausalLM": "heads.eagle3",
    "LlamaForCausalLMEagle": "heads.eagle", "Eagle3LlamaForCausalLM": "heads.eagle3",
}  # fmt: skip
_TOWERS = ("vision", "vision attention", "projector")
#: types whose tensors the plain decoder gives not even roughly
_UNLIKE = {
    "gemma3n", "jamba", "falcon_h1",
}  # fmt: skip


def groups(
    config: Mapping[str, object],
    facts: Mapping[str, object] | None = None,
    *,
    side: Mapping[str, object] | None = None,
    source: str = "config.json",
) -> tuple[TensorGroup, ...]:
    """The tensors of a checkpoint with this config.json; () where its type is not known.

    ``side`` is ModelOpt's hf_quant_config.json. Raises InputError where a value is of the wrong kind.
    """
    from ullage.models.config import class_defaults

    top = Fields(config, source)
    text = text_fields(top)
    own, kind = top.text("model_type") or "", text.text("model_type") or top.text("model_type") or ""
    text.defaults = class_defaults(kind, own)
    family = _family(top, own, kind)
    if family is None:
        return ()
    known = dict(facts or {})
    beside = Fields(side, f"{source}: hf_quant_config.json") if side is not None else None
    builder = Builder(Source(top, text, known, kind, storage(top, text, beside, known)))
    family(builder)
    if not any(group.part in _TOWERS for group in builder.found) and top.inner("vision_config"):
        from ullage.models.towers import plain_tower

        plain_tower(builder, "vision_tower", "multi_modal_projector")
    return tuple(group for group in builder.found if _elements(group.shape))


def _family(top: Fields, own: str, kind: str) -> Family | None:
    """The function for a model; for a type that nobody knows, the plain decoder that its keys fit."""
    drafts = (_DRAFTS[name] for name in top.texts("architectures") or [] if name in _DRAFTS)
    found = next(drafts, None) or FAMILIES.get(own) or FAMILIES.get(kind)
    text = text_fields(top)
    known = all(text.size(name) for name in ("num_hidden_layers", "hidden_size", "vocab_size"))
    if found is None and known and not {own, kind} & _UNLIKE:
        found = "latent.latent" if text.size("kv_lora_rank") else "decoder.causal"
    return _function(found) if found else None


def _function(name: str) -> Family:
    """The function that "towers.llava" names, from a module that only this model needs."""
    module, _, function = name.partition(".")
    found: Family = getattr(import_module(f"ullage.models.{module}"), function)
    return found


def is_known(model: Model) -> bool:
    """True if the model's type is one whose tensors are known; others are counted as a plain decoder is."""
    found = model.checkpoint
    if found is None or found.tensors:
        return found is not None
    top = Fields(found.config, model.source)
    kinds = (top.text("model_type") or "", text_fields(top).text("model_type") or "")
    drafts = any(name in _DRAFTS for name in top.texts("architectures") or [])
    return drafts or any(kind in FAMILIES for kind in kinds)


def of_model(model: Model) -> tuple[TensorGroup, ...]:
    """The groups of a model: those of its headers where they were read, else what its config implies."""
    found = model.checkpoint
    if found is None:
        return ()
    return found.tensors or groups(found.config, found.facts, side=_side(found), source=model.source)


def _side(checkpoint: Checkpoint) -> Mapping[str, object] | None:
    side = checkpoint.facts.get("side")
    return side if isinstance(side, Mapping) else None


def _elements(shape: tuple[int, ...]) -> int:
    return prod(shape)


def count(group: TensorGroup) -> int:
    """Tensors of a group."""
    return max(1, len(group.layers)) * max(1, group.experts)


def num_bytes(group: TensorGroup) -> int:
    """Bytes of the whole group, as stored."""
    return count(group) * size_of(group.dtype, prod(group.shape))


def tensors(found: Iterable[TensorGroup]) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """Every tensor by itself: (name, dtype, shape)."""
    for group in found:
        for layer in group.layers or (0,):
            for expert in range(max(1, group.experts)):
                yield _named(group, layer, expert), group.dtype, group.shape


def _named(group: TensorGroup, layer: int, expert: int) -> str:
    if group.layers:
        return filled(group.name, layer, expert)
    return group.name.replace("{}", str(expert), 1) if group.experts else group.name
