"""The weights, with the copies that loading makes, do not fit on the card.

What you see: torch.OutOfMemoryError inside load_model, create_weights or process_weights_after_loading; from
0.13.0 also "Failed to load model - not enough GPU memory. Try lowering --gpu-memory-utilization to free
memory for weights, increasing --tensor-parallel-size, or using --quantization."

What misleads: the first advice of that line. Nothing reserves memory for the cache while the weights load;
the share has no influence before the profile, neither lower nor higher.

What is true: the parameters of this rank plus what is alive for a moment (a shard in the checkpoint's type,
the copy of a layer that is repacked, the unquantised tensors of online quantisation) are larger than what is
free on the card.

What helps: fewer bytes a card: more tensor or pipeline parallelism, a checkpoint that is already quantised
(online quantisation loads the full type first in some releases), --cpu-offload-gb; and a card that is really
empty.
"""

from __future__ import annotations

from collections.abc import Iterator

from ullage.core.finding import Case, Change, Finding, How, Refuted
from ullage.core.units import GIB
from ullage.engines.vllm.causes._budget import weights_of_ledger
from ullage.engines.vllm.causes._case import advice, figure, found, gib, says
from ullage.engines.vllm.causes._checks import in_force
from ullage.engines.vllm.causes._oom import Oom, crowded, not_these, oom, place, roomy, shared_with

_PHRASE = r"Failed to load model - not enough GPU memory"


def test(case: Case) -> Finding | None:
    failure = oom(case)
    where = place(case)
    if failure is None or where not in ("weights", "repack", "profile"):
        return None
    certainty, weight = _sureness(case, failure, where)
    return found(
        case, "weights-exceed-gpu", certainty, weight, _summary(case, failure), _explanation(case, failure),
        shown=["weights_gib", "checkpoint_gib"], lines=[_PHRASE], fixes=_fixes(case, failure),
        refuted=[*_refuted(), *not_these(case, failure)], contributing=shared_with(failure),
    )  # fmt: skip


def _without_room(case: Case, failure: Oom) -> bool:
    """The first pass fails because the weights have left almost nothing: they take 90 % of the card, by their
    own line where the log has it (what is allocated holds the pass's own buffers too)."""
    weights = figure(case, "weights_gib")
    taken = weights.value * GIB if weights is not None else failure.allocated or 0
    return failure.total is not None and taken >= (0.8 if weights is not None else 0.9) * failure.total


def _sureness(case: Case, failure: Oom, where: str) -> tuple[How, int]:
    if where == "profile":
        return ("likely", 20) if _without_room(case, failure) else ("possible", 8)
    if roomy(failure):
        return "possible", 8
    computed = weights_of_ledger(case)
    if computed is not None and failure.total and computed * GIB > 0.97 * failure.total:
        return "certain", 35
    if crowded(failure):
        return "possible", 15
    if case.deployment.launch.number("cpu_offload_gb"):
        return "likely", 20
    if case.frames or says(case, _PHRASE, anywhere=True):
        return "certain", 20
    return "likely", 15


def _summary(case: Case, failure: Oom) -> str:
    total = f" of {gib(failure.total / GIB)}" if failure.total else ""
    return f"The weights and the copies that loading makes do not fit on a card{total}. {failure.story}".strip()


def _explanation(case: Case, failure: Oom) -> str:
    parts = []
    computed = weights_of_ledger(case)
    if computed is not None and failure.total:
        parts.append(f"This rank's weights are {gib(computed)} of {gib(failure.total / GIB)}.")
    if failure.allocated is not None:
        parts.append(f"PyTorch had {gib(failure.allocated / GIB)} allocated when it failed.")
    if case.deployment.launch.text("quantization") in ("fp8", "experts_int8", "bitsandbytes", "mxfp8"):
        parts.append(
            "Online quantisation keeps the unquantised tensors alive beside the new ones while it loads."
        )
    parts.append("gpu_memory_utilization plays no part before the profile, though the engine's line names it.")
    return " ".join(parts)


def _ranks(case: Case, failure: Oom) -> tuple[int, str]:
    """The tensor parallel size whose part of the weights leaves a tenth of the card, as far as it is known."""
    now, computed = in_force(case).cache.tp, weights_of_ledger(case)
    if computed is None or not failure.total:
        return (
            2 * now,
            "half the weights on each card; four times the ranks where half is still more than it holds",
        )
    size = 2 * now
    while size < 64 and computed * now / size > 0.9 * failure.total / GIB:
        size *= 2
    return size, f"about {gib(computed * now / size)} of weights on each card"


def _fixes(case: Case, failure: Oom) -> Iterator[Change]:
    size, why = _ranks(case, failure)
    yield advice(why, tensor_parallel_size=size)
    yield advice("a checkpoint with fewer bits a weight, quantised beforehand", "likely")
    checkpoint = figure(case, "checkpoint_gib")
    yield advice(
        f"moves weights to the host{f' (the checkpoint has {checkpoint} GiB)' if checkpoint else ''}; slow",
        "possible", cpu_offload_gb=16,
    )  # fmt: skip


def _refuted() -> Iterator[Refuted]:
    yield Refuted("gpu_memory_utilization is too high", "the KV pool does not exist yet while the weights load")
    yield Refuted("CUDA graphs", "they are captured after loading, profile and pool")
