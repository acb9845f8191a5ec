"""Models that keep two kinds of cache: sliding windows beside full attention, recurrent state beside attention.

How SGLang splits one budget between the two, by release. Read: model_runner set_num_token_hybrid and
handle_max_mamba_cache (..0.5.6), model_runner_kv_cache_mixin (0.5.7..0.5.15), pool_configurator and
mem_cache/kv_cache_configurator (0.5.11..0.5.23).
"""

from __future__ import annotations

from msgspec import Struct

from ullage.core.model import LinearState, Model
from ullage.core.versions import Rules
from ullage.engines.sglang.cells import (
    WINDOWED,
    cell_size,
    element_bytes,
    layer_elements,
    pp_range,
)
from ullage.engines.sglang.settings import DTYPE_BYTES, Settings, at_least
from ullage.engines.sglang.speculative import draft_layers

# sliding windows --------------------------------------------------------------------------------------------

#: architectures with a sub-pool for windows, and the release that began it (model_config, is_hybrid_swa_model)
_SPLIT = {
    "GptOssForCausalLM": "0.4.9.post3", "MiMoV2FlashForCausalLM": "0.5.6", "MiMoV2ForCausalLM": "0.5.11",
    "Llama4ForConditionalGeneration": "0.5.8", "Step3p5ForCausalLM": "0.5.9", "Gemma4ForCausalLM": "0.5.11",
    "Gemma4ForConditionalGeneration": "0.5.11", "LagunaForCausalLM": "0.5.12",
    "Step3p7ForConditionalGeneration": "0.5.13", "Gemma4UnifiedForConditionalGeneration": "0.5.13",
    "MellumForCausalLM": "0.5.16", "InklingForConditionalGeneration": "0.5.16",
    "MuseGlimmerForCausalLM": "0.5.18", "MuseGlimmerForConditionalGeneration": "0.5.18",
}  # fmt: skip


class Windows(Struct, frozen=True):
    """Layers of each kind and bytes of one token in one layer of it."""

    num_full: int
    num_sliding: int
    full_bytes: int
    sliding_bytes: int
    window: int


class Split(Struct, frozen=True):
    """Tokens of the full and of the sliding sub-pool; requests are bounded by the first."""

    full_tokens: int
    sliding_tokens: int


def has_split_pool(model: Model, s: Settings) -> bool:
    """True where this release keeps windows in a pool of their own."""
    windows = any(layer.kind in WINDOWED for layer in model.layers)
    since = _SPLIT.get(model.architecture or "")
    if not windows or since is None or s.hybrid_swa_off or not at_least(s.release, since):
        return False
    on_sm100 = s.attention_backend == "trtllm_mha" and model.architecture == "GptOssForCausalLM"
    return not (on_sm100 and not at_least(s.release, "0.5.10"))


def windows_of(model: Model, s: Settings) -> Windows | None:
    sliding = [layer for layer in model.layers if layer.kind in WINDOWED]
    full = [layer for layer in model.layers if layer.kind == "full"]
    if not sliding:
        return None
    size = element_bytes(s, model)
    widest = full[0] if full else sliding[0]
    return Windows(
        len(full), len(sliding), layer_elements(widest, s) * size, layer_elements(sliding[0], s) * size,
        sliding[0].window,
    )  # fmt: skip


SPLIT: Rules[[Model, Settings, Windows, int], Split] = Rules("split of windows")


def _paged(tokens: float, s: Settings) -> int:
    return int(tokens) // s.page * s.page


