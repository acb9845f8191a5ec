"""The forms of a linear layer: what stands in a checkpoint for its weight.

Layouts as compressed-tensors, AutoAWQ, GPTQModel, ModelOpt, DeepSeek's own scripts and bitsandbytes write them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ullage.models.fields import Fields

#: a piece of a stored linear layer: what follows the layer's name, dtype, shape
Piece = tuple[str, str, tuple[int, ...]]


Form = Callable[[int, int], list[Piece]]


def ceil_div(a: int, b: int) -> int:
    return -(-a // max(1, b))


def form_of(q: Fields, dtype: str, scales: str, facts: Mapping[str, object]) -> tuple[str, Form | None]:
    method = (q.text("quant_method") or "").lower().replace("_", "-")
    algo = (q.text("quant_algo") or "").upper()
    if method in ("compressed-tensors", "compressed"):
        return method, _compressed(q, dtype, scales, facts)
    if method.startswith("modelopt") or algo:
        return "modelopt", modelopt(algo or (q.text("quantization") or "").upper())
    if method in ("fp8", "fbgemm-fp8"):
        block = q.integers("weight_block_size") or []
        if len(block) == 2:
            return method, _fp8_block(block[0], block[1], scales or "F32")
        static = q.text("activation_scheme") == "static"
        return method, _fp8_channel(scales or "F32") if method != "fp8" else _fp8_tensor(dtype, static)
    if method.startswith(("awq", "gptq", "auto-round")):
        return method, _packed_columns(q, method)
    if method in ("exl2", "exl3"):
        return method, _trellis(q.number("bits") or 4.0)
    if method == "bitsandbytes":
        return method, _nf4 if q.flag("load_in_4bit") or q.flag("_load_in_4bit") else _int8_rows
    return method, None  # mxfp4 (gpt-oss): the experts alone, by the family; others: as if plain


def _fp8_block(rows: int, columns: int, scales: str) -> Form:
    def form(out: int, into: int) -> list[Piece]:
        return [
            ("weight", "F8_E4M3", (out, into)),
            ("weight_scale_inv", scales, (ceil_div(out, rows), ceil_div(into, columns))),
        ]

    return form


def _fp8_tensor(dtype: str, static: bool) -> Form:
    def form(out: int, into: int) -> list[Piece]:
        scales: list[Piece] = [("weight_scale_inv", dtype, ())]
        return [
            ("weight", "F8_E4M3", (out, into)), *scales,
            *([("activation_scale", dtype, ())] if static else []),
        ]  # fmt: skip

    return form


def _fp8_channel(scales: str, dtype: str = "F8_E4M3") -> Form:
    def form(out: int, into: int) -> list[Piece]:
        return [("weight", dtype, (out, into)), ("weight_scale", scales, (out, 1))]

    return form


def modelopt(algo: str) -> Form | None:
    """The form of one of ModelOpt's algorithms; None for one that is mixed or not known."""
    if algo in ("NVFP4", "W4A16_NVFP4", "NVFP4_AWQ"):
        return _nvfp4
    if algo in ("FP8", "FP8_PER_TENSOR"):
        return _modelopt_fp8
    if algo == "MXFP4":
        return _mxfp4_compressed
    if algo == "MXFP8":
        return lambda out, into: [
            ("weight", "F8_E4M3", (out, into)),
            ("weight_scale", "U8", (out, ceil_div(into, 32))),
        ]
    if algo in ("FP8_PER_CHANNEL_PER_TOKEN", "FP8_PB_WO"):
        return _fp8_channel("F32") if "CHANNEL" in algo else _fp8_block(128, 128, "F32")
    return None


def _modelopt_fp8(out: int, into: int) -> list[Piece]:
    return [
        ("weight", "F8_E4M3", (out, into)), ("weight_scale", "F32", ()), ("input_scale", "F32", ()),
    ]  # fmt: skip


