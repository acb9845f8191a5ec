"""Capturing CUDA graphs needs memory that the KV cache has already taken.

What you see: torch.OutOfMemoryError or "CUDA error: out of memory" while "Capturing CUDA graphs" counts, or
right after it, under capture_model or in a captured kernel's first call.

What misleads: the size asked for is tiny (2 MiB with some KiB free) and the pool is generous, so it looks
like a leak or like fragmentation. "No available shared memory broadcast block found" appears when capture is
slow and means nothing.

What is true: the pool takes all of the share. Before 0.20.0 graphs are not in the budget at all; from then on
an estimate is subtracted, measured with a tiny cache, which can be too small. What is left is 1 -
gpu_memory_utilization of the card minus context, communicator and everything made after the profile.

What helps: a share lower by the size of the graphs; fewer or smaller capture sizes, fewer max_num_seqs;
--enforce-eager confirms the cause at the price of slower decoding.
"""

from __future__ import annotations

from collections.abc import Iterator

from ullage.core.finding import Case, Change, Finding, How
from ullage.core.units import GIB
from ullage.engines.vllm.causes._budget import subtracts_graphs
from ullage.engines.vllm.causes._case import advice, between, figure, found, gib, says, starts, utilization
from ullage.engines.vllm.causes._checks import checked, in_force, shorter_beside
from ullage.engines.vllm.causes._oom import Oom, not_these, oom, place, shared_with


def test(case: Case) -> Finding | None:
    failure = oom(case)
    sureness = _sureness(case) if failure is not None else None
    if failure is None or sureness is None:
        return None
    return found(
        case, "graph-capture-oom", sureness[0], sureness[1],
        f"CUDA graph capture ran out of memory: the KV cache had taken the share of {utilization(case):g}, "
        f"and what it left was too little. {failure.story}".strip(),
        _explanation(case), shown=["kv_gib", "graph_estimate_gib", "graphs_gib"],
        lines=["Capturing CUDA ?graph"],
        fixes=_fixes(case, failure), refuted=not_these(case, failure), contributing=shared_with(failure),
        phase="graph_capture",
    )  # fmt: skip


def _sureness(case: Case) -> tuple[How, int] | None:
    if place(case) == "capture" and (case.frames or case.phase == "graph_capture"):
        return "certain", 30
    if says(case, r"VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS") and case.phase in ("kv_pool", "warmup"):
        return "certain", 20
    return None


def _explanation(case: Case) -> str:
    share = utilization(case)
    total = figure(case, "total_gib")
    outside = f" = {gib((1 - share) * total.value)}" if total is not None else ""
    rule = (
        "This release subtracts an estimate, which is measured with a tiny cache and was too small."
        if subtracts_graphs(case)
        else "This release does not count graphs in the budget."
    )
    return f"Outside the share lie {1 - share:.3f} of the card{outside}, for context, NCCL and graphs. {rule}"


def _fixes(case: Case, failure: Oom) -> Iterator[Change]:
    share = _share(case, failure)
    smaller = starts([checked(case, {"gpu_memory_utilization": share}, "leaves room for the graphs")])
    if case.interval is not None and case.interval.low is not None and share <= case.interval.low:
        smaller = list(
            shorter_beside(case, "leaves room for the graphs, and a limit that the pool holds", share)
        )
    yield from smaller
    if between(case, "0.12.0", None, unknown=True) and max(in_force(case).graph_sizes, default=0) > 64:
        yield advice("fewer capture sizes, so less memory for graphs", max_cudagraph_capture_size=64)
    yield checked(case, {"enforce_eager": True}, "no graphs; confirms the cause, decoding becomes slower")


def _share(case: Case, failure: Oom) -> float:
    """The share lowered by the graphs as estimated (1 GiB where unknown), at least by 0.01."""
    estimate = figure(case, "graph_estimate_gib", "graphs_gib")
    wanted = max(estimate.value, 0.1) if estimate is not None else 1.0
    total = failure.total / GIB if failure.total else getattr(figure(case, "total_gib"), "value", None)
    step = max(0.01, wanted / total) if total else 0.05
    return max(0.05, int((utilization(case) - step) * 100 + 1e-9) / 100)
