"""The CPU build: no share of a card, no profile, no graphs; the pool is told, or a share of the host's memory.

Read in vllm 0.32.0, v1/worker/cpu_worker.py: VLLM_CPU_KVCACHE_SPACE wins over --kv-cache-memory-bytes, and
without both the worker takes gpu_memory_utilization of the node's memory.
"""

from __future__ import annotations

from ullage.core.deployment import Budget, Deployment
from ullage.core.ledger import Entry, Ledger
from ullage.core.units import GIB, Band

RULE = (
    "vllm 0.32.0, v1/worker/cpu_worker.py: VLLM_CPU_KVCACHE_SPACE, else --kv-cache-memory-bytes, else a share"
)


def on_host(deployment: Deployment) -> bool:
    """True where the log or the command says that the engine runs on the CPU."""
    launch = deployment.launch
    return "cpu" in (launch.get("device_config"), launch.get("device"))


def budget(deployment: Deployment) -> Budget:
    """What the log prints of the pool; whether one request of the limit fits where it prints that too."""
    pool, tokens = deployment.reading("kv_gib"), deployment.reading("kv_tokens")
    need = deployment.reading("needed_kv_gib")
    size = pool.scaled(GIB) if pool is not None else None
    if pool is None:
        return Budget(rule=RULE, missing=("kv_gib",))
    fails = need is not None and need.value > pool.value
    return Budget(
        verdict="fails" if fails else "starts", fails_at="kv_pool" if fails else None,
        cause="max-len-exceeds-kv" if fails else None, rule=RULE, pool_bytes=size, kv_tokens=tokens,
        bytes_per_token=_per_token(size, tokens), ledgers=_ledgers(deployment, size),
    )  # fmt: skip


def _per_token(size: Band | None, tokens: Band | None) -> Band | None:
    if size is None or tokens is None or tokens.value <= 0:
        return None
    return Band(size.value / tokens.value, size.low / tokens.value, size.high / tokens.value)


def _ledgers(deployment: Deployment, size: Band | None) -> tuple[Ledger, ...]:
    total, reading = deployment.reading("total_gib"), deployment.readings.get("kv_gib")
    if total is None or size is None or reading is None:
        return ()
    entry = Entry(
        "kv_pool", "KV pool", int(size.value), int(size.low), int(size.high), "observed", reading.source
    )
    return (Ledger("node 0", int(total.value * GIB), (entry,)),)


__all__ = ["RULE", "budget", "on_host"]
