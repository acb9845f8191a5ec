"""What is needed before the KV cache is larger than the share of the card that the setting allows.

What you see: "No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when
initializing the engine." in the engine process, after the weights are loaded and the profile has run; from
0.9.1 the line "Available KV cache memory" above it is zero or negative. From 0.14.0 also "Cannot auto-fit
max_model_len: not enough GPU memory available to serve even a single token."

What misleads: nvidia-smi shows GiB free, so people look for a leak or another process. The share counts
against the whole card, not against what is free, and the cache gets only what the share leaves after
everything else. The printed advice is right only while the free memory at start allows a larger share.

What is true: the cache is what remains of gpu_memory_utilization x total after weights, the activation peak
of the dummy run, non-torch memory and, by default from 0.20.0, the estimate for CUDA graphs. The remainder is
not positive. Where the weights alone exceed the share, no setting of batch or sequences can help.

What helps: a larger share, up to what is free at start divided by the total; a smaller activation peak (fewer
max_num_seqs, a smaller max_num_batched_tokens, limits for images); fewer graph sizes or --enforce-eager where
the estimate is subtracted; fewer bytes of weights a card (tensor parallelism, a quantised checkpoint).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from ullage.core.finding import Case, Change, Finding, How, Refuted
from ullage.engines.vllm.causes._budget import (
    Terms,
    never_charged,
    no_blocks,
    subtracts_graphs,
    terms,
    weights_of_ledger,
)
from ullage.engines.vllm.causes._case import advice, figure, found, gib, numbers, starts, utilization
from ullage.engines.vllm.causes._checks import checked, fewer_tokens, in_force, shorter_beside

_SHOWN = ("weights_gib", "kv_gib", "peak_activation_gib", "requested_gib", "graph_estimate_gib")


#: v1/worker/cpu_worker.py 0.20.0+
_CPU = re.compile(
    r"worker already uses (?P<used>[\d.]+) GiB[^\n]{0,60}more than the (?P<reserved>[\d.]+) GiB of CPU memory"
)


def test(case: Case) -> Finding | None:
    if seen := numbers(_CPU, case):
        return _on_cpu(case, seen["used"], seen["reserved"])
    if not no_blocks(case):
        return None
    known = terms(case)
    certainty, weight = _sureness(case, known)
    return found(
        case, "budget-below-weights", certainty, weight, _summary(known), _explanation(known),
        shown=_SHOWN, lines=["Available KV cache memory"], fixes=_fixes(case, known),
        refuted=[*_refuted(case, known), *never_charged(case)], phase="kv_pool",
    )  # fmt: skip


def _on_cpu(case: Case, used: float, reserved: float) -> Finding:
    share = math.ceil(utilization(case) * used / reserved * 100 + 5) / 100
    return found(
        case, "budget-below-weights", "certain", 40,
        f"The CPU worker already uses {gib(used)}, and gpu_memory_utilization={utilization(case):g} reserves "
        f"only {gib(reserved)} of the node's memory for it; nothing is left for the KV cache.",
        "On the CPU the share is one of the node's memory, in spite of its name.",
        fixes=[advice("above what the worker already uses", gpu_memory_utilization=min(share, 0.95))],
        phase="kv_pool",
    )  # fmt: skip


def _sureness(case: Case, known: Terms) -> tuple[How, int]:
    """Certain with a printed pool or weights near the share; without any figure another process may be it."""
    weights = known.weights or weights_of_ledger(case)
    if known.pool is not None:
        return "certain", 40
    if weights is not None and known.requested is not None:
        return ("certain", 40) if weights >= 0.7 * known.requested else ("likely", 15)
    return "likely", 15


def _summary(known: Terms) -> str:
    if known.weights_alone:
        return (
            f"The weights ({gib(known.weights or 0)}) alone are larger than the share of the card that "
            f"gpu_memory_utilization={known.utilization:g} allows ({gib(known.requested or 0)}), so nothing "
            f"is left for the KV cache."
        )
    return (
        f"Weights, activation peak and the rest take all that gpu_memory_utilization={known.utilization:g} "
        f"allows; nothing is left for the KV cache."
    )


def _explanation(known: Terms) -> str:
    tail = ""
    if known.pool is not None and known.total:
        floor = known.utilization - known.pool / known.total
        tail = f" The pool becomes positive above {floor:.3f}."
    return f"The engine's rule: {known.formula}.{tail} Free memory on the card does not enter."


def _fixes(case: Case, known: Terms) -> Iterator[Change]:
    ceiling = _ceiling(case, known)
    wanted = _floor(known)
    share = next(
        (u for u in (0.9, 0.92, 0.95, 0.97) if u > max(wanted, known.utilization) and u <= ceiling), None
    )
    larger: list[Change] = []
    if share is not None:
        larger = starts([checked(
            case, {"gpu_memory_utilization": share},
            f"a larger share; at start at most {ceiling:.3f} of the card was free"
            if figure(case, "free_at_start_gib") is not None
            else "a larger share, as long as that much of the card is free at start",
        )])  # fmt: skip
    yield from larger or shorter_beside(case, "the share, and a limit that its pool holds", share or 0.95)
    if not known.weights_alone:
        sequences = in_force(case).max_num_seqs // 4
        if sequences >= 16:
            yield advice(
                "the activation peak shrinks with the sequences (the sampler's buffers are max_num_seqs x "
                "vocabulary)",
                max_num_seqs=sequences,
            )
        yield from fewer_tokens(case, "a smaller batch of tokens shrinks the dummy run", 4)
    if known.graphs and subtracts_graphs(case):
        yield advice(f"the graph estimate of {gib(known.graphs)} falls away", "possible", enforce_eager=True)
    yield checked(
        case, {"tensor_parallel_size": 2 * in_force(case).cache.tp}, "half the weights on each card",
        certainty="likely" if known.weights_alone else "possible",
    )  # fmt: skip


def _floor(known: Terms) -> float:
    """The share at which the pool is zero."""
    if known.pool is not None and known.total:
        return known.utilization - known.pool / known.total
    if known.weights is not None and known.total:
        return known.weights / known.total
    return known.utilization


def _ceiling(case: Case, known: Terms) -> float:
    """The largest share that the check at start lets through: free at start / total (0.9.1+)."""
    free = figure(case, "free_at_start_gib")
    return free.value / known.total if free is not None and known.total else 0.97


def _refuted(case: Case, known: Terms) -> Iterator[Refuted]:
    yield Refuted("fragmentation", "the check is arithmetic on bytes; no allocation has failed")
    yield Refuted("max_model_len is too long", "the pool itself is empty: no length would fit")
    free = figure(case, "free_at_start_gib")
    if free is not None and known.requested is not None and free.value >= known.requested:
        yield Refuted(
            "other processes",
            f"{gib(free.value)} were free at start, more than the share of {gib(known.requested)}",
        )
