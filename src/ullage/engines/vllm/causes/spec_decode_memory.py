"""Draft depth times sequences raises buffers and graph shapes beyond what fits.

What you see: an out-of-memory error after the weights, in the pool, in capture or soon under load, with a
speculative configuration of many tokens and the default max_num_seqs.

What misleads: the same model starts without the draft, and the draft's own weights are small.

What is true: each verify pass handles max_num_seqs x (1 + draft tokens) rows. Logits, draft probabilities and
rejection buffers have that many rows over the whole vocabulary, and the graphs are captured for those shapes.
Doubling the depth nearly doubles them.

What helps: fewer --max-num-seqs (the draft pays only at small batches anyway) or fewer draft tokens; then, if
need be, a lower share.
"""

from __future__ import annotations

import json

from ullage.core.finding import Case, Finding
from ullage.core.units import GIB
from ullage.engines.vllm.causes._case import advice, found, gib, size
from ullage.engines.vllm.causes._oom import not_these, oom, place, shared_with

#: from this depth and this many rows a verify pass outgrows the profile of ordinary launches
_DEPTH, _ROWS, _CERTAIN_ROWS = 5, 512, 1024


def test(case: Case) -> Finding | None:
    failure, depth = oom(case), draft_tokens(case)
    if failure is None or depth < _DEPTH or place(case) in ("repack", "encoder"):
        return None
    if place(case) == "weights" and (case.frames or case.run.reached == "weights"):
        return None
    sequences = _sequences(case)
    rows = sequences * (1 + depth)
    if rows < _ROWS:
        return None
    model = case.deployment.model
    logits = (
        f" Their logits alone are {gib(rows * model.vocab_size * 4 / GIB)}."
        if model and model.vocab_size
        else ""
    )
    return found(
        case, "spec-decode-memory", "certain" if rows >= _CERTAIN_ROWS and failure.tried else "likely", 35,
        f"{sequences} sequences with {depth} draft tokens each make a verify pass of {rows:,} rows, whose "
        f"buffers do not fit.{logits} {failure.story}".strip(),
        "Buffers and graph shapes of speculative decoding grow with max_num_seqs x (1 + "
        "num_speculative_tokens).",
        lines=["speculative_config"], refuted=not_these(case, failure), contributing=shared_with(failure),
        phase=case.phase if case.phase not in (None, "args", "init", "weights", "profile") else "kv_pool",
        fixes=[
            advice("the rows fall in proportion", "likely", max_num_seqs=max(1, 64 // (1 + depth))),
            advice(f"a depth of {max(1, depth // 3)} in --speculative-config", "possible"),
        ],
    )  # fmt: skip


def draft_tokens(case: Case) -> int:
    """num_speculative_tokens of the launch; 0 without speculation."""
    launch = case.deployment.launch
    flat = launch.integer("num_speculative_tokens")
    if flat:
        return flat
    config = launch.get("speculative_config")
    if isinstance(config, str):
        try:
            config = json.loads(config)
        except ValueError:
            return 0
    depth = config.get("num_speculative_tokens") if isinstance(config, dict) else None
    return depth if isinstance(depth, int) else 0


def _sequences(case: Case) -> int:
    """max_num_seqs in force: as set, else the smaller default."""
    return size(case, "max_num_seqs", 256)
