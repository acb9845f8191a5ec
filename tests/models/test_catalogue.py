"""The bundled catalogue: every file gives a model, and the figures known from public logs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from ullage.core.model import Model
from ullage.models import catalogue
from ullage.models.attention import (
    count_kinds,
    elements_per_token,
    elements_per_token_of,
    index_bytes_per_token,
    state_elements,
)
from ullage.models.config import from_config
from ullage.models.load import find

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "models"


def known(name: str) -> Model:
    found = find(name)
    assert found is not None, name
    return found


@pytest.mark.parametrize("name", catalogue.ids())
def test_every_file_is_a_model_that_is_found_by_its_id(name: str) -> None:
    found = known(name)
    assert found.id == name
    assert found.num_layers > 0
    assert found.layers, "a catalogue row whose layers are unknown helps nobody"
    assert found.quantization is not None
    assert found.source.startswith("catalogue: ")
    assert elements_per_token_of(found) > 0


def test_a_file_is_named_after_its_model() -> None:
    folder = Path(catalogue.__file__).parent / "data"
    for path in folder.glob("*.toml"):
        row = catalogue._row(path.stem)
        assert row is not None
        assert row.id.split("/")[1].lower() == path.stem


@pytest.mark.parametrize(
    ("name", "bytes_per_token"),
    [  # 16-bit cache, all layers, before sharding; each agrees with a pool that an engine printed
        ("moonshotai/Kimi-K2.5", 70272),
        ("meta-llama/Llama-3.1-8B-Instruct", 131072),
        ("Qwen/Qwen3-14B", 163840),
        ("Qwen/Qwen3-30B-A3B", 98304),
        ("Qwen/Qwen3-235B-A22B-FP8", 192512),
        ("deepseek-ai/DeepSeek-V3", 70272),
        ("zai-org/GLM-4.7-Flash", 54144),
        ("Qwen/Qwen3.5-27B", 65536),
        ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", 6144),
        ("Qwen/Qwen2.5-7B-Instruct", 57344),
        ("Qwen/Qwen2.5-0.5B-Instruct", 12288),
        ("deepseek-ai/DeepSeek-V2-Lite", 31104),
        ("Qwen/Qwen3-0.6B", 114688),
        ("ibm-granite/granite-4.0-h-micro", 8192),
        ("LiquidAI/LFM2-700M", 12288),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-14B", 196608),
        ("ibm-granite/granite-4.0-h-small", 16384),
    ],
)
def test_bytes_of_a_token(name: str, bytes_per_token: int) -> None:
    assert 2 * elements_per_token_of(known(name)) == bytes_per_token


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("google/gemma-3-12b-it", {"sliding": 40, "full": 8}),
        ("google/gemma-3-27b-it", {"sliding": 52, "full": 10}),
        ("google/gemma-2-27b-it", {"sliding": 23, "full": 23}),
        ("google/gemma-3n-E4B-it", {"sliding": 16, "full": 4, "shared": 15}),
        ("openai/gpt-oss-20b", {"sliding": 12, "full": 12}),
        ("openai/gpt-oss-120b", {"sliding": 18, "full": 18}),
        ("meta-llama/Llama-4-Scout-17B-16E-Instruct", {"chunked": 36, "full": 12}),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", {"linear": 36, "full": 12}),
        ("Qwen/Qwen3.5-27B", {"linear": 48, "full": 16}),
        ("ibm-granite/granite-4.0-h-small", {"linear": 36, "full": 4}),
        ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", {"linear": 23, "none": 23, "full": 6}),
        ("XiaomiMiMo/MiMo-V2-Flash", {"full": 9, "sliding": 39}),
        ("moonshotai/Kimi-Linear-48B-A3B-Instruct", {"linear": 20, "mla": 7}),
        ("moonshotai/Kimi-K3", {"linear": 69, "mla": 24}),
        ("deepseek-ai/DeepSeek-V4-Flash", {"compressed": 43}),
    ],
)
def test_kinds_of_layers(name: str, kinds: dict[str, int]) -> None:
    assert count_kinds(known(name)) == kinds


def test_glm5_keeps_an_index_beside_its_latent() -> None:
    found = known("zai-org/GLM-5")
    assert [index_bytes_per_token(layer) for layer in found.layers] == [132] * 78
    latent = 656  # fp8_ds_mla of vLLM: 512 fp8, 16 bytes of scales, 64 bf16
    assert sum(latent + index_bytes_per_token(layer) for layer in found.layers) == (656 + 132) * 78
    assert 2 * elements_per_token_of(found) + 132 * 78 == 100152


def test_gemma4_has_wider_heads_on_its_full_layers() -> None:
    by_kind = {layer.kind: layer for layer in known("google/gemma-4-26B-A4B-it").layers}
    assert 2 * elements_per_token(by_kind["full"]) * 5 == 20480
    assert 2 * elements_per_token(by_kind["sliding"]) * 25 == 204800


@pytest.mark.parametrize(
    ("name", "conv", "recurrent"),
    [  # bytes of one request over all layers: bf16 convolution, fp32 recurrent state
        ("Qwen/Qwen3.5-27B", 2949120, 150994944),
        ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", 847872, 48234496),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", 1769472, 75497472),
        ("LiquidAI/LFM2-700M", 61440, 0),
    ],
)
def test_state_of_a_request(name: str, conv: int, recurrent: int) -> None:
    states = [state_elements(layer) for layer in known(name).layers]
    assert (2 * sum(c for c, _ in states), 4 * sum(r for _, r in states)) == (conv, recurrent)


def test_the_founding_model() -> None:
    found = known("moonshotai/Kimi-K2.5")
    assert (found.num_layers, found.hidden_size, found.is_mla, found.is_hybrid) == (61, 7168, True, False)
    assert (found.checkpoint_bytes, found.quantization) == (595148192736, "compressed-tensors w4a16")
    assert (found.parameters, found.num_experts, found.experts_per_token) == (1026879376368, 384, 8)
    assert found.vision is not None


@pytest.mark.parametrize("name", ["kimi-k2.5", "MOONSHOTAI/Kimi-K2.5", "/models/Kimi-K2.5/", "Kimi-K2.5", "./Kimi-K2.5",
                                  "/hub/models--moonshotai--Kimi-K2.5/snapshots/0123abc"])  # fmt: skip
def test_spellings_of_one_model(name: str) -> None:
    found = known(name)
    assert (found.id, found.checkpoint_bytes) == ("moonshotai/Kimi-K2.5", 595148192736)


@pytest.mark.parametrize(
    ("name", "layers"),
    [
        ("Qwen/Qwen3-8B-FP8", 36), ("lukealonso/GLM-5.1-NVFP4-MTP", 78), ("QuantTrio/GLM-5.2-Int4-Int8Mix", 78),
        ("RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w4a16", 32), ("someone/GLM-5.2-NVFP4A16", 78),
        ("RedHatAI/Llama-3.3-70B-Instruct-fp8-dynamic", 80), ("Qwen/Qwen2.5-72B-Instruct-GPTQ-Int4", 80),
        ("unsloth/gemma-3-27b-it-unsloth-bnb-4bit", 62), ("/data/Qwen3-32B-GPTQ-Int8", 64),
        ("Qwen/Qwen3-VL-235B-A22B-Instruct-FP8", 94), ("someone/Qwen3-8B", 36),
    ],
)  # fmt: skip
def test_a_variant_has_the_known_shape_and_says_that_the_rest_is_unknown(name: str, layers: int) -> None:
    found = known(name)
    assert len(found.layers) == layers
    assert found.id == name
    assert (found.quantization, found.checkpoint_bytes) == (None, None)
    assert "shape only" in found.source


def test_a_variant_with_a_file_of_its_own_is_exact() -> None:
    assert known("Qwen/Qwen3-32B-FP8").quantization == "fp8 block 128x128"
    assert known("nvidia/Kimi-K2.5-NVFP4").kv_quantization == "fp8"


@pytest.mark.parametrize(
    ("name", "same"),
    [
        ("<Qwen2.5-72B>", "Qwen/Qwen2.5-72B-Instruct"), ("Qwen2.5-7B quantised", "Qwen/Qwen2.5-7B-Instruct"),
        ("/models/Qwen3-32B-AWQ-4bit", "Qwen/Qwen3-32B"), ("DeepSeek-R1-BF16", "deepseek-ai/DeepSeek-R1"),
        ("DeepSeek-R1 (GPTQ 4 bit)", "deepseek-ai/DeepSeek-R1"), ("GLM-5.3-Flash-EXL3", "zai-org/GLM-5.3-Flash"),
        ("MiniMax-M3-w4a16-moe-only", "MiniMaxAI/MiniMax-M3"), ("<GLM-5.2 W4W8>", "zai-org/GLM-5.2"),
        ("Qwen3.6-27B-AutoRound", "Qwen/Qwen3.6-27B"), ("<Qwen3.6-27B INT4>", "Qwen/Qwen3.6-27B"),
        ("gemma-4-26B-AWQ", "google/gemma-4-26B-A4B-it"), ("<Kimi-Linear>", "moonshotai/Kimi-Linear-48B-A3B-Instruct"),
        ("<Qwen 80B NVFP4 MoE>", "Qwen/Qwen3-Next-80B-A3B-Instruct"), ("unsloth/Qwen3-8B-GGUF:Q4_K_M", "Qwen/Qwen3-8B"),
        ("someone/Qwen3.8-Flash-Next-Uncensored-NVFP4", "Qwen/Qwen3.8-Flash-Next"),
        ("shenzhi-wang/Llama3-8B-Chinese-Chat", "meta-llama/Meta-Llama-3-8B-Instruct"),
        ("Qwen3-8B-Instruct-Roleplay", "Qwen/Qwen3-8B"), ("<Hy3-295B NVFP4>", "tencent/Hy3-preview"),
        ("/data/Qwen3-8B/snapshots/0a1b2c3d4e5f", "Qwen/Qwen3-8B"), ("Devstral-Small-2-24B-AWQ",
         "mistralai/Devstral-Small-2-24B-Instruct-2512"),
    ],
)  # fmt: skip
def test_names_as_people_write_them(name: str, same: str) -> None:
    found, base = known(name), known(same)
    assert (found.layers, found.hidden_size, found.vocab_size) == (
        base.layers,
        base.hidden_size,
        base.vocab_size,
    )
    assert found.source.startswith("catalogue: ")


@pytest.mark.parametrize(
    "name", ["EAGLE3-Qwen3-8B", "Qwen3-8B-DFlash", "Qwen3-8B-Embedding", "Llama-3.1-9B", "Qwen3-VL-8B-Omni"]
)
def test_another_kind_of_model_is_not_taken_for_a_fine_tune(name: str) -> None:
    found = find(name)
    assert found is None or "Qwen3-8B," not in found.source


@pytest.mark.parametrize("name", ["", "/", "..", "../../etc/passwd", "nobody/never-seen", "x" * 100000, "a/\0", "-FP8",
                                  "Qwen/Qwen3-8B/../../x.toml", "Qwen3-9B-Instruct", "<model>",
                                  "MODEL", "<32B model>", "QWEN2_MOE_MODEL", "Qwen3.8-35B-A3B", "GLM-5.4-Flash"])  # fmt: skip
def test_what_is_not_known_is_none(name: str) -> None:
    assert find(name) is None


def shared_configs() -> Iterator[Path]:
    return iter(sorted(SHARED.glob("*.json"))) if SHARED.is_dir() else iter(())


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs the shared folder of configs")
def test_the_whole_configs_give_the_same_as_the_catalogue() -> None:
    for path in shared_configs():
        whole = json.loads(path.read_text())
        config = {key: value for key, value in whole.items() if not key.startswith("_")}
        found = from_config(config, id="m", source=path.name, side=whole.get("_hf_quant_config"))
        row = known(path.stem.split("--", 1)[1])
        if path.stem == "MiniMaxAI--MiniMax-M3":  # the language model alone; the row has the tower too
            row = replace(row, vision=None)
        assert (found.layers, found.max_context, found.dtype) == (row.layers, row.max_context, row.dtype), (
            path.name
        )
        assert (found.quantization, found.kv_quantization, found.vision) == (
            row.quantization,
            row.kv_quantization,
            row.vision,
        )
