"""From a budget in bytes to tokens, requests and slots: SGLang's sizing of its KV pool on one rank.

The arithmetic is the engine's own, term by term, in the same order; tests/oracle holds it to recorded answers.
"""

from __future__ import annotations

from msgspec import Struct

from ullage.core.model import Model
from ullage.core.units import MIB
from ullage.core.versions import Rules
from ullage.engines.sglang.cells import cell_size, is_recurrent
from ullage.engines.sglang.compressed import is_compressed, size_compressed, unbudgeted_bytes
from ullage.engines.sglang.recurrent import RECURRENT, slots_per_request, state_bytes
from ullage.engines.sglang.settings import Settings, at_least
from ullage.engines.sglang.speculative import charged_cell, extra_slots
from ullage.engines.sglang.vision import is_multimodal
from ullage.engines.sglang.windows import (
    SPLIT,
    Windows,
    capped,
    has_split_pool,
    llama4_split,
    window_cell,
    windows_of,
)

POOL: Rules[[float, float, float], float] = Rules("pool")


@POOL.since("≤0.4.0", source="sglang 0.5.9, model_runner_kv_cache_mixin, profile_max_num_token")
def pool_bytes(
    free_bytes: float, total_bytes: float, mem_fraction_static: float, reserved_bytes: float = 0
) -> float:
    """Bytes left for the KV pool on one GPU; negative means that the server will not start.

    pool = free_after_weights - total x (1 - mem_fraction_static) - reserved; free and total are the smallest of
    any rank; ``reserved`` is ``mm_reserved_bytes`` from 0.5.18 on.
    """
    return free_bytes - total_bytes * (1 - mem_fraction_static) - reserved_bytes


def mm_reserved_bytes(model: Model | None, s: Settings) -> int:
    """Bytes that a multimodal model's later allocations take from the budget, also of a given fraction.

    SGLANG_VLM_CACHE_SIZE_MB (100) MiB, 0.5.18..; Qwen3-VL on a large Hopper GPU (0.5.20..) 0, and the transport
    pool of SGLANG_MM_FEATURE_CACHE_MB (1024, or 3072 from 400 requests on) instead. Read: sglang 0.5.23
    kv_cache_configurator mm_runtime_reservation_gb, arg_groups/model_overrides/qwen3_vl.
    """
    if not at_least(s.release, "0.5.18") or not is_multimodal(model, s):
        return 0
    cache, transport = _mib(s, "SGLANG_VLM_CACHE_SIZE_MB"), _mib(s, "SGLANG_MM_FEATURE_CACHE_MB")
    profiled = model is not None and model.model_type in ("qwen3_vl", "qwen3_vl_moe") and s.large_hopper
    if not profiled or not at_least(s.release, "0.5.20"):
        return (100 if cache is None else cache) * MIB
    usual = 3072 if (s.max_running_requests or 0) >= 400 else 1024
    return ((cache or 0) + (0 if cache else usual if transport is None else transport)) * MIB


def _mib(s: Settings, name: str) -> int | None:
    text = s.env.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 9 else None


class Pool(Struct, frozen=True):
    """A sized pool on one rank.

    ``tokens`` bounds the requests (of the full sub-pool where there are two) and may be negative;
    ``profiled_tokens`` is what the engine computes before caps and pages. ``cell_bytes``: bytes of budget for
    one token; ``stored_bytes``: what the pool takes for one. ``kv_bytes``: the pool without the padding page.
    ``unbudgeted_bytes``: what its pages take beyond the budget.
    """

    budget_bytes: float
    profiled_tokens: int
    tokens: int
    cell_bytes: float
    stored_bytes: float
    sliding_tokens: int | None = None
    mamba_slots: int | None = None
    state_bytes: float = 0
    max_num_reqs: int = 0
    unbudgeted_bytes: float = 0

    @property
    def kv_bytes(self) -> int:
        """Bytes that the token pools take, the recurrent state not counted."""
        return round(max(0, self.tokens) * self.stored_bytes)

    @property
    def fails(self) -> bool:
        """No token fits: the engine raises "Not enough memory" or "Loaded weights leave no GPU memory"."""
        return self.tokens <= 0 or (self.mamba_slots is not None and self.mamba_slots <= 0)


