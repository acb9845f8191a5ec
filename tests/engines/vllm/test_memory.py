"""The budget on real launches: figures of public logs (facts and cases name them) and small deployments."""

from __future__ import annotations

import pytest
from packaging.version import Version

from ullage.core.deployment import Deployment, Reading
from ullage.core.launch import Arg, Launch, Value
from ullage.core.machine import Gpu, Machine
from ullage.core.model import Layer, Model
from ullage.core.run import Failure, Run, Source
from ullage.core.units import GIB, Band, Measured
from ullage.engines.vllm import kv_specs, memory
from ullage.engines.vllm.kv_specs import last_takes_the_rest, spread_before_the_last
from ullage.engines.vllm.options import as_length
from ullage.engines.vllm.settings import settings
from ullage.models import catalogue

LLAMA_8B = Model(
    "llama", "config.json", architecture="LlamaForCausalLM", num_layers=32, hidden_size=4096, num_heads=32,
    intermediate_size=14336, vocab_size=128256, max_context=131072, checkpoint_bytes=16_060_522_496,
    parameters=8_030_261_248, layers=(Layer("full", kv_heads=8, head_dim=128, v_head_dim=128),) * 32,
)  # fmt: skip
H100 = Machine(
    Gpu("NVIDIA H100", 85_052_096_512, (9, 0), cuda_bytes=Band(79.19 * GIB, 79.1 * GIB, 79.25 * GIB)), 1
)


def deployed(version: str | None = "0.19.0", model: Model | None = LLAMA_8B, machine: Machine | None = H100,
             readings: dict[str, str] | None = None, **args: Value) -> Deployment:  # fmt: skip
    return Deployment(
        Launch("vllm", version, "log", args={name: Arg(value, "given") for name, value in args.items()}, command="vllm serve"),
        model, machine,
        {name: Reading(name, Measured.parse(text), f"x.log:{n}") for n, (name, text) in enumerate((readings or {}).items(), 1)},
    )  # fmt: skip


TERMS = {"total_gib": "79.19", "weights_gib": "14.99", "peak_activation_gib": "1.89", "non_torch_gib": "0.25"}


def test_the_sum_of_a_real_log() -> None:
    # llm-d-planner log 32: 0.95 x 79.19 = 75.23; 58.11 GiB; 29,751 blocks; 476,016 tokens
    deployment = deployed(readings=TERMS, gpu_memory_utilization=0.95, max_model_len=8192)
    budget = memory.budget(deployment)
    assert budget.verdict == "starts"
    assert budget.formula == "0.95 x 79.19 - 14.99 - 1.89 - 0.25 = 58.10 GiB"
    assert budget.pool_bytes is not None
    assert budget.pool_bytes.low <= 58.11 * GIB <= budget.pool_bytes.high
    assert budget.kv_tokens is not None
    assert budget.kv_tokens.low <= 476_016 <= budget.kv_tokens.high
    assert budget.bytes_per_token == Band(131072, 131072, 131072)


def test_a_printed_pool_wins_and_gives_exact_tokens() -> None:
    deployment = deployed(
        readings={**TERMS, "kv_gib": "58.11"}, gpu_memory_utilization=0.95, max_model_len=8192
    )
    budget = memory.budget(deployment)
    assert budget.pool_bytes is not None
    assert budget.pool_bytes.value == pytest.approx(58.11 * GIB)
    assert budget.kv_tokens is not None
    assert budget.kv_tokens.value == pytest.approx(
        476_016, abs=48
    )  # two decimals of GiB are some 40 tokens each way


def test_the_graph_estimate_is_subtracted_from_0_20_on() -> None:
    readings = {**TERMS, "graph_estimate_gib": "0.84"}
    pools = [
        memory.budget(
            deployed(version, readings=readings, gpu_memory_utilization=0.95, max_model_len=8192)
        ).pool_bytes
        for version in ("0.19.1", "0.20.0")
    ]
    assert pools[0] is not None
    assert pools[1] is not None
    assert pools[0].value - pools[1].value == pytest.approx(0.84 * GIB)


