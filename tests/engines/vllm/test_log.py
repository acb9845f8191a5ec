"""vLLM's lines, of all releases, to events, phases and figures."""

from __future__ import annotations

import pytest

from ullage.core.run import Failure, Run, Served, Settings
from ullage.engines.base import Hints
from ullage.engines.vllm import ENGINE
from ullage.engines.vllm.printed import keywords, mapping
from ullage.logs.lines import lines_of


def runs(text: str) -> list[Run]:
    reader = ENGINE.reader()
    for line in lines_of(text, "x.log"):
        reader.feed(line)
    return reader.finish()


def run(text: str) -> Run:
    (only,) = runs(text)
    return only


def figures(text: str) -> dict[str, float]:
    return {name: reading.value.value for name, reading in ENGINE.observed(run(text)).items()}


def root(of: Run) -> Failure | None:
    return next((f for f in of.failures if not f.cascade and not f.hang), None)


HEAD = "(EngineCore_DP0 pid=7) INFO 04-22 15:12:00 [gpu_worker.py:1] "
ERROR = "(EngineCore_DP0 pid=7) ERROR 04-22 15:12:09 [core.py:9] "

FIGURES = [
    # V0
    ("INFO 04-08 19:59:10 model_runner.py:1115] Loading model weights took 14.9595 GB", {"weights_gib": 14.9595}),
    (
        "INFO 11-13 07:40:45 worker.py:232] Memory profiling results: total_gpu_memory=23.58GiB "
        "initial_memory_usage=15.34GiB peak_torch_memory=17.06GiB memory_usage_post_profile=15.35Gib "
        "non_torch_memory=0.35GiB kv_cache_size=3.81GiB gpu_memory_utilization=0.90",
        {"total_gib": 23.58, "non_torch_gib": 0.35, "kv_gib": 3.81, "gpu_memory_utilization": 0.9},
    ),
    (
        "INFO 02-26 09:54:05 worker.py:267] the current vLLM instance can use total_gpu_memory (8.00GiB) x "
        "gpu_memory_utilization (0.70) = 5.60GiB",
        {"total_gib": 8.0, "gpu_memory_utilization": 0.7, "requested_gib": 5.6},
    ),
    (
        "INFO 02-26 09:54:05 worker.py:267] model weights take 5.20GiB; non_torch_memory takes 0.03GiB; PyTorch "
        "activation peak memory takes 1.42GiB; the rest of the memory reserved for KV Cache is -1.05GiB.",
        {"weights_gib": 5.2, "non_torch_gib": 0.03, "peak_activation_gib": 1.42, "kv_gib": -1.05},
    ),
    ("INFO 02-26 09:54:05 x.py:1] # cuda blocks: 7299, # CPU blocks: 2048", {"gpu_blocks": 7299, "cpu_blocks": 2048}),
    ("INFO 02-26 09:54:05 x.py:1] # GPU blocks: 12, # CPU blocks: 3", {"gpu_blocks": 12}),
    ("INFO 02-26 09:54:05 x.py:1] Graph capturing finished in 20 secs.", {}),
    # V1
    (HEAD + "Model loading took 14.0786 GiB and 10.247948 seconds", {"weights_gib": 14.0786}),
    (HEAD + "Model loading took 51.1 GiB memory and 41.914650 seconds", {"weights_gib": 51.1}),
    (HEAD + "Available KV cache memory: -0.7 GiB", {"kv_gib": -0.7}),
    (HEAD + "GPU KV cache size: 1,793,232 tokens", {"kv_tokens": 1793232}),
    (
        HEAD + "CPU KV cache size: 350,043 tokens, Maximum concurrency for 262,144 tokens per request: 1.34x",
        {"kv_tokens": 350043, "max_concurrency_len": 262144, "max_concurrency": 1.34},
    ),
    (
        HEAD + "Memory profiling takes 17.55 seconds. Total non KV cache memory: 13.57GiB; torch peak memory increase: "
        "0.77GiB; non-torch forward increase memory: 0.25GiB; weights memory: 12.56GiB.",
        {"total_non_kv_gib": 13.57, "peak_activation_gib": 0.77, "non_torch_gib": 0.25, "weights_gib": 12.56},
    ),
    (
        HEAD + "Memory profiling takes 2.00 seconds. Total non KV cache memory: 13.5GiB; torch peak memory increase: "
        "0.7GiB; total consumed (from mem_get_info): 12.8GiB; weights memory: 12.56GiB.",
        {"total_non_kv_gib": 13.5, "peak_activation_gib": 0.7, "consumed_gib": 12.8, "weights_gib": 12.56},
    ),
    (
        HEAD + "Initial free memory: 78.68 GiB; Requested memory: 0.950000 (util), 75.23 GiB",
        {"free_at_start_gib": 78.68, "gpu_memory_utilization": 0.95, "requested_gib": 75.23},
    ),
    (
        HEAD + "Initial free memory: 78.68 GiB, free memory: 60.10 GiB, requested GPU memory: 71.27 GiB",
        {"free_at_start_gib": 78.68, "free_after_profile_gib": 60.1, "requested_gib": 71.27},
    ),
    (
        HEAD + "Free memory on device (78.66/79.19 GiB) on startup. Desired GPU memory utilization is (0.9, 71.27 "
        "GiB). Actual usage is 14.08 GiB for weight, 1.97 GiB for peak activation, 0.07 GiB for non-torch memory, and "
        "0.67 GiB for CUDAGraph memory. Replace gpu_memory_utilization config with `--kv-cache-memory=1` (1.0 GiB) to "
        "fit into requested memory. Current kv cache memory in use is 55.15 GiB.",
        {
            "free_at_start_gib": 78.66, "total_gib": 79.19, "gpu_memory_utilization": 0.9, "requested_gib": 71.27,
            "weights_gib": 14.08, "peak_activation_gib": 1.97, "non_torch_gib": 0.07, "graphs_gib": 0.67,
            "kv_in_use_gib": 55.15,
        },
    ),
    (
        HEAD + "CUDA graph memory profiling is enabled (default since v0.21.0). The current "
        "--gpu-memory-utilization=0.8800 is equivalent to --gpu-memory-utilization=0.8592 without CUDA graph memory "
        "profiling.",
        {"gpu_memory_utilization": 0.88, "utilization_without_graphs": 0.8592},
    ),
    (HEAD + "Engine 000: vllm cache_config_info with initialization after num_gpu_blocks is: 7891", {"gpu_blocks": 7891}),
    (
        HEAD + "Initial free memory 78.5 GiB, reserved 40.0 GiB memory for KV Cache as specified by "
        "kv_cache_memory_bytes config and skipped memory profiling.",
        {"free_at_start_gib": 78.5, "kv_gib": 40.0},
    ),
    # errors
    (
        "ValueError: Free memory on device cuda:0 (30.2/31.84 GiB) on startup is less than desired GPU memory "
        "utilization (0.95, 30.25 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes.",
        {"free_at_start_gib": 30.2, "total_gib": 31.84, "gpu_memory_utilization": 0.95, "requested_gib": 30.25},
    ),
    (
        ERROR + "ValueError: To serve at least one request with the models's max seq len (8192), (1.0 GiB KV cache is "
        "needed, which is larger than the available KV cache memory (0.95 GiB). Based on the available memory, the "
        "estimated maximum model length is 7760. Try increasing `gpu_memory_utilization`.",
        {"needed_kv_gib": 1.0, "kv_gib": 0.95, "max_len": 8192, "est_max_len": 7760},
    ),
    (
        "ValueError: The model's max seq len (29000) is larger than the maximum number of tokens that can be stored in "
        "KV cache (23648). Try increasing `gpu_memory_utilization`.",
        {"max_len": 29000, "kv_tokens": 23648},
    ),
]  # fmt: skip


