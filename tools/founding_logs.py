"""Writes examples/founding/*.log: four launches of Kimi-K2.5 on 8x RTX PRO 6000 as SGLang 0.5.9 prints them.

The figures are those of one real tuning campaign; where it kept no figure, the engine's own rules supply it
(request index 2048 x 262148 x 4 B = 2.00 GiB, the capture list for --cuda-graph-max-bs 128). Of the baseline
nobody had kept the server_args line, and so its log begins after it: what its fraction was is the question.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

RANKS = 8
FOLDER = Path(__file__).parents[1] / "examples" / "founding"
CAPTURE = [1, 2, 4, 8, 12, *range(16, 129, 8)]
WARNING = (
    "Custom allreduce is disabled because it's not supported on more than two PCIe-only GPUs. "
    "To silence this warning, specify disable_custom_all_reduce=True explicitly."
)
FRAMES = (
    ("managers/scheduler.py", 3130, "run_scheduler_process", "scheduler = Scheduler("),
    ("managers/scheduler.py", 368, "__init__", "self.init_model_worker()"),
    ("managers/scheduler.py", 564, "init_model_worker", "self.init_tp_model_worker()"),
    ("managers/scheduler.py", 522, "init_tp_model_worker", "self.tp_worker = TpModelWorker("),
    ("managers/tp_worker.py", 247, "__init__", "self._init_model_runner()"),
    ("managers/tp_worker.py", 330, "_init_model_runner", "self._model_runner = ModelRunner("),
    ("model_executor/model_runner.py", 413, "__init__", "self.initialize(min_per_gpu_memory)"),
    ("model_executor/model_runner.py", 590, "initialize", "self.init_memory_pool(min_per_gpu_memory)"),
    ("model_executor/model_runner_kv_cache_mixin.py", 416, "init_memory_pool", "raise RuntimeError("),
)


class Clock:
    def __init__(self, start: str) -> None:
        self.now = datetime.fromisoformat(start)

    def at(self, rank: int | None, text: str, later_s: float = 0.0) -> str:
        self.now += timedelta(seconds=later_s)
        prefix = "" if rank is None else f" TP{rank}"
        return f"[{self.now:%Y-%m-%d %H:%M:%S}{prefix}] {text}"


def server_args(fraction: float, extra: str) -> str:
    return (
        "server_args=ServerArgs(model_path='moonshotai/Kimi-K2.5', tokenizer_path='moonshotai/Kimi-K2.5', "
        "tokenizer_mode='auto', load_format='auto', trust_remote_code=True, context_length=None, host='127.0.0.1', "
        f"port=30000, dtype='auto', quantization=None, kv_cache_dtype='auto', mem_fraction_static={fraction}, "
        "max_running_requests=None, max_total_tokens=None, chunked_prefill_size=8192, max_prefill_tokens=16384, "
        f"schedule_policy='fcfs', page_size=1, tp_size=8, pp_size=1, dp_size=1, ep_size=1, {extra}"
        "attention_backend='triton', sampling_backend='flashinfer', speculative_algorithm=None, "
        "cuda_graph_max_bs=128, disable_cuda_graph=False, enable_dp_attention=False, "
        "enable_custom_logit_processor=False, disable_radix_cache=False, enable_multimodal=None)"
    )


def start(clock: Clock, used: float, free: float, *, custom: bool) -> Iterator[str]:
    """Process groups: every rank's memory before the weights."""
    for rank in range(RANKS):
        yield clock.at(rank, "Init torch distributed begin.")
    for rank in range(RANKS):
        yield clock.at(rank, "sglang is using nccl==2.27.5", 9 if rank == 0 else 0)
    for rank in range(RANKS) if not custom else ():
        yield clock.at(rank, WARNING, 2 if rank == 0 else 0)
    for rank in range(RANKS):
        yield clock.at(
            rank,
            f"Init torch distributed ends. elapsed=11.{40 + rank} s, mem usage={used - 0.01 * (rank % 2):.2f} GB",
        )
    for rank in range(RANKS):
        yield clock.at(
            rank, f"Load weight begin. avail mem={free + 0.01 * (rank % 2):.2f} GB", 2 if rank == 0 else 0
        )


def weights(clock: Clock, before: float, after: float) -> Iterator[str]:
    """The 64 shards, then every rank's memory after them."""
    yield "\r".join(
        f"Loading safetensors checkpoint shards: {100 * n // 64:3d}% Completed | {n}/64 "
        f"[{n * 9 // 60:02d}:{n * 9 % 60:02d}<{(64 - n) * 9 // 60:02d}:{(64 - n) * 9 % 60:02d},  9.00s/it]"
        for n in range(0, 65, 8)
    )
    for rank in range(RANKS):
        odd = 0.01 * (rank % 2)
        yield clock.at(
            rank,
            f"Load weight end. elapsed={598 + 0.37 * rank:.2f} s, type=KimiK25ForConditionalGeneration, "
            f"dtype=torch.bfloat16, avail mem={after + odd:.2f} GB, mem usage={before - after:.2f} GB.",
            598 if rank == 0 else 0.4,
        )
    yield clock.at(0, "Using KV cache dtype: torch.bfloat16")


