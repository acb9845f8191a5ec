"""The server starts, and a later step needs more than was left free.

What you see: torch.OutOfMemoryError after "Application startup complete", under execute_model or
run_busy_loop, then EngineDeadError on every request.

What misleads: the start was clean, so the cause is sought in the request or in a leak. The failed allocation
is small.

What is true: the pool takes the whole share; what a step needs beyond the profiled batch comes out of 1 -
gpu_memory_utilization of the card, which context, communicator and graphs use already. Prompt logprobs,
prefills without chunking, large images, adapters, lazily made workspaces and a growing neighbour are not in
the profile.

What helps: a share lower by 0.02 to 0.05; chunked prefill with a smaller max_num_batched_tokens; limits for
images; PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True only where much is "reserved but unallocated".
"""

from __future__ import annotations

from collections.abc import Iterator

from ullage.core.finding import Case, Change, Finding, How
from ullage.core.units import GIB
from ullage.engines.vllm.causes import (
    prefill_peak_not_profiled,
    spec_decode_memory,
    unified_memory_exhaustion,
)
from ullage.engines.vllm.causes._case import advice, found, gib, says, starts, utilization, verbatim
from ullage.engines.vllm.causes._checks import checked, fewer_tokens
from ullage.engines.vllm.causes._oom import Oom, not_these, oom, place, shared_with


def test(case: Case) -> Finding | None:
    failure = oom(case)
    if failure is None or not (case.phase == "serving" or place(case) == "serving"):
        return None
    return found(
        case, "runtime-oom", _sureness(case), 20,
        f"A step under load needed more memory than the start had left free. {failure.story}".strip(),
        _explanation(case, failure), fixes=_fixes(case, failure), refuted=not_these(case, failure),
        contributing=shared_with(failure), phase="serving",
    )  # fmt: skip


def _sureness(case: Case) -> How:
    """Certain unless a more particular suspect stands beside it."""
    particular = (prefill_peak_not_profiled, spec_decode_memory, unified_memory_exhaustion)
    return "likely" if any(module.test(case) is not None for module in particular) else "certain"


def _explanation(case: Case, failure: Oom) -> str:
    share = utilization(case)
    outside = f" = {gib((1 - share) * failure.total / GIB)}" if failure.total else ""
    text = f"{1 - share:.3f} of the card{outside} lie outside the share, for all that the profile did not run."
    if case.deployment.launch.get("enable_chunked_prefill") is False:
        text += " Chunked prefill is off, so one step can be as long as a prompt."
    return text


def _fixes(case: Case, failure: Oom) -> Iterator[Change]:
    share = round(utilization(case) - (0.05 if utilization(case) > 0.92 else 0.03), 2)
    yield from starts([checked(case, {"gpu_memory_utilization": share}, "leaves more outside the pool")])
    yield from fewer_tokens(case, "shorter steps have smaller peaks")
    if failure.unallocated and failure.tried and failure.unallocated > 4 * failure.tried:
        yield verbatim(
            "PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True", "much is reserved and unused: fragmentation"
        )
    if says(case, r"logprob"):
        yield advice(
            "prompt logprobs need a row of the vocabulary for each prompt token; ask for fewer", "likely"
        )
