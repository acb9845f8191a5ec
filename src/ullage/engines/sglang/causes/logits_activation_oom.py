"""The logits of many rows (rows x vocabulary x 4 bytes) do not fit beside the pool.

What you see: CUDA out of memory in the logits processor or the sampler while serving; the failed amount is a
multiple of vocabulary x 4 bytes.

What misleads: the model is small and the pool large, so memory seems ample; it is the batch that is large.

What is true: a step makes logits for every decoded row (and for every prompt token where log probabilities
are asked for), in 16 bit and again as float32. A small model with a large pool admits thousands of requests
at once.

What helps: --max-running-requests, a lower fraction; for prompt log probabilities a smaller
--chunked-prefill-size.
"""

from __future__ import annotations

from ullage.core.finding import Case, Finding
from ullage.engines.sglang.causes._oom import Oom
from ullage.engines.sglang.causes._serving import finding, in_service
from ullage.engines.sglang.causes._terms import advice


def test(case: Case) -> Finding | None:
    failure = in_service(case)
    if failure is None or failure.place != "logits":
        return None
    return finding(
        case, failure, "logits-activation-oom", 36,
        "The logits of one step did not fit: rows x vocabulary x 4 bytes, beside the pool.",
        ("Logits are not part of the pool's budget. " + _rows(case, failure)).strip(), certainty="certain",
        fixes=(advice("fewer rows in a step", max_running_requests=_fewer(case, failure)),),
    )  # fmt: skip


def _fewer(case: Case, failure: Oom) -> int:
    """Half of the rows that the failed allocation was for, or of the requests that are allowed."""
    allowed = case.deployment.launch.integer("max_running_requests") or 512
    return max(1, min(_asked_rows(case, failure) or allowed, allowed) // 2)


def _asked_rows(case: Case, failure: Oom) -> int:
    model = case.deployment.model
    vocabulary = model.vocab_size if model is not None else 0
    return failure.asked // (vocabulary * 4) if failure.asked is not None and vocabulary else 0


def _rows(case: Case, failure: Oom) -> str:
    rows, model = _asked_rows(case, failure), case.deployment.model
    if not rows or model is None:
        return ""
    vocabulary, ranks = model.vocab_size, case.deployment.launch.integer("tp_size") or 1
    return f"{failure.asked:,} bytes are {rows:,} rows of {vocabulary:,} x 4 bytes" + (
        f" (or {rows * ranks:,} of one rank's part)." if ranks > 1 else "."
    )
