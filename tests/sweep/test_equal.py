"""A row of a sweep is what ``plan`` says of the command with these settings: verdict and tokens, exactly."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from ullage.planning.plan import Asked, Plan, plan
from ullage.sweep import space
from ullage.sweep.axes import axis
from ullage.sweep.groups import setting
from ullage.sweep.planner import Planner

MODELS = [
    "Qwen/Qwen3-32B", "meta-llama/Llama-3.1-8B-Instruct", "moonshotai/Kimi-K2.5", "deepseek-ai/DeepSeek-V3",
    "deepseek-ai/DeepSeek-V3.2-Exp", "openai/gpt-oss-120b", "google/gemma-3-27b-it", "Qwen/Qwen3-Next-80B-A3B-Instruct",
    "nvidia/NVIDIA-Nemotron-Nano-9B-v2", "moonshotai/Kimi-Linear-48B-A3B-Instruct", "Qwen/Qwen2.5-VL-7B-Instruct",
    "meta-llama/Llama-4-Scout-17B-16E-Instruct", "nobody/knows-this",
]  # fmt: skip
GPUS = ["H100", "8x H100", "8x H200", "8x RTX PRO 6000", "2x L40S", "RTX 4090", "8x B200", None]
RELEASES = {
    "sglang": [
        "0.4.3",
        "0.4.6.post2",
        "0.5.2",
        "0.5.3",
        "0.5.6",
        "0.5.8",
        "0.5.9",
        "0.5.12",
        "0.5.14",
        "0.5.18",
        "0.5.23",
        None,
    ],
    "vllm": [
        "0.6.3",
        "0.8.5",
        "0.10.2",
        "0.11.0",
        "0.14.0",
        "0.18.0",
        "0.19.0",
        "0.20.1",
        "0.26.0",
        "0.29.0",
        "0.33.0",
        None,
    ],
}
AXES = {
    "sglang": {
        "mem-fraction-static": "0.5:0.95:0.015", "context-length": "4k,8k,32k,131072,1000000",
        "max-running-requests": "1,7,64,300,5000", "cuda-graph-max-bs": "1,13,64,256,512",
        "chunked-prefill-size": "100,2048,8192,16384", "max-total-tokens": "100,5000,1M",
        "max-prefill-tokens": "4096,50000", "swa-full-tokens-ratio": "0.1,0.8,1.0", "mamba-full-memory-ratio": "0.1,0.9",
    },
    "vllm": {
        "gpu-memory-utilization": "0.5:0.98:0.015", "max-model-len": "-1,1000,8k,32k,131072,1000000",
        "max-num-seqs": "1,7,64,255,256,300,1024", "max-num-batched-tokens": "100,2048,5000,8192,16384",
        "kv-cache-memory-bytes": "1000000000,9999999999", "cpu-offload-gb": "0,1,10.5",
    },
}  # fmt: skip
MORE = {
    "sglang": ["", "--kv-cache-dtype fp8_e4m3", "--disable-cuda-graph", "--enable-dp-attention --dp 2", "--pp-size 2",
               "--speculative-algorithm EAGLE", "--attention-backend triton", "--page-size 16", "--disable-radix-cache"],
    "vllm": ["", "--kv-cache-dtype fp8", "--enforce-eager", "--enable-prefix-caching", "--pipeline-parallel-size 2",
             "--block-size 32", "--enable-expert-parallel"],
}  # fmt: skip


@st.composite
def spaces(draw: Any) -> tuple[Asked, list[str]]:
    engine = draw(st.sampled_from(["sglang", "vllm"]))
    model, tp = draw(st.sampled_from(MODELS)), draw(st.sampled_from([1, 2, 4, 8]))
    more = draw(st.sampled_from(MORE[engine]))
    start = {"sglang": f"python -m sglang.launch_server --model-path {model} --tp-size {tp}",
             "vllm": f"vllm serve {model} --tensor-parallel-size {tp}"}[engine]  # fmt: skip
    names = draw(st.lists(st.sampled_from(sorted(AXES[engine])), min_size=1, max_size=4, unique=True))
    asked = Asked(
        f"{start} {more}".strip(), draw(st.sampled_from(GPUS)), draw(st.sampled_from(RELEASES[engine]))
    )
    return asked, [f"{name}={AXES[engine][name]}" for name in names]


def told(found: Plan) -> tuple[Any, ...]:
    tokens = found.budget.kv_tokens
    return (
        found.verdict,
        *((int(n) for n in (tokens.value, tokens.low, tokens.high)) if tokens else (None,) * 3),
    )


def known(asked: Asked, over: list[str]) -> list[Any]:
    """The axes that this release has."""
    from ullage.core.errors import UllageError

    found = []
    for text in over:
        try:
            found.append(setting(asked, axis(text)))
        except UllageError:
            continue
    return [one for one in found if one.numeric]


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(spaces(), st.integers(0, 10_000))
def test_row_equals_plan(space_: tuple[Asked, list[str]], seed: int) -> None:
    asked, over = space_
    numeric = known(asked, over)
    if not numeric:
        return
    planner = Planner(asked, [], numeric)
    for block in space.drawn([], [replace(s.axis, name=s.name) for s in numeric], 40, seed):
        rows = planner.plan(block).rows()
        for row in random.Random(seed).sample(rows, 3):
            words = " ".join(f"--{s.axis.name.replace('_', '-')} {row[s.axis.name]}" for s in numeric)
            single = plan(replace(asked, command=f"{asked.command} {words}"))
            assert tuple(row[n] for n in ("verdict", "kv_tokens", "low_tokens", "high_tokens")) == told(
                single
            ), words


def test_a_grid_and_its_rows_drawn_agree() -> None:
    """Rows worked out together along their axes, and as a list, are the same."""
    asked = Asked("vllm serve Qwen/Qwen3-32B -tp 2", "2x H100", "0.19.0")
    over = [
        setting(asked, axis(t))
        for t in ("max-num-seqs=1,64,512", "max-model-len=1k:40k:3k", "gpu-memory-utilization=0.4:0.95:0.01")
    ]
    axes = [replace(s.axis, name=s.name) for s in over]
    names = [s.axis.name for s in over]

    def rows(blocks: Any) -> dict[tuple[Any, ...], dict[str, Any]]:
        planner = Planner(asked, [], over)
        return {tuple(row[n] for n in names): row for block in blocks for row in planner.plan(block).rows()}

    whole, small = rows(space.grid([], axes)), rows(space.grid([], axes, block=50))
    drawn = rows(space.drawn([], axes, 500, 7))
    assert whole == small
    assert len(whole) == space.size(axes)
    assert {row["verdict"] for row in whole.values()} == {"starts", "fails", "unsure"} or len(
        {r["verdict"] for r in whole.values()}
    ) > 1
    assert all(whole[point] == row for point, row in drawn.items())


def test_a_plan_that_goes_astray_is_planned_row_by_row(monkeypatch: pytest.MonkeyPatch) -> None:
    from ullage.sweep import follow
    from ullage.sweep.program import Program, Step

    asked = Asked("vllm serve Qwen/Qwen3-8B", "H100", "0.19.0")
    over = [setting(asked, axis("gpu-memory-utilization=0.3:0.9:0.1"))]
    named = [replace(s.axis, name=s.name) for s in over]
    (block,) = space.grid([], named)
    right = Planner(asked, [], over).plan(block).rows()
    real = follow.Follower
    made = iter(range(1000))

    class Fickle(real):  # type: ignore[misc, valid-type]
        def __init__(self, graph: Any) -> None:
            super().__init__(graph)
            if (count := next(made)) in (0, 1):
                self.path.append(Step(self.graph.node("constant", (), float(count)), 1.0, pinned=False))

    monkeypatch.setattr(follow, "Follower", Fickle)
    assert Program().num_paths == 0
    assert Planner(asked, [], over).plan(block).rows() == right


def test_what_cannot_be_followed_is_planned_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    from ullage.sweep import follow

    def broken(*_: Any) -> Any:
        raise TypeError("a number that does something unheard of")

    monkeypatch.setattr(follow, "_again", broken)
    asked = Asked("vllm serve Qwen/Qwen3-8B", "H100", "0.19.0")
    over = [setting(asked, axis("gpu-memory-utilization=0.5,0.9"))]
    planner = Planner(asked, [], over)
    (block,) = space.grid([], [replace(s.axis, name=s.name) for s in over])
    rows = planner.plan(block).rows()
    assert [row["kv_tokens"] for row in rows] == [
        told(plan(replace(asked, command=f"{asked.command} --gpu-memory-utilization {f}")))[1]
        for f in (0.5, 0.9)
    ]
