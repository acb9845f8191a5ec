"""What checkpoints hold, against the headers of published files (weights_facts.toml)."""

from __future__ import annotations

import tomllib
from math import prod
from pathlib import Path
from time import perf_counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ullage.core.errors import InputError
from ullage.models.catalogue import find
from ullage.models.fields import Fields
from ullage.models.forms import form_of
from ullage.models.headers import Tensor
from ullage.models.ignore import ignore_list
from ullage.models.load import from_directory
from ullage.models.named import groups_of_headers
from ullage.models.parts import part_of
from ullage.models.stored import size_of
from ullage.models.tensors import FAMILIES, count, groups, num_bytes, of_model, tensors
from ullage.models.variants import gguf_of, quantization_of

FACTS: dict[str, list[int]] = tomllib.loads((Path(__file__).parent / "weights_facts.toml").read_text())[
    "checkpoint"
]


@pytest.mark.parametrize("model", FACTS)
def test_a_published_checkpoint(model: str) -> None:
    """Tensors, elements and bytes of every published checkpoint, exactly."""
    found = find(model)
    assert found is not None
    held = of_model(found)
    counted = [sum(map(count, held)), sum(count(g) * prod(g.shape) for g in held), sum(map(num_bytes, held))]
    assert counted == FACTS[model]


@pytest.mark.parametrize(
    ("model", "name", "dtype", "shape"),
    [
        ("moonshotai/Kimi-K2.5", "language_model.model.layers.60.mlp.experts.383.down_proj.weight_packed", "I32", (7168, 256)),
        ("moonshotai/Kimi-K2.5", "language_model.model.layers.1.mlp.experts.0.gate_proj.weight_scale", "BF16", (2048, 224)),
        ("moonshotai/Kimi-K2.5", "language_model.model.layers.0.mlp.gate_proj.weight", "BF16", (18432, 7168)),
        ("deepseek-ai/DeepSeek-V3", "model.layers.61.eh_proj.weight", "BF16", (7168, 14336)),
        ("deepseek-ai/DeepSeek-V3", "model.layers.3.mlp.gate.e_score_correction_bias", "F32", (256,)),
        ("openai/gpt-oss-120b", "model.layers.35.mlp.experts.down_proj_blocks", "U8", (128, 2880, 90, 16)),
        ("Qwen/Qwen3.5-397B-A17B", "mtp.layers.0.mlp.experts.511.up_proj.weight", "BF16", (1024, 4096)),
        ("Qwen/Qwen3-32B-AWQ", "model.layers.63.mlp.down_proj.qzeros", "I32", (200, 640)),
        ("zai-org/GLM-5.2", "model.layers.78.self_attn.indexer.wq_b.weight", "BF16", (4096, 2048)),
    ],
)  # fmt: skip
def test_a_tensor_by_its_name(model: str, name: str, dtype: str, shape: tuple[int, ...]) -> None:
    found = find(model)
    assert found is not None
    assert (name, dtype, shape) in set(tensors(of_model(found)))


@pytest.mark.parametrize(
    "model",
    [
        "Qwen/Qwen3-30B-A3B-FP8",
        "deepseek-ai/DeepSeek-V2-Lite",
        "google/gemma-4-26B-A4B-it",
        "openai/gpt-oss-20b",
    ],
)
def test_headers_say_the_same_as_the_config(model: str) -> None:
    """Groups from names alone carry the same bytes to the same parts, cut in the same way."""
    found = find(model)
    assert found is not None
    made = of_model(found)
    headers = [
        (name, Tensor(dtype, shape, (0, size_of(dtype, prod(shape))))) for name, dtype, shape in tensors(made)
    ]
    named = groups_of_headers(headers)
    assert _by_part(named) == _by_part(made)


def _by_part(held) -> dict[tuple[str, str], int]:  # type: ignore[no-untyped-def]
    found: dict[tuple[str, str], int] = {}
    for group in held:
        key = (group.part, group.split)
        found[key] = found.get(key, 0) + num_bytes(group)
    return found


def test_kimi_takes_milliseconds() -> None:
    """208,550 tensors are made as some fifty groups; the best of several tries, since the machine is shared."""
    found = find("moonshotai/Kimi-K2.5")
    assert found is not None and found.checkpoint is not None
    times = []
    for _ in range(5):
        begun = perf_counter()
        held = groups(found.checkpoint.config, found.checkpoint.facts)
        times.append(perf_counter() - begun)
    assert len(held) < 100
    assert min(times) < 0.02


