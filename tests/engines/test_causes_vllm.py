"""The causes of vLLM: their pages, their figures, and that each stands where its proof stands."""

from __future__ import annotations

import pytest

from ullage.core.deployment import Budget, Deployment
from ullage.core.finding import HOW, Case, Finding
from ullage.core.launch import Arg, Launch, Value
from ullage.core.machine import Gpu, Machine
from ullage.core.run import Failure, Figure, Frame, Outcome, Phase, Run, Source, Trace
from ullage.core.units import Measured
from ullage.engines.runtime.rows import docstring_parts, load

CAUSES = load("ullage.engines.vllm.causes")
RUNTIME = load("ullage.engines.runtime.causes")
OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 786.00 MiB. GPU 0 has a total capacity of 79.19 GiB "
    "of which 552.50 MiB is free. Including non-PyTorch memory, this process has 78.64 GiB memory in use. Of the "
    "allocated memory 74.91 GiB is allocated by PyTorch, with 626.00 MiB allocated in private pools (e.g., CUDA "
    "Graphs), and 1.78 GiB is reserved by PyTorch but unallocated."
)


def case(
    message: str,
    *,
    phase: Phase | None = None,
    frames: tuple[str, ...] = (),
    figures: dict[str, str] | None = None,
    settings: dict[str, Value] | None = None,
    version: str | None = None,
    gpu: str = "",
    env: dict[str, str] | None = None,
    outcome: Outcome = "crashed",
    index: int = 0,
) -> Case:
    """A case with one root failure and a few printed figures."""
    trace = Trace(tuple(Frame(*_place(frame)) for frame in frames), *message.partition(": ")[::2])
    source = Source("made.log", 9)
    root = Failure(kind="made", message=message, source=source, text=message, trace=trace, at=phase)
    shown = [
        Figure(
            name=name,
            value=Measured.parse(text),
            stage="kv_pool",
            source=Source("made.log", 1 + i),
            text=f"{name} {text}",
        )
        for i, (name, text) in enumerate((figures or {}).items())
    ]
    launch = Launch(
        "vllm", version, args={k: Arg(v, "given") for k, v in (settings or {}).items()}, env=env or {}
    )
    machine = Machine(Gpu(gpu), 1) if gpu else None
    run = Run("vllm", version, events=(*shown, root), index=index, of=index + 1)
    return Case(run, Deployment(launch, None, machine), Budget(), outcome, phase, root)


def _place(frame: str) -> tuple[str, int, str]:
    file, _, function = frame.rpartition(":")
    return f"vllm/{file}", 1, function


def best(one: Case) -> Finding | None:
    found = [finding for cause in [*CAUSES, *RUNTIME] if (finding := cause.test(one)) is not None]
    return min(found, key=lambda f: (HOW.index(f.certainty), -f.weight), default=None)


def cause_of(one: Case) -> str | None:
    found = best(one)
    return found.cause if found is not None else None


# pages


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: cause.id)
def test_page_has_its_four_parts(cause: object) -> None:
    text = cause.text  # type: ignore[attr-defined]
    assert all(len(part) > 25 for part in (text.see, text.misleads, text.true, text.helps))


def test_each_id_once_and_a_module_is_named_after_its_cause() -> None:
    ids = [cause.id for cause in [*CAUSES, *RUNTIME]]
    assert sorted(ids) == sorted(set(ids))


def test_a_page_without_a_part_is_refused() -> None:
    from ullage.core.errors import TableError

    with pytest.raises(TableError, match="What helps"):
        docstring_parts("x\n\nWhat you see: a\nWhat misleads: b\nWhat is true: c\n", "made")


# budget

NO_BLOCKS = "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine."


def test_weights_alone_exceed_the_share() -> None:
    found = best(case(
        NO_BLOCKS, phase="kv_pool", version="0.17.1", settings={"gpu_memory_utilization": 0.6},
        figures={"total_gib": "23.54", "weights_gib": "14.25", "kv_gib": "-0.70"},
    ))  # fmt: skip
    assert found is not None
    assert (found.cause, found.certainty) == ("budget-below-weights", "certain")
    assert "14.25 GiB) alone" in found.summary
    assert "0.6 x 23.54 - 14.25 (weights)" in found.explanation
    assert "= -0.70 GiB" in found.explanation
    # zero at 0.6 + 0.70 / 23.54
    assert "above 0.630" in found.explanation
    assert not any("--max-num-seqs" in fix.change for fix in found.fixes)


