"""The loader leaves memory behind that the profile counts as used.

What you see: the budget fails, or the cache is far smaller than the share minus the weights; GiB of non-torch
or unexplained memory with one GPU, often with a streaming, sharded or quantising loader.

What misleads: nothing failed, and the printed weights are right. The missing GiB appear in no line.

What is true: the profile charges what the device has in use beyond the reference snapshot. Buffers that a
loader has pinned or mapped on the device, or that it has freed into a cache of its own, are charged like
weights. To 0.6.3 torch's own unused cache was charged as well.

What helps: the default loader (--load-format auto); a second start, where the loader's cache on disk makes
the detour unnecessary; a larger share if the memory returns after loading.
"""

from __future__ import annotations

from ullage.core.finding import Case, Finding
from ullage.engines.vllm.causes._budget import no_blocks, no_fit, terms
from ullage.engines.vllm.causes._case import advice, figure, found, gib, size

#: more than context growth and NCCL take: with tp above 1 public logs show up to 2.2 GiB
_USUAL_GIB = 2.5
_LOADERS = ("runai", "tensorizer", "fastsafetensors", "sharded_state", "bitsandbytes", "gguf", "instanttensor")


def test(case: Case) -> Finding | None:
    if not (no_blocks(case) or no_fit(case)) or size(case, "tensor_parallel_size") > 2:
        return None
    known, measured = terms(case), figure(case, "non_torch_gib")
    residue = measured.value if measured is not None else known.unexplained
    missing = -known.pool if known.pool is not None and known.pool < 0 else 0.0
    if residue is None or residue < max(_USUAL_GIB, missing):
        return None
    loader = case.deployment.launch.text("load_format") or ""
    special = any(name in loader for name in _LOADERS)
    if measured is None and not special:
        return None
    return found(
        case, "loader-memory-residue", "certain" if special else "likely", 45 if special else 10,
        f"{gib(residue)} of the share are neither weights nor activations: memory that loading has left "
        f"behind.",
        f"The engine's rule: {known.formula}. A context and one card's libraries take a few hundred MiB.",
        shown=["non_torch_gib", "weights_gib", "kv_gib"], phase="kv_pool",
        fixes=[
            advice("the default loader", load_format="auto"),
            advice("a second start with warm caches", "possible"),
        ],
    )  # fmt: skip