@pytest.mark.parametrize(
    ("config", "pieces"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, {"weight": ("F8_E4M3", (256, 512)), "weight_scale_inv": ("F32", (2, 4))}),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, {"qweight": ("I32", (64, 256)), "qzeros": ("I32", (4, 32)), "scales": ("F16", (4, 256)), "g_idx": ("I32", (512,))}),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1}, {"qweight": ("I32", (128, 256)), "qzeros": ("I32", (1, 64)), "scales": ("F16", (1, 256)), "g_idx": ("I32", (512,))}),
        ({"quant_method": "awq", "bits": 4, "group_size": 64}, {"qweight": ("I32", (512, 32)), "qzeros": ("I32", (8, 32)), "scales": ("F16", (8, 256))}),
        ({"quant_algo": "NVFP4"}, {"weight": ("U8", (256, 256)), "weight_scale": ("F8_E4M3", (256, 32)), "weight_scale_2": ("F32", ()), "input_scale": ("F32", ())}),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, {"weight": ("I8", (256, 512)), "SCB": ("F32", (256,))}),
        ({"quant_method": "compressed-tensors", "format": "int-quantized", "config_groups": {"g": {"weights": {"type": "int", "num_bits": 8, "strategy": "channel"}}}}, {"weight": ("I8", (256, 512)), "weight_scale": ("BF16", (256, 1))}),
        ({"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"g": {"weights": {"type": "int", "num_bits": 4, "group_size": 128, "symmetric": False}}}},
         {"weight_packed": ("I32", (256, 64)), "weight_scale": ("BF16", (256, 4)), "weight_zero_point": ("I32", (32, 4)), "weight_shape": ("I64", (2,))}),
        ({"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized", "config_groups": {"g": {"weights": {"type": "float", "num_bits": 4, "group_size": 16}}}},
         {"weight_packed": ("U8", (256, 256)), "weight_scale": ("F8_E4M3", (256, 32)), "weight_global_scale": ("F32", (1,)), "input_global_scale": ("F32", (1,))}),
    ],
)  # fmt: skip
def test_a_quantised_linear_layer(
    config: dict[str, object], pieces: dict[str, tuple[str, tuple[int, ...]]]
) -> None:
    """256 outputs by 512 inputs in each form."""
    _, form = form_of(Fields(config, "config.json"), "BF16", "", {})
    assert form is not None
    assert {name: (dtype, shape) for name, dtype, shape in form(256, 512)} == pieces


def test_bitsandbytes_nf4_bytes_a_parameter() -> None:
    _, form = form_of(Fields({"quant_method": "bitsandbytes", "load_in_4bit": True}, "x"), "BF16", "", {})
    assert form is not None
    held = sum(size_of(dtype, prod(shape)) for _, dtype, shape in form(8192, 8192))
    assert held / 8192**2 == pytest.approx(0.5159, abs=1e-4)


@pytest.mark.parametrize(
    ("entries", "name", "holds"),
    [
        (("lm_head",), "lm_head", True),
        (("lm_head",), "language_model.lm_head", True),
        (("lm_head",), "model.layers.0.mlp.up_proj", False),
        (("re:.*self_attn.*",), "model.layers.3.self_attn.o_proj", True),
        (("re:.*mlp\\.(gate|up|gate_up|down)_proj.*",), "model.layers.0.mlp.gate_proj", True),
        (("re:.*mlp\\.(gate|up|gate_up|down)_proj.*",), "model.layers.1.mlp.experts.0.gate_proj", False),
        (("model.layers.*.self_attn*",), "model.layers.7.self_attn.q_proj", True),
        (("model.layers.1",), "model.layers.1.mlp.up_proj", True),
        (("model.layers.1",), "model.layers.11.mlp.up_proj", False),
        (("re:(a+)+$",), "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab", False),
        (("re:[", "gate"), "model.layers.0.gate", True),
    ],
)
def test_ignore_lists(entries: tuple[str, ...], name: str, holds: bool) -> None:
    """As the loaders match them; a pattern that could take for ever, or is none, holds for nothing."""
    assert ignore_list(entries).holds(name) is holds