def _nvfp4(out: int, into: int) -> list[Piece]:
    """Two 4-bit values a byte, one FP8 scale for 16 of them, two scalars."""
    return [
        ("weight", "U8", (out, into // 2)), ("weight_scale", "F8_E4M3", (out, into // 16)),
        ("weight_scale_2", "F32", ()), ("input_scale", "F32", ()),
    ]  # fmt: skip


def _nvfp4_compressed(out: int, into: int) -> list[Piece]:
    return [
        ("weight_packed", "U8", (out, into // 2)), ("weight_scale", "F8_E4M3", (out, into // 16)),
        ("weight_global_scale", "F32", (1,)), ("input_global_scale", "F32", (1,)),
    ]  # fmt: skip


def _mxfp4_compressed(out: int, into: int) -> list[Piece]:
    return [("weight_packed", "U8", (out, into // 2)), ("weight_scale", "U8", (out, into // 32))]


def _compressed(q: Fields, dtype: str, scales: str, facts: Mapping[str, object]) -> Form | None:
    """compressed-tensors: the first group of layers decides (mixed checkpoints are read from their headers)."""
    groups = q.inner("config_groups")
    name = next(iter(groups.values), None) if groups else None
    group = groups.inner(name) if groups and name else None
    weights = group.inner("weights") if group else None
    if weights is None:
        return None
    form = (group.text("format") if group else None) or q.text("format") or ""
    bits, kind = weights.integer("num_bits", most=32) or 8, weights.text("type") or "int"
    if kind == "float" and bits == 4:
        mx = form.startswith("mxfp4") or weights.integer("group_size") == 32
        return _mxfp4_compressed if mx else _nvfp4_compressed
    if form == "pack-quantized" or (bits < 8 and kind == "int"):
        shape = facts.get("weight_shape")
        return _pack(weights, bits, dtype, shape if isinstance(shape, str) else "I64")
    strategy = weights.text("strategy") or "channel"
    if strategy == "block":
        block = weights.integers("block_structure") or [128, 128]
        rows, columns = (block[0], block[1]) if len(block) == 2 else (128, 128)
        return _fp8_block_compressed(rows, columns, scales or dtype)
    held = "I8" if kind == "int" else "F8_E4M3"
    if strategy == "tensor":
        return lambda out, into: [("weight", held, (out, into)), ("weight_scale", scales or dtype, (1,))]
    return _fp8_channel(scales or dtype, held)


def _fp8_block_compressed(rows: int, columns: int, scales: str) -> Form:
    def form(out: int, into: int) -> list[Piece]:
        return [
            ("weight", "F8_E4M3", (out, into)),
            ("weight_scale", scales, (ceil_div(out, rows), ceil_div(into, columns))),
        ]

    return form


def _pack(weights: Fields, bits: int, dtype: str, shape_dtype: str) -> Form:
    """pack-quantized: 32 // bits values in an int32, a scale for ``group_size`` of them."""
    per, size = max(1, 32 // max(1, bits)), weights.get("group_size")[1]
    group = size if isinstance(size, int) and size > 0 else 0
    symmetric = weights.flag("symmetric") is not False

    def form(out: int, into: int) -> list[Piece]:
        groups = ceil_div(into, group or into)
        found: list[Piece] = [
            ("weight_packed", "I32", (out, ceil_div(into, per))), ("weight_scale", dtype, (out, groups)),
        ]  # fmt: skip
        if not symmetric:
            found.append(("weight_zero_point", "I32", (ceil_div(out, per), groups)))
        return [*found, ("weight_shape", shape_dtype, (2,))]

    return form


def _packed_columns(q: Fields, method: str) -> Form:
    """AWQ packs along the outputs, GPTQ (auto-round too) along the inputs, with an index of groups."""
    bits = q.integer("bits", "w_bit", most=16) or 4
    size = q.get("group_size", "q_group_size")[1]
    group = size if isinstance(size, int) and size > 0 else 0
    per = max(1, 32 // max(1, bits))

    def awq(out: int, into: int) -> list[Piece]:
        groups = ceil_div(into, group or into)
        return [
            ("qweight", "I32", (into, out // per)), ("qzeros", "I32", (groups, out // per)),
            ("scales", "F16", (groups, out)),
        ]  # fmt: skip

    def gptq(out: int, into: int) -> list[Piece]:
        groups = ceil_div(into, group or into)
        return [
            ("qweight", "I32", (into // per, out)), ("qzeros", "I32", (groups, out // per)),
            ("scales", "F16", (groups, out)), ("g_idx", "I32", (into,)),
        ]  # fmt: skip

    return awq if method.startswith("awq") else gptq


def _trellis(bits: float) -> Form:
    """exllamav3: ``bits`` for each weight (they may be broken), a sign vector for each side."""
    return lambda out, into: [
        ("trellis", "I16", (ceil_div(int(out * into * bits), 16),)), ("suh", "F16", (into,)), ("svh", "F16",
        (out,)),
    ]  # fmt: skip


def _nf4(out: int, into: int) -> list[Piece]:
    """bitsandbytes nf4 with double quantisation: 64 values share a byte, 256 of those a float."""
    n = out * into
    blocks = ceil_div(n, 64)
    return [
        ("weight", "U8", (n // 2, 1)), ("weight.absmax", "U8", (blocks,)),
        ("weight.nested_absmax", "F32", (ceil_div(blocks, 256),)),
        ("weight.nested_quant_map", "F32", (256,)), ("weight.quant_map", "F32", (16,)),
        ("weight.quant_state.bitsandbytes__nf4", "U8", (86,)),
    ]  # fmt: skip


def _int8_rows(out: int, into: int) -> list[Piece]:
    return [("weight", "I8", (out, into)), ("SCB", "F32", (out,))]
