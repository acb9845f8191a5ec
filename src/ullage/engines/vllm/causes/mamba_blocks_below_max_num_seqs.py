"""A hybrid model has fewer state blocks than sequences.

What you see: "max_num_seqs (1024) exceeds available Mamba cache blocks (969). Each decode sequence requires
one Mamba cache block, so CUDA graph capture cannot proceed." (0.20.0 and newer). Before the guard existed,
capture of full graphs ran past the last block and died with "device kernel image is invalid" or an illegal
access.

What misleads: the pool holds hundreds of thousands of tokens. The old message blames the kernel image, which
has nothing to do with the architecture.

What is true: every running sequence of a Mamba or linear-attention model keeps one state block, however short
it is. A long max_model_len makes blocks large (attention blocks grow to the size of a state page), so fewer
of them fit.

What helps: --max-num-seqs at or below the number of blocks; a larger share gives more blocks in proportion;
without full graphs the check does not apply, but more sequences than blocks would never run together anyway.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ullage.core.finding import Case, Change, Finding, How, Prediction, Refuted
from ullage.core.units import GIB
from ullage.engines.vllm.causes._case import advice, between, figure, found, says, size
from ullage.engines.vllm.causes._checks import checked

_GUARD = re.compile(r"max_num_seqs \((?P<asked>\d+)\) exceeds available Mamba cache blocks \((?P<blocks>\d+)\)")
#: what capture past the last block looked like before the guard (0.20.0)
_UNGUARDED = r"device kernel image is invalid|illegal memory access|cudaErrorInvalidKernelImage"


def test(case: Case) -> Finding | None:
    match = _GUARD.search(case.text) or (_GUARD.search(case.log) if case.root is None else None)
    if match is not None:
        asked, blocks = int(match["asked"]), int(match["blocks"])
        return found(
            case, "mamba-blocks-below-max-num-seqs", "certain", 40,
            f"The model needs one state block for each sequence: max_num_seqs is {asked}, and {blocks} "
            f"blocks fit.",
            "A state block is as large as an attention block of this model, so the number follows from the "
            "pool alone.",
            shown=["kv_gib", "kv_tokens"], fixes=_fixes(case, blocks), refuted=_refuted(),
            phase="graph_capture",
        )  # fmt: skip
    certainty = _unguarded(case)
    if certainty is None:
        return None
    return found(
        case, "mamba-blocks-below-max-num-seqs", certainty, 25,
        "Capture of full graphs ran past the last state block: this release has no guard for more sequences "
        "than blocks.",
        "Full graphs are captured for up to max_num_seqs sequences, each with a state block of its own; the "
        "driver's message about the kernel image is a consequence of the bad index.",
        lines=["Capturing CUDA ?graph"], fixes=_fixes(case, None), refuted=_refuted(), phase="graph_capture",
    )  # fmt: skip


def _unguarded(case: Case) -> How | None:
    """Full-graph capture on a release without the guard fails with an address error, on a hybrid model."""
    if case.phase != "graph_capture" or not says(case, _UNGUARDED):
        return None
    if not between(case, "0.11.0", "0.20.0.dev0", unknown=True):
        return None
    model = case.deployment.model
    hybrid = model is not None and any(layer.kind == "linear" for layer in model.layers)
    bad_image = says(case, r"device kernel image is invalid|cudaErrorInvalidKernelImage")
    if hybrid:
        return "certain" if bad_image else "likely"
    return "likely" if bad_image else None


def _fixes(case: Case, blocks: int | None) -> Iterator[Change]:
    if blocks:
        pool = figure(case, "kv_gib")
        said = Prediction(
            "starts", None, round(pool.value * GIB) if pool else None, "as the engine's own message says"
        )
        yield Change({"--max-num-seqs": blocks}, "one block for each sequence", said, "certain")
    else:
        yield checked(
            case, {"max_num_seqs": max(1, size(case, "max_num_seqs", 1024) // 2)}, "fewer sequences than blocks"
        )
    if figure(case, "free_at_start_gib") is not None:
        yield advice("a larger share gives more blocks, where it is free", "possible")


def _refuted() -> Iterator[Refuted]:
    yield Refuted("no memory left", "no allocation has failed; the blocks are counted")
    yield Refuted("the image lacks kernels for this GPU", "weights, profile and earlier captures ran on it")