def size_pool(model: Model, s: Settings, budget_bytes: float, context_len: int | None = None) -> Pool:
    """The pool that ``budget_bytes`` (``pool_bytes``) makes.

    tokens = budget // cell_size, not above --max-total-tokens, floored to a page; hybrids: windows, recurrent.
    """
    context = context_len or s.context_length or model.max_context or 0
    if is_compressed(model):
        return _compressed(model, s, budget_bytes, context)
    if has_split_pool(model, s):
        return _windowed(model, s, budget_bytes, context)
    left, slots, state = budget_bytes, None, 0.0
    if is_recurrent(model) and at_least(s.release, "0.5.2") and state_bytes(model, s) > 0:
        split = RECURRENT.at(s.release)(model, s, budget_bytes)
        left, slots, state = split.left_bytes, split.slots, split.state_bytes
    cells = cell_size(model, s)
    cell = charged_cell(model, s, cells.budgeted)
    if cell <= 0:
        return Pool(budget_bytes, 0, 0, 0, 0)
    profiled = int(left // cell) if not at_least(s.release, "0.5.7") else int(int(left) // cell)
    tokens = capped(profiled, s) // s.page * s.page if at_least(s.release, "0.4.4") else capped(profiled, s)
    requests = max_num_reqs(s, tokens if at_least(s.release, "0.5.10") else profiled, context, slots)
    stored = cells.stored * (cell / cells.budgeted)
    if s.hybrid_kvcache_ratio and model.architecture == "Llama4ForConditionalGeneration" and context:
        halves = llama4_split(s, tokens, _chunk_window(model), context)
        return Pool(budget_bytes, profiled, halves.full_tokens, cell, stored, halves.sliding_tokens)
    tokens += extra_slots(s, requests) if tokens > 0 else 0
    return Pool(budget_bytes, profiled, tokens, cell, stored, None, slots, state, requests)


def _compressed(model: Model, s: Settings, budget: float, context: int) -> Pool:
    at, found = size_compressed(model, s, budget, context)
    each = found.bytes_per_token
    requests = max_num_reqs(s, found.tokens, context, None)
    profiled = int((budget - found.fixed_bytes) / each)
    return Pool(
        budget, profiled, found.tokens, each, each, found.sliding_tokens, None, found.fixed_bytes, requests,
        found.tokens * unbudgeted_bytes(at, s),
    )  # fmt: skip


def _chunk_window(model: Model) -> int:
    return next((layer.window for layer in model.layers if layer.kind == "chunked"), 0)


def _windowed(model: Model, s: Settings, budget: float, context: int) -> Pool:
    w = windows_of(model, s)
    assert w is not None, "a split pool has windows"
    split = SPLIT.at(s.release)(model, s, w, int(budget))
    # 0.5.9: what is stored for one token of the full pool is its layers and r times the sliding ones
    stored = window_cell(s, w)
    main = split.full_tokens if w.num_full else split.sliding_tokens
    profiled = int(int(budget) // _profiled_cell(model, s, w, stored))
    requests = max_num_reqs(s, main if at_least(s.release, "0.5.10") else profiled, context, None)
    main += extra_slots(s, requests) if main > 0 else 0
    return Pool(budget, profiled, main, stored, stored, split.sliding_tokens, None, 0, requests)


def _profiled_cell(model: Model, s: Settings, w: Windows, stored: float) -> float:
    """Bytes by which the engine divides the budget before it splits the tokens."""
    if at_least(s.release, "0.5.11"):
        return stored
    if at_least(s.release, "0.5.9"):
        return w.full_bytes * w.num_full + w.sliding_bytes * w.num_sliding
    return cell_size(model, s).budgeted


def max_num_reqs(s: Settings, tokens: int, context_len: int, mamba_slots: int | None) -> int:
    """Rows of req_to_token: how many requests may run at once, per data-parallel group.

    None given: min(max(int(tokens / context x 512), 2048), 4096), from 0.5.10 on at most tokens // 2. Given:
    that number (..0.5.9), min(given // dp, estimate) (0.5.10..0.5.13), min(given // dp, tokens // 2) later;
    with recurrent state at most slots // slots per request.
    """
    estimate = min(max(int(tokens / context_len * 512), 2048), 4096) if context_len else 2048
    given = s.max_running_requests
    if not at_least(s.release, "0.5.10"):
        found = estimate if given is None else given
    elif given is None:
        found = min(estimate, tokens // 2)
    elif not at_least(s.release, "0.5.14"):
        found = min(given // s.attn_dp, estimate)
    else:
        per_group = given // s.attn_dp
        found = min(max(1, per_group) if at_least(s.release, "0.5.20") else per_group, tokens // 2)
    if mamba_slots is not None and at_least(s.release, "0.5.2"):
        ratio = slots_per_request(s) if at_least(s.release, "0.5.3.post2") else 1
        found = min(found, mamba_slots // ratio)
    return max(0, found)


def budget_for(model: Model, s: Settings, tokens: int) -> float:
    """Bytes of budget from which on a pool holds ``tokens``: the inverse of ``size_pool``, state included."""
    if is_compressed(model):
        _, found = size_compressed(model, s, 0, 0)
        return tokens * found.bytes_per_token + found.fixed_bytes
    if has_split_pool(model, s):
        w = windows_of(model, s)
        return tokens * window_cell(s, w) if w else 0
    cell = charged_cell(model, s, cell_size(model, s).budgeted)
    state = state_bytes(model, s) if is_recurrent(model) else 0
    return tokens * cell + state