@pytest.mark.parametrize(("line", "expected"), FIGURES, ids=range(len(FIGURES)))
def test_figures(line: str, expected: dict[str, float]) -> None:
    found = figures(line)
    assert {name: found.get(name) for name in expected} == pytest.approx(expected)


def trace(*frames: str, error: str, prefix: str = ERROR) -> str:
    lines = ["EngineCore failed to start.", "Traceback (most recent call last):"]
    for frame in frames:
        file, _, function = frame.partition(":")
        lines += [f'  File "site-packages/vllm/{file}.py", line 10, in {function}', f"    self.{function}()"]
    return "".join(f"{prefix}{line}\n" for line in [*lines, error])


OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.19 GiB."
CORE = "v1/engine/core:__init__"
ALL = "v1/engine/core:_initialize_kv_caches"

PHASES = [
    ((CORE, "v1/worker/gpu_worker:init_device"), "RuntimeError: no", "init"),
    ((CORE, "v1/worker/gpu_worker:load_model", "model_executor/models/llama:__init__"), OOM, "weights"),
    ((CORE, "v1/executor/x:_init_executor"), OOM, "weights"),
    ((CORE, ALL, "v1/worker/gpu_worker:determine_available_memory", "v1/worker/gpu_model_runner:_dummy_run"), OOM, "profile"),
    (
        (CORE, ALL, "v1/worker/gpu_worker:determine_available_memory", "v1/worker/gpu_model_runner:_dummy_sampler_run"),
        "RuntimeError: CUDA out of memory occurred when warming up sampler with 256 dummy requests.", "profile",
    ),
    ((CORE, ALL, "v1/core/kv_cache_utils:get_kv_cache_configs"), "ValueError: no", "kv_pool"),
    ((CORE, ALL, "v1/worker/gpu_model_runner:initialize_kv_cache_tensors"), OOM, "kv_pool"),
    (
        (CORE, ALL, "v1/executor/abstract:initialize_from_config", "v1/worker/gpu_worker:compile_or_warm_up_model",
         "v1/worker/gpu_model_runner:capture_model", "v1/worker/gpu_model_runner:_dummy_run"), OOM, "graph_capture",
    ),
    (
        (CORE, ALL, "v1/executor/abstract:initialize_from_config", "v1/worker/gpu_worker:compile_or_warm_up_model",
         "v1/worker/gpu/warmup:warmup_kernels", "v1/worker/gpu/model_runner:execute_model"), OOM, "warmup",
    ),
    (("v1/engine/core:run_busy_loop", "v1/worker/gpu_model_runner:execute_model"), OOM, "serving"),
    (("worker/worker:determine_num_available_blocks", "worker/model_runner:execute_model"), OOM, "profile"),
    (("worker/worker:load_model", "worker/model_runner:load_model"), OOM, "weights"),
    (("engine/arg_utils:create_engine_config", "config/model:__post_init__"), "ValueError: no", "args"),
]  # fmt: skip


