"""Ranks are mapped to the wrong GPUs: one card carries two of them, another none.

What you see: two ranks print the same gpu_id, or the free memory before loading differs between ranks by
about the size of one rank's weights; nvidia-smi shows one card twice as full and one empty.

What misleads: the server may start, only with a smaller pool, or fails with out of memory on one rank.

What is true: the GPU of a rank is base_gpu_id + step x local rank, and with data and pipeline parallelism
combined the offset of the later replicas was computed without the pipeline ranks in some releases.

What helps: a release with the corrected offset; meanwhile one server for each replica with its own
CUDA_VISIBLE_DEVICES, or --base-gpu-id.
"""

from __future__ import annotations

import re

from ullage.core.finding import Case, Finding
from ullage.engines.sglang.causes._terms import advice, lines

_ID = re.compile(r"\bgpu_id[:=] ?(\d+)\b")
_RANKS = re.compile(r"\b(?:dp_rank|pp_rank|tp_rank|base_gpu_id)[:=] ?\d+")


def test(case: Case) -> Finding | None:
    placed: dict[str, set[str]] = {}
    for text in case.log.splitlines():
        found = _ID.search(text)
        if found is not None and len(_RANKS.findall(text)) >= 2:
            placed.setdefault(found[1], set()).add(" ".join(_RANKS.findall(text)))
    twice = sorted(gpu for gpu, ranks in placed.items() if len(ranks) > 1)
    if not twice:
        return None
    return Finding(
        cause="rank-gpu-misplacement", certainty="likely", weight=34,
        summary=f"Two ranks are placed on GPU {', '.join(twice)}.",
        explanation="Each rank needs a card of its own. The lines of placement give one GPU index to "
                    "two different "
        "ranks, so that card carries two models and another one none.",
        evidence=lines(case, [re.compile(rf"\bgpu_id[:=] ?{gpu}\b") for gpu in twice]),
        fixes=(
            advice("a release with the corrected GPU offset for data with pipeline parallelism"),
            advice("meanwhile one server for each replica with its own CUDA_VISIBLE_DEVICES"),
        ),
    )  # fmt: skip
