"""The last dummy step samples for all sequences at once over the whole vocabulary.

What you see: "CUDA out of memory occurred when warming up sampler with N dummy requests. Please try lowering
`max_num_seqs` or `gpu_memory_utilization` when initializing the engine." (pooler: the same), or an
out-of-memory error under v1/sample or flashinfer/sampling during the start, after graphs were captured.

What misleads: pool and graphs are complete and the context is short, so it looks like a leak. The message
names two remedies that are not equal: a lower gpu_memory_utilization helps only when this happens after the
pool was allocated; inside the profile it changes nothing.

What is true: with N = max_num_seqs (256 or 1024 by default, by size of the card) one buffer of logits is N x
vocabulary x 4 bytes, and several are alive: about 3.5 from 0.17.0, about 9 on the sorting path before. They
are outside the share when the warm-up runs after the pool, and what 1 - gpu_memory_utilization left free is
also used by context, communicator and graphs.

What helps: fewer --max-num-seqs (the need falls in proportion), or a share lower by what is missing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ullage.core.finding import Case, Change, Finding, How, Refuted
from ullage.core.units import GIB
from ullage.engines.vllm.causes._case import between, figure, found, gib, mib, says, size, starts, utilization
from ullage.engines.vllm.causes._checks import checked
from ullage.engines.vllm.causes._oom import Oom, graphs_follow, not_these, oom, place, shared_with

_REQUESTS = re.compile(r"warming up (?:sampler|pooler) with (\d+) dummy requests")


#: fewer sequences than this are no way to serve; a lower share is the better change
_LEAST = 16
#: Gemma's 262,208 is the largest vocabulary in use
_LARGEST_VOCABULARY = 270_000


def test(case: Case) -> Finding | None:
    failure = oom(case)
    sureness = _sureness(case, failure) if failure is not None else None
    if failure is None or sureness is None:
        return None
    requests = _requests(case)
    buffer = _buffer_bytes(case, requests, failure)
    return found(
        case, "sampler-warmup-oom", sureness[0], sureness[1], _summary(requests, buffer, failure),
        _explanation(case, failure, buffer), shown=["kv_gib", "graphs_gib"],
        fixes=_fixes(case, requests, buffer, failure), phase="warmup",
        refuted=[*_refuted(case), *not_these(case, failure)], contributing=shared_with(failure),
    )  # fmt: skip


def _sureness(case: Case, failure: Oom) -> tuple[How, int] | None:
    """Certain by phrase or frames; likely where the start fails after the graphs and nothing says where."""
    if says(case, r"out of memory occurred when warming up", anywhere=True):
        return "certain", 40
    if case.phase != "serving" and place(case) == "sampler" and case.frames:
        return "certain", 30
    return ("likely", 15) if case.phase == "warmup" else None


def _requests(case: Case) -> int:
    match = _REQUESTS.search(case.text) or _REQUESTS.search(case.log)
    return int(match[1]) if match else size(case, "max_num_seqs", 256)


def _buffer_bytes(case: Case, requests: int, failure: Oom) -> int | None:
    """Bytes of one buffer of logits in fp32: by the model's vocabulary, else what was asked for; None where no
    model has so large a vocabulary: then it is several buffers (values and indices of a sort)."""
    model = case.deployment.model
    if model is not None and model.vocab_size:
        return requests * model.vocab_size * 4
    tried = failure.tried or 0
    return failure.tried if tried <= requests * _LARGEST_VOCABULARY * 4 else None


def _peak(case: Case, buffer: int | None, failure: Oom) -> float:
    """Bytes of all buffers at the peak; twice what was asked for where the vocabulary is not known."""
    return _buffers(case) * buffer if buffer else 2.0 * (failure.tried or 0)


def _buffers(case: Case) -> float:
    """How many such buffers are alive at the peak: the sorting path before 0.17.0, Triton after it."""
    return 3.5 if between(case, "0.17.0", None, unknown=True) else 9.4


def _summary(requests: int, buffer: int | None, failure: Oom) -> str:
    one = f" One buffer of them is {mib(buffer)}." if buffer and buffer != failure.tried else ""
    return (
        f"The sampler warm-up handles {requests:,} sequences over the whole vocabulary at once, and its "
        f"buffers do not fit beside pool and graphs.{one} {failure.story}".strip()
    )


def _explanation(case: Case, failure: Oom, buffer: int | None) -> str:
    parts = []
    if buffer:
        parts.append(
            f"About {_buffers(case):g} buffers of {mib(buffer)} are alive at the peak, "
            f"{gib(_buffers(case) * buffer / GIB)}."
        )
    parts.append(
        "The pool was already allocated, so this memory must come from what the share left free."
        if graphs_follow(case) or case.phase == "warmup"
        else "The pool did not exist yet, so a lower share would not help; only fewer sequences do."
    )
    return " ".join(parts)


def _fixes(case: Case, requests: int, buffer: int | None, failure: Oom) -> Iterator[Change]:
    """Fewer sequences first, unless hardly any would be left; a lower share keeps them all."""
    sequences = _sequences(case, requests, buffer, failure)
    left = f", about {mib(_peak(case, buffer, failure) * sequences / requests)}" if buffer else ""
    fewer = checked(
        case, {"max_num_seqs": sequences}, f"the buffers shrink to {sequences / requests:.0%}{left}"
    )
    share, lower = _share(case, buffer, failure), []
    if share is not None:
        change = {"gpu_memory_utilization": share}
        lower = starts([checked(case, change, "leaves the missing memory outside the pool")])
    yield from (fewer, *lower) if sequences >= 64 else (*lower, fewer)


def _sequences(case: Case, requests: int, buffer: int | None, failure: Oom) -> int:
    """The largest halving of the sequences whose buffers fit into what was free; a quarter where unknown."""
    peak = _peak(case, buffer, failure)
    if not peak or failure.free is None:
        return max(1, requests // 4)
    sequences = requests
    while sequences > _LEAST and peak * sequences / requests > failure.free:
        sequences //= 2
    return max(1, min(sequences, requests // 2))


def _share(case: Case, buffer: int | None, failure: Oom) -> float | None:
    """The share lowered by what the buffers miss, rounded down to 0.01."""
    total = failure.total or _total(case)
    if not total:
        return round(utilization(case) - 0.05, 2)
    need = _peak(case, buffer, failure) - (failure.free or 0)
    lowered = utilization(case) - max(need, 0.02 * total) / total
    return int(lowered * 100) / 100 if lowered > 0.1 else None


def _total(case: Case) -> float | None:
    total = figure(case, "total_gib")
    return total.value * GIB if total is not None else None


def _refuted(case: Case) -> Iterator[Refuted]:
    yield Refuted("max_model_len", "the sampler handles one row for each sequence, whatever the length")
    graphs = figure(case, "graphs_gib")
    if graphs is not None:
        yield Refuted("graph capture", f"it had finished, with {graphs} GiB")
