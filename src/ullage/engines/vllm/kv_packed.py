"""How groups whose layers have pages of several sizes share a block: DeepSeek-V4's latents, windows and states.

Source: vLLM, v1/core/kv_cache_utils.py, 0.20.0 to 0.32.0, and v1/core/kv_cache_planning.py, 0.33.0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from msgspec.structs import replace

from ullage.core.versions import Rules
from ullage.engines.vllm.kv_blocks import Group, Packing
from ullage.engines.vllm.kv_specs import Spec, cdiv


def is_packed(layers: Sequence[Spec]) -> bool:
    """True for a model that mixes latents with windows of latents in pages of several sizes (DeepSeek-V4)."""
    windows = any(spec.kind == "sliding" and spec.mla for spec in layers)
    return windows and len({spec.page_bytes for spec in layers}) > 1


PACK: Rules[[list[Spec]], list[Group]] = Rules("pack")


def _page_counts(specs: Sequence[Spec]) -> int:
    """Layers of the most frequent page size: layer tuples, where a tuple has one layer of each size."""
    return max(Counter(spec.page_bytes for spec in specs).values(), default=0)


def _buckets(layers: Sequence[Spec]) -> list[list[int]]:
    """Positions of the layers of one kind, block and window; those of full length first."""
    found: dict[tuple[object, ...], list[int]] = {}
    for position, spec in enumerate(layers):
        found.setdefault((spec.kind, spec.block_size, spec.window), []).append(position)
    return sorted(found.values(), key=lambda bucket: layers[bucket[0]].kind != "full")


def least_padding(counts: Sequence[int], least: int) -> int:
    """The d from ``least`` on for which rounding all counts up to multiples of d adds least, the largest of
    equals (vllm 0.20.0 on, v1/core/kv_cache_utils.py, _approximate_gcd)."""
    sizes = range(least, max(counts) + 1)
    return min(sizes, key=lambda d: (sum(-n % d for n in counts), -d), default=least)


def _split(layers: Sequence[Spec], bucket: Sequence[int], parts: int, packing: Packing) -> list[Group]:
    """A bucket's layer tuples dealt over ``parts`` groups in turn."""
    by_page: dict[int, list[int]] = {}
    for position in bucket:
        by_page.setdefault(layers[position].page_bytes, []).append(position)
    dealt = [[n for row in by_page.values() for n in row[part::parts]] for part in range(parts)]
    return [
        Group(tuple(part), tuple(layers[n] for n in part), layers[part[0]], packing) for part in dealt if part
    ]


def _tuples(layers: list[Spec], packing: Packing) -> list[Group]:
    """Windows and states fill up to the next larger page of the full-length layers; all groups get as many
    layer tuples as pad least."""
    buckets = _buckets(layers)
    sizes = sorted({layers[n].page_bytes for n in buckets[0]})
    kept = [
        spec if spec.kind == "full" else replace(
            spec, page_bytes=next((size for size in sizes if size >= spec.page_bytes), spec.page_bytes)
        )
        for spec in layers
    ]  # fmt: skip
    counts = [_page_counts([layers[n] for n in bucket]) for bucket in buckets]
    each = least_padding(counts, counts[0])
    parts = [1] + [cdiv(_page_counts([kept[n] for n in bucket]), each) for bucket in buckets[1:]]
    return [g for bucket, n in zip(buckets, parts, strict=True) for g in _split(kept, bucket, n, packing)]


@PACK.since("≤0.20.0", source="vllm 0.20.0 to 0.22.1, _get_kv_cache_config_deepseek_v4, layer tuples")
def in_tuples(layers: list[Spec]) -> list[Group]:
    """A block holds whole layer tuples: the sum of the full-length page sizes for each tuple."""
    return _tuples(layers, "tuples")


@PACK.since("0.23.0", source="vllm 0.23.0 to 0.26.0, _get_kv_cache_config_packed, _bucket_layers_by_page_size")
def in_slots(layers: list[Spec]) -> list[Group]:
    """A block holds, of each page size, as many as the group with most layers of it."""
    return _tuples(layers, "slots")


@PACK.since("0.27.0", source="vllm 0.27.1 and 0.28.0, _get_packed_kv_cache_layout: the block's stride")
def in_strides(layers: list[Spec]) -> list[Group]:
    """A block is as large as the widest group, though the fit check still charges whole layer tuples."""
    return _tuples(layers, "stride")


@PACK.since("0.29.0", source="vllm 0.29.0 to 0.33.0, _get_packed_kv_cache_groups: block-outermost layouts")
def in_widest(layers: list[Spec]) -> list[Group]:
    """No filling up; a block is as large as the widest group. Kinds with as many layers of each of their page
    sizes are cut so that all have about as many as the largest kind of several sizes."""
    buckets = _buckets(layers)
    pages = [Counter(layers[n].page_bytes for n in bucket) for bucket in buckets]
    even = [len(set(count.values())) == 1 for count in pages]
    least = max((max(c.values()) for c, ok in zip(pages, even, strict=True) if ok and len(c) > 1), default=0)
    each = (
        least_padding([max(c.values()) for c, ok in zip(pages, even, strict=True) if ok], least) if least else 0
    )
    out: list[Group] = []
    for bucket, count, ok in zip(buckets, pages, even, strict=True):
        out += _split(layers, bucket, cdiv(max(count.values()), each) if ok and each else 1, "widest")
    return out
