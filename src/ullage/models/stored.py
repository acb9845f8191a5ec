"""How the weight of one linear layer is stored: plain, or in one of the quantised forms.

Layouts as compressed-tensors, AutoAWQ, GPTQModel, ModelOpt, DeepSeek's and gpt-oss's own scripts, bitsandbytes
and llama.cpp write them; ignore lists as each of their loaders matches them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from ullage.models.fields import Fields
from ullage.models.forms import Form, ceil_div, form_of, modelopt
from ullage.models.ignore import Ignore, ignore_list

#: bytes of one element, as safetensors spells the types
DTYPE_BYTES = {
    "F64": 8, "I64": 8, "F32": 4, "I32": 4, "BF16": 2, "F16": 2, "I16": 2, "F8_E4M3": 1, "F8_E5M2": 1,
    "F8_E8M0": 1, "U8": 1, "I8": 1, "BOOL": 1,
}  # fmt: skip
#: GGUF: (elements, bytes) of one block (gguf-py, GGML_QUANT_SIZES); NF4: bitsandbytes' as it is made while
#: loading, one float for 64 values
GGUF_BLOCKS = {
    "Q8_0": (32, 34), "Q6_K": (256, 210), "Q5_K": (256, 176), "Q5_0": (32, 22), "Q5_1": (32, 24),
    "Q4_K": (256, 144), "Q4_0": (32, 18), "Q4_1": (32, 20), "IQ4_XS": (256, 136), "IQ4_NL": (32, 18),
    "Q3_K": (256, 110), "IQ3_S": (256, 110), "IQ3_XXS": (256, 98), "Q2_K": (256, 84), "IQ2_S": (256, 82),
    "IQ2_XS": (256, 74), "IQ2_XXS": (256, 66), "IQ1_S": (256, 50), "IQ1_M": (256, 56), "MXFP4": (32, 17),
    "NF4": (64, 36),
}  # fmt: skip
_TORCH = {
    "bfloat16": "BF16", "float16": "F16", "half": "F16", "float32": "F32", "float": "F32", "bf16": "BF16",
    "fp16": "F16", "fp32": "F32",
}  # fmt: skip


def dtype_of(text: str | None) -> str:
    """The safetensors spelling of a torch dtype's name; BF16 where none is given."""
    return _TORCH.get((text or "bfloat16").removeprefix("torch."), "BF16")


class Storage(Struct, frozen=True):
    """The forms of one checkpoint. ``form`` is None where every linear layer is plain (``dtype``); ``mixed``
    are
    the forms of the layers that its patterns name, before it.

    ``gguf`` names the mix ("Q4_K_M").
    """

    dtype: str
    form: Form | None = None
    ignored: Ignore | None = None
    method: str = ""
    gguf: str = ""
    mixed: tuple[tuple[Ignore, Form], ...] = ()

    @property
    def plain(self) -> bool:
        """True if no linear layer is quantised."""
        return self.form is None and not self.mixed

    def forms(self, name: str, layers: Sequence[int]) -> list[tuple[Form | None, tuple[int, ...] | None]]:
        """(form, layers) for the linear layer ``name`` ({}: the number); form None: plain, layers None: all of
        them."""
        bare = self.ignored.among(name, layers) if self.ignored is not None and not self.plain else ()
        if bare is None:
            return [(None, None)]
        rest = tuple(n for n in layers if n not in set(bare))
        found: list[tuple[Form | None, tuple[int, ...] | None]] = [(None, bare)] if bare else []
        for named, form in self.mixed:
            at = named.among(name, rest)
            if at is None:
                return [*found, (form, rest if found else None)]
            if at:
                found.append((form, at))
                rest = tuple(n for n in rest if n not in set(at))
        return [*found, (self.form, rest if found else None)]


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
    said = facts.get("forms")
    beside = said if isinstance(said, Mapping) else {}
    if inner is None:
        return Storage(dtype, mixed=_mixed(None, beside, dtype, "", facts))
    scales = facts.get("scales")
    words = scales if isinstance(scales, str) else ""
    method, form = form_of(inner, dtype, words, facts)
    names = inner.texts(
        "ignore", "modules_to_not_convert", "ignored_layers", "exclude_modules", "llm_int8_skip_modules"
    )
    mixed = _mixed(inner, beside, dtype, words, facts)
    if mixed and method == "fp8":  # DeepSeek-V4 in NVFP4: the list speaks of the experts' scheme
        names = None
    return Storage(dtype, form, ignore_list(("lm_head", *(names or []))), method, mixed=mixed)


def _mixed(
    inner: Fields | None, beside: Mapping[str, object], dtype: str, scales: str, facts: Mapping[str, object]
) -> tuple[tuple[Ignore, Form], ...]:
    """The forms of some layers alone: ModelOpt's ``quantized_layers``, and what the name of a variant says."""
    found: list[tuple[Ignore, Form]] = []
    for where, words in beside.items():
        form = (
            form_of(Fields(words, "variants.toml"), dtype, scales, facts)[1]
            if isinstance(words, Mapping)
            else None
        )
        if form is not None:
            found.append((ignore_list((where,)), form))
    listed = inner.inner("quantized_layers") if inner is not None else None
    by_algo: dict[str, list[str]] = {}
    for name in list(listed.values)[:65536] if listed is not None else ():
        layer = listed.inner(name) if listed is not None else None
        by_algo.setdefault(((layer.text("quant_algo") if layer else None) or "").upper(), []).append(name)
    for algo, layers in by_algo.items():
        form = modelopt(algo)
        if form is not None:
            found.append((ignore_list(tuple(layers)), form))
    return tuple(found)


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