@pytest.mark.parametrize(("frames", "error", "phase"), PHASES)
def test_phase_of_a_failure_by_its_frames(frames: tuple[str, ...], error: str, phase: str) -> None:
    found = root(run(trace(*frames, error=error)))
    assert found is not None
    assert found.at == phase


def test_phase_of_a_failure_without_frames_is_the_open_one() -> None:
    before = HEAD + "Available KV cache memory: 6.37 GiB\n"
    bar = "Capturing CUDA graphs (mixed prefill-decode, PIECEWISE):   2%|▏         | 1/51\n"
    assert (root(run(before + bar + ERROR + OOM)) or 0).at == "graph_capture"  # type: ignore[union-attr]
    done = (
        HEAD + "CUDA graph pool memory: 2.39 GiB (actual), 6.04 GiB (estimated), difference: 3.65 GiB (1%).\n"
    )
    assert (root(run(before + bar + done + ERROR + OOM)) or 0).at == "warmup"  # type: ignore[union-attr]


def test_an_error_below_a_ready_server_is_serving() -> None:
    text = "INFO:     Application startup complete.\n" + trace(ALL, "v1/worker/x:load_model", error=OOM)
    assert (root(run(text)) or 0).at == "serving"  # type: ignore[union-attr]


CASCADES = [
    "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
    "Exception: WorkerProc initialization failed due to an exception in a background process. See stack trace for root cause.",
    "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the root cause.",
    "WARNING 01-28 00:18:18 [multiproc_executor.py:786] WorkerProc was terminated",
    "RuntimeError: Engine process failed to start. See stack trace for the root cause.",
    "INFO 04-22 18:37:21 [multiproc_worker_utils.py:124] Killing local vLLM worker processes",
    "ERROR 02-11 07:40:49 multiproc_worker_utils.py:124] Worker VllmWorkerProcess pid 1786 died, exit code: -15",
]  # fmt: skip


@pytest.mark.parametrize("line", CASCADES)
def test_what_merely_followed_is_no_root(line: str) -> None:
    found = run(line)
    assert found.failures
    assert root(found) is None


def test_waiting_for_shared_memory_hints_at_a_hang() -> None:
    found = run(
        "(EngineCore pid=1) INFO 08-13 11:27:02 [shm_broadcast.py:802] No available shared memory broadcast block found "
        "in 60 seconds. This typically happens when some processes are hanging.\n"
    )
    assert [failure.hang for failure in found.failures] == [True]


