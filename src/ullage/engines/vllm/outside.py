"""What a rank takes outside PyTorch: CUDA's context, NCCL, other libraries. All sizes in bytes of one rank.

Bands from public logs; what the engine counts, and from when, is in its own code (v1/worker/gpu_worker.py).
"""

from __future__ import annotations

from ullage.core.units import GIB, Band
from ullage.engines.vllm.options import since
from ullage.engines.vllm.settings import Settings


def non_torch(s: Settings, nvlink: bool | None = None) -> Band:
    """Bytes outside PyTorch that the profile sees grow: libraries, lazily made communicators.

    One GPU: 0.02 to 0.13 GiB, from 0.18.0 on, where the graph rehearsal runs inside the measured region, 0.25
    to 0.27. Tensor parallel: on NVLink 0.6, from 0.18.0 on 2.07 to 2.21; over PCIe 0.2 to 0.3, later with every
    rank more (over_pcie); before 0.11.0 NCCL and the custom all-reduce are in it (2.0 with NVLink), in V1
    before 0.9.1 the CUDA context too. With unified memory the engine's own use of host memory counts: 0 to 3.9
    GiB in ten logs of GB10s, 7 in another. Public logs.
    """
    rehearsed = since(s.release, "0.18.0")
    if s.cache.tp == 1:
        low, value, high = (0.06, 0.25, 0.45) if rehearsed else (0.0, 0.08, 0.25)
        if s.release is None:
            low, value = 0.02, 0.15
        if s.cache.pp > 1:
            low, value, high = 0.02, 0.1, 1.0
    elif nvlink and not since(s.release, "0.11.0"):
        low, value, high = 0.3, 2.0, 3.6
    elif nvlink is False or (nvlink is None and s.cache.tp <= 2) or (s.ampere and rehearsed):
        low, value, high = (0.1, over_pcie(s.cache.tp, ampere=s.ampere), 2.8) if rehearsed else (0.1, 0.3, 1.6)
    else:
        low, value, high = (0.3, 2.1 if nvlink else 1.2, 2.4) if rehearsed else (0.05, 0.6, 2.4)
    if s.unified:
        value, high = value + 2.2, high + 9.0
    if s.release is not None and not since(s.release, "0.7.0"):
        value, high = value + 0.3, high + 1.6
    elif s.core == "V1" and not since(s.release, "0.9.1"):
        value, high = value + 0.5, high + 1.2  # the CUDA context and others' memory
    return Band(value * GIB, low * GIB, high * GIB)


def over_pcie(tp: int, *, ampere: bool) -> float:
    """GiB that communicators take in the profile from 0.18.0 on where no fused or symmetric-memory all-reduce
    runs: before SM90, NVLink or not, 0.1 to 0.6 at 2, 4 and 16 ranks; over PCIe on the larger Blackwell cards
    1.8 at 4, 2.7 at 3 with a draft (public logs)."""
    if ampere:
        return 0.35
    return 0.5 if tp <= 2 else min(0.4 + 0.25 * tp, 2.0)


def before_baseline(s: Settings) -> Band:
    """Bytes taken before the engine looks at free memory: CUDA context; from 0.11.0 NCCL and custom
    all-reduce too."""
    context = Band(0.5 * GIB, 0.25 * GIB, 0.75 * GIB)
    if s.cache.tp * s.cache.pp == 1 or not since(s.release, "0.11.0"):
        return context
    return Band(context.value + 0.6 * GIB, context.low + 0.1 * GIB, context.high + 2.0 * GIB)
