"""How many blocks of a layer's cache one request may hold.

Source: vLLM, v1/kv_cache_interface.py, max_memory_usage_bytes of each spec, 0.8.5 to 0.33.0.
"""

from __future__ import annotations

from packaging.version import Version

from ullage.core.versions import Rules
from ullage.engines.vllm.kv_specs import Cache, Spec, cdiv

WINDOW_TOKENS: Rules[[Cache], int] = Rules("window_tokens")


@WINDOW_TOKENS.since("≤0.8.0", source="vllm 0.25.1, v1/kv_cache_interface.py, SlidingWindowSpec")
def one_batch(cache: Cache) -> int:
    """Tokens that a window keeps beside itself: one batch."""
    return cache.max_num_batched_tokens


@WINDOW_TOKENS.since("0.26.0", source="vllm 0.26.0, config/vllm.py, max_in_flight_tokens")
def batches_in_flight(cache: Cache) -> int:
    """Every batch in flight may still hold its tokens: 2 with async scheduling."""
    return cache.max_num_batched_tokens * cache.in_flight


MAMBA_BLOCKS: Rules[[Spec, Cache, int], int] = Rules("mamba_blocks")


@MAMBA_BLOCKS.since("≤0.9.1", source="vllm 0.11.0, v1/kv_cache_interface.py, MambaSpec")
def one_state(spec: Spec, cache: Cache, length: int) -> int:
    """Blocks of one request: one state."""
    return 1


@MAMBA_BLOCKS.since("0.11.1", source="vllm 0.12.0 and 0.14.0, v1/kv_cache_interface.py, MambaSpec")
def state_a_block(spec: Spec, cache: Cache, length: int) -> int:
    """cdiv(L, mamba_block); the block is L unless prefix caching sets it to the attention block."""
    return 1 if cache.mamba_mode == "none" else cdiv(length, spec.block_size)


@MAMBA_BLOCKS.since("0.15.0", source="vllm 0.16.0 to 0.33.0, v1/kv_cache_interface.py, MambaSpec")
def states_by_mode(spec: Spec, cache: Cache, length: int) -> int:
    """none: 1 + speculative tokens; align: 2 + speculative tokens; all: one a block of tokens."""
    return cdiv(length, spec.block_size) if cache.mamba_mode == "all" else spec.request_blocks


@MAMBA_BLOCKS.since("0.32.0", source="vllm 0.32.0, v1/kv_cache_interface.py, MambaSpec")
def states_without_all(spec: Spec, cache: Cache, length: int) -> int:
    """As before, but the mode "all" no longer counts more than one; in mode align, layers that checkpoint a
    prefill (Mamba 2, KDA) keep one state more."""
    return spec.request_blocks + spec.checkpoint_blocks


def request_blocks(spec: Spec, cache: Cache, length: int, release: Version | None) -> int:
    """Blocks of ``spec`` that one request of ``length`` tokens may hold.

    full: cdiv(cdiv(L, dcp), block); sliding: cdiv(min(W - 1 + X, L), block) + 1;
    chunked: cdiv(min(C + X, L), block); X is WINDOW_TOKENS.
    """
    if spec.kind == "mamba":
        return MAMBA_BLOCKS.at(release)(spec, cache, length)
    if spec.kind == "full":
        return cdiv(cdiv(length, cache.dcp), spec.block_size)
    extra = WINDOW_TOKENS.at(release)(cache)
    if spec.kind == "chunked":
        return cdiv(min(spec.window + extra, length), spec.block_size)
    return cdiv(min(spec.window - 1 + extra, length), spec.block_size) + 1