@pytest.mark.parametrize(
    ("readings", "args", "phase", "cause"),
    [
        ({"total_gib": "79.19", "free_at_start_gib": "60.00"}, {}, "init", "free-memory-below-request"),
        ({"total_gib": "23.56", "weights_gib": "21.50", "peak_activation_gib": "1.20", "non_torch_gib": "0.20"}, {},
         "kv_pool", "budget-below-weights"),
        ({"total_gib": "23.62", "weights_gib": "14.99", "kv_gib": "0.95"}, {"gpu_memory_utilization": 0.7, "max_model_len": 8192},
         "kv_pool", "max-len-exceeds-kv"),
        ({"kv_gib": "3.86", "mamba_blocks": "161", "max_num_seqs": "256"}, {}, "graph_capture", "mamba-blocks-below-max-num-seqs"),
    ],
)  # fmt: skip
def test_verdicts(readings: dict[str, str], args: dict[str, Value], phase: str, cause: str) -> None:
    budget = memory.budget(deployed("0.20.2", readings=readings, **{"max_model_len": 2048, **args}))
    assert (budget.verdict, budget.fails_at, budget.cause) == ("fails", phase, cause)


def test_before_0_9_1_free_memory_is_not_checked() -> None:
    readings = {"total_gib": "79.19", "free_at_start_gib": "60.00", "weights_gib": "14.99", "kv_gib": "20.00"}
    assert memory.budget(deployed("0.9.0", readings=readings, max_model_len=8192)).verdict == "starts"


def test_a_trailing_zero_is_not_less_exact() -> None:
    # 0.14.0 on prints round(x, 2): "30.2" is 30.20, below 30.25
    readings = {"total_gib": "31.84", "free_at_start_gib": "30.2", "requested_gib": "30.25"}
    budget = memory.budget(deployed("0.20.0", None, None, readings, gpu_memory_utilization=0.95))
    assert budget.cause == "free-memory-below-request"


def test_a_changed_share_moves_the_pool_although_ranks_still_show_the_old_one() -> None:
    deployment = deployed(readings=TERMS, gpu_memory_utilization=0.9, max_model_len=8192)
    old = {"": {"kv_gib": Reading("kv_gib", Measured.parse("54.15"), "x.log:9")}}
    changed = Deployment(deployment.launch, deployment.model, deployment.machine, deployment.readings, old)
    more = changed.with_args(gpu_memory_utilization=Arg(0.95, "given"))
    pool = memory.budget(more).pool_bytes
    assert pool is not None
    assert pool.value == pytest.approx((0.95 * 79.19 - 17.13) * GIB)


def test_the_rest_of_the_profile_survives_a_change_of_the_share() -> None:
    readings = {"total_gib": "79.19", "weights_gib": "14.99", "kv_gib": "54.15"}
    deployment = memory.with_rest(deployed(readings=readings, gpu_memory_utilization=0.9, max_model_len=8192))
    more = deployment.without("kv_gib").with_args(gpu_memory_utilization=Arg(0.95, "given"))
    budget = memory.budget(more)
    assert budget.pool_bytes is not None
    assert budget.pool_bytes.value == pytest.approx((54.15 + 0.05 * 79.19) * GIB)
    assert budget.pool_bytes.high - budget.pool_bytes.low < 0.1 * GIB


