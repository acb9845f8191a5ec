"""Weights of a rank by the tensors and the sharding rules, against what public logs print."""

from __future__ import annotations

from time import perf_counter
from typing import Any

import pytest

from tests.engines.loads import Loads
from ullage.core.deployment import Deployment
from ullage.core.launch import Launch
from ullage.core.units import GIB
from ullage.engines.runtime.loading import groups_of
from ullage.engines.vllm.faults import faults
from ullage.engines.vllm.layout import Layout, cuts_of, layout, stages_of
from ullage.engines.vllm.load_peak import load_peak
from ullage.engines.vllm.weights import draft_weights, fullest, rank_bytes, weights
from ullage.models.catalogue import find

LOADS = Loads("vllm", __file__)
deployment = LOADS.deployment


def ledger(made: Deployment) -> dict[str, float]:
    """GiB by part on the fullest rank."""
    assert made.model is not None
    return {part: size / GIB for part, size in fullest(made.model, layout(made)) or []}


def rule_gib(made: Deployment) -> float:
    return sum(ledger(made).values())


def test_every_row_has_an_answer() -> None:
    LOADS.check_every_row_has_an_answer(weights)


def test_public_loads_of_known_checkpoints() -> None:
    LOADS.check_known_checkpoints(weights)


def test_public_loads_of_variants() -> None:
    LOADS.check_variants(weights)


KIMI = "moonshotai/Kimi-K2.5"


@pytest.mark.parametrize(
    ("model", "given", "gib"),
    [
        ("deepseek-ai/DeepSeek-V3", {"tensor_parallel_size": 16}, 40.296),
        ("MiniMaxAI/MiniMax-M2.5", {"tensor_parallel_size": 4}, 53.717),
        ("Qwen/Qwen3-235B-A22B-FP8", {"tensor_parallel_size": 4}, 55.122),
        ("Qwen/Qwen3.8-27B", {}, 50.956),
        ("meta-llama/Llama-3.1-8B-Instruct", {}, 14.958),
    ],
)
def test_the_rule(model: str, given: dict[str, Any], gib: float) -> None:
    """GiB of tensors on one rank, without the MTP layer."""
    assert rule_gib(deployment(model, **given)) == pytest.approx(gib, abs=0.001)


@pytest.mark.parametrize("row", [row for row in LOADS.rows if "stage" in row], ids=lambda row: row["model"])
def test_the_first_stage_of_a_pipeline(row: dict[str, Any]) -> None:
    """DeepSeek-R1 in 0.7.4 needs the products of the first latent attention (W_Q_UK, W_UV_O) to come within 2 %."""
    made = LOADS.of_row(row)
    assert made.model is not None
    at = layout(made)
    stage = stages_of(made.model.num_layers, at)[row["stage"]]
    held = sum(size for _, size in rank_bytes(groups_of(made.model), made.model, at, stage))
    assert held / GIB == pytest.approx(row["gib"], rel=0.02 if "guessed" not in row else 0.12)


@pytest.mark.parametrize(
    ("capability", "version", "gib"),
    [
        ([8, 0], "0.16.0", 65.897),
        ([9, 0], "0.14.1", 64.327),
        ([9, 0], "0.10.1", 65.897),
        ([12, 0], "0.16.0", 65.897),
    ],
)
def test_mxfp4_pads_by_the_kernel(capability: list[int], version: str, gib: float) -> None:
    """gpt-oss-120b: Marlin 65.90 (65.97 printed), Triton on Hopper 64.33 (64.38 printed)."""
    made = deployment("openai/gpt-oss-120b", version, {"capability": capability})
    assert rule_gib(made) == pytest.approx(gib, abs=0.002)


def test_data_parallel_and_expert_parallel() -> None:
    """Attention is whole on each data-parallel rank; experts go over all, cut or whole."""
    model = "Qwen/Qwen3-30B-A3B"
    one = ledger(deployment(model))
    cut = ledger(deployment(model, data_parallel_size=4))
    spread = ledger(deployment(model, data_parallel_size=4, enable_expert_parallel=True))
    assert cut["attention"] == one["attention"]
    assert cut["experts"] == spread["experts"] == one["experts"] / 4


@pytest.mark.parametrize(
    ("version", "counts"),
    [("0.6.4", [20, 20, 22]), ("0.7.3", [20, 20, 22]), ("0.8.5", [21, 21, 20]), (None, [21, 21, 20])],
)
def test_pipeline_stages(version: str | None, counts: list[int]) -> None:
    at = layout(deployment(KIMI, version, pipeline_parallel_size=3))
    assert [stage.num_layers for stage in stages_of(62, at)] == counts


def test_drafts() -> None:
    """Qwen3.8-27B: 51.89 with its MTP layer, 51.10 without."""
    made = deployment("Qwen/Qwen3.8-27B", speculative_config={"method": "mtp", "num_speculative_tokens": 1})
    band = draft_weights(made)
    assert band is not None and band.value / GIB == pytest.approx(0.79, abs=0.01)
    assert draft_weights(deployment("Qwen/Qwen3.8-27B")) is None
    head = {"model": "RedHatAI/Qwen3-8B-speculator.eagle3", "method": "eagle3", "num_speculative_tokens": 3}
    band = draft_weights(deployment("Qwen/Qwen3-8B", speculative_config=head))
    assert band is not None and band.low < 2044115328 <= band.high


