"""Models with recurrent state beside attention: slots for the state, and what is left for tokens, by release.

Read: model_runner handle_max_mamba_cache (..0.5.6), model_runner_kv_cache_mixin (0.5.7..0.5.15),
mem_cache/kv_cache_configurator (0.5.16..0.5.23).
"""

from __future__ import annotations

from msgspec import Struct

from ullage.core.model import LinearState, Model
from ullage.core.versions import Rules
from ullage.engines.sglang.cells import most_in_a_stage
from ullage.engines.sglang.settings import DTYPE_BYTES, Settings, at_least, extra_buffer


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
    return int(whole * (most_in_a_stage(indices, len(model.layers), s) / len(layers)))


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