def test_v1_before_0_9_1_charges_others_when_nothing_of_this_server_explains_it() -> None:
    message, frames = NO_BLOCKS, ("v1/core/kv_cache_utils.py:check_enough_kv_cache_memory",)
    figures = {"total_gib": "79.15", "weights_gib": "15.3"}
    old = case(
        f"{message} EngineCore", phase="kv_pool", frames=frames, figures=figures, version="0.8.5",
        settings={"gpu_memory_utilization": 0.4},
    )  # fmt: skip
    assert cause_of(old) == "instance-accounting-shared-gpu"
    new = case(
        message, phase="kv_pool", frames=frames, figures={**figures, "kv_gib": "-1.2"}, version="0.13.0",
        settings={"gpu_memory_utilization": 0.4},
    )  # fmt: skip
    assert cause_of(new) == "budget-below-weights"


FIT = (
    "ValueError: To serve at least one request with the models's max seq len (202752), (71.16 GiB KV cache is needed, "
    "which is larger than the available KV cache memory (28.57 GiB). Based on the available memory, the estimated "
    "maximum model length is 81392. Try increasing `gpu_memory_utilization` or decreasing `max_model_len`."
)


def test_one_request_does_not_fit() -> None:
    found = best(case(FIT, phase="kv_pool", version="0.19.0", settings={"pipeline_parallel_size": 8}))
    assert found is not None
    assert found.cause == "max-len-exceeds-kv"
    assert "71.16 GiB" in found.summary and "28.57 GiB" in found.summary
    first = found.fixes[0]
    assert first.change == {"--max-model-len": 81392}
    assert first.predicted is not None and first.predicted.verdict == "starts"


def test_without_an_estimate_the_limit_follows_from_the_memory() -> None:
    text = (
        "ValueError: To serve at least one request with the model's max seq len (100000), (4.26 GiB KV cache is needed, "
        "which is larger than the available KV cache memory (4.25 GiB)."
    )
    found = best(case(text, phase="kv_pool"))
    assert found is not None
    limit = found.fixes[0].change["--max-model-len"]
    # (4.25 - 0.005) / (4.26 + 0.005) of 100,000, in whole blocks of 16
    assert limit == 99_520


@pytest.mark.parametrize(("version", "expected"), [
    ("0.13.0", "max-len-exceeds-kv"), ("0.14.0", "pp-kv-check-overcount"), ("0.15.2rc1.dev93", "pp-kv-check-overcount"),
    ("0.16.0", "pp-kv-check-overcount"), ("0.17.0", "max-len-exceeds-kv"), (None, "max-len-exceeds-kv"),
])  # fmt: skip
def test_the_check_of_stages_is_wrong_in_three_releases(version: str | None, expected: str) -> None:
    assert (
        cause_of(case(FIT, phase="kv_pool", version=version, settings={"pipeline_parallel_size": 8}))
        == expected
    )


def test_the_graph_estimate_is_blamed_only_where_it_decides() -> None:
    figures = {"total_gib": "94.97", "weights_gib": "76.4", "kv_gib": "-1.9", "graph_estimate_gib": "6.21"}
    blamed = case(NO_BLOCKS, phase="kv_pool", version="0.25.1", figures=figures)
    assert cause_of(blamed) == "graph-estimate-overreserve"
    assert (
        cause_of(case(NO_BLOCKS, phase="kv_pool", version="0.19.0", figures=figures)) == "budget-below-weights"
    )
    deeper = {**figures, "kv_gib": "-7.0"}
    assert (
        cause_of(case(NO_BLOCKS, phase="kv_pool", version="0.25.1", figures=deeper)) == "budget-below-weights"
    )


# the check at start


def _check(free: float, total: float, share: float) -> str:
    return (
        f"ValueError: Free memory on device cuda:0 ({free}/{total} GiB) on startup is less than desired GPU memory "
        f"utilization ({share}, {round(share * total, 2)} GiB). Decrease GPU memory utilization or reduce GPU memory used by "
        f"other processes."
    )


def test_the_check_at_start_names_who_holds_the_card() -> None:
    found = best(case(_check(7.34, 139.72, 0.9), phase="init"))
    assert found is not None
    assert found.cause == "free-memory-below-request"
    assert found.contributing == ("other-process-on-gpu",)
    desktop = best(case(_check(3.22, 4.0, 0.9), phase="init"))
    assert desktop is not None and desktop.contributing == ()
    shares = [fix.change.get("--gpu-memory-utilization") for fix in desktop.fixes]
    # 3.22 / 4.0 = 0.805
    assert 0.8 in shares


def test_a_restart_into_a_full_card_is_a_stale_process() -> None:
    text = _check(8.88, 80.0, 0.85)
    assert cause_of(case(text, phase="init")) == "free-memory-below-request"
    assert cause_of(case(text, phase="init", index=1)) == "stale-process-holds-gpu"


