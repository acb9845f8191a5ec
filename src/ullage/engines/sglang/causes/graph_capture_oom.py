"""What the pool left free is too small for CUDA graph capture.

What you see: "Capture cuda graph failed: CUDA out of memory. Tried to allocate ..." (or the prefill or
piecewise form of it) after "Memory pool end", followed by four possible solutions.

What misleads: the pool lines look healthy, and the message that failed at another stage asks for a larger
fraction; here the opposite is right. A rank that merely lost its connection during capture prints the same
head with another text behind it.

What is true: graphs, their input buffers, the attention backend's tables (batch x context length),
torch.compile workspaces and lazily made communicator buffers all live outside the pool, in total x (1 -
mem_fraction_static).

What helps: a lower fraction, fewer or smaller graphs (--cuda-graph-max-bs), fewer request slots or a shorter
--context-length, since the tables grow with both. --disable-cuda-graph always starts, and is slow.
"""

from __future__ import annotations

from collections.abc import Iterator

from ullage.core.finding import Case, Change, Finding
from ullage.engines.sglang.causes._oom import Oom, not_these, oom, size
from ullage.engines.sglang.causes._terms import advice, lower_fraction, max_bs, proof, smallest
from ullage.engines.sglang.causes.stuck_between_two_fractions import stuck
from ullage.engines.sglang.known import known


def test(case: Case) -> Finding | None:
    failure = oom(case)
    if failure is None or not _in_capture(case, failure):
        return None
    before = smallest(case, "free_before_graphs_gib")
    pool = f"{before:.2f} GiB were left when capture began. " if before is not None else ""
    shared = case.deployment.launch.text("moe_a2a_backend") not in (None, "none")
    doubt = shared or case.deployment.launch.flag("enable_deepep_moe") or stuck(case)
    return Finding(
        cause="graph-capture-oom", certainty="likely" if doubt else "certain", weight=32, phase="graph_capture",
        summary="CUDA graph capture ran out of memory: the pool left too little outside mem_fraction_static.",
        explanation=f"{failure.story}{pool}Graphs and the tables they read are not part of the pool's budget; "
        "here the fraction must go down, not up.",
        evidence=proof(case, "free_after_kv_pool_gib", "free_before_graphs_gib"),
        refuted=tuple(not_these(failure)), fixes=tuple(_fixes(case, failure)),
    )  # fmt: skip


def _in_capture(case: Case, failure: Oom) -> bool:
    return failure.place == "graphs" and case.phase not in ("serving", "args", "init", "weights")


def _fixes(case: Case, failure: Oom) -> Iterator[Change]:
    yield from lower_fraction(case, failure.lacking, 0.04, "what the pool gives up is free for the graphs")
    settings = known(case.deployment).settings
    most = settings.cuda_graph_max_bs or max(settings.cuda_graph_bs, default=160)
    if most > 1:
        yield max_bs(case, max(1, most // 4), f"fewer and smaller graphs than up to batch {most}")
    if (settings.max_running_requests or 1024) > 64:
        yield advice(
            "the graph tables grow with request slots and context length", "possible", max_running_requests=64
        )
    if failure.idle is not None and failure.asked is not None and failure.idle > failure.asked:
        yield Change(
            {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
            f"{size(failure.idle)} are reserved but unused, more than was asked for", None, "possible",
        )  # fmt: skip
