"""Models with sliding windows beside full attention: one budget, two pools, by release.

Read: model_runner set_num_token_hybrid (..0.5.6), model_runner_kv_cache_mixin (0.5.7..0.5.10),
pool_configurator HybridSWAPoolConfigurator (0.5.11..0.5.23).
"""

from __future__ import annotations

from msgspec import Struct

from ullage.core.model import Model
from ullage.core.versions import Rules
from ullage.engines.sglang.cells import WINDOWED, cell_size, element_bytes, layer_elements
from ullage.engines.sglang.settings import Settings, at_least
from ullage.engines.sglang.speculative import draft_layers

#: architectures with a sub-pool for windows, and the release that began it (model_config, is_hybrid_swa_model)
_SPLIT = {
    "GptOssForCausalLM": "0.5.8", "MiMoV2FlashForCausalLM": "0.5.7", "MiMoV2ForCausalLM": "0.5.11",
    "Llama4ForConditionalGeneration": "0.5.8", "Step3p5ForCausalLM": "0.5.9", "Gemma4ForCausalLM": "0.5.11",
    "Gemma4ForConditionalGeneration": "0.5.11", "LagunaForCausalLM": "0.5.12",
    "Step3p7ForConditionalGeneration": "0.5.13", "Gemma4UnifiedForConditionalGeneration": "0.5.12",
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
    if s.speculative and model.architecture == "GptOssForCausalLM" and not at_least(s.release, "0.5.9"):
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


@SPLIT.since("0.4.9.post3", source="sglang 0.5.6, model_runner; 0.5.8, kv cache mixin")
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
    """M = budget // (F n_full + S n_swa); full = M (F n_full + S n_swa) / (F n_full + r S n_swa).

    swa = r full, of the floored number of full tokens from 0.5.10 on.
    """
    full_bytes, sliding_bytes = w.full_bytes * w.num_full, w.sliding_bytes * w.num_sliding
    tokens = _paged(capped(budget // (full_bytes + sliding_bytes), s), s)
    if not w.num_full:
        return Split(0, tokens)
    total = tokens * (full_bytes + sliding_bytes)
    full = int(total / (full_bytes + s.swa_full_tokens_ratio * sliding_bytes))
    whole = _paged(full, s) if at_least(s.release, "0.5.10") else full
    return Split(_paged(full, s), _paged(int(whole * s.swa_full_tokens_ratio), s))


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
