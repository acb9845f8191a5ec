"""gpt-oss in MXFP4: each kernel pads the experts' widths to its own multiples when the weights are loaded."""

from __future__ import annotations

from typing import Literal

from ullage.core.model import TensorGroup
from ullage.engines.runtime.shards import Cuts

Kernel = Literal[
    "marlin", "trtllm", "cutlass", "triton", "triton-hopper", "rocm-width", "rocm-128", "rocm-256", "plain"
]
#: kernel -> multiples of (width of an expert on one rank, hidden size)
#: vllm 0.10.1 to 0.16.0, layers/quantization/mxfp4.py; sglang 0.5.9, layers/quantization/mxfp4.py
_MULTIPLES: dict[str, tuple[int, int]] = {
    "marlin": (128, 256), "trtllm": (256, 256), "cutlass": (128, 128), "triton": (64, 1),
    "triton-hopper": (64, 1), "rocm-width": (128, 1), "rocm-128": (128, 128), "rocm-256": (256, 256),
    "plain": (1, 1),
}  # fmt: skip


def _up(size: int, step: int) -> int:
    return -(-size // step) * step


def padded(group: TensorGroup, cuts: Cuts, hidden: int, inner: int, kernel: Kernel) -> int | None:
    """Bytes of one layer's experts in ``group`` on a rank; None for a group that no kernel pads.

    Hopper's value layout of the Triton kernels pads the packed inputs to 128 bytes, 256 values: gpt-oss-120b
    prints 64.38 GiB where the plain count is 60.77 and this rule's 64.33.
    """
    name = group.name.rsplit(".", 1)[-1]
    if group.part != "experts" or not name.startswith(("gate_up_proj", "down_proj")) or not group.stacked:
        return None
    local = -(-(group.shape[0] + cuts.redundant) // max(1, cuts.expert_ranks))
    width_step, hidden_step = _MULTIPLES[kernel]
    width = _up(-(-inner // max(1, cuts.expert_ways)), width_step)
    deep = _up(hidden, hidden_step)
    rows, into = (2 * width, deep) if name.startswith("gate_up") else (deep, width)
    if name.endswith("_bias"):
        return local * rows * 2
    if name.endswith("_blocks"):
        return local * rows * (_up(into, 256) if kernel == "triton-hopper" else into) // 2
    return local * rows * into // 32 if name.endswith("_scales") else None