@SPLIT.since("0.4.9.post3", source="sglang 0.5.6 model_runner and 0.5.8 kv cache mixin")
def by_layers(model: Model, s: Settings, w: Windows, budget: int) -> Split:
    """M = budget // cell, as if every layer were full; full = M L / (r n_swa + n_full), swa = r full.

    The page is floored before the split in 0.4.9.post3..0.5.6 and after it as well from 0.5.7 on.
    """
    tokens = _paged(capped(budget // int(cell_size(model, s).budgeted), s), s)
    full = int(tokens * model.num_layers / (s.swa_full_tokens_ratio * w.num_sliding + w.num_full))
    sliding = int(full * s.swa_full_tokens_ratio)
    return Split(_paged(full, s), _paged(sliding, s)) if at_least(s.release, "0.5.7") else Split(full, sliding)


@SPLIT.since("0.5.9", source="sglang 0.5.9, kv cache mixin, set_num_tokens_hybrid_swa")
def by_bytes(model: Model, s: Settings, w: Windows, budget: int) -> Split:
    """M = budget // (F n_full + S n_swa); full = M (F n_full + S n_swa) / (F n_full + r S n_swa)."""
    full_bytes, sliding_bytes = w.full_bytes * w.num_full, w.sliding_bytes * w.num_sliding
    tokens = _paged(capped(budget // (full_bytes + sliding_bytes), s), s)
    if not w.num_full:
        return Split(0, tokens)
    total = tokens * (full_bytes + sliding_bytes)
    full = int(total / (full_bytes + s.swa_full_tokens_ratio * sliding_bytes))
    return Split(_paged(full, s), _paged(int(full * s.swa_full_tokens_ratio), s))


@SPLIT.since("0.5.11", source="sglang 0.5.12 and 0.5.23, pool_configurator, HybridSWAPoolConfigurator")
def by_cell(model: Model, s: Settings, w: Windows, budget: int) -> Split:
    """cell = F (n_full + drafts) + r S n_swa; full = budget // cell floored to a page, swa = r full floored."""
    tokens = int(budget // window_cell(s, w))
    full = _paged(capped(_paged(tokens, s), s), s)
    if not w.num_full:
        return Split(0, full)
    return Split(full, _paged(int(full * s.swa_full_tokens_ratio), s))


def window_cell(s: Settings, w: Windows) -> float:
    """Bytes of one token of max_total_num_tokens (0.5.11..); the draft counts as full layers from 0.5.15 on."""
    drafts = draft_layers(s) if s.eagle and at_least(s.release, "0.5.15") else 0
    if not w.num_full:
        return w.sliding_bytes * w.num_sliding + w.full_bytes * drafts
    return w.full_bytes * (w.num_full + drafts) + s.swa_full_tokens_ratio * (w.sliding_bytes * w.num_sliding)


def llama4_split(s: Settings, tokens: int, chunk: int, context: int) -> Split:
    """--hybrid-kvcache-ratio h (0.4.9..0.5.7): t = 1 - h + h chunk / context; swa = 4 M t // (3 t + 1)."""
    h = s.hybrid_kvcache_ratio or 0.0
    t = (1 - h) + h * chunk / context
    sliding = 4 * tokens * t // (3 * t + 1)
    full = 4 * tokens - 12 * tokens * t // (3 * t + 1)
    return Split(_paged(full, s), _paged(sliding, s))


def capped(tokens: int, s: Settings) -> int:
    """Not above --max-total-tokens, which counts for the whole server, not for a group."""
    return tokens if s.max_total_tokens is None else min(tokens, s.max_total_tokens)


# recurrent state --------------------------------------------------------------------------------------------


class Recurrent(Struct, frozen=True):
    """Slots for recurrent state, what they and the drafts' copies take, and what is left for tokens (bytes)."""

    slots: int
    state_bytes: float
    left_bytes: float


def state_bytes(model: Model, s: Settings) -> int:
    """Bytes of recurrent state that one request keeps on one rank, all layers (of the widest stage under PP).

    Convolution: (inner + 2 groups state) / tp x (kernel - 1) in bf16, groups padded to a multiple of tp;
    recurrence: heads / tp x head_dim x state in float32 unless --mamba-ssm-dtype or the config says otherwise.
    """
    layers = [layer for layer in model.layers if layer.state is not None]
    whole = sum(_layer_state(layer.state, s) for layer in layers if layer.state is not None)
    if s.pp == 1 or not layers or not at_least(s.release, "0.5.20"):
        return whole
    indices = [i for i, layer in enumerate(model.layers) if layer.state is not None]
    most = max(sum(i in pp_range(len(model.layers), r, s.pp) for i in indices) for r in range(s.pp))
    return int(whole * (most / len(layers)))


def _layer_state(state: LinearState, s: Settings) -> int:
    tp = s.attn_tp
    groups = state.num_groups
    if groups % tp and state.kind == "mamba2":
        groups += tp - groups % tp
    width = (
        state.inner_size + 2 * groups * state.state_size if state.kind in ("mamba2", "gdn") else state.conv_dim
    )
    conv = width // tp * (state.kernel - 1) * 2
    recurrent = max(1, state.num_heads // tp) * state.head_dim * state.state_size if state.num_heads else 0
    return conv + recurrent * _state_element(state, s)


def _state_element(state: LinearState, s: Settings) -> int:
    name = s.mamba_ssm_dtype or s.env.get("SGLANG_MAMBA_SSM_DTYPE") or state.dtype or "float32"
    return DTYPE_BYTES.get(name.removeprefix("torch."), 4)


def extra_buffer(s: Settings) -> bool:
    """Whether running requests keep tracking slots: on request (0.5.7..), by default from 0.5.14 on where the
    scheduler overlaps or the cache is paged."""
    if s.radix_off or not at_least(s.release, "0.5.7"):
        return False
    if s.mamba_strategy == "auto":
        return at_least(s.release, "0.5.14") and (not s.overlap_off or s.page > 1)
    return s.mamba_strategy.startswith("extra_buffer")


def slots_per_request(s: Settings) -> int:
    """State slots that one running request may hold: 1 without a radix cache, else 3 and the tracking slots of
    ``extra_buffer``: 2, or 1 in lazy mode, with drafts (0.5.8..0.5.12) or without overlap (0.5.13..)."""
    if s.radix_off:
        return 1
    base = 2 if s.env.get("SGLANG_OPT_MAMBA_SKIP_DECODE_LOCK", "").lower() in ("1", "true") else 3
    if not extra_buffer(s):
        return 3
    single = s.overlap_off if at_least(s.release, "0.5.13") else s.speculative
    lazy = s.mamba_strategy == "extra_buffer_lazy"
    return base + (1 if (single and at_least(s.release, "0.5.8")) or lazy else 2)


RECURRENT: Rules[[Model, Settings, float], Recurrent] = Rules("split of recurrent state")


def _ratio(s: Settings) -> float:
    if s.mamba_full_memory_ratio is not None:
        return s.mamba_full_memory_ratio
    return 0.9 if at_least(s.release, "0.5.3.post3") else 0.2


def _share(s: Settings, budget: float) -> float:
    """What the ratio gives to the state: budget x rho / (1 + rho)."""
    return budget * _ratio(s) / (1 + _ratio(s))


def _draft_states(s: Settings) -> int:
    """Copies of a request's state that verifying a draft needs: one a draft token."""
    return (s.draft_tokens or 0) if s.speculative else 0


def _per_group(value: int, s: Settings) -> int:
    return value // s.attn_dp


@RECURRENT.since("0.5.2", source="sglang 0.5.3, model_runner (Qwen3-Next only, no radix cache)")
def fixed_slots(model: Model, s: Settings, budget: float) -> Recurrent:
    """budget -= slots x state; slots: given, else max_running_requests, else 512; / dp."""
    slots = _per_group(s.max_mamba_cache_size or s.max_running_requests or 512, s)
    taken = slots * state_bytes(model, s)
    return Recurrent(slots, taken, budget - taken)


@RECURRENT.since("0.5.3.post2", source="sglang 0.5.3.post3 and 0.5.6, model_runner, handle_max_mamba_cache")
def by_ratio(model: Model, s: Settings, budget: float) -> Recurrent:
    """slots = share // state // (1 + D), D draft tokens; without a radix cache max_running_requests or 512."""
    per_request, drafts = state_bytes(model, s), _draft_states(s)
    if s.radix_off:
        slots = s.max_mamba_cache_size or s.max_running_requests or 512
    else:
        slots = int(_share(s, budget) // per_request // (1 + drafts))
    if any(layer.state is not None and layer.state.kind == "gdn" for layer in model.layers):
        slots = _per_group(slots, s)
    taken = slots * per_request * (1 + drafts)
    return Recurrent(slots, taken, budget - taken)


@RECURRENT.since("0.5.7", source="sglang 0.5.7, kv cache mixin, handle_max_mamba_cache")
def drafts_first(model: Model, s: Settings, budget: float) -> Recurrent:
    """A given number of slots, or max_running_requests without a radix cache; else the drafts' states for every
    request first, and slots = share // state of the rest."""
    per_request = state_bytes(model, s)
    if s.radix_off or s.max_mamba_cache_size is not None:
        slots = _per_group(s.max_mamba_cache_size or s.max_running_requests or 512, s)
        return Recurrent(slots, slots * per_request, budget - slots * per_request)
    copies = (
        per_request * _per_group(s.max_running_requests or 0, s) * (s.draft_tokens or 0) if s.speculative else 0
    )
    rest = budget - copies
    slots = int(_share(s, rest) // per_request)
    return Recurrent(slots, copies + slots * per_request, rest - slots * per_request)


@RECURRENT.since("0.5.8", source="sglang 0.5.9 and 0.5.12, kv cache mixin, handle_max_mamba_cache")
def drafts_always_first(model: Model, s: Settings, budget: float) -> Recurrent:
    """As before; the drafts' states are taken first in every case."""
    per_request = state_bytes(model, s)
    copies = (
        per_request * _per_group(s.max_running_requests or 0, s) * (s.draft_tokens or 0) if s.speculative else 0
    )
    rest = budget - copies
    if s.max_mamba_cache_size is not None:
        slots = _per_group(s.max_mamba_cache_size, s)
    elif s.radix_off and s.max_running_requests is not None:
        slots = _per_group(s.max_running_requests, s)
    else:
        slots = int(_share(s, rest) // per_request)
    return Recurrent(slots, copies + slots * per_request, rest - slots * per_request)


@RECURRENT.since("0.5.13", source="sglang 0.5.14, kv cache mixin, handle_max_mamba_cache")
def solved_together(model: Model, s: Settings, budget: float) -> Recurrent:
    """slots = share // (state (1 + D / slots per request)); the drafts' states for the requests these allow."""
    return _together(model, s, budget, spare=0)


@RECURRENT.since("0.5.17", source="sglang 0.5.23, mem_cache/kv_cache_configurator, _handle_max_mamba_cache")
def solved_with_spare(model: Model, s: Settings, budget: float) -> Recurrent:
    """As before, with one padding slot charged for each buffer."""
    return _together(model, s, budget, spare=1)


def _together(model: Model, s: Settings, budget: float, spare: int) -> Recurrent:
    per_request, ratio = state_bytes(model, s), slots_per_request(s)
    drafts = _draft_states(s)
    requests = max(1, _per_group(s.max_running_requests or 0, s))
    if s.max_mamba_cache_size is not None:
        slots = _per_group(s.max_mamba_cache_size, s)
        running = min(requests, slots // ratio)
    elif s.radix_off and s.max_running_requests is not None:
        slots = running = requests
    else:
        left = _share(s, budget) - spare * per_request * (1 + drafts)
        slots = int(left // (per_request * (1 + drafts / ratio)))
        running = min(requests, slots // ratio)
    copies = per_request * (running + spare) * drafts
    taken = (slots + spare) * per_request
    return Recurrent(slots, copies + taken, budget - copies - taken)
