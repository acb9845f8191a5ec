"""Figures by their names in words, with units: what people read in place of ``free_after_weights_gib``."""

from __future__ import annotations

import re
from collections.abc import Sequence

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


def rank_order(label: str) -> tuple[tuple[str, int], ...]:
    """A key that sorts rank labels by their numbers: TP2 before TP10."""
    return tuple((word, int(number or 0)) for word, number in re.findall(r"([^\d]+)(\d*)", label))
