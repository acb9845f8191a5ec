"""The activations of one prefill are larger than what is left outside mem_fraction_static.

What you see: the server answers, then CUDA out of memory in a forward pass (embedding, attention, MLP or
experts) as a long prompt or a large chunk is processed.

What misleads: the start was clean and short prompts work; the failed amount looks arbitrary.

What is true: activations grow with the tokens of one step (--chunked-prefill-size, or the whole prompt where
chunking is off or a path ignores it) times hidden size. They have only total x (1 - mem_fraction_static),
less graphs and tables.

What helps: a smaller --chunked-prefill-size, a lower fraction, a limit on the prompt; a release that chunks
the path in the traceback.
"""

from __future__ import annotations

from ullage.core.finding import Case, Finding
from ullage.engines.sglang.causes._serving import finding, in_service
from ullage.engines.sglang.causes._terms import advice, smallest


def test(case: Case) -> Finding | None:
    failure = in_service(case)
    if failure is None or failure.place in ("logits", "vision", "workspace"):
        return None
    known = failure.place == "prefill"
    chunk = smallest(case, "chunked_prefill_size") or case.deployment.launch.number("chunked_prefill_size")
    smaller = max(512, int(chunk) // 2) if chunk is not None and chunk > 0 else 4096
    return finding(
        case, failure, "prefill-activation-oom", 30 if known else 24,
        "The activations of one forward pass did not fit beside the pool.",
        "Activations grow with the tokens of a step and are not part of the pool's budget.",
        fixes=(advice("fewer tokens in a step", chunked_prefill_size=smaller),),
    )  # fmt: skip
