"""Under WSL the driver refuses to make memory resident although enough is reported free.

What you see: "dxgkio_make_resident: Ioctl failed: -12" in the kernel log, and "CUDA driver error: device not
ready" or an out-of-memory error with GiB free, while weights load or are repacked.

What misleads: nvidia-smi and torch both show free memory, and the same card works under Linux.

What is true: under WSL the Windows driver model pages GPU memory; each allocation must be made resident by
the host and is backed by host memory there. -12 is ENOMEM of the Windows side: its commit limit, the memory
given to WSL, or the desktop's own use.

What helps: more memory for WSL (.wslconfig) and a larger page file; fewer and larger allocations; closing
what uses the card in Windows; PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False where it was on; native
Linux.
"""

from __future__ import annotations

from ullage.core.finding import Case, Finding, How
from ullage.engines.vllm.causes._case import advice, found, says, under_wsl, verbatim
from ullage.engines.vllm.causes._oom import oom, roomy

_RESIDENCY = r"dxgkio_make_resident"


def test(case: Case) -> Finding | None:
    kernel = says(case, _RESIDENCY, anywhere=True)
    not_ready = says(case, r"device not ready|cudaErrorNotReady")
    failure = oom(case)
    refused = failure is not None and roomy(failure)
    if not kernel and not refused and not (under_wsl(case) and not_ready):
        return None
    if case.root is None and case.outcome == "started":
        return None
    return found(
        case, "wsl-residency-failure", *_sureness(case, kernel),
        "Windows could not make GPU memory resident for WSL, although the card reports enough free memory.",
        "The kernel's graphics layer of WSL got ENOMEM from the host for an allocation that CUDA had granted."
        if kernel
        else "The failure leaves more memory free than was asked for; the card itself did not lack it.",
        lines=[_RESIDENCY],
        fixes=[
            advice("give WSL more memory (.wslconfig) and Windows a larger page file", "likely"),
            verbatim("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:False", "helped some users", "possible"),
        ],
    )  # fmt: skip


def _sureness(case: Case, kernel: bool) -> tuple[How, int]:
    """Without WSL's marks the figures alone say that the device had room; a limit on the process is as able."""
    if kernel:
        return "certain", 45
    return ("likely", 25) if under_wsl(case) else ("possible", 10)
