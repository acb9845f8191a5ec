"""The weights, or a temporary form of them, do not fit on the GPU: out of memory while the model is loaded.

What you see: CUDA out of memory after "Load weight begin" and before "Load weight end", in the construction
of layers, in load_weights or in process_weights_after_loading.

What misleads: advice to lower or raise --mem-fraction-static. The fraction sizes the pool afterwards and has
no influence on this stage.

What is true: the bytes of the weights of one rank, with the copies that the loader makes for a moment (online
quantisation builds the 16-bit layers first; repacking keeps old and new form of a layer), exceed what is
free. The free memory "Load weight begin" prints is the whole budget.

What helps: more GPUs (tensor, pipeline or expert parallelism), a checkpoint that is already quantised, a
smaller model, or memory that another process holds.
"""

from __future__ import annotations

from ullage.core.finding import Case, Finding, Refuted
from ullage.engines.sglang.causes._oom import not_these, oom
from ullage.engines.sglang.causes._terms import (
    advice,
    draft_begun,
    fraction,
    more_ranks,
    proof,
    smallest,
    speculates,
    weights_predicted,
)


def test(case: Case) -> Finding | None:
    failure = oom(case)
    if failure is None or failure.place != "load" or case.phase in ("graph_capture", "serving", "warmup"):
        return None
    if speculates(case) and draft_begun(case):
        return None
    free, need = smallest(case, "free_before_weights_gib"), weights_predicted(case)
    exceeds = free is not None and need is not None and need > 0.95 * free
    figures = f"{free:.2f} GiB were free before loading. " if free is not None else ""
    if need is not None:
        figures += f"The rules expect about {need:.1f} GiB of weights on each rank once loaded. "
    f = fraction(case)
    return Finding(
        cause="weights-exceed-gpu", phase="weights",
        certainty="likely" if _offloads(case) else "certain", weight=40 if exceeds else 30,
        summary="The weights do not fit on the GPU; the failure comes before the KV pool is sized, so "
        "mem_fraction_static plays no part.",
        explanation=f"{failure.story}{figures}The loader may need copies beside the final weights: the 16-bit "
        "layers of an online quantisation, or a repacked tensor beside the old one.",
        evidence=proof(case, "free_before_weights_gib"),
        refuted=(
            *not_these(failure),
            Refuted(
                "mem_fraction_static" + (f" ({f:g})" if f is not None else ""),
                "it sizes the pool after loading; no weight is refused or kept because of it",
            ),
        ),
        fixes=(
            more_ranks(case),
            advice("a checkpoint that is already quantised (4 bit: about a quarter of the 16-bit size)"),
        ),
    )  # fmt: skip


def _offloads(case: Case) -> bool:
    """True if expert offload to the CPU was asked for: then the full weights should not be on the GPU."""
    launch = case.deployment.launch
    return any(name.startswith("kt_") and arg.value for name, arg in launch.args.items()) or "--kt-" in (
        launch.command or ""
    )
