"""How the weight of one linear layer is stored: plain, or in one of the quantised forms.

Layouts as compressed-tensors, AutoAWQ, GPTQModel, ModelOpt, DeepSeek's and gpt-oss's own scripts, bitsandbytes
and llama.cpp write them; ignore lists as each of their loaders matches them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from fnmatch import translate
from functools import lru_cache

from msgspec import Struct

from ullage.models.fields import Fields

#: bytes of one element, as safetensors spells the types
DTYPE_BYTES = {
    "F64": 8, "I64": 8, "F32": 4, "I32": 4, "BF16": 2, "F16": 2, "I16": 2, "F8_E4M3": 1, "F8_E5M2": 1,
    "F8_E8M0": 1, "U8": 1, "I8": 1, "BOOL": 1,
}  # fmt: skip
#: GGUF: (elements, bytes) of one block (gguf-py, GGML_QUANT_SIZES)
GGUF_BLOCKS = {
    "Q8_0": (32, 34), "Q6_K": (256, 210), "Q5_K": (256, 176), "Q5_0": (32, 22), "Q5_1": (32, 24),
    "Q4_K": (256, 144), "Q4_0": (32, 18), "Q4_1": (32, 20), "IQ4_XS": (256, 136), "IQ4_NL": (32, 18),
    "Q3_K": (256, 110), "IQ3_S": (256, 110), "IQ3_XXS": (256, 98), "Q2_K": (256, 84), "IQ2_S": (256, 82),
    "IQ2_XS": (256, 74), "IQ2_XXS": (256, 66), "IQ1_S": (256, 50), "IQ1_M": (256, 56), "MXFP4": (32, 17),
}  # fmt: skip
#: bitsandbytes' nf4 as it is made while loading: one float for 64 values
GGUF_BLOCKS["NF4"] = (64, 36)
_TORCH = {
    "bfloat16": "BF16", "float16": "F16", "half": "F16", "float32": "F32", "float": "F32", "bf16": "BF16",
    "fp16": "F16", "fp32": "F32",
}  # fmt: skip
#: a piece of a stored linear layer: what follows the layer's name, dtype, shape
Piece = tuple[str, str, tuple[int, ...]]
Form = Callable[[int, int], list[Piece]]


def dtype_of(text: str | None) -> str:
    """The safetensors spelling of a torch dtype's name; BF16 where none is given."""
    return _TORCH.get((text or "bfloat16").removeprefix("torch."), "BF16")


def ceil_div(a: int, b: int) -> int:
    return -(-a // max(1, b))


class Storage(Struct, frozen=True):
    """The forms of one checkpoint. ``form`` is None where every linear layer is plain (``dtype``).

    ``gguf`` names the mix ("Q4_K_M").
    """

    dtype: str
    form: Form | None = None
    ignored: Ignore | None = None
    method: str = ""
    gguf: str = ""

    def pieces(self, out: int, into: int) -> list[Piece]:
        return self.form(out, into) if self.form else [("weight", self.dtype, (out, into))]

    def plain_layers(self, name: str, layers: Sequence[int]) -> tuple[int, ...] | None:
        """Those of ``layers`` in which the linear layer ``name`` ({}: the number) stays plain; None: in all."""
        if self.form is None or self.ignored is None:
            return None if self.form is None else ()
        return self.ignored.among(name, layers)


class Ignore(Struct, frozen=True):
    """An ignore list: ``plain`` entries are names or dotted parts of names. ``numbered`` is True where an entry
    speaks of single layers."""

    plain: frozenset[str]
    pattern: re.Pattern[str] | None
    numbered: bool

    def holds(self, name: str) -> bool:
        if self.pattern is not None and self.pattern.match(name):
            return True
        words = name.split(".")
        ends = range(1, len(words) + 1)
        return any(".".join(words[i:j]) in self.plain for j in ends for i in range(j))

    def among(self, name: str, layers: Sequence[int]) -> tuple[int, ...] | None:
        """Those of ``layers`` whose ``name`` is listed; None: all."""
        if not layers or not self.numbered:
            return None if self.holds(filled(name, layers[0] if layers else 0)) else ()
        found = tuple(n for n in layers if self.holds(filled(name, n)))
        return None if len(found) == len(layers) else found


def filled(name: str, layer: int, expert: int = 0) -> str:
    """``name`` with numbers in the places of its {}: the layer's first, then the expert's."""
    return name.replace("{}", str(layer), 1).replace("{}", str(expert), 1)


@lru_cache(maxsize=64)
def ignore_list(entries: tuple[str, ...]) -> Ignore:
    """``entries`` as the loaders read them: "re:" a pattern from the name's start, "*" a wildcard; else a whole
    name, a prefix, a suffix or an inner part of it, dot by dot."""
    plain = frozenset(entry for entry in entries if not entry.startswith("re:") and "*" not in entry)
    patterns = [entry[3:] for entry in entries if entry.startswith("re:") and _safe(entry[3:])]
    patterns += [translate(entry) for entry in entries if "*" in entry and not entry.startswith("re:")]
    pattern = re.compile("|".join(f"(?:{part})" for part in patterns[:256])) if patterns else None
    return Ignore(plain, pattern, any(_numbered(entry) for entry in entries))


def _safe(pattern: str) -> bool:
    """True if ``pattern`` compiles and cannot take for ever: no repeated group, four repetitions at most."""
    if (
        len(pattern) > 512
        or re.search(r"\)[*+{]|\(\?P?[=<(]", pattern)
        or len(re.findall(r"[*+{]", pattern)) > 4
    ):
        return False
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError):
        return False
    return True