def test_pipeline_stages_take_the_smallest_pool() -> None:
    # 0.19.0 log: rank PP0 prints 69.8 GiB, the last stage's own terms leave 68.89; 141,079 blocks
    own = {
        "PP0": {
            "weights_gib": "4.26",
            "peak_activation_gib": "1.10",
            "non_torch_gib": "0.07",
            "kv_gib": "69.80",
        },
        "PP1": {"weights_gib": "3.28", "peak_activation_gib": "1.05", "non_torch_gib": "0.07"},
        "PP2": {"weights_gib": "3.28", "peak_activation_gib": "1.05", "non_torch_gib": "0.07"},
        "PP3": {"weights_gib": "4.26", "peak_activation_gib": "2.01", "non_torch_gib": "0.07"},
    }
    ranks = {
        rank: {name: Reading(name, Measured.parse(text), f"x.log:{rank}") for name, text in figures.items()}
        for rank, figures in own.items()
    }
    base = deployed(
        pipeline_parallel_size=4,
        gpu_memory_utilization=0.95,
        max_model_len=8192,
        readings={"total_gib": "79.19"},
    )
    deployment = Deployment(base.launch, base.model, base.machine,
                            {**base.readings, **ranks["PP3"], "kv_gib": ranks["PP0"]["kv_gib"]}, ranks)  # fmt: skip
    budget = memory.budget(deployment)
    assert budget.pool_bytes is not None
    assert budget.pool_bytes.value == pytest.approx(68.89 * GIB, rel=1e-3)
    assert budget.kv_tokens is not None
    assert budget.kv_tokens.low <= 2_257_264 <= budget.kv_tokens.high
    assert memory.contradictions(Run("vllm"), deployment) == []


def test_from_command_and_gpu_alone_the_band_holds_the_truth() -> None:
    budget = memory.budget(deployed(gpu_memory_utilization=0.95, max_model_len=8192))
    assert budget.pool_bytes is not None
    assert budget.pool_bytes.low < 58.11 * GIB < budget.pool_bytes.high
    assert budget.pool_bytes.value == pytest.approx(58.11 * GIB, rel=0.03)
    assert budget.verdict == "starts"


def test_unknown_model_and_gpu_is_unsure_and_says_what_is_missing() -> None:
    budget = memory.budget(Deployment(Launch("vllm")))
    assert budget.verdict == "unsure"
    assert "the GPU's total memory" in budget.missing


def test_ledger_adds_up() -> None:
    deployment = deployed(
        readings={**TERMS, "free_at_start_gib": "78.10", "kv_gib": "58.11", "graphs_gib": "0.91"},
        gpu_memory_utilization=0.95, max_model_len=8192,
    )  # fmt: skip
    (ledger,) = memory.budget(deployment).ledgers
    assert ledger.used_bytes + ledger.left_bytes == ledger.total_bytes == int(79.19 * GIB)
    assert [entry.name for entry in ledger.entries] == [
        "taken before the start", "weights", "activation peak", "non-torch", "KV pool", "CUDA graphs",
    ]  # fmt: skip
    assert all(entry.low <= entry.bytes <= entry.high for entry in ledger.entries)
    assert {entry.certainty for entry in ledger.entries} == {"observed"}


def test_interval_from_both_sides() -> None:
    deployment = deployed(
        readings={**TERMS, "free_at_start_gib": "78.10"}, gpu_memory_utilization=0.95, max_model_len=8192
    )
    interval = memory.interval(None, deployment)
    # (14.99 + 1.89 + 0.25 + 1 GiB for 8192 tokens) / 79.19; 78.10 less graphs
    assert interval.low == pytest.approx(18.13 / 79.19, abs=0.002)
    assert interval.high is not None
    assert 0.96 < interval.high < 78.10 / 79.19
    assert interval.recommended is not None
    assert interval.low is not None
    assert interval.low < interval.recommended < interval.high
    assert (
        memory.budget(deployment.with_args(gpu_memory_utilization=Arg(interval.recommended, "given"))).verdict
        == "starts"
    )


def test_interval_is_empty_where_the_weights_leave_no_room() -> None:
    readings = {**TERMS, "total_gib": "16.00", "free_at_start_gib": "15.50"}
    interval = memory.interval(None, deployed(readings=readings, max_model_len=8192))
    assert interval.empty
    assert interval.recommended is None