@pytest.mark.parametrize(
    ("name", "part", "split"),
    [
        ("model.embed_tokens.weight", "embedding", "vocabulary"),
        ("model.layers.61.shared_head.head.weight", "head", "vocabulary"),
        ("model.layers.0.self_attn.k_proj.weight", "attention", "kv_heads"),
        ("model.layers.0.self_attn.kv_a_proj_with_mqa.weight", "attention", "whole"),
        ("model.layers.0.self_attn.o_proj.bias", "attention", "whole"),
        ("model.layers.0.mlp.gate.weight", "router", "whole"),
        ("model.layers.0.mlp.experts.5.down_proj.weight", "experts", "rows"),
        ("model.layers.0.mlp.experts.gate_up_proj_bias", "experts", "columns"),
        ("model.layers.0.mlp.experts.down_proj_bias", "experts", "whole"),
        ("model.layers.0.mlp.shared_expert_gate.weight", "router", "whole"),
        ("model.layers.0.mlp.shared_experts.up_proj.weight", "shared experts", "columns"),
        ("model.layers.0.linear_attn.A_log", "linear attention", "columns"),
        ("model.layers.0.self_attn.indexer.wq_b.weight", "indexer", "whole"),
        ("model.layers.0.mlp.down_proj.g_idx", "mlp", "rows"),
        ("model.layers.0.mlp.up_proj.g_idx", "mlp", "whole"),
        ("visual.blocks.0.attn.proj.weight", "vision attention", "rows"),
        ("mm_projector.proj.2.weight", "projector", "whole"),
        ("something.nobody.knows", "other", "whole"),
    ],
)
def test_parts(name: str, part: str, split: str) -> None:
    found = part_of(name)
    assert (found.part, found.split) == (part, split)


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("Qwen3-8B-AWQ", "awq"), ("Qwen3-8B-GPTQ-Int8", "gptq"), ("Qwen3-8B-FP8", "fp8"),
        ("Llama-3.1-8B-Instruct-FP8-dynamic", "compressed-tensors"), ("Qwen3-8B-NVFP4", "modelopt"),
        ("Llama-3.1-8B-Instruct-quantized.w4a16", "compressed-tensors"),
        ("Llama-3.1-8B-unsloth-bnb-4bit", "bitsandbytes"),
    ],
)  # fmt: skip
def test_what_a_name_says(name: str, method: str) -> None:
    found = quantization_of(name, {})
    assert found is not None and found["quant_method"] == method


def test_names_that_say_nothing() -> None:
    assert quantization_of("Qwen3-8B", {}) is None
    assert gguf_of("DeepSeek-R1-Distill-Qwen-32B-Q4_K_M.gguf") == "Q4_K_M"
    assert gguf_of("Qwen3-8B") is None


def test_a_gguf_mix() -> None:
    """Published Q4_K_M of this model: 18.49 GiB."""
    found = find("bartowski/DeepSeek-R1-Distill-Qwen-32B-Q4_K_M.gguf")
    assert found is not None
    assert sum(map(num_bytes, of_model(found))) / 2**30 == pytest.approx(18.49, rel=0.01)


def test_a_folder_with_headers_brings_its_tensors(tmp_path: Path) -> None:
    """What the files hold wins over what the config implies."""
    head = b'{"model.layers.0.mlp.up_proj.weight":{"dtype":"BF16","shape":[4,8],"data_offsets":[0,64]}}'
    (tmp_path / "config.json").write_text(
        '{"model_type":"llama","num_hidden_layers":1,"hidden_size":8,"vocab_size":4}'
    )
    (tmp_path / "model.safetensors").write_bytes(len(head).to_bytes(8, "little") + head)
    held = of_model(from_directory(tmp_path))
    assert [(g.name, g.part, g.layers, num_bytes(g)) for g in held] == [
        ("model.layers.{}.mlp.up_proj.weight", "mlp", (0,), 64)
    ]


_sizes = st.one_of(
    st.integers(-2, 1 << 41), st.sampled_from([0, 1, 8, 64, 4096]), st.none(), st.floats(), st.text(max_size=3)
)
_keys = st.sampled_from([
    "num_hidden_layers", "hidden_size", "vocab_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim",
    "num_experts", "n_routed_experts", "moe_intermediate_size", "kv_lora_rank", "q_lora_rank", "first_k_dense_replace", "layer_types",
    "moe_layer_freq", "hybrid_override_pattern", "quantization_config", "vision_config", "tie_word_embeddings", "mlp_only_layers",
    "num_nextn_predict_layers", "index_n_heads", "index_head_dim", "linear_attn_config",
])  # fmt: skip
_values = st.one_of(_sizes, st.lists(_sizes, max_size=4), st.dictionaries(st.sampled_from(["quant_method", "bits", "group_size", "ignore", "depth", "patch_size", "hidden_size"]), st.one_of(_sizes, st.sampled_from(["awq", "fp8", "gptq", "compressed-tensors"]), st.lists(st.text(max_size=9), max_size=2)), max_size=4))  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(st.sampled_from([*FAMILIES, "nobody_knows"]), st.dictionaries(_keys, _values, max_size=12))
def test_any_config(kind: str, config: dict[str, object]) -> None:
    """Groups, or an InputError that names the key; never another error."""
    try:
        held = groups({"model_type": kind, **config})
    except InputError:
        return
    assert all(size >= 0 for size in map(num_bytes, held))
