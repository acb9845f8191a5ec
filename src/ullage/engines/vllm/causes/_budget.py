"""The terms of vLLM's KV budget as a log shows them, and what follows from them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec import Struct

from ullage.core.finding import Case, Refuted
from ullage.core.units import GIB
from ullage.engines.vllm.causes._case import (
    Known,
    between,
    figure,
    gib,
    machine_total,
    numbers,
    says,
    smallest,
    utilization,
)

#: budget not positive (0.6.0-0.33.0: worker, kv_cache_utils, kv_cache_planning) or below one token (0.14.0+)
NO_BLOCKS = r"No available memory for the cache blocks|Cannot auto-fit max_model_len"
#: budget positive, smaller than one request (V1: kv_cache_utils 0.7.0+; V0: worker 0.6.0-0.10.2)
NO_FIT = (
    r"To serve at least one request with the model'?s?'?s? max seq len"
    r"|is larger than the maximum number of tokens that can be stored in KV cache"
)
FIT = re.compile(
    r"max seq len \((?P<length>[\d,]+)\)(?:,? \(?(?P<needed>[\d.]+) G(?:i?B) KV cache is needed, "
    r"which is larger than the available KV cache memory \((?P<available>[\d.]+) G(?:i?B)\))?"
    r"(?:\D{0,90}?estimated maximum model length is (?P<estimate>[\d,]+))?"
)
FIT_V0 = re.compile(
    r"max seq len \((?P<length>[\d,]+)\) is larger than the maximum number of tokens that can be stored in KV "
    r"cache \((?P<tokens>[\d,]+)\)"
)


class Terms(Struct, frozen=True):
    """GiB of each term; None where neither the log nor a reading shows it."""

    utilization: float
    total: float | None = None
    requested: float | None = None
    weights: float | None = None
    peak: float | None = None
    non_torch: float | None = None
    consumed: float | None = None
    graphs: float | None = None
    pool: float | None = None

    @property
    def formula(self) -> str:
        """The budget with its numbers, as far as they are known; what no line prints closes the sum."""
        if self.requested is None:
            known = f" = {gib(self.pool)}" if self.pool is not None else ""
            return f"share x total - weights - activation peak - non-torch - graphs{known}"
        first = (
            f"{self.utilization:g} x {self.total:.2f}" if self.total is not None else f"{self.requested:.2f}"
        )
        held = self._held()
        if self.pool is not None and abs(rest := self.requested - self.pool - sum(v for _, v in held)) > 0.05:
            held.append((self._unprinted(), rest))
        terms = [f"{value:.2f} ({name})" for name, value in held]
        result = f" = {gib(self.pool)}" if self.pool is not None else ""
        return f"{' - '.join([first, *terms])}{result}".replace("- -", "+ ")

    def _held(self) -> list[tuple[str, float]]:
        """The printed terms in GiB: from 0.27.0 weights and non-torch come as one figure."""
        start = [("weights", self.weights), ("non-torch", self.non_torch)]
        if self.consumed is not None:
            start = [("weights and non-torch", self.consumed)]
        named = [*start, ("activation peak", self.peak), ("graph estimate", self.graphs)]
        return [(name, value) for name, value in named if value]

    def _unprinted(self) -> str:
        """What the rest of the sum must be."""
        names = {"activation peak": self.peak, "non-torch": self.non_torch or self.consumed}
        missing = [name for name, value in names.items() if value is None]
        return f"{' and '.join(missing)}, not printed" if missing else "rounding and the rest"

    @property
    def weights_alone(self) -> bool | None:
        """True if the weights by themselves exceed the share; None where a term is unknown."""
        if self.weights is None or self.requested is None:
            return None
        return self.weights >= self.requested

    @property
    def unexplained(self) -> float | None:
        """GiB of the share that no printed term accounts for."""
        if self.requested is None or self.weights is None or self.pool is None:
            return None
        return self.requested - self.pool - self.weights - sum(v or 0.0 for v in (self.peak, self.graphs))


def terms(case: Case) -> Terms:
    """The budget's terms as printed; the total falls back on the GPU's name, then on the graph line."""
    share = utilization(case)
    total = _value(figure(case, "total_gib")) or machine_total(case) or _total_of_graphs(case)
    requested = _value(figure(case, "requested_gib"))
    return Terms(
        utilization=share, total=total,
        requested=requested if requested is not None else share * total if total is not None else None,
        weights=_value(figure(case, "weights_gib")), peak=_value(figure(case, "peak_activation_gib")),
        non_torch=_value(figure(case, "non_torch_gib")), consumed=_value(figure(case, "consumed_gib")),
        graphs=_value(figure(case, "graph_estimate_gib")) if subtracts_graphs(case) else None,
        pool=_value(smallest(case, "kv_gib")),
    )  # fmt: skip


def _total_of_graphs(case: Case) -> float | None:
    """GiB of the card from the line that gives the share without graphs: estimate / (U - U')."""
    estimate, without = figure(case, "graph_estimate_gib"), figure(case, "utilization_without_graphs")
    if estimate is None or without is None or utilization(case) - without.value < 0.005:
        return None
    return estimate.value / (utilization(case) - without.value)


def _value(known: Known | None) -> float | None:
    return known.value if known is not None else None


def weights_of_ledger(case: Case) -> float | None:
    """GiB of weights on the fullest rank as the engine's ledger has them (computed where not printed)."""
    sizes = [ledger.of("weights") for ledger in case.budget.ledgers]
    return max(sizes) / GIB if sizes and max(sizes) > 0 else None


def subtracts_graphs(case: Case) -> bool:
    """True if the graph estimate comes off the budget: by default from 0.20.0, on request from 0.18.0."""
    if case.deployment.launch.env.get("VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS") in ("0", "1"):
        return case.deployment.launch.env["VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS"] == "1"
    if says(case, r"CUDA graph memory profiling is (?P<state>disabled)", anywhere=True):
        return False
    if says(case, r"CUDA graph memory profiling is enabled", anywhere=True):
        return True
    return between(case, "0.20.0", None, unknown=True)


def no_blocks(case: Case) -> bool:
    return says(case, NO_BLOCKS)


def no_fit(case: Case) -> bool:
    return says(case, NO_FIT)


def fit(case: Case) -> dict[str, float]:
    """length, needed and available GiB, estimate; V0: length and tokens. Empty without numbers."""
    return numbers(FIT_V0, case) or numbers(FIT, case)


def never_charged(case: Case) -> Iterator[Refuted]:
    """Suspects that this check does not see, by release."""
    if between(case, "0.20.0", None, unknown=False) or between(case, "0.18.0", None, unknown=False):
        return
    yield Refuted("CUDA graphs", "this release captures graphs after the check; their memory is not in it")
