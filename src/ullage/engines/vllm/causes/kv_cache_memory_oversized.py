"""The KV cache was pinned in bytes, which skips the check, and is larger than what is really free.

What you see: --kv-cache-memory (kv_cache_memory_bytes) in the arguments and an out-of-memory error in the
allocation of the cache, in graph capture or in the warm-up, with a few MiB free.

What misleads: the value is one that the engine itself printed: "or '--kv-cache-memory=B' to fully utilize gpu
memory". It keeps only 150 MiB for everything that comes after.

What is true: with that flag gpu_memory_utilization is ignored except for the check at start, the profile is
not measured and neither the activation peak nor graphs are subtracted. Workspaces, graphs and the sampler's
buffers then find nothing.

What helps: leave the flag out and set the share; or a value smaller by the activation peak plus the graphs.
"""

from __future__ import annotations

from collections.abc import Iterator

from ullage.core.finding import Case, Change, Finding
from ullage.core.units import GIB
from ullage.engines.vllm.causes._case import Known, advice, figure, found, gib
from ullage.engines.vllm.causes._oom import Oom, not_these, oom, place, shared_with

_NAMES = ("kv_cache_memory_bytes", "kv_cache_memory")


def test(case: Case) -> Finding | None:
    failure, pinned = oom(case), _pinned(case)
    where = place(case)
    if failure is None or not pinned or (where in ("weights", "repack", "encoder") and case.frames):
        return None
    if case.phase == "serving":
        return None
    return found(
        case, "kv-cache-memory-oversized", "certain" if case.phase not in (None, "weights") else "likely", 45,
        f"The KV cache was pinned to {gib(pinned / GIB)}, which skips the engine's own sizing, and nothing "
        f"was left for what "
        f"comes after it. {failure.story}".strip(),
        "A pinned pool is allocated as given: activation peak, graphs and workspaces are not subtracted.",
        fixes=_fixes(case, pinned, failure), refuted=not_these(case, failure),
        contributing=shared_with(failure),
        phase=case.phase if case.phase in ("kv_pool", "graph_capture", "warmup") else "warmup",
    )  # fmt: skip


def _pinned(case: Case) -> float | None:
    return next((n for n in map(case.deployment.launch.number, _NAMES) if n), None)


def _fixes(case: Case, pinned: float, failure: Oom) -> Iterator[Change]:
    yield advice("leave --kv-cache-memory out and let the engine size the pool", gpu_memory_utilization=0.9)
    after = [k.value for k in (_seen(case, "peak_activation_gib"), _seen(case, "graphs_gib")) if k is not None]
    less = sum(after) * GIB if after else max(2 * (failure.tried or 0), 2 * GIB)
    smaller = int((pinned - less) // (1 << 20)) << 20
    if smaller > 0:
        yield advice("a pinned pool that leaves room for what comes after it", kv_cache_memory=smaller)


def _seen(case: Case, name: str) -> Known | None:
    return figure(case, name)
