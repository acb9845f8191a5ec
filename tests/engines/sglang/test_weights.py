"""Weights of a rank by the tensors and the sharding rules, against what public logs print."""

from __future__ import annotations

from time import perf_counter
from typing import Any

import pytest
from msgspec.structs import replace

from tests.engines.loads import Loads
from ullage.core.deployment import Deployment
from ullage.core.launch import Launch
from ullage.core.machine import Gpu, Machine
from ullage.core.units import GIB
from ullage.engines.runtime.loading import groups_of
from ullage.engines.sglang.faults import faults
from ullage.engines.sglang.layout import Layout, cuts_of, layout, stages_of
from ullage.engines.sglang.weights import draft_weights, fullest, load_peak, rank_bytes, weights
from ullage.models.catalogue import find

LOADS = Loads("sglang", __file__)
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


def test_the_founding_case() -> None:
    """71.71 GiB by the rule; 72.30 seen, which the band covers."""
    made = deployment(KIMI, "0.5.9", tp_size=8)
    assert rule_gib(made) == pytest.approx(71.714, abs=0.001)
    parts = ledger(made)
    assert parts["experts"] == pytest.approx(66.446, abs=0.001)
    assert parts["absorbed MLA copies"] == pytest.approx(0.119, abs=0.001)
    assert parts["vision"] + parts["vision attention"] + parts["projector"] == pytest.approx(0.644, abs=0.001)
    band = weights(made)
    assert band is not None and band.low <= 72.30 * GIB <= band.high
    assert band.value == pytest.approx(72.30 * GIB, rel=0.01)


def test_dp_attention() -> None:
    """tp 4, dp 4, ep 4: attention and embedding whole, the head over all ranks unless it is asked for."""
    given = {"tp_size": 4, "dp_size": 4, "ep_size": 4, "enable_dp_attention": True}
    model = "Qwen/Qwen3-30B-A3B"
    plain = ledger(deployment(model, tp_size=4))
    spread = ledger(deployment(model, **given))
    assert spread["experts"] == plain["experts"]
    assert spread["embedding"] == pytest.approx(4 * plain["embedding"])
    assert spread["head"] == plain["head"]
    assert rule_gib(deployment(model, **given, enable_dp_lm_head=True)) == pytest.approx(16.37, abs=0.01)
    old = ledger(deployment(model, "0.5.7", **{**given, "dp_size": 2}))
    assert old["embedding"] == spread["embedding"]  # whole before 0.5.8, over tp / dp ranks since
    assert ledger(deployment(model, "0.5.9", **{**given, "dp_size": 2}))["embedding"] == spread["embedding"] / 2


def test_shared_experts_stay_whole_with_an_all_to_all_back_end() -> None:
    model = "deepseek-ai/DeepSeek-V3"
    plain, spread = (
        ledger(deployment(model, tp_size=8)),
        ledger(deployment(model, tp_size=8, moe_a2a_backend="deepep")),
    )
    assert spread["shared experts"] == pytest.approx(8 * plain["shared experts"], rel=1e-4)
    assert spread["experts"] == pytest.approx(plain["experts"], rel=1e-4)


@pytest.mark.parametrize(
    ("version", "counts"),
    [("0.4.6.post5", [20, 20, 22]), ("0.5.5", [20, 20, 22]), ("0.5.6", [20, 21, 21]), (None, [20, 21, 21])],
)
def test_pipeline_stages(version: str | None, counts: list[int]) -> None:
    at = layout(deployment(KIMI, version, tp_size=8, pp_size=3))
    assert [stage.num_layers for stage in stages_of(62, at)] == counts


def test_stages_add_up() -> None:
    """All stages of a pipeline hold what one holds without it; replicated per stage is nothing here."""
    made = deployment("Qwen/Qwen3-32B", tp_size=2, pp_size=4)
    assert made.model is not None
    at = layout(made)
    held = sum(
        size
        for stage in stages_of(64, at)
        for _, size in rank_bytes(groups_of(made.model), made.model, at, stage)
    )
    assert held / GIB == pytest.approx(rule_gib(deployment("Qwen/Qwen3-32B", tp_size=2)))


@pytest.mark.parametrize(
    ("model", "given", "kept", "loaded"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", {"speculative_algorithm": "EAGLE3", "speculative_draft_model_path": "lmsys/sglang-EAGLE3-LLaMA3.1-Instruct-8B"}, 0.791, 2.21),
        ("moonshotai/Kimi-K2.6", {"speculative_algorithm": "EAGLE3", "speculative_draft_model_path": "lightseekorg/kimi-k2.6-eagle3"}, 3.732, 6.0),
        ("deepseek-ai/DeepSeek-V3", {"speculative_algorithm": "EAGLE", "tp_size": 8}, 1.551, 2.3),
    ],
)  # fmt: skip
def test_drafts(model: str, given: dict[str, Any], kept: float, loaded: float) -> None:
    """What stays, and a limit that covers what the draft's own load prints."""
    band = draft_weights(deployment(model, "0.5.9", **given))
    assert band is not None
    assert band.low / GIB == pytest.approx(kept, abs=0.002)
    assert band.low <= loaded * GIB <= band.high


def test_no_draft() -> None:
    assert draft_weights(deployment(KIMI, tp_size=8)) is None
    assert draft_weights(deployment(KIMI, tp_size=8, speculative_algorithm="NGRAM")) is None
    assert (
        draft_weights(
            deployment(KIMI, tp_size=8, speculative_algorithm="EAGLE3", speculative_draft_model_path="/no/such")
        )
        is None
    )


