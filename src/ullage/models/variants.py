"""Quantised variants by their names: what "-FP8", "-AWQ" or "-Q4_K_M.gguf" most likely is in the files.

A guess from how the hub names such checkpoints; a budget that rests on it gets a wider band.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_NVFP4 = {"quant_method": "modelopt", "quant_algo": "NVFP4"}
_GGUF = re.compile(
    r"(?:^|[-_.])((?:I?Q[1-8]_(?:K(?:_(?:XL|[SML]))?|[01]|NL|XS|XXS|[SM]))|MXFP4)(?=$|[-_.])", re.IGNORECASE
)


def quantization_of(name: str, config: Mapping[str, object]) -> dict[str, object] | None:
    """The quantization_config that a checkpoint of this name has beside the shapes of ``config``; {} for a
    plain one, None where the name says nothing.

    >>> quantization_of("Qwen3-8B-AWQ", {})["bits"]
    4
    """
    text = name.lower()
    found = _by_word(text)
    if found and "fp8" in text and config.get("model_type") == "llama4":
        return {**_compressed("float", 8, "channel", "float-quantized", None), "ignore": _LLAMA4_KEPT}
    if found is not None:
        return (
            {**found, "ignore": _kept(config, found["quant_method"])}
            if found.get("quant_method") in _LISTED
            else found
        )
    return {} if re.search(r"[-_.](?:bf16|fp16|hf)$", text) else None


#: Llama 4's own FP8 files quantise the routed experts alone
_LLAMA4_KEPT = [
    "lm_head", "re:.*self_attn.*", "re:.*shared_expert.*", "re:.*feed_forward\\.(gate|up|down)_proj.*",
    "re:vision_model.*", "re:multi_modal_projector.*",
]  # fmt: skip
_LISTED = ("compressed-tensors", "modelopt", "fp8")


def _by_word(text: str) -> dict[str, object] | None:
    if re.search(r"nvfp4|[-_.]fp4\b", text):
        return dict(_NVFP4)
    if re.search(r"fp8[-_.]?dynamic|w8a8[-_.]?fp8", text):
        return _compressed("float", 8, "channel", "float-quantized", None)
    if "fp8" in text:
        return {"quant_method": "fp8", "weight_block_size": [128, 128]}
    if re.search(r"gptq|auto-?round", text):
        return {
            "quant_method": "gptq",
            "bits": 8 if re.search(r"int8|8-?bit|w8", text) else 4,
            "group_size": 128,
        }
    if "awq" in text:
        return {"quant_method": "awq", "bits": 8 if "8bit" in text else 4, "group_size": 128}
    if re.search(r"w8a8|quantized\.w8a8|int8", text):
        return _compressed("int", 8, "channel", "int-quantized", None)
    if re.search(r"w4a16|int4|[-_.]4-?bit", text) and "bnb" not in text:
        return _compressed("int", 4, "group", "pack-quantized", 128)
    if "bnb" in text:
        return {"quant_method": "bitsandbytes", "load_in_4bit": "8bit" not in text and "8-bit" not in text}
    return None


def _compressed(kind: str, bits: int, strategy: str, form: str, group: int | None) -> dict[str, object]:
    weights: dict[str, object] = {"type": kind, "num_bits": bits, "strategy": strategy, "symmetric": True}
    if group:
        weights["group_size"] = group
    return {
        "quant_method": "compressed-tensors", "format": form,
        "config_groups": {"group_0": {"weights": weights, "targets": ["Linear"]}},
    }  # fmt: skip


def _kept(config: Mapping[str, object], method: object) -> list[str]:
    """What such checkpoints leave in 16 bit: the head, routers, and Qwen3.5's small delta-net projections."""
    kept = ["lm_head", "re:.*mlp\\.gate$", "re:.*in_proj_[ab]$"]
    text = config.get("text_config")
    inner = text if isinstance(text, Mapping) else config
    if method == "modelopt" and inner.get("kv_lora_rank"):
        kept.append("re:.*self_attn.*")  # as nvidia's own NVFP4 files of GLM-5 and Kimi-K2.5
    return kept


def gguf_of(name: str) -> str | None:
    """The mix of a GGUF file by its name: "DeepSeek-R1-Distill-Qwen-32B-Q4_K_M.gguf" -> "Q4_K_M"."""
    found = _GGUF.search(name.removesuffix(".gguf"))
    return found[1].upper() if found else None
