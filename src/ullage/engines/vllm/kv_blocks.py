"""A group of layers that share one block table, and the bytes of a block over all groups of a rank.

Sources: vLLM, v1/core/kv_cache_utils.py (0.8.5 to 0.32.0) and v1/core/kv_cache_planning.py (0.33.0).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal

from msgspec import Struct
from packaging.version import Version

from ullage.engines.vllm.kv_need import request_blocks
from ullage.engines.vllm.kv_specs import Cache, Spec

#: how a block holds groups whose layers have pages of several sizes (see kv_packed.py)
Packing = Literal["", "tuples", "slots", "stride", "widest"]


class Group(Struct, frozen=True):
    """Layers that share one block table. ``layers`` are positions in the whole model's list of specs.

    ``specs`` has one entry a layer; where page sizes differ within one kind, so do they. ``lead`` stands for
    the group's kind even on a pipeline stage that holds none of its layers. ``packing`` says how groups of
    several page sizes share a block (see kv_packed.py); "" where all pages are alike.
    """

    layers: tuple[int, ...]
    specs: tuple[Spec, ...]
    lead: Spec
    packing: Packing = ""

    @property
    def page_bytes(self) -> int:
        """Bytes of one block over all layers of the group."""
        return sum(spec.page_bytes for spec in self.specs)

    @property
    def mixed(self) -> bool:
        """True if the engine keeps one spec a layer here (UniformTypeKVCacheSpecs)."""
        return bool(self.packing) or len({(spec.page_bytes, spec.shape) for spec in self.specs}) > 1

    def blocks(self, cache: Cache, length: int, release: Version | None) -> int:
        """Blocks of this group that one request of ``length`` tokens may hold."""
        return request_blocks(self.lead, cache, length, release)

    def on(self, first: int, end: int) -> Group:
        """The part of the group that lies on a stage holding layers first to end."""
        kept = [i for i, layer in enumerate(self.layers) if first <= layer < end]
        specs = tuple(self.specs[i] for i in kept)
        return Group(tuple(self.layers[i] for i in kept), specs, self.lead, self.packing)

    @property
    def pages(self) -> Counter[int]:
        """Page size -> layers of this group that have it."""
        return Counter(spec.page_bytes for spec in self.specs)


def _tuple_bytes(layout: Sequence[Group]) -> int:
    """Bytes of one block in layer tuples: the page sizes of the full-length group x the most tuples of a
    group."""
    lead = next((group for group in layout if group.lead.kind == "full" and group.specs), None)
    tuples = max((max(group.pages.values(), default=0) for group in layout), default=0)
    return sum(lead.pages) * tuples if lead else 0


def charged_bytes(layout: Sequence[Group]) -> int:
    """Bytes that the fit check charges for one block: that of the pool, but in layer tuples to 0.28."""
    packing = layout[0].packing if layout else ""
    return _tuple_bytes(layout) if packing in ("tuples", "slots", "stride") else block_bytes(layout)


def block_bytes(layout: Sequence[Group]) -> int:
    """Bytes of one block on a rank: the widest group's pages together. All groups draw from one pool."""
    packing = layout[0].packing if layout else ""
    if packing == "tuples":
        return _tuple_bytes(layout)
    if packing == "slots":
        sizes = {size for group in layout for size in group.pages}
        return sum(size * max(group.pages[size] for group in layout) for size in sizes)
    return max((group.page_bytes for group in layout), default=0)