def test_what_a_warning_tells_was_survived() -> None:
    text = (
        "(Worker_TP8 pid=2) WARNING 08-13 11:22:00 [flashinfer_all_reduce.py:85] Failed to initialize FlashInfer All "
        "Reduce workspace: CUDA error code=2(b'CUDA_ERROR_OUT_OF_MEMORY').\n"
    )
    assert run(text).failures == []


STOP = """\
(EngineCore pid=3) INFO 11-29 16:55:37 [core.py:1454] [shutdown] EngineCore: trigger received signal=SIGTERM
(APIServer pid=1) ERROR 11-29 16:55:37 [async_llm.py:906] AsyncLLM output_handler failed.
(APIServer pid=1) ERROR 11-29 16:55:37 [async_llm.py:906] Traceback (most recent call last):
(APIServer pid=1) ERROR 11-29 16:55:37 [async_llm.py:906]   File "vllm/v1/engine/core_client.py", line 9, in get_output
(APIServer pid=1) ERROR 11-29 16:55:37 [async_llm.py:906]     raise self._format_exception(outputs) from None
(APIServer pid=1) ERROR 11-29 16:55:37 [async_llm.py:906] vllm.v1.engine.exceptions.EngineDeadError: EngineCore ...
(Worker pid=4) ERROR 11-29 16:55:38 [x.py:1] RuntimeError: torn down
"""


def test_a_stop_on_request_is_no_crash() -> None:
    found = run("INFO:     Application startup complete.\n" + STOP)
    assert found.stopped is not None
    assert root(found) is None


def test_uvicorn_shutting_down_after_a_failure_is_no_stop() -> None:
    text = "INFO:     Application startup complete.\n" + ERROR + OOM + "\nINFO:     Shutting down\n"
    found = run(text)
    assert found.stopped is None
    assert root(found) is not None


def banner(release: str, pid: int) -> str:
    return f"(APIServer pid={pid}) INFO 04-22 15:12:00 [utils.py:299] version {release}\n"


def test_a_restart_loop_is_split_and_each_start_has_its_release() -> None:
    fail = ERROR + "ValueError: No available memory for the cache blocks.\n"
    found = runs(
        banner("0.19.0", 1) + fail + banner("0.20.1", 1) + HEAD + "Available KV cache memory: 2.0 GiB\n"
    )
    assert [r.version for r in found] == ["0.19.0", "0.20.1"]
    assert [root(r) is not None for r in found] == [True, False]


def test_one_start_with_many_engines_is_one_run() -> None:
    line = "(EngineCore_DP{0} pid=1{0}) INFO 04-22 15:13:51 [core.py:105] Initializing a V1 LLM engine (v0.19.0) with config: "
    model = "(EngineCore_DP{0} pid=1{0}) INFO 04-22 15:14:51 [x.py:1] Model loading took 1.0 GiB memory and 1.0 seconds\n"
    text = banner("0.19.0", 1) + "".join(line.format(i) + "model='m'\n" + model.format(i) for i in range(4))
    assert len(runs(text)) == 1


def test_a_log_of_the_old_engine_bounds_the_release() -> None:
    found = run("INFO 02-26 09:54:05 executor_base.py:111] # cuda blocks: 7299, # CPU blocks: 2048\n")
    assert (found.version, found.version_source) == ("0.10.2", "inferred")


def test_settings_of_all_three_forms() -> None:
    text = (
        "(APIServer pid=1) INFO 04-22 15:13:39 [utils.py:233] non-default args: {'model': 'a/b', 'max_model_len': 8192, "
        "'speculative_config': {'method': 'mtp'}, 'gpu_memory_utilization': 0.95}\n"
        "(EngineCore pid=2) INFO 04-22 15:13:51 [core.py:105] Initializing a V1 LLM engine (v0.19.0) with config: "
        "model='a/b', speculative_config=SpeculativeConfig(method='mtp', num_spec_tokens=1), dtype=torch.bfloat16, "
        "max_seq_len=8192, tensor_parallel_size=2, compilation_config={'mode': <CompilationMode.NONE: 0>, 'si"
    )
    found = run(text)
    assert [s.resolved for s in found.all(Settings)] == [False, True]
    launch = ENGINE.deployment(found, Hints()).launch
    assert launch.model == "a/b"
    assert launch.version == "0.19.0"
    assert launch.get("dtype") == "bfloat16"
    assert launch.integer("max_model_len") == 8192
    assert launch.integer("tensor_parallel_size") == 2
    assert launch.args["gpu_memory_utilization"].origin == "log"
    assert launch.args["pipeline_parallel_size"].origin == "default"