def test_compressed_attention() -> None:
    """DeepSeek-V4-Flash-Base (FP8) on 8 H20: 93.61 - 57.01 = 36.60 GiB; the FP4 experts take half."""
    band = weights(deployment("deepseek-ai/DeepSeek-V4-Flash-Base", tp_size=8))
    assert band is not None and band.low <= 36.60 * GIB <= band.high
    halved = ledger(deployment("deepseek-ai/DeepSeek-V4-Flash", tp_size=8))
    assert (
        halved["experts"] / ledger(deployment("deepseek-ai/DeepSeek-V4-Flash-Base", tp_size=8))["experts"]
        < 0.54
    )


def test_experts_on_the_host() -> None:
    """KTransformers with 32 of 128 experts on the GPU: 16.41 GiB printed."""
    made = deployment("Qwen/Qwen3-30B-A3B", kt_method="AMXINT8", kt_weight_path="x", kt_num_gpu_experts=32)
    band = weights(made)
    assert band is not None and band.value / GIB == pytest.approx(16.41, rel=0.02)
    given = {"kt_method": "AMXINT8", "kt_weight_path": "x", "kt_num_gpu_experts": 0}
    assert "experts" not in ledger(deployment("Qwen/Qwen3-30B-A3B", **given))


def test_a_draft_that_loads_first_counts_before_the_pool() -> None:
    """From 0.5.14 on the draft's weights come off the free memory that the pool is sized from."""
    from ullage.engines.sglang.known import known

    given = {
        "tp_size": 8,
        "speculative_algorithm": "EAGLE3",
        "speculative_draft_model_path": "lightseekorg/kimi-k2.5-eagle3-mla",
    }
    gpu = Machine(Gpu("a GPU", total_bytes=96 * 2**30))
    free = {}
    for version in ("0.5.9", "0.5.14"):
        made = replace(deployment(KIMI, version, **given), machine=gpu)
        found = known(made).free
        assert found is not None
        free[version] = found.value
    draft = draft_weights(deployment(KIMI, "0.5.14", **given))
    assert draft is not None
    assert free["0.5.9"] - free["0.5.14"] == pytest.approx(draft.value)


def test_faults() -> None:
    model = "Qwen/Qwen3-235B-A22B-FP8"
    assert (
        "The output_size of gate's and up's weight = 192 is not divisible by weight quantization block_n = 128."
        in faults(deployment(model, tp_size=8))
    )
    assert faults(deployment(model, tp_size=8, ep_size=8)) == ()
    assert faults(deployment(model, tp_size=4)) == ()
    assert faults(deployment(KIMI, tp_size=8)) == ()
    assert any("expert-parallel" in text for text in faults(deployment(model, tp_size=8, ep_size=3)))
    assert any("attention heads" in text for text in faults(deployment("Qwen/Qwen3-8B", tp_size=6)))


def test_language_only_leaves_the_tower_out() -> None:
    parts = ledger(deployment(KIMI, tp_size=8, language_only=True))
    assert "vision" not in parts and "projector" not in parts


def test_mxfp4_pads_on_data_centre_blackwell() -> None:
    row = {"capability": [10, 0]}
    padded = rule_gib(deployment("openai/gpt-oss-120b", "0.5.9", row, tp_size=1))
    plain = rule_gib(deployment("openai/gpt-oss-120b", "0.5.9", {"capability": [8, 0]}, tp_size=1))
    assert plain == pytest.approx(60.77, abs=0.01)
    assert 1.05 < padded / plain < 1.15


def test_loading_takes_a_copy_of_one_layers_experts() -> None:
    """Gate and up of 384 experts of Kimi on one of 8 ranks: 0.66 GiB; nothing where nothing is rewritten."""
    band = load_peak(deployment(KIMI, tp_size=8))
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
    at = Layout(tp=8, attn_tp=8)
    keys = next(g for g in groups_of(model) if g.name.endswith("k_proj.weight"))
    from ullage.engines.runtime.shards import one

    assert one(keys, cuts_of(model, at)) == 4096 * 128 * 2


def test_what_is_not_known_has_no_answer() -> None:
    assert weights(Deployment(Launch("sglang"))) is None
    assert weights(deployment("google/gemma-3n-E4B-it")) is None
    assert faults(Deployment(Launch("sglang"))) == ()


@pytest.mark.parametrize("value", [-1, 0, 3, 10**12, 1e300, float("nan"), "8", True, None])
def test_absurd_sizes(value: Any) -> None:
    for name in ("tp_size", "pp_size", "dp_size", "ep_size", "moe_dense_tp_size", "ep_num_redundant_experts"):
        made = deployment("openai/gpt-oss-20b", **{name: value})
        band = weights(made)
        assert band is not None and band.low + GIB >= 0 and band.low <= band.value <= band.high
        faults(made)


def test_a_rank_of_kimi_in_milliseconds() -> None:
    made = deployment(KIMI, tp_size=8)
    assert made.model is not None
    held, at = groups_of(made.model), layout(made)
    stage = stages_of(61, at)[0]
    times = []
    for _ in range(5):
        begun = perf_counter()
        rank_bytes(held, made.model, at, stage)
        times.append(perf_counter() - begun)
    assert min(times) < 0.003


def test_a_default_does_not_send_the_experts_to_the_host() -> None:
    """kt_method has the default AMXINT4; only kt_weight_path turns the host's experts on."""
    from ullage.core.run import Run
    from ullage.engines.base import Hints
    from ullage.engines.sglang import ENGINE
    from ullage.engines.sglang.weights import weights

    command = (
        "python3 -m sglang.launch_server --model-path moonshotai/Kimi-K2.5 --tp 8 --mem-fraction-static 0.55"
    )
    deployment = ENGINE.deployment(Run("sglang"), Hints(launch=ENGINE.parse(command, "0.5.9"), version="0.5.9"))
    band = weights(deployment)
    assert band is not None
    assert 71 < band.value / (1 << 30) < 74
