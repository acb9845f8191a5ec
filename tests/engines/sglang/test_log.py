"""SGLang's lines of several years, read into figures, phases and failures. The logs here are made up, in the forms
of the releases' own source."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from ullage.core.launch import Arg, Launch
from ullage.core.machine import Gpu, Machine
from ullage.core.run import Failure, Run, Served, Settings
from ullage.core.units import GIB
from ullage.engines.base import Hints
from ullage.engines.sglang import ENGINE
from ullage.engines.sglang.log import grammar
from ullage.engines.sglang.printed import settings_in
from ullage.engines.sglang.releases import possible
from ullage.logs.lines import lines_of, read

SHARED = Path(__file__).parents[4] / "shared"


def runs_of(text: str) -> list[Run]:
    reader = ENGINE.reader()
    for line in lines_of(text):
        reader.feed(line)
    return reader.finish()


def run_of(text: str) -> Run:
    return runs_of(text)[-1]


def figures(text: str) -> dict[str, float]:
    return {name: reading.value.value for name, reading in ENGINE.observed(run_of(text)).items()}


def root(text: str) -> Failure:
    return next(failure for failure in run_of(text).failures if not failure.cascade)


# --- figures --------------------------------------------------------------------------------------------------

OF_2024 = """\
[2024-12-20 02:00:36] server_args=ServerArgs(model_path='m', mem_fraction_static=0.88, tp_size=1, chunked_prefill_size=2048)
[2024-12-20 02:00:41 TP0] Init torch distributed begin.
[2024-12-20 02:00:41 TP0] Load weight begin. avail mem=22.95 GB
[2024-12-20 02:00:43 TP0] Load weight end. type=Qwen2ForCausalLM, dtype=torch.bfloat16, avail mem=8.40 GB
[2024-12-20 02:00:43 TP0] Memory pool end. avail mem=2.29 GB
[2024-12-20 02:00:43 TP0] Capture cuda graph begin. This can take up to several minutes.
[2024-12-20 02:00:45 TP0] Capture cuda graph end. Time elapsed: 2.19 s
[2024-12-20 02:00:46 TP0] max_total_num_tokens=56524, max_prefill_tokens=16384, max_running_requests=2049, context_len=32768
[2024-12-20 02:00:46] INFO:     Uvicorn running on http://0.0.0.0:30000 (Press CTRL+C to quit)
[2024-12-20 02:00:50] The server is fired up and ready to roll!
"""
OF_2026 = """\
[2026-09-01 10:00:00] server_args={'model_path': 'm', 'tp_size': 2, 'mem_fraction_static': 0.81, 'max_running_requests': None}
[2026-09-01 10:00:05 TP0] Init parallel begin.
[2026-09-01 10:00:06 TP0] Init parallel ends. elapsed=1.00 s
[2026-09-01 10:00:06 TP0] Memory baseline taken. mem usage=0.52 GB
[2026-09-01 10:00:06 TP1] Load weight begin. avail mem=94.02 GB
[2026-09-01 10:00:06 TP0] Load weight begin. avail mem=94.08 GB
[2026-09-01 10:01:06 TP1] Load weight end. elapsed=60.00 s, type=MForCausalLM, quant=fp8, avail mem=64.01 GB, mem usage=30.01 GB.
[2026-09-01 10:01:06 TP0] Load weight end. elapsed=60.00 s, type=MForCausalLM, quant=fp8, avail mem=64.07 GB, mem usage=30.01 GB.
[2026-09-01 10:01:07 TP0] Load weight begin. avail mem=63.90 GB
[2026-09-01 10:01:08 TP0] Load weight end. elapsed=1.00 s, type=MForCausalLMEagle3, avail mem=62.90 GB, mem usage=1.00 GB.
[2026-09-01 10:01:08 TP1] KV Cache is allocated. dtype: torch.bfloat16, #tokens: 500000, K size: 20.00 GB, V size: 20.00 GB
[2026-09-01 10:01:08 TP0] KV Cache is allocated. dtype: torch.bfloat16, #tokens: 500000, K size: 20.00 GB, V size: 20.00 GB
[2026-09-01 10:01:08 TP0] Memory pool end. avail mem=22.50 GB
[2026-09-01 10:01:08 TP0] KV Cache is allocated. dtype: torch.bfloat16, #tokens: 500000, K size: 0.50 GB, V size: 0.50 GB
[2026-09-01 10:01:08 TP0] Memory pool end. avail mem=21.50 GB
[2026-09-01 10:01:09 TP0] Capture target verify CUDA graph begin. backend=full, num_tokens_per_req=4, avail mem=21.00 GB
[2026-09-01 10:01:19 TP0] Capture target verify CUDA graph end. elapsed=10.00 s, mem usage=1.50 GB, avail mem=19.50 GB.
[2026-09-01 10:01:19 TP0] Capture draft decode CUDA graph begin. backend=full, num_tokens_per_req=1, avail mem=19.50 GB
[2026-09-01 10:01:20 TP0] Capture draft decode CUDA graph end. elapsed=1.00 s, mem usage=0.50 GB, avail mem=19.00 GB.
[2026-09-01 10:01:21 TP0] max_total_num_tokens=500000, chunked_prefill_size=8192, max_prefill_tokens=16384, max_running_requests=48, context_len=131072, available_gpu_mem=18.90 GB
[2026-09-01 10:01:25] The server is fired up and ready to roll!
[2026-09-01 10:02:00 TP0] Decode batch, #running-req: 4, #token: 900, token usage: 0.01, accept len: 2.75, accept rate: 0.60, cuda graph: True, gen throughput (token/s): 310.20, #queue-req: 1
"""


def test_a_start_of_2024() -> None:
    found = figures(OF_2024)
    assert found["free_before_weights_gib"] == 22.95
    assert found["free_after_weights_gib"] == 8.40
    assert found["free_after_kv_pool_gib"] == 2.29
    assert found["kv_tokens"] == 56524
    assert found["max_running_requests"] == 2049
    assert found["context_len"] == 32768
    assert found["chunked_prefill_size"] == 2048  # from the arguments: the summary of that time lacks it
    assert found["mem_fraction_static"] == 0.88
    run = run_of(OF_2024)
    assert run.ready is not None
    assert not run.failures


def test_a_start_of_2026_with_a_draft() -> None:
    found = figures(OF_2026)
    assert found["init_used_gib"] == 0.52
    assert found["free_before_weights_gib"] == 94.08  # rank 0, though rank 1 prints first
    assert found["weights_gib"] == 30.01
    assert found["draft_weights_gib"] == 1.00
    assert (found["k_gib"], found["draft_k_gib"]) == (20.0, 0.5)
    assert (found["free_after_kv_pool_gib"], found["draft_free_after_kv_pool_gib"]) == (22.5, 21.5)
    assert (found["graphs_gib"], found["draft_graphs_gib"]) == (1.5, 0.5)
    assert found["free_at_ready_gib"] == 18.9
    assert found["mem_fraction_static"] == 0.81


def test_readings_take_the_least_free_memory_of_all_ranks() -> None:
    deployment = ENGINE.deployment(run_of(OF_2026), Hints())
    assert deployment.readings["free_before_weights_gib"].value.value == 94.02
    assert deployment.readings["free_after_weights_gib"].value.value == 64.01
    assert deployment.by_rank["TP0"]["free_after_weights_gib"].value.value == 64.07
    assert deployment.readings["free_after_weights_gib"].source == "log:7"


def test_served_lines() -> None:
    served = run_of(OF_2026).first(Served)
    assert served is not None
    assert (served.acceptance_length, served.tokens_per_s) == (2.75, 310.2)
    assert (served.running, served.queued, served.tokens) == (4, 1, 900)


def test_a_second_line_without_rank_is_another_rank_where_nothing_is_drafted() -> None:
    found = figures(
        "server_args=ServerArgs(model_path='m', tp_size=2, speculative_algorithm=None)\n"
        "Load weight begin. avail mem=20.00 GB\nLoad weight begin. avail mem=21.00 GB\n"
    )
    assert "draft_free_before_weights_gib" not in found


def test_sliding_window_pools() -> None:
    found = figures(
        "[2026-06-10 01:52:32 TP0] Use sliding window memory pool. full_layer_tokens=102094, swa_layer_tokens=81675\n"
        "[2026-06-10 01:52:32 TP0] KV Cache is allocated. #tokens: 81675, K size: 6.23 GB, V size: 6.23 GB\n"
        "[2026-06-10 01:52:32 TP0] KV Cache is allocated. #tokens: 102094, K size: 0.78 GB, V size: 0.78 GB\n"
        "[2026-06-10 01:52:32 TP0] SWAKVPool mem usage: 14.02 GB, swa size: 81675, full size: 102094\n"
    )
    assert (found["kv_tokens"], found["swa_tokens"]) == (102094, 81675)
    assert (found["k_gib"], found["swa_k_gib"], found["kv_gib"]) == (0.78, 6.23, 14.02)


def test_other_devices_and_mamba() -> None:
    found = figures(
        "[2026-08-07 17:35:59 TP0] Capture target decode NPU graph begin. backend=full, num_tokens_per_req=1, bs=[1, 2], avail mem=1.54 GB\n"
        "[2026-08-07 17:36:17 TP0] Capture target decode NPU graph end. elapsed=18.07 s, mem usage=0.73 GB, avail mem=0.81 GB.\n"
        "[2026-08-07 17:36:17 TP0] Mamba Cache is allocated. max_mamba_cache_size: 38, conv_state size: 0.03GB, ssm_state size: 2.74GB "
        "intermediate_ssm_state_cache size: 1.50GB intermediate_conv_window_cache size: 0.02GB \n"
    )
    assert (found["free_before_graphs_gib"], found["graphs_gib"], found["free_after_graphs_gib"]) == (
        1.54,
        0.73,
        0.81,
    )
    assert (found["mamba_slots"], found["mamba_conv_gib"], found["mamba_ssm_gib"]) == (38, 0.03, 2.74)
    assert found["mamba_intermediate_ssm_gib"] == 1.5


def test_figures_inside_an_exception() -> None:
    text = (
        "[2025-04-20 14:03:13 TP0] Scheduler hit an exception: Traceback (most recent call last):\n"
        '  File "/x/sglang/srt/managers/scheduler.py", line 1992, in run_scheduler_process\n    x()\n'
        '  File "/x/sglang/srt/layers/quantization/fp8.py", line 259, in create_weights\n    y()\n'
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 114.00 MiB. GPU 0 has a total capacity of 15.58 GiB of "
        "which 54.38 MiB is free. Including non-PyTorch memory, this process has 15.42 GiB memory in use. Of the allocated "
        "memory 15.12 GiB is allocated by PyTorch, and 71.63 MiB is reserved by PyTorch but unallocated.\n\n"
    )
    found = figures(text)
    assert found["oom_total_gib"] == 15.58
    assert found["oom_alloc_gib"] == pytest.approx(114 / 1024)
    assert found["oom_free_gib"] == pytest.approx(54.38 / 1024)
    assert found["oom_torch_allocated_gib"] == 15.12
    failure = root(text)
    assert (failure.kind, failure.at, failure.rank.label) == ("cuda-oom", "weights", "TP0")
    machine = ENGINE.deployment(run_of(text), Hints()).machine
    assert machine is not None
    assert machine.gpu is not None
    assert machine.gpu.cuda_bytes is not None
    assert machine.gpu.cuda_bytes.value == pytest.approx(15.58 * GIB)


# --- settings ---------------------------------------------------------------------------------------------------


def test_settings_of_both_forms() -> None:
    assert settings_in("server_args=ServerArgs(a='it\\'s', b=None, c=[1, (2, 3)], d=<Mode.X: 'x'>, e=F(g=1), h=1e-05)") == {
        "a": "it's", "b": None, "c": [1, [2, 3]], "d": "x", "e": {"g": 1}, "h": 1e-05,
    }  # fmt: skip
    assert settings_in("server_args={'a': {'b': True}, 'c': Config(d=Part(bs=[1, 2])), 'e': -1}") == {
        "a": {"b": True}, "c": {"d": {"bs": [1, 2]}}, "e": -1,
    }  # fmt: skip


@pytest.mark.parametrize("text", ["server_args=ServerArgs(a='x', b=[1, 2], c={'d': 1}, e=0.5, f='y')"])
def test_a_cut_line_never_tells_another_value(text: str) -> None:
    whole = settings_in(text)
    for end in range(len(text)):
        part = settings_in(text[:end])
        assert all(whole[name] == value for name, value in part.items())


def test_nothing_is_evaluated() -> None:
    assert settings_in("server_args=ServerArgs(a=__import__('os').system('x'), b=1)") in (
        {},
        {"a": "__import__('os')"},
    )


def test_origins() -> None:
    given = Launch(
        "sglang",
        args={"tp_size": Arg(2, "given"), "port": Arg(1, "given"), "mem_fraction_static": Arg(0.9, "given")},
    )
    deployment = ENGINE.deployment(run_of(OF_2026), Hints(launch=given))
    args = deployment.launch.args
    assert (args["tp_size"].value, args["tp_size"].origin) == (2, "given")
    assert (args["mem_fraction_static"].value, args["mem_fraction_static"].origin) == (0.81, "log")
    assert (args["port"].value, args["port"].origin) == (1, "given")
    assert args["max_prefill_tokens"].origin == "default"


def test_disagreements_name_both_values() -> None:
    given = Launch("sglang", args={"mem_fraction_static": Arg(0.9, "given")})
    hints = Hints(launch=given, version="0.4.0", machine=Machine(Gpu("RTX 4090", 24 * GIB)))
    said = ENGINE.disagreements(run_of(OF_2026), hints)
    assert len(said) == 3
    assert any("0.9" in text and "0.81" in text for text in said)
    assert any("0.4.0" in text for text in said)
    assert any("RTX 4090" in text for text in said)
    assert ENGINE.disagreements(run_of(OF_2026), Hints()) == []


def test_the_release_is_inferred_from_the_forms() -> None:
    launch = ENGINE.deployment(run_of(OF_2024), Hints()).launch
    assert launch.version_source == "inferred"
    assert launch.release is not None
    assert str(possible(run_of(OF_2026))[0]) == "0.5.21"
    assert ENGINE.deployment(run_of(OF_2024), Hints(version="0.4.1")).launch.version == "0.4.1"


# --- failures -----------------------------------------------------------------------------------------------------

NOT_ENOUGH = """\
[2026-02-20 10:00:00 TP0] Load weight begin. avail mem=94.08 GB
[2026-02-20 10:10:00 TP0] Load weight end. elapsed=600.00 s, type=KimiK25ForConditionalGeneration, dtype=torch.bfloat16, avail mem=21.78 GB, mem usage=72.30 GB.
[2026-02-20 10:10:01 TP0] Scheduler hit an exception: Traceback (most recent call last):
  File "/x/sglang/srt/managers/scheduler.py", line 3190, in run_scheduler_process
  File "/x/sglang/srt/model_executor/model_runner.py", line 500, in init_memory_pool
RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. Current value: self.server_args.mem_fraction_static=0.55

[2026-02-20 10:10:02] Received sigquit from a child process. It usually means the child failed.
"""


def test_root_and_what_followed() -> None:
    failures = run_of(NOT_ENOUGH).failures
    assert [(f.kind, f.cascade) for f in failures] == [("budget-below-weights", False), ("sigquit", True)]
    assert failures[0].at == "kv_pool"
    assert figures(NOT_ENOUGH)["mem_fraction_static"] == 0.55
    assert str(possible(run_of(NOT_ENOUGH))[-1]) == "0.5.9"


@pytest.mark.parametrize(
    ("line", "kind", "phase"),
    [
        ("ValueError: Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static=0.95.", "budget-below-weights", "kv_pool"),
        ("ValueError: The memory capacity is unbalanced. Some GPUs may be occupied by other processes.", "unbalanced", "init"),
        ("Exception: Capture cuda graph failed: CUDA out of memory. Tried to allocate 1.50 GiB.", "cuda-oom", "graph_capture"),
        ("Exception: Capture prefill CUDA graph failed: mat1 and mat2 shapes cannot be multiplied", "Exception", "graph_capture"),
        ("zmq.error.ZMQError: Address already in use (addr='tcp://*:5557')", "address-in-use", "init"),
        ("ValueError: Not enough host memory available. Requesting 7.05 GB but only have 2.04 GB free.", "host-pool-too-large", "kv_pool"),
        ("RuntimeError: SGLang only supports sm75 and above.", "gpu-too-old", "init"),
        ("OSError: [Errno 12] Cannot allocate memory", "host-memory", "init"),
        ("AssertionError: tp_size must be divisible by number of nodes", "AssertionError", "args"),
        ("ValueError: Unknown quantization method: foo. Must be one of [].", "ValueError", "init"),
        ("launch_server.py: error: unrecognized arguments: --foo", "usage-error", "args"),
    ],
)  # fmt: skip
def test_a_line_alone_tells_its_phase(line: str, kind: str, phase: str) -> None:
    failure = root(line + "\n")
    assert (failure.kind, failure.at, failure.cascade) == (kind, phase, False)


@pytest.mark.parametrize(
    "line",
    [
        "[2025-03-01 00:00:00] Received sigquit from a child process. It usually means the child failed.",
        "[2025-03-01 00:00:00] SIGQUIT received. signum=None, frame=None. It usually means one child failed.",
        "RuntimeError: Rank 0 scheduler died during initialization (exit code: -3). If exit code is -9 (SIGKILL), a common cause is the OS OOM killer.",
        "[2025-03-01 00:00:00] Rank 0 scheduler is dead. Please check if there are relevant logs.",
        "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:45492",
        "EOFError",
        "[2025-03-01 00:00:00] Exit code: 0",
    ],
)  # fmt: skip
def test_cascades(line: str) -> None:
    failures = run_of(line + "\n").failures
    assert failures
    assert all(failure.cascade for failure in failures)


@pytest.mark.parametrize(
    ("frames", "phase"),
    [
        (["managers/scheduler.py:init_model_worker", "model_executor/model_runner.py:init_torch_distributed",
          "distributed/parallel_state.py:init_model_parallel_group"], "init"),
        (["model_executor/model_runner.py:load_model", "models/llama.py:__init__", "layers/linear.py:__init__"], "weights"),
        (["model_executor/model_runner.py:init_memory_pool", "mem_cache/memory_pool.py:_create_buffers"], "kv_pool"),
        (["model_executor/model_runner.py:init_attention_backend", "layers/attention/flashinfer_backend.py:__init__"], "kv_pool"),
        (["model_executor/cuda_graph_runner.py:capture", "models/llama.py:forward", "layers/linear.py:forward"], "graph_capture"),
        (["layers/attention/triton_backend.py:init_cuda_graph_state", "x.py:empty"], "graph_capture"),
        (["managers/scheduler.py:event_loop_overlap", "model_executor/cuda_graph_runner.py:replay"], "serving"),
        (["entrypoints/http_server.py:launch_server", "server_args.py:check_server_args"], "args"),
    ],
)  # fmt: skip
def test_frames_tell_the_phase(frames: list[str], phase: str) -> None:
    lines = []
    for frame in frames:
        file, function = frame.split(":")
        lines.append(f'  File "/site-packages/sglang/srt/{file}", line 1, in {function}\n    call()\n')
    text = "[2025-06-01 00:00:00 TP0] Scheduler hit an exception: Traceback (most recent call last):\n"
    assert root(text + "".join(lines) + "RuntimeError: x\n").at == phase


@pytest.mark.parametrize(
    ("place", "phase"),
    [
        ("layers/logits_processor.py:_get_logits", "serving"),
        ("layers/moe/fused_moe_triton/fused_moe.py:fused_experts_impl", "serving"),
        ("layers/attention/nsa/nsa_indexer.py:_get_topk_paged", "serving"),
        ("distributed/utils.py:ensure_divisibility", "weights"),
        ("distributed/device_communicators/pynccl_wrapper.py:NCCL_CHECK", "init"),
    ],
)
def test_the_inner_frame_alone_tells_the_phase(place: str, phase: str) -> None:
    file, function = place.split(":")
    assert (
        root(f'  File "/x/sglang/srt/{file}", line 1, in {function}\n    call()\nRuntimeError: x\n').at == phase
    )


def test_a_stage_line_counts_more_than_an_inner_frame() -> None:
    text = (
        "[2025-06-01 00:00:00 TP0] Capture cuda graph begin. This can take up to several minutes.\n"
        '  File "/x/sglang/srt/layers/logits_processor.py", line 1, in _get_logits\n    call()\n'
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB.\n"
    )
    assert root(text).at == "graph_capture"


def test_a_watchdog_without_any_stage_line_is_one_of_the_service() -> None:
    assert root("[2025-06-01 00:00:00 TP0] Watchdog timeout (self.watchdog_timeout=300)\n").at == "serving"


def test_a_printed_release() -> None:
    launch = ENGINE.deployment(run_of("sglang==0.5.7\n" + OF_2026), Hints(version="0.5.1")).launch
    assert (launch.version, launch.version_source) == ("0.5.7", "log")


def test_a_kill_is_a_root() -> None:
    failure = root(
        "RuntimeError: Rank 3 scheduler died during initialization (exit code: -9). If exit code is -9 (SIGKILL), ...\n"
    )
    assert (failure.kind, failure.signal) == ("scheduler-killed", -9)


def test_the_warm_up_is_a_phase_of_its_own() -> None:
    up = OF_2024.replace("[2024-12-20 02:00:50] The server is fired up and ready to roll!\n", "")
    crash = (
        "[2024-12-20 02:00:50 TP0] Scheduler hit an exception: Traceback (most recent call last):\n"
        '  File "/x/sglang/srt/managers/scheduler.py", line 400, in event_loop_normal\nValueError: x\n'
    )
    assert root(up + crash).at == "warmup"
    assert root(OF_2024 + crash).at == "serving"
    assert root(up + "[2024-12-20 02:00:52] Initialization failed. warmup error: Traceback (most recent call last):\n"
                "AssertionError: res=<Response [502]>, res.text=''\n").at == "warmup"  # fmt: skip


def test_a_request_that_fails_is_no_crash() -> None:
    text = OF_2024 + (
        "[2024-12-20 02:01:50] ERROR:    Exception in ASGI application\nTraceback (most recent call last):\n"
        '  File "/x/sglang/srt/entrypoints/http_server.py", line 400, in generate\nValueError: too long\n'
    )
    run = run_of(text)
    assert not run.failures
    assert run.notes_named("request-error")


def test_a_part_that_the_server_does_without_is_no_failure() -> None:
    text = (
        "[2026-02-01 00:05:01 TP0] Ignore import error when loading sglang.srt.models.x: No module named 'y'\n"
        "ModuleNotFoundError: No module named 'openai_harmony'\nCan not initialize OpenAIServingResponses\n"
    )
    assert not run_of(text).failures


def test_watchdog_is_a_hang_and_a_soft_one_only_a_note() -> None:
    assert root("[2025-02-25 05:36:52 TP4] Watchdog timeout (self.watchdog_timeout=300)\n").hang
    assert root(
        "[2026-02-25 05:36:52 TP4] Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)\n"
    ).hang
    assert not run_of(
        "[2026-02-25 05:36:52] Tokenizer watchdog timeout (self.watchdog_timeout=300, self.soft=True)\n"
    ).failures


def test_stopped_on_request() -> None:
    run = run_of(
        OF_2024
        + "[2024-12-20 09:00:00] SIGTERM received. signum=None frame=None. Draining requests and shutting down...\n"
    )
    assert run.stopped is not None
    assert not run.failures
    interrupted = run_of(
        OF_2024 + '^CTraceback (most recent call last):\n  File "x.py", line 1, in f\nKeyboardInterrupt\n'
    )
    assert interrupted.stopped is not None
    assert all(failure.cascade for failure in interrupted.failures)


def test_a_restart_loop_is_split() -> None:
    runs = runs_of(NOT_ENOUGH + OF_2024 + OF_2026)
    assert [len(run.failures) for run in runs] == [2, 0, 0]
    assert [(run.index, run.of) for run in runs] == [(0, 3), (1, 3), (2, 3)]
    assert runs[0].first(Settings) is None


def test_any_cut_of_a_log_reads() -> None:
    for end in range(0, len(NOT_ENOUGH), 7):
        run = run_of(NOT_ENOUGH[:end])
        ENGINE.deployment(run, Hints())


def test_routine_lines_hold_no_scanned_phrase() -> None:
    routine = b"Decode batch. #running-req: 1, #full token: 1, token usage: 0.01, cuda graph: True, gen throughput (token/s): 1.0, #queue-req: 0"
    assert not [phrase for phrase in ENGINE.literals() if phrase in routine]
    assert b"Load weight end" in ENGINE.literals()
    assert len(grammar().rows) > 100


# --- the public cases ------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not (SHARED / "cases" / "sglang").is_dir(), reason="the shared cases are not here")
def test_figures_and_phases_of_the_shared_cases() -> None:
    read_right = figures_in_all = phase_right = failed = 0
    for toml in sorted((SHARED / "cases" / "sglang").glob("*.toml")):
        case = tomllib.loads(toml.read_text())
        reader = ENGINE.reader()
        for line in read([toml.with_suffix(".log")]):
            reader.feed(line)
        run = reader.finish()[-1]
        seen = ENGINE.observed(run)
        for name in ("free_before_weights_gib", "free_after_weights_gib", "weights_gib", "kv_tokens", "k_gib", "kv_gib",
                     "free_after_kv_pool_gib", "graphs_gib", "free_at_ready_gib", "mem_fraction_static"):  # fmt: skip
            if name in case["observed"]:
                figures_in_all += 1
                read_right += name in seen and abs(seen[name].value.value - case["observed"][name]) < 1e-9
        if case["expect"]["outcome"] != "started":
            failed += 1
            first = next((f.at for f in run.failures if not f.cascade), run.reached)
            phase_right += first == case["expect"]["phase"]
        else:
            assert not [f for f in run.failures if not f.cascade], toml.stem
    assert read_right >= 0.98 * figures_in_all > 100
    assert phase_right >= 0.95 * failed > 30