@pytest.mark.parametrize(("free", "share", "expected"), [
    (109.53, 0.91, "unified-memory-accounting"), (102.2, 0.87, "free-memory-below-request"),
])  # fmt: skip
def test_unified_memory_misses_by_little_or_by_much(free: float, share: float, expected: str) -> None:
    one = case(_check(free, 121.69, share), phase="init", gpu="NVIDIA GB10")
    assert cause_of(one) == expected
    assert cause_of(case(_check(free, 121.69, share), phase="init")) == "free-memory-below-request"


# out of memory, by place


@pytest.mark.parametrize(("phase", "frames", "expected"), [
    ("weights", ("model_executor/model_loader/base_loader.py:load_model", "layers/linear.py:create_weights"), "weights-exceed-gpu"),
    ("weights", ("model_loader/utils.py:process_weights_after_loading", "utils/marlin_utils_fp4.py:prepare_moe_fp4_layer_for_marlin"), "moe-repack-oom"),
    ("weights", ("model_loader/utils.py:process_weights_after_loading", "quantization/fp8.py:process_weights_after_loading"), "weights-exceed-gpu"),
    ("profile", ("v1/worker/gpu_model_runner.py:profile_run", "models/qwen2_5_vl.py:embed_multimodal"), "mm-encoder-profile-oom"),
    ("profile", ("v1/worker/gpu_model_runner.py:profile_run", "layers/fused_moe/modular_kernel.py:apply"), "moe-workspace-profile-oom"),
    ("graph_capture", ("v1/worker/gpu_model_runner.py:capture_model", "layers/fused_moe/layer.py:forward"), "graph-capture-oom"),
    ("warmup", ("v1/worker/gpu_model_runner.py:_dummy_sampler_run", "v1/sample/ops/topk_topp_sampler.py:forward_native"), "sampler-warmup-oom"),
    ("serving", ("v1/engine/core.py:run_busy_loop", "v1/worker/gpu_model_runner.py:execute_model", "v1/sample/sampler.py:forward"), "runtime-oom"),
    ("serving", ("v1/engine/core.py:run_busy_loop", "layers/mla_attention.py:_compute_prefill_context"), "prefill-peak-not-profiled"),
    ("init", ("v1/worker/gpu_worker.py:init_device",), "free-memory-below-request"),
    ("kv_pool", ("v1/worker/gpu_model_runner.py:initialize_kv_cache", "v1/attention/backends/flashinfer.py:_get_workspace_buffer"), "attention-workspace-oom"),
    ("profile", ("v1/worker/gpu_model_runner.py:profile_run", "model_executor/models/mllama_vision.py:forward"), "mm-encoder-profile-oom"),
])  # fmt: skip
def test_an_allocation_fails_for_the_place_where_it_fails(
    phase: Phase, frames: tuple[str, ...], expected: str
) -> None:
    assert cause_of(case(OOM, phase=phase, frames=frames)) == expected


def test_the_sampler_is_computed() -> None:
    text = f"{OOM}\nRuntimeError: CUDA out of memory occurred when warming up sampler with 1024 dummy requests."
    found = best(case(text, phase="warmup", version="0.19.0", settings={"gpu_memory_utilization": 0.95}))
    assert found is not None
    assert (found.cause, found.weight) == ("sampler-warmup-oom", 40)
    assert "1,024 sequences" in found.summary and "786 MiB" in found.summary
    # 3.5 x 786 MiB shrink below the 552.5 MiB that were free at an eighth: 344 MiB
    assert found.fixes[0].change == {"--max-num-seqs": 128}


def test_figures_refute_what_people_suspect() -> None:
    text = OOM.replace("1.78 GiB is reserved", "120.00 MiB is reserved")
    found = best(case(text, phase="graph_capture"))
    assert found is not None
    because = {r.hypothesis: r.because for r in found.refuted}
    assert "120 MiB" in because["fragmentation"]
    assert "78.64 GiB" in because["another process on the card"]


def test_much_unallocated_memory_does_not_refute_fragmentation() -> None:
    found = best(case(OOM, phase="serving"))
    assert found is not None
    assert "fragmentation" not in {r.hypothesis for r in found.refuted}


