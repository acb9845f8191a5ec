"""One rank of ``ullage comm bench``: a script that the engine's own Python runs, with nothing of ullage in it.

Its one argument is a JSON object (bench.py writes it); rank 0 prints one JSON line that begins with "ULLAGE ".
Ranks meet in a file, so that no port is opened; gloo binds to the loopback interface.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import statistics
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

MARK = "ULLAGE "
_DTYPES = {"bfloat16": "bfloat16", "float16": "float16", "float32": "float32"}


def main(argument: str) -> int:
    """Measure what the argument asks for; 0, or 1 where the sums come out wrong."""
    asked = json.loads(argument)
    die_with(asked["parent"])
    sys.path[:] = [folder for folder in sys.path if folder != str(Path(__file__).parent)]
    torch = import_module("torch")
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist = import_module("torch.distributed")
    device = device_of(torch, asked["backend"])
    seconds = import_module("datetime").timedelta(seconds=asked["timeout_s"])
    dist.init_process_group(
        asked["backend"], init_method=f"file://{asked['meeting']}", rank=rank, world_size=world, timeout=seconds
    )
    try:
        results = [one for size in asked["sizes"] for one in measured(torch, dist, device, asked, size)]
        if rank == 0:
            print(MARK + json.dumps({"results": results, **about(torch, asked["backend"])}), flush=True)
    finally:
        dist.destroy_process_group()
    return 1 if any(one["wrong"] for one in results) else 0


def die_with(parent: int) -> None:
    """Ask Linux to kill this process when ullage ends in any way; elsewhere the time-out does."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(1)


def device_of(torch: Any, backend: str) -> Any:
    """The rank's GPU, or the CPU for gloo."""
    if backend != "nccl":
        torch.set_num_threads(1)
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    return device


def about(torch: Any, backend: str) -> dict[str, str]:
    """Releases and the GPU's name."""
    found = {"torch": str(torch.__version__), "nccl": "", "gpu": ""}
    if backend == "nccl":
        found["nccl"] = ".".join(str(part) for part in torch.cuda.nccl.version())
        found["gpu"] = str(torch.cuda.get_device_name())
    return found


def measured(torch: Any, dist: Any, device: Any, asked: dict[str, Any], size: int) -> list[dict[str, Any]]:
    """Each kind and mode at one size: times of a call in us, the slowest rank's of each repeat."""
    found = []
    for kind in asked["kinds"]:
        call, check = collective(torch, dist, device, kind, size, asked["dtype"])
        wrong = check()
        for mode in asked["modes"]:
            run = timer(torch, device, call, mode, asked["calls"])
            for _ in range(asked["warmup"]):
                run()
            times = [slowest(torch, dist, device, run) for _ in range(asked["repeats"])]
            found.append({
                "kind": kind, "mode": mode, "bytes": size, "wrong": wrong, "us": statistics.median(times),
                "low_us": min(times), "high_us": max(times),
            })  # fmt: skip
    return found


def collective(
    torch: Any, dist: Any, device: Any, kind: str, size: int, dtype_name: str
) -> tuple[Callable[[], None], Callable[[], int]]:
    """A call of one collective of ``size`` bytes, and a check of its result (elements that are wrong)."""
    rank, world = dist.get_rank(), dist.get_world_size()
    dtype = getattr(torch, _DTYPES[dtype_name])
    count = max(world, size // dtype.itemsize // world * world)
    whole = torch.zeros(count, dtype=dtype, device=device)
    part = torch.full((count // world,), float(rank + 1), dtype=dtype, device=device)
    if kind == "all_gather":
        return lambda: dist.all_gather_into_tensor(whole, part), lambda: gathered(dist, whole, part)
    if kind == "reduce_scatter":
        return lambda: dist.reduce_scatter_tensor(part, whole), lambda: scattered(dist, whole, part)
    return lambda: dist.all_reduce(whole), lambda: reduced(dist, whole)


def reduced(dist: Any, whole: Any) -> int:
    world = dist.get_world_size()
    whole.fill_(float(dist.get_rank() + 1))
    dist.all_reduce(whole)
    wrong = int((whole != world * (world + 1) / 2).sum())
    whole.zero_()
    return wrong


def gathered(dist: Any, whole: Any, part: Any) -> int:
    dist.all_gather_into_tensor(whole, part)
    pieces = whole.view(dist.get_world_size(), -1)
    return sum(int((piece != rank + 1).sum()) for rank, piece in enumerate(pieces))


def scattered(dist: Any, whole: Any, part: Any) -> int:
    world = dist.get_world_size()
    whole.fill_(float(dist.get_rank() + 1))
    dist.reduce_scatter_tensor(part, whole)
    wrong = int((part != world * (world + 1) / 2).sum())
    whole.zero_()
    return wrong


def timer(torch: Any, device: Any, call: Callable[[], None], mode: str, calls: int) -> Callable[[], float]:
    """A function that runs ``calls`` collectives and gives the us of one."""
    if device.type == "cpu":
        return lambda: on_cpu(call, calls)
    if mode == "graph":
        graph = captured(torch, call, calls)
        return lambda: on_gpu(torch, graph.replay, 1, calls)
    return lambda: on_gpu(torch, call, calls, calls)


def on_cpu(call: Callable[[], None], calls: int) -> float:
    begun = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - begun) / calls * 1e6


def on_gpu(torch: Any, launch: Callable[[], None], times: int, calls: int) -> float:
    first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    first.record()
    for _ in range(times):
        launch()
    last.record()
    last.synchronize()
    return float(first.elapsed_time(last)) / calls * 1e3


def captured(torch: Any, call: Callable[[], None], calls: int) -> Any:
    """A CUDA graph of ``calls`` collectives, warmed up on a side stream first: what decode pays."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            call()
    return graph


def slowest(torch: Any, dist: Any, device: Any, run: Callable[[], float]) -> float:
    """The time of the slowest rank, all of them having waited for each other."""
    dist.barrier()
    time_us = torch.tensor([run()], dtype=torch.float32, device=device)
    dist.all_reduce(time_us, op=dist.ReduceOp.MAX)
    return float(time_us.item())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
