"""config.json -> Model: the families, and that nothing but a Model or an InputError ever comes back."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ullage.core.errors import InputError
from ullage.core.model import Model
from ullage.models.attention import (
    count_kinds,
    dtype_bytes,
    elements_per_token,
    elements_per_token_of,
    state_elements,
)
from ullage.models.config import from_config

LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072,
}  # fmt: skip
MLA = {
    "model_type": "deepseek_v3",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
}


def model(config: dict[str, object], **side: object) -> Model:
    return from_config(config, id="m", source="config.json", side=dict(side) or None)


def kinds(**config: object) -> str:
    """One letter a layer: f full, s sliding, c chunked, m mla, l linear, n none, h shared."""
    letters = {"shared": "h", "compressed": "k"}
    base = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
    return "".join(letters.get(layer.kind, layer.kind[0]) for layer in model({**base, **config}).layers)


def test_grouped_query_attention() -> None:
    found = model(LLAMA)
    assert {layer.head_dim for layer in found.layers} == {128}
    assert 2 * elements_per_token_of(found) == 131072
    assert (found.architecture, found.max_context, found.quantization) == ("LlamaForCausalLM", 131072, "")


def test_head_dim_of_the_config_wins_over_the_derived_one() -> None:
    assert elements_per_token(model({**LLAMA, "head_dim": 64}).layers[0]) == 8 * 2 * 64
    assert elements_per_token(model({**LLAMA, "head_dim": None}).layers[0]) == 8 * 2 * 128


def test_values_narrower_than_keys() -> None:
    assert elements_per_token(model({**LLAMA, "head_dim": 192, "v_head_dim": 128}).layers[0]) == 8 * (192 + 128)


def test_mla_is_one_latent_whatever_the_heads() -> None:
    layer = model({**MLA, "num_attention_heads": 128, "index_head_dim": 128}).layers[0]
    assert (elements_per_token(layer), layer.index_dim) == (576, 128)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"model_type": "gemma2", "num_hidden_layers": 4, "sliding_window": 4096}, "sfsf"),
        ({"model_type": "gemma3_text", "num_hidden_layers": 12, "sliding_window_pattern": 6, "sliding_window": 9}, "sssssfsssssf"),
        ({"model_type": "gemma3_text", "num_hidden_layers": 6}, "sssssf"),
        ({"model_type": "gemma3n_text", "num_hidden_layers": 10, "num_kv_shared_layers": 5}, "ssssfhhhhh"),
        ({"model_type": "gemma4_text", "num_hidden_layers": 8}, "sssssfsf"),
        ({"model_type": "gpt_oss", "num_hidden_layers": 4, "sliding_window": 128}, "sfsf"),
        ({"model_type": "llama4_text", "num_hidden_layers": 8, "attention_chunk_size": 8192}, "cccfcccf"),
        ({"model_type": "llama4_text", "num_hidden_layers": 4, "no_rope_layers": [1, 1, 0, 1]}, "ccfc"),
        ({"model_type": "mimo_v2_flash", "num_hidden_layers": 7, "sliding_window_size": 128}, "fssssfs"),
        ({"model_type": "x", "num_hidden_layers": 3, "hybrid_layer_pattern": [0, 1, 1], "sliding_window": 8}, "fss"),
        ({"model_type": "mistral", "num_hidden_layers": 2, "sliding_window": 4096}, "ss"),
        ({"model_type": "mistral", "num_hidden_layers": 2, "sliding_window": None}, "ff"),
        ({"model_type": "qwen2", "num_hidden_layers": 3, "sliding_window": 4096}, "fff"),
        ({"model_type": "qwen2", "num_hidden_layers": 3, "sliding_window": 9, "use_sliding_window": True, "max_window_layers": 1}, "fss"),
        ({"model_type": "exaone4", "num_hidden_layers": 4, "sliding_window": 9, "sliding_window_pattern": "LLLG"}, "sssf"),
        ({"model_type": "cohere2", "num_hidden_layers": 4}, "sssf"),
        ({"model_type": "qwen3_next", "num_hidden_layers": 8}, "lllflllf"),
        ({"model_type": "jamba", "num_hidden_layers": 8}, "llllflll"),
        ({"model_type": "bamba", "num_hidden_layers": 4, "attn_layer_indices": [2]}, "llfl"),
        ({"model_type": "lfm2", "num_hidden_layers": 4, "full_attn_idxs": [1, 3]}, "lflf"),
        ({"model_type": "lfm2", "num_hidden_layers": 2, "layer_types": ["conv", "full_attention"]}, "lf"),
        ({"model_type": "nemotron_h", "num_hidden_layers": 5, "hybrid_override_pattern": "M-M*E"}, "lnlfn"),
        ({"model_type": "nemotron_h", "hybrid_override_pattern": "M*"}, "lf"),
        ({"model_type": "falcon_h1", "num_hidden_layers": 2}, "ff"),
        ({"model_type": "step3p5", "num_hidden_layers": 2, "sliding_window": 9, "layer_types": ["full_attention", "sliding_attention", "full_attention"]}, "fs"),
        ({"model_type": "a_new_one", "num_hidden_layers": 2}, "ff"),
        ({"model_type": "a_new_one", "num_hidden_layers": 2, "sliding_window": 4096}, ""),
        ({"model_type": "a_new_one", "num_hidden_layers": 1, "layer_types": ["never_seen"]}, ""),
        ({"model_type": "minimax_text_01", "num_hidden_layers": 2, "attn_type_list": [0, 1]}, "lf"),
    ],
)  # fmt: skip
def test_the_order_of_layers(config: dict[str, object], expected: str) -> None:
    assert kinds(**config) == expected


def test_kimi_linear_counts_its_layers_from_one() -> None:
    inner = {
        "full_attn_layers": [2],
        "kda_layers": [1, 3],
        "head_dim": 128,
        "num_heads": 32,
        "short_conv_kernel_size": 4,
    }
    found = model({**MLA, "model_type": "kimi_linear", "num_hidden_layers": 3, "linear_attn_config": inner})
    assert [layer.kind for layer in found.layers] == ["linear", "mla", "linear"]
    assert state_elements(found.layers[0]) == (3 * 4096 * 3, 32 * 128 * 128)


def test_a_recurrent_mixer_beside_attention_keeps_both() -> None:
    layer = model({**LLAMA, "model_type": "falcon_h1", "num_hidden_layers": 1, "mamba_d_head": "auto"}).layers[
        0
    ]
    assert layer.kind == "full"
    assert state_elements(layer) == ((1024 + 2 * 256) * 3, 1024 * 256)


def test_deepseek_v4_keeps_compressed_latents() -> None:
    found = model({"model_type": "deepseek_v4", "num_hidden_layers": 2, "hidden_size": 9, "head_dim": 512,
                   "sliding_window": 128, "compress_ratios": [4, 128], "index_head_dim": 128})  # fmt: skip
    assert [(layer.kind, layer.compress_ratio, layer.index_dim) for layer in found.layers] == [
        ("compressed", 4, 128), ("compressed", 128, 0),
    ]  # fmt: skip


def test_a_nemotron_with_blocks_that_do_not_attend() -> None:
    blocks = [{"attention": {"n_heads_in_group": 8}}, {"attention": {"no_op": True}}]
    found = model({**LLAMA, "model_type": "nemotron-nas", "num_hidden_layers": 2, "block_configs": blocks})
    assert count_kinds(found) == {"full": 1, "none": 1}
    assert found.layers[0].kv_heads == 4


def test_a_vision_wrapper_is_read_through() -> None:
    found = model({
        "architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "torch_dtype": "bfloat16",
        "text_config": {"num_hidden_layers": 34, "hidden_size": 2560, "model_type": "gemma3_text"},
        "vision_config": {"num_hidden_layers": 27, "hidden_size": 1152},
    })  # fmt: skip
    assert found.vision is not None
    assert (found.vision.num_hidden_layers, found.vision.hidden_size) == (27, 1152)
    assert (found.num_heads, found.layers[0].kv_heads, found.tied_embeddings, found.dtype) == (
        8,
        4,
        True,
        "bfloat16",
    )


def test_a_tower_that_names_its_depth_otherwise_has_no_num_hidden_layers() -> None:
    found = model({**LLAMA, "vision_config": {"depth": 27, "vt_num_hidden_layers": 27, "hidden_size": 1152}})
    assert found.vision is not None
    assert found.vision.num_hidden_layers is None


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, ("fp8 block 128x128", None)),
        ({"quant_method": "fp8", "weight_block_size": None}, ("fp8", None)),
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, ("awq 4", None)),
        ({"quant_method": "gptq", "bits": 8}, ("gptq 8", None)),
        ({"quant_method": "mxfp4"}, ("mxfp4", None)),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, ("bitsandbytes 4", None)),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "kv_cache_scheme": {"num_bits": 8, "type": "float"}}, ("modelopt nvfp4", "fp8")),
        ({"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {"num_bits": 4, "type": "int"}}}}, ("compressed-tensors w4a16", None)),
        ({"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {"num_bits": 8, "type": "float"}, "input_activations": {"num_bits": 8}}}}, ("compressed-tensors fp8", None)),
        ({"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {"num_bits": 4, "type": "float", "group_size": 16}}}}, ("compressed-tensors nvfp4", None)),
        ({"quant_method": "new_one"}, ("new_one", None)),
    ],
)  # fmt: skip
def test_quantisation_in_words(config: dict[str, object], expected: tuple[str, str | None]) -> None:
    found = model({**LLAMA, "quantization_config": config})
    assert (found.quantization, found.kv_quantization) == expected


def test_the_side_file_of_modelopt() -> None:
    found = model(LLAMA, quantization={"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"})
    assert (found.quantization, found.kv_quantization) == ("modelopt fp8", "fp8")


@pytest.mark.parametrize(
    ("rope", "expected"),
    [
        ({"rope_type": "linear", "factor": 4.0}, 4 * 131072),
        ({"type": "dynamic", "factor": 2}, 2 * 131072),
        ({"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096}, 131072),
        ({"rope_type": "llama3", "factor": 8.0}, 131072),
        ({"type": "mrope", "mrope_section": [16, 24, 24]}, 131072),
        (None, 131072),
    ],
)
def test_the_context_that_a_rope_factor_makes(rope: object, expected: int) -> None:
    assert model({**LLAMA, "rope_scaling": rope}).max_context == expected


def test_an_eagle_head() -> None:
    head = {"architectures": ["LlamaForCausalLMEagle3"], "num_hidden_layers": 1, "hidden_size": 7168,
            "num_attention_heads": 64, "num_key_value_heads": 64, "head_dim": 128, "draft_vocab_size": 32000}  # fmt: skip
    assert 2 * elements_per_token_of(model(head)) == 32768
    nested = {
        "architectures": ["Eagle3Speculator"],
        "transformer_layer_config": head,
        "speculators_model_type": "eagle3",
    }
    assert 2 * elements_per_token_of(model(nested)) == 32768


@pytest.mark.parametrize(
    ("config", "place"),
    [
        ({"num_hidden_layers": "x"}, "num_hidden_layers"),
        ({"num_hidden_layers": 10**30}, "num_hidden_layers"),
        ({"num_hidden_layers": -1}, "num_hidden_layers"),
        ({"num_hidden_layers": True}, "num_hidden_layers"),
        ({"hidden_size": float("nan")}, "hidden_size"),
        ({"text_config": {"hidden_size": [], "num_hidden_layers": 2}}, "text_config.hidden_size"),
        ({"quantization_config": 4}, "quantization_config"),
        ({"quantization_config": {"quant_method": []}}, "quantization_config.quant_method"),
        ({"layer_types": ["full_attention"]}, "layer_types"),
        ({"rope_scaling": {"type": "linear", "factor": float("inf")}}, "factor"),
        ({"architectures": "LlamaForCausalLM"}, "architectures"),
    ],
)
def test_a_wrong_value_is_named_with_its_place(config: dict[str, object], place: str) -> None:
    with pytest.raises(InputError) as caught:
        model({**LLAMA, **config})
    assert caught.value.line.startswith("config.json: ")
    assert place in caught.value.line
    assert len(caught.value.line) < 300


def test_a_config_of_another_kind() -> None:
    for config in ({}, {"scheduler": "ddim"}, {"model_type": "llama"}):
        with pytest.raises(InputError):
            model(dict(config))
    with pytest.raises(InputError):
        from_config([1, 2], id="m", source="s")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("torch.bfloat16", 2), ("bfloat16", 2), ("BF16", 2), ("float16", 2), ("half", 2), ("torch.float32", 4),
        ("fp8_e4m3", 1), ("torch.float8_e4m3fn", 1), ("F8_E4M3", 1), ("fp8", 1), ("auto", None), (None, None),
        ("", None), ("fp8_ds_mla", None),
    ],
)  # fmt: skip
def test_bytes_of_a_dtype(name: str | None, expected: float | None) -> None:
    assert dtype_bytes(name) == expected


KEYS = (
    "model_type", "architectures", "num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads",
    "head_dim", "v_head_dim", "kv_lora_rank", "qk_rope_head_dim", "index_head_dim", "layer_types", "sliding_window",
    "sliding_window_pattern", "use_sliding_window", "hybrid_override_pattern", "hybrid_layer_pattern", "mamba_n_heads",
    "linear_num_value_heads", "linear_attn_config", "compress_ratios", "num_kv_shared_layers", "block_configs",
    "attn_layer_period", "full_attention_interval", "rope_scaling", "max_position_embeddings", "quantization_config",
    "text_config", "vision_config", "torch_dtype", "sparse_attention_config", "attention_other_setting", "model",
    "no_rope_layers", "attention_chunk_size", "conv_L_cache", "mamba_expand", "tie_word_embeddings", "thinker_config",
)  # fmt: skip
TYPES = (
    "llama",
    "gemma3_text",
    "gemma4",
    "llama4",
    "qwen3_next",
    "nemotron_h",
    "falcon_h1",
    "mistral",
    "eagle",
)
leaves = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 300), st.integers(), st.floats(), st.text(max_size=6),
    st.sampled_from([*TYPES, "full_attention", "sliding_attention", "M*-", "awq", "compressed-tensors"]),
)  # fmt: skip
values = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=5), st.dictionaries(st.sampled_from(KEYS), inner, max_size=6)
    ),
    max_leaves=12,
)


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=5), values, max_size=14))
def test_any_json_gives_a_model_or_an_input_error(config: dict[str, object]) -> None:
    try:
        found = model(config)
    except InputError as error:
        assert len(error.line) < 500
    else:
        assert isinstance(found, Model)
        assert elements_per_token_of(found) >= 0


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(KEYS), values)
def test_any_value_of_one_key_of_a_good_config(key: str, value: object) -> None:
    try:
        assert isinstance(model({**LLAMA, key: value}), Model)
    except InputError as error:
        assert json.dumps(error.line)
