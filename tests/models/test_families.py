"""Tensors of model types from their config.json: the totals that are public."""

from __future__ import annotations

from math import prod

import pytest

from ullage.models import tensors
from ullage.models.catalogue import find


def totals(name: str) -> tuple[float, float]:
    """(billions of elements, GB) of a model of the catalogue."""
    model = find(name)
    assert model is not None
    groups = tensors.of_model(model)
    elements = sum(tensors.count(group) * prod(group.shape) for group in groups)
    return elements / 1e9, sum(map(tensors.num_bytes, groups)) / 1e9


@pytest.mark.parametrize(
    ("name", "billions"),
    [  # as the makers state them
        ("MiniMaxAI/MiniMax-M3", 427), ("nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16", 550), ("tencent/Hy3-preview", 295),
        ("meituan-longcat/LongCat-Flash-Chat", 560), ("stepfun-ai/Step-3.5-Flash", 196), ("XiaomiMiMo/MiMo-V2-Flash", 309),
        ("thinkingmachines/Inkling-Small", 264), ("moonshotai/Kimi-Linear-48B-A3B-Instruct", 49),
        ("baidu/ERNIE-4.5-300B-A47B-PT", 300), ("baidu/ERNIE-4.5-21B-A3B-PT", 21.8), ("ByteDance-Seed/Seed-OSS-36B-Instruct", 36.2),
        ("tencent/Hunyuan-A13B-Instruct", 80.4), ("CohereLabs/c4ai-command-a-03-2025", 111), ("HuggingFaceTB/SmolLM3-3B", 3.08),
        ("microsoft/Phi-3.5-MoE-instruct", 41.9), ("mistralai/Mistral-Small-4-119B-2603", 119), ("OpenGVLab/InternVL3-38B", 38.4),
        ("OpenGVLab/InternVL3-8B", 7.94), ("rednote-hilab/dots.llm1.inst", 142.8), ("swiss-ai/Apertus-70B-Instruct-2509", 70.6),
        ("LiquidAI/LFM2-8B-A1B", 8.3), ("upstage/Solar-Open-100B", 102.6), ("inclusionAI/Ling-flash-2.0", 103),
        ("zai-org/GLM-4.5V", 108), ("google/gemma-4-12B-it", 12), ("Qwen/Qwen3.5-9B", 9.65), ("Qwen/Qwen3.5-4B", 4.66),
        ("Qwen/Qwen2-57B-A14B-Instruct", 57.4), ("allenai/OLMo-2-0325-32B-Instruct", 32.2), ("Qwen/Qwen3-Omni-30B-A3B-Instruct", 31),
        ("nvidia/NVIDIA-Nemotron-Nano-9B-v2", 8.89), ("mistralai/Ministral-3-14B-Instruct-2512", 13.5),
    ],
)  # fmt: skip
def test_public_parameters(name: str, billions: float) -> None:
    assert totals(name)[0] == pytest.approx(billions, rel=0.015)


@pytest.mark.parametrize(
    ("name", "gb", "rel"),
    [
        ("deepseek-ai/DeepSeek-V4-Pro", 864.705, 1e-4),  # metadata.total_size of its index
        ("XiaomiMiMo/MiMo-V2.6-Flash-RL", 172.92, 0.02), ("XiaomiMiMo/MiMo-V2.6-Pro-RL", 566.03, 0.02),
        ("<GLM-5.2 W4W8>", 377.63 * 1.073741824, 0.02),  # the load's own "Checkpoint size: 377.63 GiB"
        ("MiniMax-M3-w4a16-moe-only", 4 * 57.25 * 1.073741824, 0.025),  # four ranks of a public load
    ],
)  # fmt: skip
def test_public_sizes(name: str, gb: float, rel: float) -> None:
    assert totals(name)[1] == pytest.approx(gb, rel=rel)


def test_a_mixed_checkpoint_is_stored_part_by_part() -> None:
    """nvidia/Qwen3.6-27B-NVFP4: MLPs in NVFP4, attention in FP8, the rest and the MTP layer in 16 bit."""
    model = find("nvidia/Qwen3.6-27B-NVFP4")
    assert model is not None
    found = {group.name: group.dtype for group in tensors.of_model(model) if group.layers}
    at = "model.language_model.layers.{}."
    assert found[f"{at}mlp.gate_proj.weight"] == "U8"
    assert found[f"{at}self_attn.q_proj.weight"] == "F8_E4M3"
    assert found[f"{at}linear_attn.in_proj_b.weight"] == "BF16"
    assert found["mtp.layers.{}.self_attn.q_proj.weight"] == "BF16"


def test_a_name_without_storage_words_keeps_the_storage_of_its_row() -> None:
    plain, copy = totals("deepseek-ai/DeepSeek-V3"), totals("someone/DeepSeek-V3-abliterated")
    assert plain == copy