def pool_fails(clock: Clock, fraction: float) -> Iterator[str]:
    """Every rank raises; the parent is told by sigquit and takes the tree down."""
    for rank in range(RANKS):
        yield clock.at(
            rank, "Scheduler hit an exception: Traceback (most recent call last):", 1 if rank == 0 else 0
        )
        for file, line, function, code in FRAMES:
            yield f'  File "/usr/local/lib/python3.12/dist-packages/sglang/srt/{file}", line {line}, in {function}'
            yield f"    {code}"
        yield (
            "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. "
            f"Current value: self.server_args.mem_fraction_static={fraction}"
        )
        yield ""
    for _ in range(3):
        yield clock.at(None, "Received sigquit from a child process. It usually means the child failed.")


def serves(clock: Clock) -> Iterator[str]:
    """Pool, graphs, ready, and some decode steps at batch 1."""
    for rank in range(RANKS):
        yield clock.at(rank, "KV Cache is allocated. #tokens: 159221, KV size: 10.42 GB", 1 if rank == 0 else 0)
    for rank in range(RANKS):
        yield clock.at(rank, f"Memory pool end. avail mem={9.26 + 0.01 * (rank % 2):.2f} GB")
    for rank in range(RANKS):
        yield clock.at(
            rank,
            "Capture cuda graph begin. This can take up to several minutes. "
            f"avail mem={8.83 + 0.01 * (rank % 2):.2f} GB",
            3 if rank == 0 else 0,
        )
    yield clock.at(0, f"Capture cuda graph bs {CAPTURE}")
    for rank in range(RANKS):
        yield clock.at(
            rank,
            f"Capture cuda graph end. Time elapsed: 41.{20 + rank} s. mem usage=1.87 GB. "
            f"avail mem={6.96 + 0.01 * (rank % 2):.2f} GB.",
            41 if rank == 0 else 0,
        )
    yield clock.at(
        0,
        "max_total_num_tokens=159221, chunked_prefill_size=8192, max_prefill_tokens=16384, "
        "max_running_requests=2048, context_len=262144, available_gpu_mem=6.96 GB",
        1,
    )
    yield clock.at(None, "INFO:     Started server process [214]", 1)
    yield clock.at(None, "INFO:     Waiting for application startup.")
    yield clock.at(None, "INFO:     Application startup complete.")
    yield clock.at(None, "INFO:     Uvicorn running on http://127.0.0.1:30000 (Press CTRL+C to quit)")
    yield clock.at(
        0,
        "Prefill batch, #new-seq: 1, #new-token: 6, #cached-token: 0, token usage: 0.00, #running-req: 0, "
        "#queue-req: 0, input throughput (token/s): 0.00, cuda graph: False",
        1,
    )
    yield clock.at(None, "The server is fired up and ready to roll!", 2)
    for step in range(8):
        yield clock.at(
            0,
            f"Decode batch, #running-req: 1, #token: {620 + 40 * step}, token usage: 0.00, cuda graph: True, "
            f"gen throughput (token/s): {89.50 + (0.03, -0.05, 0.0, 0.04)[step % 4]:.2f}, #queue-req: 0",
            0.45,
        )


def command(env: str, fraction: float, extra: str) -> str:
    """The launch as a shell with `set -x` prints it."""
    return (
        f"+ {env}python3 -m sglang.launch_server --model-path moonshotai/Kimi-K2.5 --tp 8 --trust-remote-code "
        f"--mem-fraction-static {fraction} --cuda-graph-max-bs 128{extra}"
    )


def baseline() -> Iterator[str]:
    clock = Clock("2026-02-24 09:02:11")
    yield from start(clock, 0.32, 94.08, custom=False)
    yield from weights(clock, 94.08, 21.71)
    yield from serves(clock)


def fewer_channels() -> Iterator[str]:
    clock = Clock("2026-02-25 14:30:06")
    env = "NCCL_MIN_NCHANNELS=1 NCCL_MAX_NCHANNELS=2 NCCL_BUFFSIZE=131072 "
    yield command(env, 0.55, "")
    yield clock.at(None, server_args(0.55, "disable_custom_all_reduce=False, "))
    yield from start(clock, 0.32, 94.08, custom=False)
    yield from weights(clock, 94.08, 21.78)
    yield from pool_fails(clock, 0.55)


def custom_all_reduce(fraction: float, begin: str) -> Iterator[str]:
    """The custom all-reduce with its PCIe gate patched out: some 24 MiB a GPU are taken before the weights."""
    clock = Clock(begin)
    yield command("", fraction, "")
    yield clock.at(None, server_args(fraction, "disable_custom_all_reduce=False, "))
    yield from start(clock, 0.34, 94.06, custom=True)
    yield from weights(clock, 94.06, 21.69)
    yield from pool_fails(clock, fraction)


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, lines in {
        "baseline": baseline(),
        "fewer-channels": fewer_channels(),
        "custom-all-reduce-055": custom_all_reduce(0.55, "2026-02-25 16:01:40"),
        "custom-all-reduce-050": custom_all_reduce(0.50, "2026-02-25 16:22:15"),
    }.items():
        (FOLDER / f"{name}.log").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