def _numbered(entry: str) -> bool:
    return re.search(r"\.\d+(\.|$)|\\d|\[\d|\(\d", entry) is not None


# --- the forms ----------------------------------------------------------------------------------------------


def storage(top: Fields, text: Fields, side: Fields | None, facts: Mapping[str, object]) -> Storage:
    """How the linear layers of this checkpoint are stored, by quantization_config or ModelOpt's side file."""
    dtype = dtype_of(text.text("torch_dtype", "dtype") or top.text("torch_dtype", "dtype"))
    gguf = facts.get("gguf")
    if isinstance(gguf, str):
        return Storage(dtype, _gguf(gguf), None, "gguf", gguf)
    inner = next((q for f in (top, text) if (q := f.inner("quantization_config", "compression_config"))), None)
    if inner is None:
        inner = side.inner("quantization") if side else None
    if inner is None:
        return Storage(dtype)
    scales = facts.get("scales")
    method, form = _form(inner, dtype, scales if isinstance(scales, str) else "", facts)
    names = inner.texts(
        "ignore", "modules_to_not_convert", "ignored_layers", "exclude_modules", "llm_int8_skip_modules"
    )
    ignored = ignore_list(("lm_head", *(names or [])))
    return Storage(dtype, form, ignored, method)


def _form(q: Fields, dtype: str, scales: str, facts: Mapping[str, object]) -> tuple[str, Form | None]:
    method = (q.text("quant_method") or "").lower().replace("_", "-")
    algo = (q.text("quant_algo") or "").upper()
    if method in ("compressed-tensors", "compressed"):
        return method, _compressed(q, dtype, scales, facts)
    if method.startswith("modelopt") or algo:
        return "modelopt", _modelopt(algo or (q.text("quantization") or "").upper())
    if method in ("fp8", "fbgemm-fp8"):
        block = q.integers("weight_block_size") or []
        if len(block) == 2:
            return method, _fp8_block(block[0], block[1], scales or "F32")
        static = q.text("activation_scheme") == "static"
        return method, _fp8_channel(scales or "F32") if method != "fp8" else _fp8_tensor(dtype, static)
    if method.startswith(("awq", "gptq", "auto-round")):
        return method, _packed_columns(q, method)
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


def _modelopt(algo: str) -> Form | None:
    if algo in ("NVFP4", "W4A16_NVFP4", "NVFP4_AWQ"):
        return _nvfp4
    if algo in ("FP8", "FP8_PER_TENSOR"):
        return _modelopt_fp8
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


def _gguf(mix: str) -> Form:
    """The type that most weights of a GGUF mix have: "Q4_K_M" -> Q4_K; see ``gguf_type`` for the others."""
    base = gguf_type(mix, "", 0, 1)
    return lambda out, into: [("weight", base, (out, into))]


def gguf_type(mix: str, tensor: str, layer: int, num_layers: int) -> str:
    """The type of one tensor in a mix, after llama.cpp's llama_tensor_get_type: in Q4_K_M and Q5_K_M half of
    the value and down projections, and the output matrix, are Q6_K."""
    name = mix.upper()
    base = next((t for t in sorted(GGUF_BLOCKS, key=len, reverse=True) if name.startswith(t)), "Q8_0")
    if not base.endswith("_K") or base == "Q6_K":
        return base
    if tensor == "head":
        return "Q6_K"
    eighth = num_layers // 8
    more = layer < eighth or layer >= 7 * num_layers // 8 or (layer - eighth) % 3 == 2
    if tensor in ("v_proj", "down_proj"):
        if name.endswith("_M") and base in ("Q4_K", "Q5_K"):
            return "Q6_K" if more else base
        if name.endswith("_S") and base == "Q4_K":
            return "Q5_K" if layer < (eighth if tensor == "down_proj" else 4) else base
    return base


def size_of(dtype: str, elements: int) -> int:
    """Bytes of ``elements`` values of ``dtype``; a type that nobody knows counts two bytes each."""
    block = GGUF_BLOCKS.get(dtype)
    if block is not None:
        return ceil_div(elements, block[0]) * block[1]
    return elements * DTYPE_BYTES.get(dtype, 2)