def test_offloaded_weights_come_off() -> None:
    whole, less = weights(deployment("Qwen/Qwen3-8B")), weights(deployment("Qwen/Qwen3-8B", cpu_offload_gb=5))
    assert whole is not None and less is not None
    assert (whole.value - less.value) / GIB == pytest.approx(5, rel=0.01)


def test_lora_slots_are_part_of_the_load() -> None:
    plain = weights(deployment("Qwen/Qwen3-8B"))
    slots = weights(deployment("Qwen/Qwen3-8B", enable_lora=True, max_loras=4, max_lora_rank=64))
    assert plain is not None and slots is not None and 1.0 < (slots.value - plain.value) / GIB < 1.6


def test_faults() -> None:
    model = "Qwen/Qwen3-235B-A22B-FP8"
    assert (
        "The output_size of gate's and up's weight = 192 is not divisible by weight quantization block_n = 128."
        in faults(deployment(model, tensor_parallel_size=8))
    )
    assert faults(deployment(model, tensor_parallel_size=8, enable_expert_parallel=True)) == ()
    assert faults(deployment("Qwen/Qwen3-8B", tensor_parallel_size=6))[0] == (
        "Total number of attention heads (32) must be divisible by tensor parallel size (6)."
    )


def test_loading_takes_a_copy_of_one_layers_experts() -> None:
    """Gate and up of 384 experts of Kimi on one of 8 ranks: 0.66 GiB; nothing where nothing is rewritten."""
    band = load_peak(deployment(KIMI, tensor_parallel_size=8))
    assert band is not None and band.value / GIB == pytest.approx(0.656, abs=0.001)
    plain = load_peak(deployment("Qwen/Qwen3-8B"))
    assert plain is not None and plain.value == 0


def test_quantised_while_loading() -> None:
    """--quantization fp8 halves the linear layers of a 16-bit checkpoint; embedding and head stay."""
    whole, halved = ledger(deployment("Qwen/Qwen3-8B")), ledger(deployment("Qwen/Qwen3-8B", quantization="fp8"))
    assert halved["mlp"] == whole["mlp"] / 2
    assert halved["embedding"] == whole["embedding"]


def test_a_tied_embedding_counts_once() -> None:
    assert "head" not in ledger(deployment("Qwen/Qwen3-0.6B"))  # its files hold the head once more
    assert rule_gib(deployment("Qwen/Qwen3-0.6B")) == pytest.approx(1.11, abs=0.01)


def test_kv_heads_are_repeated_where_there_are_more_ranks() -> None:
    """4 KV heads on 8 ranks: each holds one."""
    model = find("Qwen/Qwen3-235B-A22B")
    assert model is not None
    at = Layout(tp=8)
    keys = next(g for g in groups_of(model) if g.name.endswith("k_proj.weight"))
    from ullage.engines.runtime.shards import one

    assert one(keys, cuts_of(model, at)) == 4096 * 128 * 2


def test_what_is_not_known_has_no_answer() -> None:
    assert weights(Deployment(Launch("vllm"))) is None
    assert weights(deployment("google/gemma-3n-E4B-it")) is None
    assert faults(Deployment(Launch("vllm"))) == ()


@pytest.mark.parametrize("value", [-1, 0, 3, 10**12, 1e300, float("nan"), "8", True, None])
def test_absurd_sizes(value: Any) -> None:
    for name in (
        "tensor_parallel_size",
        "pipeline_parallel_size",
        "data_parallel_size",
        "cpu_offload_gb",
        "max_loras",
    ):
        made = deployment("openai/gpt-oss-20b", **{name: value})
        band = weights(made)
        assert band is not None and band.low + GIB >= 0 and band.low <= band.value <= band.high
        faults(made)


def test_a_rank_of_kimi_in_milliseconds() -> None:
    made = deployment(KIMI, tensor_parallel_size=8)
    assert made.model is not None
    held, at = groups_of(made.model), layout(made)
    stage = stages_of(61, at)[0]
    times = []
    for _ in range(5):
        begun = perf_counter()
        rank_bytes(held, made.model, at, stage)
        times.append(perf_counter() - begun)
    assert min(times) < 0.003


@pytest.mark.parametrize(("version", "factor"), [("0.12.0", 1.0), ("0.13.0", 2.0), ("0.16.0", 0.025)])
def test_online_fp8_holds_the_16_bit_weights_while_loading(version: str, factor: float) -> None:
    """Qwen2.5-72B: FP8 saves 65.4 GiB of its linear layers (vllm-project/vllm#31273: 0.12.0 loads, 0.13.0 does not)."""
    made = deployment("Qwen/Qwen2.5-72B-Instruct", version=version, quantization="fp8")
    peak = load_peak(made)
    assert peak is not None
    assert peak.value / GIB == pytest.approx(65.39 * factor, rel=0.02)
