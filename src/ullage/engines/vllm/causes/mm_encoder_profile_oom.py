"""The dummy run of the image, video or audio encoder needs more than the card has.

What you see: torch.OutOfMemoryError in the profile, under embed_multimodal (get_multimodal_embeddings in
older releases) or in the attention of the vision tower, often asking for an absurd size such as hundreds of
GiB.

What misleads: text limits. max_model_len, max_num_seqs and gpu_memory_utilization do not bound an image;
lowering them changes nothing.

What is true: the profile feeds the largest input that the processor allows through the encoder. Where the
attention back end of the tower has no variable-length kernel on this card (ROCm and others), it builds the
full score matrix, which grows with the square of the patches.

What helps: --limit-mm-per-prompt with 0 for what is not used (or smaller sizes), --language-model-only
(0.17.0+), --skip-mm-profiling (0.10.1+; then real images are not budgeted), a smaller max_pixels in
--mm-processor-kwargs, another attention back end for the tower.
"""

from __future__ import annotations

from collections.abc import Iterator

from ullage.core.finding import Case, Change, Finding, How, Refuted
from ullage.core.units import GIB
from ullage.engines.vllm.causes._case import between, found, gib, says, verbatim
from ullage.engines.vllm.causes._oom import Oom, not_these, oom, place, shared_with

#: v1/worker/gpu_model_runner.py; the last one: 0.6.2-0.10.2 worker/enc_dec_model_runner.py
_SHOWN = (
    r"Encoder cache will be initialized|profiled with \d+ (?:image|video|audio)"
    r"|profile run for multi-modal models"
)


def test(case: Case) -> Finding | None:
    failure = oom(case)
    sureness = _sureness(case, failure) if failure is not None else None
    if failure is None or sureness is None:
        return None
    certainty, weight = sureness
    asked = f" One buffer of it is {gib(failure.tried / GIB)}." if failure.tried else ""
    return found(
        case, "mm-encoder-profile-oom", certainty, weight,
        f"The profile runs the largest allowed image, video or audio through its encoder and runs out of "
        f"memory.{asked}",
        f"{failure.story} The size follows from the input limit and the attention back end of the tower, not "
        f"from the share, the length or the number of sequences.".strip(),
        lines=["Encoder cache will be initialized"], fixes=_fixes(case), phase="profile",
        refuted=[*_refuted(failure), *not_these(case, failure)], contributing=shared_with(failure),
    )  # fmt: skip


def _sureness(case: Case, failure: Oom) -> tuple[How, int] | None:
    if place(case) == "encoder":
        return "certain", 35
    if not _in_start(case):
        return None
    if failure.tried is not None and failure.total is not None and failure.tried > failure.total:
        # a single buffer larger than the card: only a dense score matrix grows like that
        return ("likely", 30) if _multimodal(case) else ("possible", 20)
    return (
        ("likely", 15) if _multimodal(case) and place(case) == "profile" and case.phase == "profile" else None
    )


def _in_start(case: Case) -> bool:
    return case.phase in (None, "args", "init", "weights", "profile") and place(case) in (
        "profile",
        "weights",
        "unknown",
    )


def _multimodal(case: Case) -> bool:
    model = case.deployment.model
    if model is not None and model.vision is not None:
        return True
    name = (model.id if model is not None else None) or case.deployment.launch.model or ""
    return says(case, _SHOWN, anywhere=True) or any(
        mark in name.lower() for mark in ("-vl", "vision", "omni", "llava", "pixtral", "gemma-3")
    )


def _fixes(case: Case) -> Iterator[Change]:
    yield verbatim(
        "--limit-mm-per-prompt", '{"image": 0, "video": 0}', "no encoder at all, for text only", "certain"
    )
    if between(case, "0.10.1", None, unknown=True):
        yield verbatim(
            "--skip-mm-profiling", True, "starts; the encoder's memory is then outside the budget", "likely"
        )
    yield verbatim("--mm-processor-kwargs", '{"max_pixels": 1003520}', "smaller images", "possible")


def _refuted(failure: Oom) -> Iterator[Refuted]:
    yield Refuted("the KV cache", "it is sized after this pass")
    if failure.tried and failure.total and failure.tried > failure.total:
        yield Refuted(
            "the card is too full", f"the buffer would not fit into an empty {gib(failure.total / GIB)}"
        )
