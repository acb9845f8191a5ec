"""Figures by their names in words, with units, and settings as they are typed: what people read in place of
``free_after_weights_gib`` and ``mem_fraction_static``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import ceil, floor

from ullage.core.deployment import Interval

ENGINES = {"sglang": "SGLang", "vllm": "vLLM"}
#: figure -> what it is called
WORDS = {
    "least_mem_fraction_static": "the weights' share of the memory",
    "free_at_start_gib": "free at the start",
    "free_before_weights_gib": "free before the weights",
    "free_after_weights_gib": "free after the weights",
    "free_after_kv_pool_gib": "free after the KV pool",
    "free_before_graphs_gib": "free before graph capture",
    "free_after_graphs_gib": "free after graph capture",
    "free_at_ready_gib": "free when ready",
    "weights_gib": "weights",
    "total_gib": "memory of the GPU",
    "bytes_per_token": "KV cache of one token, a rank",
    "kv_element_bytes": "one element of the KV cache",
    "kv_tokens": "tokens in the KV pool",
    "kv_gib": "KV pool",
    "peak_and_non_torch_gib": "activation peak and non-torch",
}
#: endings of names and the units they stand for
_UNITS = (
    ("_gib", "GiB"),
    ("_mib", "MiB"),
    ("_tokens", "tokens"),
    ("_bytes", "bytes"),
    ("bytes_per_token", "bytes"),
)


#: characters of a path beyond which tables have no room for it
LONG = 40
#: figures that are worked out for programs (--json): people read the release in the title, and the settings
_PLAIN = frozenset({"engine_core", "release_minor"})
#: what a launch has that sets nothing: a figure that only confirms it says nothing
_USUAL = {"tensor_parallel_size": 1.0, "kv_element_bytes": 2.0}


def told(name: str, value: float) -> bool:
    """True if a figure that was worked out says something to people."""
    return name not in _PLAIN and _USUAL.get(name) != value


def short(source: str, files: Sequence[str]) -> str:
    """``source`` with long paths of the run's own logs cut to the file's name, where that leaves no doubt."""
    for file in sorted(files, key=len, reverse=True):
        name = file.replace("\\", "/").rsplit("/", 1)[-1]
        if len(file) > LONG and sum(other.replace("\\", "/").endswith(f"/{name}") for other in files) == 1:
            source = source.replace(f"{file}:", f"{name}:")
    return source


def words(name: str) -> str:
    """``name`` for people: known figures in words, others without underscores and unit; settings unchanged."""
    if name in WORDS:
        return WORDS[name]
    short = re.sub(r"_(?:gib|mib)$", "", name)
    return short.replace("_", " ") if short != name else name


def unit(name: str) -> str:
    """The unit that the name's ending stands for, with a space in front; empty where it has none."""
    return next((f" {text}" for ending, text in _UNITS if name.endswith(ending)), "")


def pasted(name: str, value: object) -> str:
    """A setting as one types it: a flag with its value, a variable as NAME=value, or that it is left out."""
    if not name.startswith("-"):
        return f"unset {name}" if value in ("", None, True) else f"{name}={_quoted(value)}"
    if value is False:
        return f"without {name}"
    return name if value is True else f"{name} {value}"


def _quoted(value: object) -> str:
    text = str(value)
    return f"'{text}'" if " " in text and not text.startswith("<") else text


def flag(item: Interval) -> str:
    """The fraction's flag as it is typed."""
    return f"--{item.flag.lstrip('-').replace('_', '-')}"


def lower_limit(fraction: float) -> str:
    """A fraction that must be exceeded, to three digits, rounded to the safe side."""
    return f"{ceil(fraction * 1000) / 1000:.3f}"


def upper_limit(fraction: float) -> str:
    """A fraction that must not be exceeded, to three digits, rounded to the safe side."""
    return f"{floor(fraction * 1000) / 1000:.3f}"


def rank_order(label: str) -> tuple[tuple[str, int], ...]:
    """A key that sorts rank labels by their numbers: TP2 before TP10."""
    return tuple((word, int(number or 0)) for word, number in re.findall(r"([^\d]+)(\d*)", label))
