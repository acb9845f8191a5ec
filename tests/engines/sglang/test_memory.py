"""The founding case in figures, and the laws of the arithmetic. Integers of the engine itself: tests/oracle."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ullage.core.deployment import Deployment, Reading
from ullage.core.launch import Arg, Launch, Value
from ullage.core.machine import Gpu, Machine
from ullage.core.model import Layer, LinearState, Model, Vision
from ullage.core.run import Failure, Rank, Run, Source, Stage
from ullage.core.units import GIB, MIB, Measured
from ullage.engines.sglang import memory
from ullage.engines.sglang.weights_by_shape import weights_by_shape
from ullage.models.catalogue import find

KIMI = Model(
    id="Kimi-K2.5", source="test", architecture="KimiK25ForConditionalGeneration", num_layers=61, hidden_size=7168,
    num_heads=64, vocab_size=163840, max_context=262144, dtype="bfloat16", experts_per_token=8,
    moe_intermediate_size=2048, layers=(Layer("mla", kv_lora_rank=512, rope_dim=64),) * 61, vision=Vision(),
)  # fmt: skip
LLAMA = Model(
    id="Llama-3.1-8B", source="test", architecture="LlamaForCausalLM", num_layers=32, hidden_size=4096, num_heads=32,
    intermediate_size=14336, vocab_size=128256, max_context=131072, dtype="bfloat16",
    layers=(Layer("full", kv_heads=8, head_dim=128, v_head_dim=128),) * 32,
)  # fmt: skip
RTX_PRO_6000 = Machine(Gpu("RTX PRO 6000", 97887 * MIB, (12, 0)), 8)


def start(
    model: Model | None = KIMI, version: str = "0.5.9", read: dict[str, str] | None = None, **given: Value
) -> Deployment:
    figures = {"free_before_weights_gib": "94.08", "free_after_weights_gib": "21.71"} if read is None else read
    readings = {
        name: Reading(name, Measured.parse(text), f"A.log:{n}")
        for n, (name, text) in enumerate(figures.items(), 1)
    }
    args = {name: Arg(value, "given") for name, value in ({"tp_size": 8} | given).items()}
    return Deployment(Launch("sglang", version, args=args), model, RTX_PRO_6000, readings)


FEWER = {"free_before_weights_gib": "94.08", "free_after_weights_gib": "21.78"}


# the founding case


def test_the_pool_is_what_is_free_less_the_slack() -> None:
    assert memory.pool_bytes(21.78 * GIB, 94.08 * GIB, 0.55) / GIB == pytest.approx(-20.556)
    assert memory.pool_bytes(21.71 * GIB, 94.08 * GIB, 0.88) / GIB == pytest.approx(10.4204)


def test_fewer_channels_fail_for_the_fraction_alone() -> None:
    found = memory.budget(start(read=FEWER, mem_fraction_static=0.55))
    assert (found.verdict, found.fails_at, found.cause) == ("fails", "kv_pool", "budget-below-weights")
    assert found.formula == "21.78 - 94.08 x (1 - 0.55) = -20.56 GiB"
    assert found.kv_tokens is not None and found.kv_tokens.value == -314_092


def test_a_lower_fraction_makes_it_worse() -> None:
    at_050 = memory.budget(start(read=FEWER, mem_fraction_static=0.5))
    at_055 = memory.budget(start(read=FEWER, mem_fraction_static=0.55))
    assert at_050.pool_bytes is not None and at_055.pool_bytes is not None
    assert at_050.pool_bytes.value < at_055.pool_bytes.value < 0


def test_at_088_the_engine_s_own_count_of_tokens() -> None:
    found = memory.budget(start(mem_fraction_static=0.88))
    assert found.verdict == "starts"
    assert found.kv_tokens is not None and found.kv_tokens.value == 159_221
    assert found.kv_tokens.low < 159_221 < found.kv_tokens.high
    assert found.bytes_per_token is not None and found.bytes_per_token.value == 70_272


def test_later_releases_keep_100_mib_for_vision() -> None:
    found = memory.budget(start(version="0.5.23", mem_fraction_static=0.88))
    assert found.kv_tokens is not None and found.kv_tokens.value == 157_729


@pytest.mark.parametrize(("version", "tokens"), [("0.5.9", 3_187), ("0.5.23", None)])
def test_the_default_fraction(version: str, tokens: int | None) -> None:
    found = memory.budget(start(version=version))
    if tokens is None:
        assert found.verdict == "fails"
    else:
        assert found.kv_tokens is not None and found.kv_tokens.value == tokens


def test_the_fraction_is_found_from_the_pool() -> None:
    read = {
        "free_before_weights_gib": "94.08",
        "free_after_weights_gib": "21.71",
        "kv_gib": "10.42",
        "kv_tokens": "159221",
    }
    found = memory.infer(Run("sglang"), start(read=read))["mem_fraction_static"]
    assert found.low < 0.88 < found.high
    assert found.high - found.low < 0.001
    assert "A.log:3" in found.basis
    # what the pool shows beats the default of the release
    assert "(1 - 0.88)" in memory.budget(start(read=read)).formula


def test_the_interval_has_the_weights_below_and_the_rest_above() -> None:
    found = memory.interval(None, start(read=FEWER, mem_fraction_static=0.55))
    assert found.low is not None and found.high is not None and found.recommended is not None
    assert round(found.low, 3) in (0.768, 0.769)
    assert found.low < 0.88 < found.high
    assert found.low < found.recommended <= found.high
    assert "72.30" in found.low_because


def test_what_is_recommended_starts() -> None:
    deployment = start(read=FEWER, mem_fraction_static=0.55)
    fraction = memory.interval(None, deployment).recommended
    assert memory.budget(deployment.with_args(mem_fraction_static=Arg(fraction, "given"))).verdict == "starts"


def test_the_interval_is_empty_where_the_weights_leave_nothing() -> None:
    read = {"free_before_weights_gib": "94.08", "free_after_weights_gib": "2.10"}
    found = memory.interval(None, start(read=read, mem_fraction_static=0.9))
    assert found.empty and found.recommended is None and found.low_because and found.high_because


def test_a_launch_that_ran_out_later_bounds_the_interval() -> None:
    read = FEWER | {"kv_gib": "18.50", "kv_tokens": "282600", "oom_alloc_gib": "2.00", "oom_free_gib": "0.50"}
    oom = Failure(
        source=Source("B.log", 9), kind="cuda-oom", at="graph_capture", text="",
        message="CUDA out of memory. Tried to allocate 2.00 GiB",
    )  # fmt: skip
    found = memory.interval(Run("sglang", events=(oom,)), start(read=read, mem_fraction_static=0.965))
    assert found.high is not None and found.high <= 0.965 - 1.5 / 94.08 + 0.001
    assert "ran out of memory" in found.high_because


# ledgers


def test_entries_and_what_is_left_make_the_total() -> None:
    ledger = memory.budget(start(mem_fraction_static=0.88)).ledgers[0]
    assert ledger.used_bytes + ledger.left_bytes == ledger.total_bytes == round(94.08 * GIB)
    weights = next(entry for entry in ledger.entries if entry.name == "weights")
    assert (weights.certainty, round(weights.bytes / GIB, 2)) == ("observed", 72.37)
    assert weights.low < weights.bytes < weights.high
    names = {entry.name: entry for entry in ledger.entries}
    assert names["req_to_token"].bytes == 2048 * 262148 * 4
    assert names["triton graph indices"].bytes == 512 * 262144 * 8
    assert names["graph logits buffer"].bytes == 512 * 163840 * 4


def test_each_rank_has_a_ledger_of_its_own() -> None:
    deployment = start(mem_fraction_static=0.88)
    ranks = {
        f"TP{n}": {"free_before_weights_gib": Reading("", Measured(94.08 + n / 100, 0.01), f"A.log:{n}")}
        for n in range(2)
    }
    ledgers = memory.budget(
        Deployment(deployment.launch, KIMI, RTX_PRO_6000, deployment.readings, ranks)
    ).ledgers
    assert [ledger.rank for ledger in ledgers] == ["TP0", "TP1"]
    assert ledgers[1].total_bytes == round(94.09 * GIB)


def test_what_the_stages_show_adds_up_to_what_was_taken() -> None:
    read = {
        "free_before_weights_gib": "94.08", "free_after_weights_gib": "21.71", "kv_gib": "10.42", "kv_tokens": "159221",
        "free_after_kv_pool_gib": "9.26", "free_before_graphs_gib": "8.83", "graphs_gib": "1.87",
        "free_after_graphs_gib": "6.96", "free_at_ready_gib": "6.90",
    }  # fmt: skip
    ledger = memory.budget(start(read=read)).ledgers[0]
    assert ledger.left_bytes / GIB == pytest.approx(6.90, abs=0.01)
    names = {entry.name: entry for entry in ledger.entries}
    assert names["req_to_token"].certainty == "exact"
    assert round(names["attention workspaces"].bytes / GIB, 2) == 0.43
    assert names["CUDA graphs"].source == "A.log:7"
    assert "decode graphs" not in names  # the estimate gives way to what was seen
    stages = [entry.stage for entry in ledger.entries]
    assert stages == sorted(stages, key=["weights", "kv_pool", "graph_capture", "warmup"].index)


def test_fewer_requests_free_slack() -> None:
    few = memory.budget(start(mem_fraction_static=0.88, max_running_requests=64, cuda_graph_max_bs=64)).ledgers[
        0
    ]
    many = memory.budget(start(mem_fraction_static=0.88)).ledgers[0]
    assert 2.8 < (few.left_bytes - many.left_bytes) / GIB < 4.6


# bytes per token


def cell(model: Model, version: str, **given: Value) -> memory.Cells:
    return memory.cell_size(model, memory.of_launch(start(model, version, **given).launch))


def test_cells_by_kind_of_attention() -> None:
    assert cell(KIMI, "0.5.9").budgeted == 61 * 576 * 2
    assert cell(KIMI, "0.5.9", kv_cache_dtype="fp8_e4m3").budgeted == 61 * 576
    assert cell(LLAMA, "0.5.9", tp_size=2).budgeted == 32 * 4 * 256 * 2
    assert cell(LLAMA, "0.5.9", tp_size=16).budgeted == 32 * 1 * 256 * 2  # more ranks than heads
    assert cell(LLAMA, "0.5.9", tp_size=8, dp_size=4, enable_dp_attention=True).budgeted == 32 * 4 * 256 * 2
    assert cell(LLAMA, "0.4.1", tp_size=8, dp_size=8, enable_dp_attention=True).budgeted == 32 * 1 * 256 * 2
    assert cell(LLAMA, "0.5.9", tp_size=1, pp_size=5).budgeted == 7 * 8 * 256 * 2  # 6, 6, 6, 7, 7 layers
    assert cell(LLAMA, "0.5.2", tp_size=1, pp_size=5).budgeted == 8 * 8 * 256 * 2  # 6, 6, 6, 6, 8 layers


def test_sparse_attention_stored_more_than_it_budgeted() -> None:
    sparse = Model("DeepSeek-V3.2", "test", num_layers=61, dtype="bfloat16", layers=(Layer("mla", kv_lora_rank=512, rope_dim=64, index_dim=128),) * 61)  # fmt: skip
    before, since = (cell(sparse, version, kv_cache_dtype="fp8_e4m3") for version in ("0.5.9", "0.5.18"))
    assert before.stored / before.budgeted == pytest.approx(1.113, abs=0.001)
    assert since.budgeted == since.stored == 48_068
    found = memory.budget(start(sparse, mem_fraction_static=0.88, kv_cache_dtype="fp8_e4m3"))
    assert any("1.113" in warning for warning in found.warnings)


def test_drafts_are_charged_from_0514_on() -> None:
    drafted = {"mem_fraction_static": 0.88, "speculative_algorithm": "EAGLE3", "speculative_num_steps": 3, "speculative_eagle_topk": 1, "speculative_num_draft_tokens": 4}  # fmt: skip
    before, since = (memory.budget(start(LLAMA, version, **drafted)) for version in ("0.5.13", "0.5.14"))
    assert before.bytes_per_token is not None and since.bytes_per_token is not None
    assert before.bytes_per_token.value == 32 * 512 and since.bytes_per_token.value == 33 * 512
    assert any(entry.name.startswith("draft KV") for entry in before.ledgers[0].entries)
    assert any("not counted" in warning for warning in before.warnings)


# readings


def test_a_log_s_own_sizes_stand_where_the_model_is_unknown() -> None:
    read = FEWER | {"k_gib": "5.21", "v_gib": "5.21", "kv_tokens": "159221"}
    found = memory.budget(start(None, read=read, mem_fraction_static=0.88))
    assert (
        found.kv_tokens is not None and found.kv_tokens.low < 159_221 * 10.4904 / 10.42 < found.kv_tokens.high
    )
    assert found.missing == ("model",)


def test_what_is_not_known_is_named() -> None:
    found = memory.budget(Deployment(Launch("sglang")))
    assert found.verdict == "unsure"
    assert set(found.missing) == {
        "mem_fraction_static",
        "free_before_weights_gib",
        "free_after_weights_gib",
        "model",
    }
    assert memory.interval(None, Deployment(Launch("sglang"))).low is None


def test_figures_that_cannot_all_be_true() -> None:
    read = {"free_before_weights_gib": "94.08", "free_after_weights_gib": "21.71", "weights_gib": "60.00"}
    assert "81.71" in memory.contradictions(Run("sglang"), start(read=read))[0]
    pool = FEWER | {"kv_gib": "10.42", "kv_tokens": "159221"}
    assert memory.contradictions(Run("sglang"), start(read=pool)) == []
    assert "0.55" in memory.contradictions(Run("sglang"), start(read=pool, mem_fraction_static=0.55))[0]
    wide = FEWER | {"kv_gib": "20.84", "kv_tokens": "129221"}
    assert any("bytes a token" in text for text in memory.contradictions(Run("sglang"), start(read=wide)))


def test_the_cache_dtype_shows_in_the_sizes() -> None:
    read = FEWER | {"kv_gib": "10.42", "kv_tokens": "318400"}
    assert memory.infer(Run("sglang"), start(read=read))["kv_element_bytes"].value == 1


def test_the_number_of_ranks_shows_in_the_prefixes() -> None:
    lines = tuple(Stage(source=Source("A.log", n), rank=Rank(tp=n), stage="weights") for n in range(4))
    deployment = Deployment(Launch("sglang", "0.5.9"), LLAMA)
    assert memory.infer(Run("sglang", events=lines), deployment)["tp_size"].value == 4


def test_a_cap_makes_the_fraction_unknowable() -> None:
    read = FEWER | {"kv_gib": "2.00", "kv_tokens": "30559"}
    assert "mem_fraction_static" not in memory.infer(Run("sglang"), start(read=read, max_total_tokens=30559))
    small = FEWER | {"kv_gib": "1.34", "kv_tokens": "20480"}  # a count that no budget makes
    assert "mem_fraction_static" not in memory.infer(Run("sglang"), start(read=small))


# other rules


def test_old_releases_shrink_the_fraction_of_multimodal_models() -> None:
    vision = Model("vlm", "test", architecture="Qwen2_5_VLForConditionalGeneration", num_layers=28, dtype="bfloat16", layers=LLAMA.layers[:28], vision=Vision())  # fmt: skip
    read = {"free_before_weights_gib": "78.00", "free_after_weights_gib": "60.00"}
    formulas = [
        memory.budget(start(vision, version, read, tp_size=1, mem_fraction_static=0.8)).formula
        for version in ("0.4.4", "0.4.6.post5", "0.4.9")
    ]
    assert ["(1 - 0.76)" in formulas[0], "(1 - 0.72)" in formulas[1], "(1 - 0.8)" in formulas[2]] == [True] * 3


def test_recurrent_state_comes_first() -> None:
    state = LinearState(
        "gdn",
        conv_dim=8192,
        kernel=4,
        num_heads=32,
        head_dim=128,
        state_size=128,
        num_groups=16,
        inner_size=4096,
    )
    hybrid = Model("hybrid", "test", num_layers=4, num_heads=16, dtype="bfloat16", max_context=32768, layers=(Layer("linear", state=state),) * 3 + (Layer("full", kv_heads=2, head_dim=256, v_head_dim=256),))  # fmt: skip
    pool = memory.size_pool(
        hybrid, memory.of_launch(start(hybrid, tp_size=1, mem_fraction_static=0.9).launch), 10 * GIB
    )
    assert pool.mamba_slots is not None and pool.mamba_slots > 0
    assert pool.state_bytes / GIB == pytest.approx(10 * 0.9 / 1.9, rel=0.01)
    assert pool.tokens == pytest.approx(10 * GIB / 1.9 / 2048, rel=0.01)


def test_custom_all_reduce_takes_24_mib_where_it_may_run() -> None:
    s = memory.of_launch(start().launch)
    assert memory.custom_all_reduce_bytes(s, full_mesh=True) == pytest.approx(24 * MIB, rel=0.01)
    assert memory.custom_all_reduce_bytes(s, full_mesh=False) == 0


def test_the_host_pool_is_checked_with_a_margin() -> None:
    s = memory.of_launch(start(hicache_ratio=2.0).launch)
    assert memory.hicache_refusal(s, 100_000, 70_272, 40 * GIB) is None
    assert "GB may be taken" in (memory.hicache_refusal(s, 100_000, 70_272, 20 * GIB) or "")
    small = memory.of_launch(start(hicache_size=1).launch)
    assert "host tokens" in (memory.hicache_refusal(small, 100_000, 70_272, 400 * GIB) or "")


# laws

releases = st.sampled_from(
    ["0.4.0", "0.4.6.post5", "0.5.3", "0.5.6", "0.5.9", "0.5.12", "0.5.14", "0.5.18", "0.5.23"]
)


@given(releases, st.floats(0.05, 0.99), st.floats(0.05, 0.99), st.sampled_from([KIMI, LLAMA]))
@settings(max_examples=60, deadline=None)
def test_a_larger_fraction_never_shrinks_the_pool(version: str, a: float, b: float, model: Model) -> None:
    low, high = (memory.budget(start(model, version, mem_fraction_static=f)) for f in sorted((a, b)))
    assert low.kv_tokens is not None and high.kv_tokens is not None
    assert low.kv_tokens.value <= high.kv_tokens.value


odd: st.SearchStrategy[Value] = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.lists(st.integers(), max_size=3),
    st.dictionaries(st.sampled_from(["decode", "prefill", "num_hidden_layers"]), st.integers()),
)  # fmt: skip
names = st.sampled_from([
    "tp_size", "pp_size", "dp_size", "enable_dp_attention", "mem_fraction_static", "page_size", "cuda_graph_max_bs",
    "cuda_graph_bs", "chunked_prefill_size", "max_total_tokens", "max_running_requests", "kv_cache_dtype",
    "speculative_algorithm", "speculative_num_draft_tokens", "speculative_eagle_topk", "swa_full_tokens_ratio",
    "mamba_full_memory_ratio", "context_length", "cuda_graph_config", "disable_cuda_graph_padding",
    "json_model_override_args", "attention_backend", "hicache_size",
])  # fmt: skip
figures = st.dictionaries(
    st.sampled_from(["free_before_weights_gib", "free_after_weights_gib", "weights_gib", "k_gib", "v_gib", "kv_tokens", "free_after_kv_pool_gib", "free_at_ready_gib", "context_len"]),
    st.one_of(st.floats(), st.integers(-10, 10**9).map(float)),
)  # fmt: skip


@given(
    releases,
    st.dictionaries(names, odd, max_size=6),
    figures,
    st.sampled_from([KIMI, LLAMA, find("Qwen/Qwen3-30B-A3B"), None]),
)
@settings(max_examples=150, deadline=None)
def test_no_input_raises(
    version: str, given_: dict[str, Value], read: dict[str, float], model: Model | None
) -> None:
    readings = {name: Reading(name, Measured(value, 0.01), "x.log:1") for name, value in read.items()}
    args = {name: Arg(value, "log") for name, value in given_.items()}
    deployment = Deployment(Launch("sglang", version, args=args), model, RTX_PRO_6000, readings)
    run = Run("sglang")
    assert memory.budget(deployment).verdict in ("starts", "fails", "unsure")
    memory.infer(run, deployment)
    memory.contradictions(run, deployment)
    memory.interval(run, deployment)


@pytest.mark.parametrize(
    ("name", "tp", "printed"),
    [
        ("moonshotai/Kimi-K2.5", 8, 72.30),
        ("Qwen/Qwen3-32B", 2, 30.60),
        ("Qwen/Qwen3-30B-A3B", 1, 56.89),
        ("meta-llama/Llama-3.1-8B-Instruct", 1, 15.11),
        ("deepseek-ai/DeepSeek-R1", 8, 81.66),
    ],
)
def test_weights_of_a_rank_as_public_logs_print_them(name: str, tp: int, printed: float) -> None:
    shape = find(name)
    assert shape is not None
    found = weights_by_shape(shape, memory.of_launch(start(shape, tp_size=tp).launch))
    assert found is not None
    assert found.value / GIB == pytest.approx(printed, rel=0.02)
    assert found.low <= printed * GIB <= found.high