def test_old_namespace() -> None:
    text = "INFO 04-08 19:59:10 api_server.py:759] args: Namespace(host=None, port=8000, model='a/b', max_model_len=4096, swap_space=4.0)"
    assert ENGINE.deployment(run(text), Hints()).launch.integer("max_model_len") == 4096


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{'a': 1, 'b': [1, 2", {"a": 1}),
        ("{'a': {'b': 'x\\'y'}, 'c': None}", {"a": {"b": "x'y"}, "c": None}),
        ("{'a': PosixPath('/x'), 'b': <E.V: 'q'>, 'n': 12", {"a": "/x", "b": "E.V"}),
        ("[1", {}), ("", {}), ("{" * 500, {}), ("{'a': " * 90, {}),
    ],
)  # fmt: skip
def test_printed_dicts_cut_anywhere(text: str, expected: dict[str, object]) -> None:
    assert mapping(text) == expected


def test_printed_keywords_stop_where_the_call_ends() -> None:
    assert keywords("a=1, b=X(c=[1, (2, 3)], d='e'), f=torch.int8), g=5") == {
        "a": 1, "b": {"c": [1, [2, 3]], "d": "e"}, "f": "torch.int8",
    }  # fmt: skip


def test_the_rank_with_least_room_decides() -> None:
    text = "".join(
        f"(VllmWorkerProcess pid={pid}) INFO 04-23 14:48:44 [worker.py:287] model weights take {weights}GiB; "
        f"non_torch_memory takes 0.33GiB; PyTorch activation peak memory takes 1.01GiB; the rest of the memory reserved "
        f"for KV Cache is {kv}GiB.\n"
        for pid, weights, kv in ((1, "10.80", "14.52"), (2, "11.30", "14.02"))
    )
    assert figures(text)["weights_gib"] == 11.3
    assert figures(text)["kv_gib"] == 14.02


def test_the_refused_rank_decides_and_the_first_is_shown() -> None:
    text = (
        "(Worker pid=2) ERROR 04-22 15:14:02 [x.py:1] ValueError: Free memory on device cuda:1 (60.87/79.19 GiB) on startup "
        "is less than desired GPU memory utilization (0.95, 75.23 GiB). Decrease GPU memory utilization.\n"
        "(Worker pid=1) DEBUG 04-22 15:14:03 [w.py:284] worker init memory snapshot: torch_peak=0.01GiB, "
        "free_memory=77.66GiB, total_memory=79.19GiB, cuda_memory=1.53GiB\n"
    )
    assert figures(text)["free_at_start_gib"] == 77.66
    assert ENGINE.deployment(run(text), Hints()).readings["free_at_start_gib"].value.value == 60.87


def test_statistics_under_load() -> None:
    text = (
        "(APIServer pid=1) INFO 05-15 04:00:00 [loggers.py:271] Engine 000: Avg prompt throughput: 1.0 tokens/s, Avg "
        "generation throughput: 56.1 tokens/s, Running: 3 reqs, Waiting: 1 reqs, Preemptions: 2, GPU KV cache usage: 3.9%, "
        "Prefix cache hit rate: 0.0%\n"
        "(APIServer pid=1) INFO 05-15 04:00:00 [metrics.py:101] SpecDecoding metrics: Mean acceptance length: 2.62, "
        "Accepted throughput: 1.0 tokens/s\n"
        "INFO 05-15 04:00:00 metrics.py:455] Avg prompt throughput: 1.0 tokens/s, Avg generation throughput: 9.0 tokens/s, "
        "Running: 2 reqs, Swapped: 0 reqs, Pending: 4 reqs, GPU KV cache usage: 50.0%, CPU KV cache usage: 0.0%.\n"
    )
    served = list(run(text).all(Served))
    assert [(s.running, s.queued, s.usage, s.acceptance_length) for s in served] == [
        (3, 1, pytest.approx(0.039), None), (None, None, None, 2.62), (2, 4, pytest.approx(0.5), None),
    ]  # fmt: skip


