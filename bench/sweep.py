"""How many configurations a second ``ullage sweep`` plans on one core, against a loop over ``plan``.

    python bench/sweep.py [--rounds 3] [--rows 4000000]

Spaces of numeric settings, two for each engine, as a grid and drawn at random; every row is planned, judged and
counted. The best of the rounds counts, in seconds of CPU. The loop plans a few hundred of the same rows one by
one: the whole answer of ``plan``, and its verdict and tokens alone. Exit code 1 if any space is below a million
a second.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import sys
import time
from collections.abc import Callable

from msgspec import Struct

from ullage import engines
from ullage.core.launch import Arg
from ullage.planning import plan as planning
from ullage.sweep.axes import axis
from ullage.sweep.follow import answer
from ullage.sweep.sweep import Wanted, sweep

GOAL = 1e6
#: rows of the loops, and of the one over whole plans
SINGLE, WHOLE = 300, 60


SGLANG = "python -m sglang.launch_server --model-path"


class Space(Struct, frozen=True):
    name: str
    asked: planning.Asked
    over: tuple[str, ...]


SPACES = (
    Space(
        "SGLang 0.5.9, Kimi-K2.5, tp 8",
        planning.Asked(f"{SGLANG} moonshotai/Kimi-K2.5 --tp 8", "8x RTX PRO 6000", "0.5.9"),
        ("mem-fraction-static=0.5:0.95:0.001", "context-length=4k:256k:4k", "max-running-requests=1:512:8",
         "cuda-graph-max-bs=8,32,128", "chunked-prefill-size=2048,8192"),
    ),
    Space(
        "SGLang 0.5.23, Qwen3-Next (hybrid)",
        planning.Asked(f"{SGLANG} Qwen/Qwen3-Next-80B-A3B-Instruct --tp 4", "4x H100", "0.5.23"),
        ("mem-fraction-static=0.5:0.95:0.001", "context-length=4k:256k:4k", "max-running-requests=1:512:8"),
    ),
    Space(
        "vLLM 0.19.0, Qwen3-32B, tp 2",
        planning.Asked("vllm serve Qwen/Qwen3-32B -tp 2", "2x H100", "0.19.0"),
        ("gpu-memory-utilization=0.5:0.95:0.001", "max-model-len=1k:40k:1k", "max-num-seqs=8:512:8",
         "max-num-batched-tokens=2048,4096,8192"),
    ),
    Space(
        "vLLM 0.33.0, gpt-oss-120b (windows)",
        planning.Asked("vllm serve openai/gpt-oss-120b", "H100", "0.33.0"),
        ("gpu-memory-utilization=0.8:0.95:0.0005", "max-model-len=1k:128k:1k", "max-num-seqs=1:512:x2",
         "max-num-batched-tokens=2048,4096,8192,16384"),
    ),
)  # fmt: skip


def best(function: Callable[[], float], rounds: int) -> float:
    return max(function() for _ in range(rounds))


def in_bulk(space: Space, rows: int | None) -> float:
    """Configurations a second, as a grid or with ``rows`` drawn."""
    over = tuple(axis(text) for text in space.over)
    start = time.process_time()
    found = sweep(space.asked, Wanted(over, random=rows))
    return found.num_rows / (time.process_time() - start)


def one_by_one(space: Space, *, whole: bool) -> float:
    """Plans a second of a loop over single rows."""
    choose, over = random.Random(1), [axis(text) for text in space.over]
    engine = planning.engine_of(space.asked.command)
    deployment = planning.deployment_of(engine.parse(space.asked.command, space.asked.version), space.asked)
    count = WHOLE if whole else SINGLE
    start = time.process_time()
    for _ in range(count):
        args = {one.name: Arg(choose.choice(one.values), "given") for one in over}
        row = deployment.with_args(**args)
        if whole:
            planning.of_deployment(engine, row)
        else:
            answer(planning, engine, row, ())
    return count / (time.process_time() - start)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=4_000_000, help="rows drawn at random")
    options = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    engines.get("sglang")
    slow = False
    print(f"{'':36} {'grid':>9} {'drawn':>9} {'plan loop':>10} {'verdicts':>9}   ratio (grid)")
    for space in SPACES:
        grid = best(lambda space=space: in_bulk(space, None), options.rounds)
        drawn = best(lambda space=space: in_bulk(space, options.rows), options.rounds)
        whole = best(lambda space=space: one_by_one(space, whole=True), options.rounds)
        single = best(lambda space=space: one_by_one(space, whole=False), options.rounds)
        print(f"{space.name:36} {grid / 1e6:7.2f} M {drawn / 1e6:7.2f} M {whole:8.0f} /s {single:7.0f} /s"
              f"   {grid / whole:,.0f} x, {grid / single:,.0f} x")  # fmt: skip
        slow |= min(grid, drawn) < GOAL
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"configurations a second on one core; {memory:.0f} MiB at most")
    return int(slow)


if __name__ == "__main__":
    sys.exit(main())