def test_a_pinned_pool_sleep_mode_and_depth_outrank_the_place() -> None:
    pinned = case(OOM, phase="warmup", settings={"kv_cache_memory_bytes": 40607249408})
    assert cause_of(pinned) == "kv-cache-memory-oversized"
    over = OOM.replace("74.91 GiB is allocated", "94.91 GiB is allocated")
    assert cause_of(case(over, phase="warmup", settings={"enable_sleep_mode": True})) == "sleep-mode-accounting"
    config = {"method": "dflash", "num_speculative_tokens": 15}
    deep = case(OOM, phase="kv_pool", settings={"speculative_config": config, "max_num_seqs": 256})
    assert cause_of(deep) == "spec-decode-memory"
    shallow = case(OOM, phase="graph_capture", settings={"speculative_config": {"num_speculative_tokens": 1}})
    assert cause_of(shallow) == "graph-capture-oom"


def test_waking_from_sleep_fails_in_the_allocator_of_sleep_mode() -> None:
    text = "RuntimeError: CUDA Error: out of memory at /workspace/csrc/cumem_allocator.cpp:163"
    frames = ("v1/worker/gpu_worker.py:wake_up", "device_allocator/cumem.py:create_and_map")
    assert cause_of(case(text, phase="serving", frames=frames)) == "sleep-mode-accounting"


def test_a_neighbour_on_the_card_is_named() -> None:
    crowded = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 270.00 MiB. GPU 0 has a total capacity of 79.19 GiB of "
        "which 12.00 MiB is free. Process 4257 has 60.10 GiB memory in use. Including non-PyTorch memory, this process has "
        "19.00 GiB memory in use."
    )
    found = best(
        case(crowded, phase="weights", frames=("model_executor/model_loader/base_loader.py:load_model",))
    )
    assert found is not None
    assert found.cause == "instance-accounting-shared-gpu"
    assert "60.1" in found.summary


# the rest


def test_mamba_blocks_with_and_without_the_guard() -> None:
    guard = "ValueError: max_num_seqs (1024) exceeds available Mamba cache blocks (969). Each decode sequence requires one"
    found = best(case(guard, phase="graph_capture", version="0.28.0"))
    assert found is not None and found.fixes[0].change == {"--max-num-seqs": 969}
    old = "torch.AcceleratorError: CUDA error: device kernel image is invalid"
    assert cause_of(case(old, phase="graph_capture", version="0.17.0")) == "mamba-blocks-below-max-num-seqs"
    assert cause_of(case(old, phase="weights", version="0.17.0")) != "mamba-blocks-below-max-num-seqs"


def test_a_check_of_one_node_under_ray() -> None:
    text = (
        "AssertionError: local_world_size (16) must be less than or equal to the number of visible devices (8)."
    )
    ray = case(text, phase="init", settings={"distributed_executor_backend": "ray"})
    assert cause_of(ray) == "multinode-device-check"
    assert cause_of(case(text, phase="init")) == "not-enough-gpus"


def test_a_front_end_dies_and_a_worker_does_not_count_as_one() -> None:
    text = "RuntimeError: Process {} (PID: 353) died with exit code 2"
    assert cause_of(case(text.format("RustFrontend"), phase="warmup")) == "frontend-process-died"
    assert cause_of(case(text.format("EngineCore_DP0"), phase="warmup")) != "frontend-process-died"


def test_expandable_segments_or_another_fault_of_the_custom_all_reduce() -> None:
    text = "Failed: Cuda error /workspace/csrc/custom_all_reduce.cuh:164 'invalid argument'"
    on = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    assert cause_of(case(text, phase="graph_capture", env=on)) == "custom-allreduce-expandable-segments"
    assert cause_of(case(text, phase="graph_capture")) == "custom-allreduce-capture-fault"


def test_the_length_is_longer_than_the_model() -> None:
    text = (
        "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig\n  Value error, User-specified "
        "max_model_len (8192) is greater than the derived max_model_len (max_position_embeddings=2048 or "
        "model_max_length=None in model's config.json)."
    )
    found = best(case(text, phase="args"))
    assert found is not None
    assert found.cause == "max-len-exceeds-model"
    assert found.fixes[0].change == {"--max-model-len": 2048}


def test_a_started_server_has_no_cause() -> None:
    one = case("INFO: nothing", outcome="started", phase="serving")
    healthy = Case(Run("vllm"), one.deployment, Budget(), "started", "serving", None)
    assert cause_of(healthy) is None


def test_no_cause_raises_on_odd_text() -> None:
    for text in (
        "",
        "x" * 5000,
        "max seq len (1,,2), (. GiB KV cache is needed",
        "Tried to allocate . GiB out of memory: CUDA out of memory",
    ):
        for phase in (None, "init", "weights", "profile", "kv_pool", "graph_capture", "warmup", "serving"):
            best(case(text or ": ", phase=phase))  # type: ignore[arg-type]
