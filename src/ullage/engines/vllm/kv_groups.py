"""How layers share blocks: groups, bytes of a block, blocks of a request, and what the engine prints of it.

Sources: vLLM, v1/core/kv_cache_utils.py (0.8.5 to 0.32.0) and v1/core/kv_cache_planning.py (0.33.0).
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace
from packaging.version import Version

from ullage.core.versions import Rules
from ullage.engines.vllm.kv_blocks import Group
from ullage.engines.vllm.kv_packed import PACK, is_packed
from ullage.engines.vllm.kv_specs import Cache, Spec, cdiv


class UnequalPages(ValueError):
    """Kinds of layers whose pages cannot be brought to one size (the engine raises NotImplementedError)."""


def kinds_agree(specs: Sequence[Spec], release: Version | None) -> bool:
    """True if all layers need the same number of token slots, so that one group can hold them all."""
    if len({(spec.kind, spec.block_size, spec.window, spec.request_blocks) for spec in specs}) > 1:
        return False
    if specs[0].kind == "mamba" or not ONE_GROUP_OF_SIZES.at(release)():
        return len({spec.page_bytes for spec in specs}) == 1
    return True


ONE_GROUP_OF_SIZES: Rules[[], bool] = Rules("one_group_of_sizes")


@ONE_GROUP_OF_SIZES.since("≤0.9.1", source="vllm 0.10.2, v1/core/kv_cache_utils.py, is_kv_cache_type_uniform")
def equal_pages_only() -> bool:
    """A type is named by kind, block and page: other page sizes are other types."""
    return False


@ONE_GROUP_OF_SIZES.since("0.11.0", source="vllm 0.11.0, v1/kv_cache_interface.py, UniformTypeKVCacheSpecs")
def one_kind_one_group() -> bool:
    """Layers of one kind form one group whatever their page sizes; a block is the sum of the pages."""
    return True


GROUP_SIZE: Rules[[int, int], int] = Rules("group_size")


@GROUP_SIZE.since("≤0.9.1", source="vllm 0.9.1 to 0.11.2, _get_kv_cache_groups_uniform_page_size")
def smallest_kind(least: int, most: int) -> int:
    """Layers in a group: as many as the smallest kind has."""
    return least


@GROUP_SIZE.since("0.12.0", source="vllm 0.12.0 to 0.17.1, same function")
def within_a_quarter(least: int, most: int) -> int:
    """The largest kind's count where it is less than 1.25 times the smallest's."""
    return most if most < least * 1.25 else least


@GROUP_SIZE.since("0.18.0", source="vllm 0.18.0 to 0.33.0, same function")
def within_a_half(least: int, most: int) -> int:
    """The largest kind's count where it is less than 1.5 times the smallest's."""
    return most if most < least * 1.5 else least


UNIFY: Rules[[list[Spec]], list[Spec]] = Rules("unify_pages")


@UNIFY.since("≤0.9.1", source="vllm 0.11.0, get_kv_cache_groups")
def no_unifying(specs: list[Spec]) -> list[Spec]:
    """Pages must be of one size already. Raises UnequalPages."""
    if len({spec.page_bytes for spec in specs}) > 1:
        raise UnequalPages("the kinds of layers have pages of different sizes")
    return specs


@UNIFY.since("0.12.0", source="vllm 0.12.0 to 0.23.0, unify_kv_cache_spec_page_size")
def larger_blocks(specs: list[Spec]) -> list[Spec]:
    """Smaller pages get more tokens a block, so that all pages are as large as the largest."""
    return _unified(specs, pad_mamba=False, pad_attention=False)


@UNIFY.since("0.26.0", source="vllm 0.26.0 to 0.28.0, unify_kv_cache_spec_page_size")
def mamba_padded(specs: list[Spec]) -> list[Spec]:
    """As before, and Mamba pages are padded."""
    return _unified(specs, pad_mamba=True, pad_attention=False)


@UNIFY.since("0.29.0", source="vllm 0.29.0 to 0.33.0, unify_kv_cache_spec_page_size")
def all_padded(specs: list[Spec]) -> list[Spec]:
    """As before, and attention pages that do not divide are padded, MLA excepted."""
    return _unified(specs, pad_mamba=True, pad_attention=True)


def _unified(specs: list[Spec], *, pad_mamba: bool, pad_attention: bool) -> list[Spec]:
    largest = max(spec.page_bytes for spec in specs)
    out = []
    for spec in specs:
        ratio, rest = divmod(largest, spec.page_bytes)
        if spec.page_bytes == largest:
            out.append(spec)
        elif spec.kind == "mamba" and pad_mamba:
            out.append(replace(spec, page_bytes=largest))
        elif not rest:
            out.append(replace(spec, page_bytes=largest, block_size=spec.block_size * ratio))
        elif pad_attention and spec.kind != "mamba" and not spec.mla:
            out.append(replace(spec, page_bytes=largest))
        else:
            raise UnequalPages("a page size does not divide the largest one")
    return out


def promoted(specs: list[Spec], release: Version | None) -> list[Spec]:
    """With the hybrid manager off, windows and chunks are stored as full attention (all tokens, no saving).

    Raises UnequalPages where other kinds remain: Mamba hybrids cannot run without the manager.
    """
    if not specs or kinds_agree(specs, release):
        return specs
    if any(spec.kind == "full" for spec in specs):
        blocks = {spec.block_size for spec in specs if spec.kind == "full"}
        out = [replace(s, kind="full", window=0) if s.kind in ("sliding", "chunked") else s for s in specs]
        if len(blocks) == 1:
            out = [_with_block(spec, *blocks) if spec.kind == "full" else spec for spec in out]
    else:
        out = specs
    if not kinds_agree(out, release):
        raise UnequalPages("the hybrid manager is off, and the kinds of layers cannot be made one")
    return out


def _with_block(spec: Spec, block: int) -> Spec:
    return replace(spec, block_size=block, page_bytes=spec.page_bytes // spec.block_size * block)


HYBRID: Rules[[Cache], bool] = Rules("hybrid")


@HYBRID.since("≤0.8.0", source="vllm 0.8.5, v1/core/kv_cache_utils.py, unify_hybrid_kv_cache_specs")
def always_promoted(cache: Cache) -> bool:
    """There is no hybrid manager."""
    return False


@HYBRID.since("0.9.1", source="vllm 0.9.1, config.py, disable_hybrid_kv_cache_manager")
def as_asked(cache: Cache) -> bool:
    return cache.hybrid


def groups(specs: Sequence[Spec], cache: Cache, release: Version | None) -> list[Group]:
    """The groups of a whole model. Raises UnequalPages where the engine would refuse."""
    layers = list(specs)
    if not HYBRID.at(release)(cache):
        layers = promoted(layers, release)
    if not layers:
        return []
    if kinds_agree(layers, release):
        return [Group(tuple(range(len(layers))), tuple(layers), layers[0])]
    if is_packed(layers):
        return PACK.at(release)(layers)
    layers = UNIFY.at(release)(layers)
    buckets: dict[tuple[object, ...], list[int]] = {}
    for position, spec in enumerate(layers):
        buckets.setdefault(SAME_BUCKET.at(release)(spec), []).append(position)
    counts = [len(bucket) for bucket in buckets.values()]
    size = GROUP_SIZE.at(release)(min(counts), max(counts))
    parts = [part for bucket in buckets.values() for part in DEAL.at(release)(bucket, size)]
    return [Group(tuple(part), tuple(layers[i] for i in part), layers[part[0]]) for part in parts]


SAME_BUCKET: Rules[[Spec], tuple[object, ...]] = Rules("same_bucket")


@SAME_BUCKET.since("≤0.9.1", source="vllm 0.9.1 to 0.10.2, KVCacheSpec.type_id")
def by_size(spec: Spec) -> tuple[object, ...]:
    """Kind, window, block and page."""
    return (spec.kind, spec.window, spec.block_size, spec.page_bytes)


@SAME_BUCKET.since("0.11.0", source="vllm 0.11.0, KVCacheSpec as dictionary key")
def by_shape(spec: Spec) -> tuple[object, ...]:
    """The whole spec: heads and head size too."""
    return (spec.kind, spec.window, spec.block_size, spec.page_bytes, spec.shape)


DEAL: Rules[[list[int], int], list[list[int]]] = Rules("deal")


@DEAL.since("≤0.9.1", source="vllm 0.9.1 to 0.10.2, _get_kv_cache_config_uniform_page_size")
def in_order(bucket: list[int], size: int) -> list[list[int]]:
    """A kind's layers cut into groups of ``size``, in order."""
    return [bucket[i : i + size] for i in range(0, len(bucket), size)]


@DEAL.since("0.11.0", source="vllm 0.11.0, _get_kv_cache_groups_uniform_page_size")
def round_robin(bucket: list[int], size: int) -> list[list[int]]:
    """A kind's layers dealt out in turn, so that every pipeline stage has some of each group."""
    count = cdiv(len(bucket), size)
    return [bucket[i::count] for i in range(count)]