def test_a_run_that_ran_out_of_memory_after_its_pool_bounds_the_share() -> None:
    # gpt-oss-20b, 0.19.0, 1024 sequences: 786 MiB tried, 552.49 MiB free; the arithmetic alone would allow 0.97
    readings = {
        "total_gib": "79.19", "free_at_start_gib": "78.68", "weights_gib": "13.64", "peak_activation_gib": "2.87",
        "non_torch_gib": "0.25", "graphs_gib": "1.84", "oom_alloc_gib": "0.767", "oom_free_gib": "0.539",
    }  # fmt: skip
    failure = Failure(
        source=Source("x.log", 40),
        kind="sampler-warmup-oom",
        at="warmup",
        message="CUDA out of memory occurred",
    )
    deployment = deployed(readings=readings, gpu_memory_utilization=0.95, max_model_len=8192)
    free = memory.interval(Run("vllm"), deployment)
    bound = memory.interval(Run("vllm", events=(failure,)), deployment)
    assert free.high is not None
    assert free.high > 0.96
    assert bound.high is not None
    assert 0.92 < bound.high < 0.95
    assert "x.log:40" in bound.high_because
    assert bound.recommended == 0.92


def test_infer_what_the_log_does_not_say() -> None:
    readings = {
        "total_gib": "79.19",
        "requested_gib": "75.23",
        "weights_gib": "14.99",
        "kv_gib": "58.11",
        "kv_tokens": "476016",
    }
    found = memory.infer(Run("vllm"), deployed(readings=readings))
    share = found["gpu_memory_utilization"]
    assert share.low <= 0.95 <= share.high
    assert found["peak_and_non_torch_gib"].low <= 2.13 <= found["peak_and_non_torch_gib"].high
    assert found["bytes_per_token"].low <= 131072 <= found["bytes_per_token"].high
    assert found["kv_element_bytes"].value == 2
    assert found["tensor_parallel_size"].value == 1


def test_total_from_two_utilisations() -> None:
    # estimate 0.84 GiB; 0.95 is equivalent to 0.9394: 79.2 GiB
    readings = {
        "graph_estimate_gib": "0.84",
        "gpu_memory_utilization": "0.9500",
        "utilization_without_graphs": "0.9394",
    }
    found = memory.infer(Run("vllm"), deployed("0.20.0", None, None, readings))["total_gib"]
    assert found.low <= 79.19 <= found.high


def test_contradictions() -> None:
    honest = {**TERMS, "requested_gib": "75.23", "kv_gib": "58.11", "gpu_memory_utilization": "0.95"}
    assert memory.contradictions(Run("vllm"), deployed(readings=honest)) == []
    (found,) = memory.contradictions(Run("vllm"), deployed(readings={**honest, "kv_gib": "50.00"}))
    assert "58.10 GiB" in found
    assert "x.log:6" in found
    assert memory.contradictions(Run("vllm"), deployed(readings={**honest, "requested_gib": "70.00"}))


def test_kv_cache_memory_bytes_replaces_the_sum() -> None:
    budget = memory.budget(deployed(readings=TERMS, kv_cache_memory_bytes=8 * GIB, max_model_len=8192))
    assert budget.pool_bytes == Band(8 * GIB, 8 * GIB, 8 * GIB)
    assert budget.kv_tokens is not None
    assert budget.kv_tokens.value == 65_536


def test_sampler_bytes_is_the_measured_one() -> None:
    # Qwen3-14B, 1024 sequences: 5.64 GiB in 0.16.0, 2.23 GiB in 0.18.0, of which 0.16 GiB are hidden states
    for version, gib in (("0.16.0", 5.64), ("0.18.0", 2.23)):
        band = memory.sampler_bytes(1024, 151936, Version(version))
        assert band.low <= (gib - 0.16) * GIB <= band.high


