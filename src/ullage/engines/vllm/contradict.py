"""Observed figures that cannot all be true: one sentence each, with the numbers and their lines."""

from __future__ import annotations

from collections.abc import Iterator

from ullage.core.deployment import Deployment, Reading
from ullage.core.run import Run
from ullage.core.units import Band
from ullage.engines.vllm.options import since
from ullage.engines.vllm.readings import printed, smallest
from ullage.engines.vllm.settings import Settings, settings

#: GiB beyond rounding that a sum of printed terms may differ without being called a contradiction
SLACK_GIB = 0.03


def contradictions(run: Run, deployment: Deployment) -> list[str]:
    """Budget against its terms, share against total, tokens against concurrency, ranks against each other."""
    deployment = printed(deployment)
    s = settings(deployment)
    return [
        *share(deployment, s), *larger_than_gpu(deployment), *the_sum(deployment, s),
        *concurrency(deployment, s), *different_pools(deployment),
    ]  # fmt: skip


def _get(deployment: Deployment, name: str) -> Reading | None:
    return smallest(deployment, name) if name == "kv_gib" else deployment.readings.get(name)


def _say(reading: Reading) -> str:
    return f"{reading.name} {reading.value} ({reading.source})"


def share(deployment: Deployment, s: Settings) -> Iterator[str]:
    """requested = U x T beyond the rounding of U, T and the result."""
    total, requested = _get(deployment, "total_gib"), _get(deployment, "requested_gib")
    used = _get(deployment, "gpu_memory_utilization")
    if total is None or requested is None or used is None:
        return
    rounding = max(used.value.step / 2, 0.0)
    computed = Band(
        total.value.value * used.value.value, total.value.band.low * (used.value.value - rounding),
        total.value.band.high * (used.value.value + rounding),
    )  # fmt: skip
    if _apart(computed, requested.value.band, 0.02):
        yield f"{_say(used)} x {_say(total)} is {computed.value:.2f} GiB, but {_say(requested)}"


def _apart(one: Band, other: Band, slack: float) -> bool:
    return one.high + slack < other.low or other.high + slack < one.low


def larger_than_gpu(deployment: Deployment) -> Iterator[str]:
    """Nothing on one GPU is larger than the GPU."""
    total = _get(deployment, "total_gib")
    if total is None:
        return
    for name in ("free_at_start_gib", "requested_gib", "weights_gib", "kv_gib"):
        shown = _get(deployment, name)
        if shown is not None and shown.value.band.low > total.value.band.high + SLACK_GIB:
            yield f"{_say(shown)} is more than {_say(total)}"


def the_sum(deployment: Deployment, s: Settings) -> Iterator[str]:
    """The printed pool against the share less the printed terms. Sleep mode hides weights from the counters."""
    names = ["requested_gib", "weights_gib", "peak_activation_gib", "non_torch_gib", "kv_gib"]
    if s.subtracts_graphs:
        names.insert(4, "graph_estimate_gib")
    own = [
        ranks for ranks in deployment.by_rank.values() if "kv_gib" in ranks and "peak_activation_gib" in ranks
    ]
    if deployment.by_rank and not own:
        return  # terms of one rank and the pool of another
    shown = [own[0].get(name) or _get(deployment, name) if own else _get(deployment, name) for name in names]
    known = [reading for reading in shown if reading is not None]
    if len(known) < len(names) or s.kv_bytes or since(s.release, "0.27.0") or s.core == "V0":
        return
    first, *terms, pool = known
    rounding = sum(max(reading.value.step, 0.01) / 2 for reading in known)
    computed = first.value.value - sum(reading.value.value for reading in terms)
    if abs(computed - pool.value.value) > rounding + SLACK_GIB:
        parts = " - ".join(str(reading.value) for reading in (first, *terms))
        yield f"{parts} is {computed:.2f} GiB ({terms[-1].source} and lines like it), but {_say(pool)}"


def concurrency(deployment: Deployment, s: Settings) -> Iterator[str]:
    """tokens / length against the printed concurrency: the same figure from 0.20.1 on, and for models of one
    kind of layer up to whole blocks."""
    tokens, times = _get(deployment, "kv_tokens"), _get(deployment, "max_concurrency")
    length, model = _get(deployment, "max_concurrency_len"), deployment.model
    if tokens is None or times is None or length is None or length.value.value <= 0:
        return
    older = s.release is None or not since(s.release, "0.20.1")
    if older and (model is None or model.is_hybrid or s.core == "V0"):
        return
    computed = tokens.value.value / length.value.value
    if abs(computed - times.value.value) > 0.01 + 0.02 * computed:
        yield f"{_say(tokens)} / {_say(length)} is {computed:.2f}, but {_say(times)}"


def different_pools(deployment: Deployment) -> Iterator[str]:
    """Ranks of one engine with other pools: all take the smallest."""
    groups: dict[str, list[tuple[str, Reading]]] = {}
    for rank, readings in deployment.by_rank.items():
        if "kv_gib" in readings:
            engine = next((part for part in rank.split() if part.startswith("DP")), "")
            groups.setdefault(engine, []).append((rank, readings["kv_gib"]))
    for ranks in groups.values():
        least = min(ranks, key=lambda pair: pair[1].value.value)
        most = max(ranks, key=lambda pair: pair[1].value.value)
        apart = most[1].value.value - least[1].value.value
        if apart > max(0.5, 0.05 * most[1].value.value):
            yield (
                f"the pools of the ranks differ by {apart:.2f} GiB: {least[0] or 'one rank'} has "
                f"{least[1].value} ({least[1].source}), {most[0] or 'another'} {most[1].value} "
                f"({most[1].source}); the smallest decides"
            )
