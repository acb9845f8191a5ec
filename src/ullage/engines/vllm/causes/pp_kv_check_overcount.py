"""With pipeline stages the check adds up layers that this stage does not hold.

What you see: "To serve at least one request with the models's max seq len ..." with pipeline_parallel_size
above 1 on 0.14.0 to 0.16: needed far above available, and an estimated maximum length far below what works.

What misleads: the figures look like a plain shortage, so people lower max_model_len to the printed estimate
or add cards. Adding stages makes the printed shortage worse.

What is true: these releases form the cache groups over the whole model and compare the need of all layers
with the available memory of the fullest stage. A stage of P holds about one P-th of the layers and needs
about one P-th of the printed figure; the printed estimate is too small by the same factor. From 0.17.0 each
stage is checked against its own layers.

What helps: 0.17.0 or newer; until then tensor parallelism instead of stages. A limit of about the printed
estimate starts but is P times lower than the memory would allow.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from ullage.core.finding import Case, Change, Finding, Refuted
from ullage.engines.vllm.causes._budget import fit, no_fit
from ullage.engines.vllm.causes._case import advice, between, found, gib, size


def test(case: Case) -> Finding | None:
    stages = size(case, "pipeline_parallel_size")
    if not no_fit(case) or stages < 2 or not between(case, "0.14.0.dev0", "0.17.0.dev0", unknown=False):
        return None
    seen, split = fit(case), _split(case, stages)
    return found(
        case, "pp-kv-check-overcount", "certain", 45, _summary(stages, seen), _explanation(seen, split),
        fixes=_fixes(stages, seen, split), phase="kv_pool",
        refuted=[Refuted("a plain shortage", "the printed need counts layers that the stage does not hold")],
    )  # fmt: skip


class Split(Struct, frozen=True):
    """Layers of the model, and of the stages with the fewest and the most."""

    layers: int
    fewest: int
    most: int

    def part(self, whole: float) -> str:
        """The need of one stage, from the need of all layers, in words."""
        low, high = whole * self.fewest / self.layers, whole * self.most / self.layers
        return gib(high) if self.fewest == self.most else f"{gib(low)} to {gib(high)}"


def _split(case: Case, stages: int) -> Split:
    """As VLLM_PP_LAYER_PARTITION or the even split has it; one part each where the layers are unknown."""
    given = case.deployment.launch.env.get("VLLM_PP_LAYER_PARTITION", "")
    parts = [int(p) for p in given.split(",") if p.strip().isdigit()]
    if len(parts) == stages and min(parts) > 0:
        return Split(sum(parts), min(parts), max(parts))
    model = case.deployment.model
    count = model.num_layers if model is not None else 0
    return Split(count, count // stages, -(-count // stages)) if count >= stages else Split(stages, 1, 1)


def _summary(stages: int, seen: dict[str, float]) -> str:
    needed = f" ({gib(seen['needed'])})" if "needed" in seen else ""
    return (
        f"This release compares the KV cache of all layers{needed} with the memory of one of the {stages} "
        f"pipeline stages, so the printed need and the printed limit are wrong."
    )


def _explanation(seen: dict[str, float], split: Split) -> str:
    rule = "0.14.0-0.16 check the groups of the whole model against the smallest available memory of a stage."
    if "needed" not in seen:
        return rule
    fits = seen["needed"] * split.most / split.layers <= seen["available"]
    verdict = "so the request fits." if fits else "so it may still be short, by much less than printed."
    return (
        f"{rule} A stage needs {split.part(seen['needed'])}; the smallest memory of a stage is "
        f"{gib(seen['available'])}, {verdict}"
    )


def _fixes(stages: int, seen: dict[str, float], split: Split) -> Iterator[Change]:
    yield advice("0.17.0 or newer checks each stage against its own layers", "certain")
    yield advice("tensor parallelism instead of stages avoids the check", tensor_parallel_size=stages)
    if "estimate" in seen:
        real = int(seen["estimate"] * split.layers / split.most)
        yield advice(
            f"starts on this release, though about {real:,} would fit", max_model_len=int(seen["estimate"])
        )
