"""DeepSeek-V4: a window of latents in every layer, and one latent for every 4 or 128 tokens in most.

One budget makes five pools: windows, latents of ratio 4 with their index keys, latents of ratio 128, and the
states of both compressors. Read: sglang 0.5.12..0.5.23, pool_configurator, DSV4PoolConfigurator; and
mem_cache/deepseek_v4_memory_pool for what a page takes.
"""

from __future__ import annotations

from msgspec import Struct

from ullage.core.model import Layer, Model
from ullage.core.versions import Rules
from ullage.engines.sglang.cells import pp_stages
from ullage.engines.sglang.settings import Settings, at_least

#: a page of packed latents is padded to whole rows of this many bytes
ROW = 576
#: --swa-full-tokens-ratio of this architecture where none, or the general default, is given
RATIO = 0.1
GENERAL_RATIO = 0.8
#: requests at once where none are given (arg_groups/deepseek_v4_hook)
REQUESTS = 256
FLOAT32 = 4


class Latents(Struct, frozen=True):
    """Layers of one pipeline stage and the bytes of what they keep. ``page`` is the token page, ``step`` the
    tokens to one ring of the ratio-4 compressor's state."""

    layers: int
    fours: int
    wides: int
    row_bytes: int
    head_dim: int
    index_dim: int
    page: int
    step: int
    padded: bool

    def kv_bytes(self, ratio: int = 1) -> float:
        """Bytes of one stored latent; with its share of the page's padding where the budget counts that."""
        page = self.page // ratio
        return -(-page * self.row_bytes // ROW) * ROW / page if self.padded and page else self.row_bytes


class Sizes(Struct, frozen=True):
    """Tokens that the pools hold and what is not theirs: ``fixed_bytes`` of states by request."""

    tokens: int
    sliding_tokens: int
    bytes_per_token: float
    fixed_bytes: int = 0


def is_compressed(model: Model) -> bool:
    return any(layer.kind == "compressed" for layer in model.layers)


def ratio_of(s: Settings) -> float:
    return RATIO if s.swa_full_tokens_ratio == GENERAL_RATIO else s.swa_full_tokens_ratio


def on_npu(s: Settings) -> bool:
    """Ascend keeps its latents unpadded, in pages of 128 tokens."""
    return s.attention_backend == "ascend" or s.page == 128


def rings(s: Settings) -> tuple[int, int]:
    """Rows of a request's compressor state, for ratio 4 and 128: twice as many for drafts."""
    return (16, 256) if s.speculative else (8, 128)


def latents(model: Model, s: Settings) -> Latents:
    """The stage that holds most. In 0.5.12 every stage counts all layers, that of the draft included."""
    kept = [layer for layer in model.layers if layer.kind == "compressed"]
    whole = not at_least(s.release, "0.5.13")
    stages = [range(len(kept))] if whole else pp_stages(len(kept), s)
    most = max(stages, key=lambda stage: sum(_weight(kept[n]) for n in stage))
    found = [kept[n] for n in most]
    first, window = kept[0], kept[0].window or 128
    page = 128 if on_npu(s) else 256
    late = at_least(s.release, "0.5.21")
    return Latents(
        len(found) + (model.num_nextn_layers if whole else 0),
        sum(layer.compress_ratio == 4 for layer in found), sum(layer.compress_ratio == 128 for layer in found),
        first.head_dim - first.rope_dim + first.rope_dim * 2 + 8, first.head_dim,
        max(layer.index_dim for layer in kept), page, page if late else window, late and not on_npu(s),
    )  # fmt: skip


def _weight(layer: Layer) -> float:
    return 1 + (1 / layer.compress_ratio if layer.compress_ratio else 0)


def index_bytes(dim: int) -> int:
    """One index key: fp8, and a float32 scale for every 128."""
    return dim + dim // 128 * 4


def state_element(s: Settings) -> int:
    """Bytes of a compressor state's element: SGLANG_DSV4_COMPRESS_STATE_DTYPE (0.5.14..) halves it."""
    small = s.env.get("SGLANG_DSV4_COMPRESS_STATE_DTYPE", "").strip().lower() in ("bfloat16", "bf16")
    return 2 if small and at_least(s.release, "0.5.14") else FLOAT32


def window_bytes(at: Latents, s: Settings) -> float:
    """Bytes of one token of the window pool: a latent a layer, and the ratio-4 state that follows it."""
    state = 4 * (at.head_dim + at.index_dim) * state_element(s)
    return at.kv_bytes() * at.layers + rings(s)[0] / at.step * state * at.fours


def compressed_bytes(at: Latents) -> float:
    """Bytes of one token in the pools of ratio 4 (with index keys) and 128."""
    fours = (at.kv_bytes(4) + index_bytes(at.index_dim)) / 4 * at.fours
    return fours + at.kv_bytes(128) / 128 * at.wides


def _drafted(at: Latents, s: Settings) -> float:
    """A draft counts as one more layer like the average."""
    return (at.layers + 1) / at.layers if s.speculative else 1.0


SIZES: Rules[[Latents, Settings, int, int], Sizes] = Rules("pools of compressed latents")


@SIZES.since("≤0.5.12", source="sglang 0.5.12..0.5.14, pool_configurator, DSV4PoolConfigurator")
def all_by_token(at: Latents, s: Settings, budget: int, context: int) -> Sizes:
    """bytes per token = r window + compressed + r ring / 128 state of ratio 128; tokens = budget // it."""
    state = 2 * at.head_dim * state_element(s) * at.wides
    each = ratio_of(s) * (window_bytes(at, s) + rings(s)[1] / at.step * state) + compressed_bytes(at)
    return _paged(at, s, int(budget / (each * _drafted(at, s))), each * _drafted(at, s))


@SIZES.since("0.5.15", source="sglang 0.5.15..0.5.23, pool_configurator, DSV4PoolConfigurator")
def states_by_request(at: Latents, s: Settings, budget: int, context: int) -> Sizes:
    """As before, but the state of ratio 128 belongs to the requests and is taken off first."""
    each = (ratio_of(s) * window_bytes(at, s) + compressed_bytes(at)) * _drafted(at, s)
    fixed = wide_state_bytes(at, s, _requests(s))
    return _paged(at, s, int(max(0, budget - fixed) / each), each, fixed)


def _requests(s: Settings) -> int:
    """Requests of one group; whole data parallel replicas divide them as well in 0.5.15."""
    groups = s.attn_dp if at_least(s.release, "0.5.16") else max(1, s.dp)
    return max(1, (s.max_running_requests or REQUESTS) // groups)


def wide_state_bytes(at: Latents, s: Settings, requests: int) -> int:
    """Bytes of the ratio-128 state: a ring of float32 (key, gate) rows for each request and one more."""
    ring = rings(s)[1]
    rows = (requests + 1) * ring + ring + 1
    return -(-rows // 128) * 128 * 2 * at.head_dim * state_element(s) * at.wides


def _paged(at: Latents, s: Settings, tokens: int, each: float, fixed: int = 0) -> Sizes:
    limit = tokens if s.max_total_tokens is None else min(tokens, s.max_total_tokens)
    full = limit // at.page * at.page
    return Sizes(full, int(full * ratio_of(s)) // at.page * at.page, each, fixed)


def unbudgeted_bytes(at: Latents, s: Settings) -> float:
    """Bytes that the pools take for one token beyond their budget: pages are padded in every release, and
    Ascend keeps bfloat16 latents where the budget counts packed ones."""
    row = 2 * at.head_dim if on_npu(s) else at.row_bytes
    real = Latents(
        at.layers, at.fours, at.wides, row, at.head_dim, at.index_dim, at.page, at.step, not on_npu(s)
    )
    extra = window_bytes(real, s) - window_bytes(at, s), compressed_bytes(real) - compressed_bytes(at)
    seen = 0.86 if on_npu(s) else 1.0  # what a public start on Ascend shows of it
    return (ratio_of(s) * extra[0] + extra[1]) * _drafted(at, s) * seen


def size_compressed(model: Model, s: Settings, budget: float, context: int) -> tuple[Latents, Sizes]:
    """The pools that ``budget`` bytes make."""
    at = latents(model, s)
    return at, SIZES.at(s.release)(at, s, int(budget), context)
