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
from ullage.engines.vllm.causes._case import advice, figure, found, gib, says, verbatim
from ullage.engines.vllm.causes._oom import Oom, not_these, oom, place, shared_with

_NAMES = ("kv_cache_memory_bytes", "kv_cache_memory", "num_gpu_blocks_override")


#: v1/worker/cpu_worker.py 0.20.0+: the size that was asked for explicitly, without "/reserved" behind it
_CPU = r"on kv cache allocation is less than requested memory for kv \([\d.]+ GiB\)"


def test(case: Case) -> Finding | None:
    if says(case, _CPU):
        return _on_cpu(case)
    failure, pinned = oom(case), _pinned(case)
    where = place(case)
    if failure is None or pinned is None or case.phase == "serving":
        return None
    if where in ("weights", "repack", "encoder", "profile") and case.frames:
        return None
    what = f"{gib(pinned[1] / GIB)}" if "memory" in pinned[0] else f"{pinned[1]:,.0f} blocks"
    return found(
        case, "kv-cache-memory-oversized", "certain" if case.phase not in (None, "weights") else "likely", 45,
        f"The KV cache was pinned to {what}, which skips the engine's own sizing, and nothing was left for "
        f"what comes after it. {failure.story}".strip(),
        "A pinned pool is allocated as given: activation peak, graphs and workspaces are not subtracted.",
        fixes=_fixes(case, pinned, failure), refuted=not_these(case, failure),
        contributing=shared_with(failure),
        phase=case.phase if case.phase in ("kv_pool", "graph_capture", "warmup") else "warmup",
    )  # fmt: skip


def _on_cpu(case: Case) -> Finding:
    return found(
        case, "kv-cache-memory-oversized", "certain", 45,
        "The KV cache was given a size that the memory of this CPU node does not have free.",
        "An explicit size is allocated as given; the worker compares it with what is available on its node.",
        fixes=[
            verbatim("--kv-cache-memory-bytes", False, "the worker then sizes the pool by the share"),
            advice("free memory on this node", "likely"),
        ],
        phase="kv_pool",
    )  # fmt: skip


def _pinned(case: Case) -> tuple[str, float] | None:
    """The setting that pins the pool, and its value; from 0.20.1 overridden blocks pass the check first."""
    known = ((name, case.deployment.launch.number(name)) for name in _NAMES)
    return next(((name, value) for name, value in known if value), None)


def _fixes(case: Case, pinned: tuple[str, float], failure: Oom) -> Iterator[Change]:
    name, value = pinned
    yield verbatim(
        f"--{name.replace('_', '-')}", False, "the engine then sizes the pool by the share", "certain"
    )
    shown = [figure(case, after) for after in ("peak_activation_gib", "graphs_gib")]
    after = sum(one.value for one in shown if one is not None) * GIB
    less = after or max(2 * (failure.tried or 0), 2 * GIB)
    smaller = int((value - less) // (1 << 20)) << 20
    if "memory" in name and smaller > 0:
        yield advice("a pinned pool that leaves room for what comes after it", kv_cache_memory_bytes=smaller)
