"""Laws of the budget that hold for any figures: bands in order, entries that add up, a larger share never a smaller pool."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from ullage.core.deployment import Deployment, Reading
from ullage.core.launch import Arg, Launch
from ullage.core.machine import Gpu, Machine
from ullage.core.model import Layer, LinearState, Model
from ullage.core.run import Run
from ullage.core.units import GIB, Band, Measured
from ullage.engines.vllm import memory

NAMES = (
    "total_gib", "free_at_start_gib", "requested_gib", "weights_gib", "peak_activation_gib", "non_torch_gib", "kv_gib",
    "kv_tokens", "gpu_blocks", "graph_estimate_gib", "graphs_gib", "needed_kv_gib", "consumed_gib", "max_concurrency",
    "max_concurrency_len", "gpu_memory_utilization", "utilization_without_graphs", "mamba_blocks", "max_num_seqs",
    "cpu_blocks", "rest_gib", "bytes_per_token",
)  # fmt: skip
LAYERS = (
    Layer("full", kv_heads=8, head_dim=128, v_head_dim=128), Layer("sliding", kv_heads=8, head_dim=128, window=1024),
    Layer("chunked", kv_heads=8, head_dim=128, window=8192), Layer("mla", kv_lora_rank=512, rope_dim=64, index_dim=128),
    Layer("linear", state=LinearState("gdn", 8192, 4, 32, 128, 128)), Layer("none"), Layer("compressed", head_dim=512),
)  # fmt: skip
sizes = st.floats(-10, 200) | st.sampled_from([0.0, float("inf"), float("nan"), 1e300])
readings = st.dictionaries(st.sampled_from(NAMES), sizes, max_size=12)


def shaped(layers: list[Layer], size: int | None) -> Model:
    return Model(
        "m", "config.json", num_layers=len(layers), hidden_size=4096, num_heads=32, intermediate_size=14336,
        vocab_size=128256, max_context=131072, checkpoint_bytes=size, layers=tuple(layers),
    )  # fmt: skip


models = st.none() | st.builds(
    shaped, st.lists(st.sampled_from(LAYERS), max_size=12), st.none() | st.integers(0, 10**12)
)
launches = st.builds(
    lambda version, args: Launch("vllm", version, "log", args={k: Arg(v, "given") for k, v in args.items()}),
    st.sampled_from([None, "0.6.4", "0.7.3", "0.8.5", "0.9.1", "0.11.0", "0.14.0", "0.19.0", "0.26.0", "0.33.0"]),
    st.fixed_dictionaries({}, optional={
        "max_model_len": st.integers(-1, 10**6), "tensor_parallel_size": st.sampled_from([1, 2, 3, 8, 64]),
        "pipeline_parallel_size": st.integers(1, 9), "max_num_seqs": st.integers(0, 5000),
        "max_num_batched_tokens": st.integers(0, 10**6), "kv_cache_dtype": st.sampled_from(["fp8", "auto", "nvfp4", "?"]),
        "enforce_eager": st.booleans(), "enable_prefix_caching": st.booleans(), "block_size": st.integers(0, 512),
        "disable_hybrid_kv_cache_manager": st.booleans(), "speculative_config": st.just({"method": "mtp", "num_speculative_tokens": 3}),
    }),
)  # fmt: skip
machines = st.none() | st.just(Machine(Gpu("H100", 80 * GIB, (9, 0)), 8))


def deployment(
    launch: Launch, model: Model | None, machine: Machine | None, figures: dict[str, float]
) -> Deployment:
    known = {name: Reading(name, Measured(value, 0.01), "x.log:1") for name, value in figures.items()}
    return Deployment(launch, model, machine, known, {"PP0 TP0": known})


def in_order(band: Band | None) -> bool:
    return band is None or band.low <= band.value <= band.high


@settings(max_examples=120, deadline=None)
@given(launches, models, machines, readings)
def test_whatever_is_read(
    launch: Launch, model: Model | None, machine: Machine | None, figures: dict[str, float]
) -> None:
    made = deployment(launch, model, machine, figures)
    budget = memory.budget(made)
    assert in_order(budget.pool_bytes)
    assert in_order(budget.kv_tokens)
    assert in_order(budget.bytes_per_token)
    assert (budget.verdict == "fails") == (budget.cause is not None)
    for ledger in budget.ledgers:
        assert ledger.used_bytes + ledger.left_bytes == ledger.total_bytes
        assert all(entry.low <= entry.bytes <= entry.high for entry in ledger.entries)
    memory.with_rest(made)
    memory.shortage(made)
    assert all(one.low <= one.value <= one.high for one in memory.infer(Run("vllm"), made).values())
    memory.contradictions(Run("vllm"), made)
    interval = memory.interval(None, made)
    if interval.recommended is not None and interval.low is not None:
        assert interval.recommended > interval.low


@settings(max_examples=50, deadline=None)
@given(launches, models, st.floats(0.1, 0.98), st.floats(0.001, 0.1))
def test_a_larger_share_never_shrinks_the_pool(
    launch: Launch, model: Model | None, share: float, more: float
) -> None:
    machine = Machine(Gpu("H100", 80 * GIB, (9, 0)), 8)
    base = deployment(launch, model, machine, {})
    small, large = (
        memory.budget(base.with_args(gpu_memory_utilization=Arg(value, "given")))
        for value in (share, share + more)
    )
    if small.pool_bytes and large.pool_bytes:
        assert large.pool_bytes.value >= small.pool_bytes.value
    if small.kv_tokens and large.kv_tokens:
        assert large.kv_tokens.value >= small.kv_tokens.value
