"""The estimate for CUDA graphs takes the room that the KV cache needed.

What you see: the budget fails ("No available memory for the cache blocks", "To serve at least one request
...") on a release that subtracts the graph estimate (0.20.0 and newer, on request from 0.18.0), while
"Estimated CUDA graph memory" prints a figure larger than what is missing.

What misleads: the same launch worked on the release before, so people suspect a leak, and the message speaks
of the share or of the length only.

What is true: the estimate is extrapolated from the first captures of a rehearsal; it has been seen at 1.3 to
5 times of what the capture then takes, and at GiB where unified memory shows no growth at all. It comes off
the budget before the pool is sized. Without it this launch passes the check.

What helps: raise the share by estimate / total, as the engine's own line proposes, as long as that much is
free; fewer capture sizes or --enforce-eager; or VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=0, which hands the
risk back to the capture: then leave the share where it is.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from ullage.core.deployment import Verdict
from ullage.core.finding import Case, Change, Finding, Prediction, Refuted
from ullage.core.units import GIB
from ullage.engines.vllm.causes._budget import Terms, fit, no_blocks, no_fit, subtracts_graphs, terms
from ullage.engines.vllm.causes._case import figure, found, gib, starts, verbatim
from ullage.engines.vllm.causes._checks import checked

#: below this the estimate is a normal cost: the rehearsal of a dense 8-14B model gives 0.8-1.2 GiB
_USUAL_GIB = 1.5


def test(case: Case) -> Finding | None:
    if not (no_blocks(case) or no_fit(case)) or not subtracts_graphs(case):
        return None
    known, missing = terms(case), _missing(case)
    if known.graphs is None or missing is None or not missing < known.graphs or known.graphs < _USUAL_GIB:
        return None
    return found(
        case, "graph-estimate-overreserve", "certain", 45,
        f"The graph estimate of {gib(known.graphs)} was taken off the pool; without it the missing "
        f"{gib(missing)} would be there.",
        f"The engine's rule: {known.formula}. The estimate is {gib(known.graphs)}{_part(known)}; captures of "
        f"one model usually take 0.3 to 1.5 GiB.",
        shown=["graph_estimate_gib", "kv_gib", "weights_gib"], lines=["CUDA graph memory profiling is enabled"],
        fixes=_fixes(case, known), phase="kv_pool",
        refuted=[Refuted("fragmentation", "the check is arithmetic on bytes; no allocation has failed")],
    )  # fmt: skip


def _part(known: Terms) -> str:
    return f" ({known.graphs / known.total:.0%} of the card)" if known.graphs and known.total else ""


def _missing(case: Case) -> float | None:
    """GiB by which the budget falls short."""
    seen = fit(case)
    if "available" in seen:
        return seen["needed"] - seen["available"]
    pool = figure(case, "kv_gib")
    return -pool.value if pool is not None and pool.value <= 0 else None


def _without_estimate(case: Case, known: Terms) -> Prediction | None:
    """The pool with the estimate given back; "starts" where it holds what one request was said to need."""
    if known.pool is None or known.graphs is None:
        return None
    needed, pool = fit(case).get("needed"), known.pool + known.graphs
    verdict: Verdict = "unsure" if needed is None else "starts" if pool > needed else "fails"
    return Prediction(verdict, None, round(pool * GIB))


def _fixes(case: Case, known: Terms) -> Iterator[Change]:
    off = verbatim(
        "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS",
        "0",
        "the estimate is no longer subtracted; keep the share, so that the capture finds its room",
    )
    yield replace(off, predicted=_without_estimate(case, known))
    if known.total and known.graphs:
        share = round(known.utilization + known.graphs / known.total, 3)
        free = figure(case, "free_at_start_gib")
        if share < (free.value / known.total if free is not None else 0.98):
            yield from starts(
                [checked(case, {"gpu_memory_utilization": share}, "what the engine's line proposes")]
            )
    yield checked(case, {"enforce_eager": True}, "no graphs, no estimate; decoding becomes slower")