def test_what_lies_beside_the_share() -> None:
    before, after = deployed("0.19.0"), deployed("0.20.0")
    assert "CUDA graphs" in [entry.name for entry in memory.beside(before, settings(before))]
    assert "CUDA graphs" not in [entry.name for entry in memory.beside(after, settings(after))]


@pytest.mark.parametrize(("text", "length"), [("32k", 32000), ("32K", 32768), ("1.5k", 1500), ("-1", -1), (4096, 4096), ("auto", None), (True, None)])  # fmt: skip
def test_lengths(text: object, length: int | None) -> None:
    assert as_length(text) == length


def test_pipeline_partition() -> None:
    assert spread_before_the_last(61, 4) == [15, 15, 16, 15]
    assert last_takes_the_rest(61, 4) == [15, 15, 15, 16]


@pytest.mark.parametrize(
    ("version", "gpu", "total", "expected"),
    [("0.8.4", "NVIDIA A100", 80, (2048, 256)), ("0.8.5", "NVIDIA A100", 80, (8192, 1024)), ("0.9.0", "NVIDIA A100", 80, (2048, 256)),
     ("0.27.1", "NVIDIA B200", 178, (8192, 1024)), ("0.28.0", "NVIDIA B200", 178, (16384, 1024)), ("0.19.0", "NVIDIA L4", 22, (2048, 256))],
)  # fmt: skip
def test_batch_defaults_by_release(version: str, gpu: str, total: int, expected: tuple[int, int]) -> None:
    s = settings(deployed(version, machine=Machine(Gpu(gpu, total * GIB)), max_model_len=8192))
    # the total a little below the product's size still lies on the same side of the limit
    assert (s.max_num_batched_tokens, s.max_num_seqs) == expected


@pytest.mark.parametrize(
    "version",
    ["0.6.0", "0.7.3", "0.8.5", "0.9.1", "0.11.0", "0.14.0", "0.18.0", "0.20.0", "0.27.0", "0.33.0", None],
)
def test_every_release_has_an_answer(version: str | None) -> None:
    deployment = deployed(version, readings=TERMS, max_model_len=8192)
    budget = memory.budget(deployment)
    assert budget.pool_bytes is not None
    assert budget.kv_tokens is not None
    larger = memory.budget(deployment.with_args(gpu_memory_utilization=Arg(0.97, "given")))
    assert larger.pool_bytes is not None
    assert larger.pool_bytes.value > budget.pool_bytes.value


@pytest.mark.parametrize("value", ["x", -1, 0, 10**30, 1.5e308, "{", [1], {"a": 1}, True])
@pytest.mark.parametrize("name", ["max_model_len", "max_num_seqs", "max_num_batched_tokens", "block_size", "tensor_parallel_size",
                                  "pipeline_parallel_size", "gpu_memory_utilization", "speculative_config", "compilation_config",
                                  "kv_cache_memory_bytes", "num_gpu_blocks_override", "kv_cache_dtype"])  # fmt: skip
def test_nonsense_never_raises(name: str, value: Value) -> None:
    for readings in ({}, TERMS):
        deployment = deployed(readings=readings, **{"max_model_len": 8192, name: value})
        memory.budget(deployment)
        memory.interval(None, deployment)
        memory.infer(Run("vllm"), deployment)
        memory.contradictions(Run("vllm"), deployment)


@pytest.mark.parametrize(("version", "width"), [("0.14.0", 384), ("0.19.1", 384), ("0.20.0", 320)])
def test_narrow_values_are_padded_to_the_keys_until_0_20(version: str, width: int) -> None:
    """MiMo-V2: 192 elements a key, 128 a value; one full-attention head a rank at tp 4."""
    model = catalogue.find("XiaomiMiMo/MiMo-V2-Flash")
    assert model is not None
    found = kv_specs.stages(model, kv_specs.Cache(tp=4, dtype="fp8"), Version(version))
    assert {spec.page_bytes // spec.block_size for spec in found[0] if spec.kind == "full"} == {width}
