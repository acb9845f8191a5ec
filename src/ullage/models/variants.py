"""Quantised variants by their names: what "-FP8", "w4a16-moe-only" or "-Q4_K_M.gguf" most likely is in the
files.

A guess from how the hub names such checkpoints (variants.toml); a budget that rests on it gets the row's band.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

from msgspec import Struct

from ullage.core.patterns import lazy
from ullage.core.tables import load

_GGUF = lazy(
    r"(?:^|[-_. ])((?:I?Q[1-8]_(?:K(?:_(?:XL|[SML]))?|[01]|NL|XS|XXS|[SM]))|MXFP4)(?=$|[-_. ])", re.IGNORECASE
)
#: an exact width that a name gives: "4.0bpw", "3.5bpw"
_BPW = lazy(r"(\d(?:\.\d+)?)[-_ ]?bpw", re.IGNORECASE)
_BITS = lazy(r"(?<![\d.])([248])[-_ ]bits?\b")
_EXPERTS, _MLP = "re:.*\\.experts\\..*", "re:.*\\.mlp\\..*"
_KEPT = {
    "attention": ("re:.*self_attn.*", "re:.*\\.attn\\..*", "re:.*mixer\\.[qkvo]_proj"),
    "linear": ("re:.*linear_attn.*", "re:.*mixer\\.in_proj", "re:.*mixer\\.out_proj"),
    "shared": ("re:.*shared_expert.*",),
}
#: what every such checkpoint leaves in 16 bit: the head, routers, towers, and Qwen3.5's small delta-net
#: projections
_ALWAYS = (
    "lm_head", "re:.*mlp\\.gate$", "re:.*in_proj_[ab]$", "re:.*visual.*", "re:.*vision.*", "re:.*projector.*",
    "re:.*patch_merge.*",
)  # fmt: skip
#: Llama 4's own FP8 files quantise the routed experts alone
_LLAMA4 = ("re:.*self_attn.*", "re:.*shared_expert.*", "re:.*feed_forward\\.(gate|up|down)_proj.*")


class Variant(Struct, frozen=True, forbid_unknown_fields=True):
    """A row of variants.toml; the file's head says what each key means."""

    words: str
    source: str
    band: tuple[float, float] = (0.03, 0.06)
    value: float | None = None
    owner: str | None = None
    needs: str | None = None
    quantization: dict[str, object] = {}
    experts: dict[str, object] | None = None
    mlp: dict[str, object] | None = None
    kept: tuple[str, ...] = ()


class _Table(Struct, frozen=True, forbid_unknown_fields=True):
    variant: tuple[Variant, ...]


class Guess(Struct, frozen=True):
    """How a variant's files are most likely stored. ``config`` is its quantization_config, {} for a plain one;
    ``forms`` are those of some layers alone (models/stored); ``band`` the shares that it may lie below or
    above, ``value`` the most likely one where public loads tell it."""

    config: dict[str, object]
    forms: dict[str, dict[str, object]]
    band: tuple[float, float]
    source: str
    value: float | None = None


def guess(name: str, config: Mapping[str, object], owner: str | None = None) -> Guess | None:
    """The storage of a checkpoint of this name, by this owner, with the shapes of ``config``; None where the
    name says nothing."""
    text = _BITS.sub(r"\1bit", name.lower())
    row = next((row for row in _rows() if _fits(row, text, config, (owner or "").lower())), None)
    if row is None:
        return None
    quantization = dict(row.quantization)
    found = _BPW.search(text)
    if found and "bits" in quantization:
        quantization["bits"] = float(found[1])
    if quantization:
        quantization["ignore"] = _ignored(row, config)
    forms = {_EXPERTS: row.experts, _MLP: row.mlp}
    return Guess(
        quantization, {where: form for where, form in forms.items() if form}, row.band, row.source, row.value
    )


def quantization_of(name: str, config: Mapping[str, object]) -> dict[str, object] | None:
    """The quantization_config that ``guess`` gives; {} for a plain one, None where the name says nothing.

    >>> quantization_of("Qwen3-8B-AWQ", {})["bits"]
    4
    """
    found = guess(name, config)
    return found.config if found is not None else None


def gguf_of(name: str) -> str | None:
    """The mix of a GGUF file by its name: "DeepSeek-R1-Distill-Qwen-32B-Q4_K_M.gguf" -> "Q4_K_M"."""
    found = _GGUF.search(name.removesuffix(".gguf"))
    if found is None:
        return None
    plain = found[1].upper() != "MXFP4" or "gguf" in name.lower()
    return found[1].upper() if plain else None


def _rows() -> tuple[Variant, ...]:
    table: _Table = load("ullage.models", "variants.toml", _Table)
    return table.variant


@cache
def _pattern(words: str) -> re.Pattern[str]:
    return re.compile(words)


def _fits(row: Variant, text: str, config: Mapping[str, object], owner: str) -> bool:
    if _pattern(row.words).search(text) is None:
        return False
    if row.owner is not None and _pattern(row.owner).fullmatch(owner) is None:
        return False
    return row.needs is None or row.needs in _kinds(config)


def _kinds(config: Mapping[str, object]) -> set[str]:
    inner = _text(config)
    found = {str(config.get("model_type") or ""), str(inner.get("model_type") or "")}
    if any(
        inner.get(name) for name in ("n_routed_experts", "num_local_experts", "num_experts", "moe_num_experts")
    ):
        found.add("moe")
    recurrent = (
        "linear_attn_config",
        "linear_num_value_heads",
        "mamba_num_heads",
        "mamba_n_heads",
        "mamba_d_state",
    )
    if any(inner.get(name) for name in recurrent) or str(inner.get("model_type")).startswith(
        ("qwen3_5", "qwen3_next")
    ):
        found.add("hybrid")
    return found


def _text(config: Mapping[str, object]) -> Mapping[str, object]:
    text = config.get("text_config")
    return text if isinstance(text, Mapping) else config


def _ignored(row: Variant, config: Mapping[str, object]) -> list[str]:
    kept = [pattern for part in row.kept for pattern in _KEPT[part]]
    if config.get("model_type") == "llama4" and "fp8" in row.words:
        kept += _LLAMA4
    return [*_ALWAYS, *kept]
