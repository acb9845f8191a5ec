"""Quantisation in words: what quantization_config and modelopt's side file say, in the field's own terms."""

from __future__ import annotations

from msgspec import Struct

from ullage.models.fields import Fields


class Quantization(Struct, frozen=True):
    """``weights``: "fp8 block 128x128", "compressed-tensors w4a16", "awq 4", "modelopt nvfp4", "mxfp4", ...;
    "" where the config says nothing, hence 16 bit. ``kv``: the KV cache's own scheme ("fp8"), if any."""

    weights: str = ""
    kv: str | None = None


def quantization(top: Fields, text: Fields, side: Fields | None = None) -> Quantization:
    """What ``top`` or its text part says; ``side`` is modelopt's hf_quant_config.json."""
    for fields in (top, text):
        inner = fields.inner("quantization_config", "compression_config")
        if inner is not None:
            return _described(inner)
    inner = side.inner("quantization") if side else None
    return _modelopt(inner) if inner is not None else Quantization()


def _described(fields: Fields) -> Quantization:
    method = (fields.text("quant_method") or "").lower()
    if method.startswith("modelopt") or (not method and fields.has("quant_algo", "quantization")):
        return _modelopt(fields.inner("quantization") or fields)
    if method in ("compressed-tensors", "compressed_tensors"):
        return _compressed_tensors(fields)
    if method in ("awq", "gptq", "auto-round", "auto_round", "gptq_marlin", "awq_marlin", "hqq", "aqlm"):
        bits = fields.integer("bits", "w_bit", "nbits_per_codebook")
        name = method.replace("_", "-").removesuffix("-marlin")
        return Quantization(name if bits is None else f"{name} {bits}")
    if method == "fp8":
        block = fields.integers("weight_block_size")
        words = f"fp8 block {'x'.join(map(str, block))}" if block else "fp8"
        return Quantization(words, _kv(fields))
    if method == "bitsandbytes":
        return Quantization(f"bitsandbytes {'4' if fields.flag('load_in_4bit') else '8'}")
    return Quantization(method or "unnamed", _kv(fields))


def _modelopt(fields: Fields) -> Quantization:
    algo = (fields.text("quant_algo") or "").lower()
    scheme = fields.text("kv_cache_quant_algo")
    return Quantization(f"modelopt {algo}".strip(), scheme.lower() if scheme else _kv(fields))


def _compressed_tensors(fields: Fields) -> Quantization:
    groups = fields.inner("config_groups")
    schemes = {_scheme(groups.inner(name)) for name in list(groups.values)[:64]} if groups else set()
    words = " + ".join(sorted(scheme for scheme in schemes if scheme))
    return Quantization(f"compressed-tensors {words or fields.text('format') or ''}".strip(), _kv(fields))


def _scheme(group: Fields | None) -> str:
    """ "w4a16", "fp8", "w8a8", "nvfp4", "mxfp4" for one group of layers."""
    weights = group.inner("weights") if group else None
    if group is None or weights is None:
        return ""
    bits, kind = weights.size("num_bits"), weights.text("type") or "int"
    inputs = group.inner("input_activations")
    if kind == "float" and bits == 4:
        form = group.text("format") or ""
        return "mxfp4" if form.startswith("mxfp4") or weights.integer("group_size") == 32 else "nvfp4"
    if kind == "float" and bits == 8:
        block = (
            weights.integers("block_structure") if isinstance(weights.get("block_structure")[1], list) else None
        )
        return f"fp8 block {'x'.join(map(str, block))}" if block else "fp8" if inputs else "fp8 w8a16"
    return f"w{bits}a{inputs.size('num_bits') if inputs else 16}"


def _kv(fields: Fields) -> str | None:
    """The checkpoint's own KV cache scheme: kv_cache_scheme of compressed-tensors and modelopt."""
    name, value = fields.get("kv_cache_scheme", "kv_cache_dtype")
    if isinstance(value, str):
        return fields.text(name)
    scheme = fields.inner("kv_cache_scheme")
    if scheme is None:
        return None
    return f"{'fp' if scheme.text('type') == 'float' else 'int'}{scheme.size('num_bits')}"