def test_hints_that_the_log_contradicts() -> None:
    text = "(APIServer pid=1) INFO 04-22 15:13:39 [utils.py:233] non-default args: {'model': 'a/b', 'max_model_len': 8192}"
    hints = Hints(launch=ENGINE.parse("vllm serve a/b --max-model-len 4096", None))
    (told,) = ENGINE.disagreements(run(text), hints)
    assert "8192" in told
    assert "4096" in told
    assert ENGINE.deployment(run(text), hints).launch.integer("max_model_len") == 8192


LOADED = HEAD + "Model loading took 1.0 GiB memory and 1.0 seconds\n"


@pytest.mark.parametrize(("code", "signal"), [("-9", -9), ("-11", -11), ("-15", None), ("1", None)])
def test_an_engine_that_was_killed_without_a_word(code: str, signal: int | None) -> None:
    line = f"RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {{'EngineCore': {code}}}"
    found = root(run(LOADED + line))
    assert (found.signal if found else None) == signal
    assert found is None or found.at == "profile"


def test_control_c_is_a_stop() -> None:
    found = run(
        LOADED
        + 'Traceback (most recent call last):\n  File "/x/vllm/y.py", line 1, in z\n    a()\nKeyboardInterrupt\n'
    )
    assert found.stopped is not None
    assert root(found) is None


@pytest.mark.parametrize("prefix", ["", "(APIServer pid=1) "])
def test_an_error_answered_to_one_request_is_no_crash(prefix: str) -> None:
    head = prefix + "ERROR 05-01 10:00:31 [serving_chat.py:200] "
    lines = [
        "Error with model", "Traceback (most recent call last):",
        '  File "/x/vllm/entrypoints/openai/serving_chat.py", line 1, in create', "    x()", "ValueError: bad roles",
    ]  # fmt: skip
    found = run("INFO:     Application startup complete.\n" + "".join(f"{head}{line}\n" for line in lines))
    assert not found.failures
    assert found.notes_named("request-failed")
    assert root(found) is None


def test_a_client_that_leaves_is_no_crash() -> None:
    text = (
        "INFO:     Application startup complete.\n(APIServer pid=1) ERROR:    Exception in ASGI application\n"
    )
    lines = [
        "Traceback (most recent call last):", '  File "/x/starlette/responses.py", line 1, in stream_response',
        "    x()", "asyncio.exceptions.CancelledError: Cancelled via cancel scope",
    ]  # fmt: skip
    found = run(text + "".join(f"(APIServer pid=1) {line}\n" for line in lines))
    assert not found.failures


def test_what_the_executor_quotes_is_the_root_where_the_workers_lines_are_missing() -> None:
    quoted = (
        "RuntimeError: Worker failed with error 'size_k must divisible by BLOCK_SIZE_K', please check the stack "
        "trace above for the root cause"
    )
    found = run(f"ERROR 06-26 00:04:52 [core.py:517] {quoted}\n")
    assert "size_k" in (root(found) or found.failures[0]).message
    assert root(found) is not None


def test_a_message_in_front_of_its_traceback_takes_its_phase() -> None:
    head = "ERROR 04-08 19:59:10 engine.py:400] "
    error = "CUDA error: no kernel image is available for execution on the device"
    frames = [
        "Traceback (most recent call last):",
        '  File "/x/vllm/worker/worker.py", line 229, in determine_num_available_blocks', "    self.profile_run()",
        f"RuntimeError: {error}",
    ]  # fmt: skip
    found = root(run("".join(f"{head}{line}\n" for line in [error, *frames])))
    assert found is not None
    assert found.at == "profile"


def test_frames_that_lost_their_line_numbers_still_tell() -> None:
    text = '  File "site-packages/vllm/v1/worker/gpu_model_runner.py", in profile_run\n' + OOM + "\n"
    assert (root(run(text)) or 0).at == "profile"  # type: ignore[union-attr]


def test_a_cut_head_does_not_hide_the_root_in_what_followed() -> None:
    text = (
        "ValueError: The model's max seq len (2) is larger than the maximum number of tokens that can be stored in KV cache "
        "(1).\nWorker VllmWorkerProcess pid 1786 died, exit code: -15\n"
    )
    found = run(text)
    assert [(f.kind, f.cascade) for f in found.failures] == [
        ("max-len-exceeds-kv-v0", False), ("worker-process-died-v0", True),
    ]  # fmt: skip
