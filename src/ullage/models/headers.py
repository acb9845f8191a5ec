"""safetensors headers: names, dtypes and shapes of a checkpoint from the first bytes of each file.

A file begins with 8 bytes (the header's length, little-endian) and the header, a JSON object of
name -> {dtype, shape, data_offsets}. Nothing behind the header is read.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import BinaryIO

import msgspec
from msgspec import Struct

from ullage.core.errors import InputError
from ullage.models.attention import dtype_bytes
from ullage.models.fields import LARGEST

#: The largest header that is read. 208,550 tensors in one file (Kimi-K2.5) would need 30 MB.
MOST_HEADER_BYTES = 64 << 20
_SIDE = (
    "scale", "scales", "scale_inv", "scale_2", "weight_scale", "weight_scale_inv", "weight_scale_2",
    "input_scale",
    "weight_global_scale", "input_global_scale", "weight_shape", "weight_zero_point", "qzeros", "g_idx",
    "k_scale", "v_scale", "activation_scale", "inv_freq", "d2t", "t2d",
)  # fmt: skip


class Tensor(Struct, frozen=True):
    """One tensor of a header. ``data_offsets`` are its first byte and the byte after its last."""

    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]

    @property
    def num_bytes(self) -> int:
        return self.data_offsets[1] - self.data_offsets[0]


class Totals(Struct, frozen=True):
    """What the headers of a checkpoint add up to: bytes of the tensors, and logical parameters (packed 4-bit
    weights unpacked; scales, zero points and index maps not counted)."""

    checkpoint_bytes: int = 0
    parameters: int = 0
    num_tensors: int = 0

    def plus(self, other: Totals) -> Totals:
        return Totals(
            self.checkpoint_bytes + other.checkpoint_bytes,
            self.parameters + other.parameters,
            self.num_tensors + other.num_tensors,
        )


def read_header(stream: BinaryIO, where: str) -> dict[str, Tensor]:
    """The tensors of one file. Raises InputError where the header is not what safetensors writes."""
    head = stream.read(8)
    length = int.from_bytes(head, "little")
    if len(head) < 8 or not 2 <= length <= MOST_HEADER_BYTES:
        said = f"its length field says {length} bytes" if len(head) == 8 else f"it holds {len(head)} bytes"
        raise InputError(
            f"no safetensors header: {said}, and 2 to {MOST_HEADER_BYTES} are possible",
            where=where,
            hint="is this a complete download, and not a Git LFS pointer?",
        )
    text = stream.read(length)
    if len(text) < length:
        raise InputError(f"the safetensors header ends after {len(text)} of {length} bytes", where=where)
    return _checked(_decoded(text, where), text, where)


def _decoded(text: bytes, where: str) -> dict[str, Tensor]:
    try:
        parts = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        return {
            name: msgspec.json.decode(raw, type=Tensor) for name, raw in parts.items() if name != "__metadata__"
        }
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"the safetensors header is not as it should be: {error}", where=where) from error


def _checked(tensors: dict[str, Tensor], text: bytes, where: str) -> dict[str, Tensor]:
    if text.count(b'"data_offsets"') > len(tensors):
        raise InputError("the safetensors header names a tensor twice", where=where)
    for name, tensor in tensors.items():
        fault = _fault(tensor)
        if fault:
            raise InputError(f"tensor {name[:80]!r}: {fault}", where=where)
    end, last = 0, ""
    for name, tensor in sorted(tensors.items(), key=lambda item: item[1].data_offsets):
        if tensor.data_offsets[0] < end:
            raise InputError(f"tensors {last[:80]!r} and {name[:80]!r} overlap", where=where)
        end, last = max(end, tensor.data_offsets[1]), name
    return tensors


def _fault(tensor: Tensor) -> str | None:
    first, end = tensor.data_offsets
    if not 0 <= first <= end <= LARGEST:
        return f"data_offsets {first} to {end} are no range"
    if len(tensor.shape) > 16 or any(not 0 <= size <= LARGEST for size in tensor.shape):
        return "its shape is not possible"
    width = dtype_bytes(tensor.dtype)
    if width is not None and prod(tensor.shape) * width != tensor.num_bytes:
        return f"{tensor.dtype} of shape {list(tensor.shape)} does not take {tensor.num_bytes} bytes"
    return None


def totals(tensors: Iterable[tuple[str, Tensor]], packed: int = 8) -> Totals:
    """Bytes, parameters and count of some tensors; ``packed`` weights lie in one int32 (8 of 4 bit)."""
    num_bytes = parameters = count = 0
    for name, tensor in tensors:
        num_bytes += tensor.num_bytes
        parameters += prod(tensor.shape) * _values_per_element(name, tensor.dtype, packed)
        count += 1
    return Totals(num_bytes, parameters, count)


def _values_per_element(name: str, dtype: str, packed: int) -> int:
    """Weights in a stored element: ``packed`` in an int32 of packed ones, 2 in a byte of FP4, 0 in a scale."""
    part = name.rsplit(".", 1)[-1]
    if part in _SIDE or part.endswith("_scales"):
        return 0
    if dtype == "I32" and part in ("qweight", "weight_packed"):
        return packed
    return 2 if dtype == "U8" and (part in ("weight", "weight_packed") or part.endswith("_blocks")) else 1
