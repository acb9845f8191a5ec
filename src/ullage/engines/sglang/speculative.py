"""What a draft model adds to the KV pool, by release. Read: model_runner init_memory_pool (..0.5.6),
pool_configurator (0.5.14..), and each worker's memory pool."""

from __future__ import annotations

from ullage.core.model import Model
from ullage.engines.sglang.backends import is_sparse_mla
from ullage.engines.sglang.cells import cell_size, kv_layers, main_layer
from ullage.engines.sglang.compressed import is_compressed
from ullage.engines.sglang.settings import BLOCK_FAMILY, Settings, at_least


def draft_layers(s: Settings) -> int:
    """Layers of the draft that keep KV: as stated, else one (an EAGLE head or one MTP layer)."""
    if not s.speculative or s.speculative_algorithm == "NGRAM":
        return 0
    return s.draft_layers if s.draft_layers is not None else 1


def charged_cell(model: Model, s: Settings, cell: float) -> float:
    """Bytes per token with the draft's layers, which share the pool's budget from 0.5.14 on.

    int(cell (1 + L_draft / L)) in 0.5.14..0.5.17; cell + int(cell L_draft / L) later, where sparse MLA adds
    the draft's index keys by themselves.
    """
    layers, drafts = kv_layers(model, s), draft_layers(s)
    if s.speculative_algorithm in BLOCK_FAMILY and drafts and layers and at_least(s.release, "0.5.11"):
        return _with_block_draft(s, cell, layers, drafts)
    charged = s.eagle or s.speculative_algorithm == "STANDALONE"
    if not charged or not drafts or not layers or not at_least(s.release, "0.5.14"):
        return cell
    if not at_least(s.release, "0.5.18"):
        return int(cell * (1 + drafts / layers))
    layer = main_layer(model)
    if is_sparse_mla(model) and layer is not None:
        index = layer.index_dim // 32 * 33
        return cell + int((cell - index * layers) * drafts / layers) + index * drafts
    return cell + int(cell * drafts / layers)


def _with_block_draft(s: Settings, cell: float, layers: int, drafts: int) -> float:
    """DFlash: ceil(cell (L + L_draft) / L); with the draft's own heads from 0.5.18 on."""
    if s.draft_cell and at_least(s.release, "0.5.18"):
        return int(cell) + int(s.draft_cell)
    return (int(cell) * (layers + drafts) + layers - 1) // layers


def extra_slots(s: Settings, max_num_reqs: int) -> int:
    """Token slots that the pool gets beyond its budget for drafts in flight (0.4.3.post3..0.5.6.post2).

    reqs x steps x topk + reqs x draft tokens + 100; they come out of the slack.
    """
    if not at_least(s.release, "0.4.3.post3") or at_least(s.release, "0.5.7"):
        return 0
    if not (s.eagle or s.speculative_algorithm == "STANDALONE"):
        return 0
    return max_num_reqs * ((s.num_steps or 0) * (s.topk or 1) + (s.draft_tokens or 0)) + 100


def uncharged_draft_bytes(model: Model, s: Settings, tokens: int) -> int:
    """Bytes of the draft's own KV that no budget counts (..0.5.13): as many tokens as the target's pool.

    By the draft's own heads where they are known, else as if each of its layers were like one of the target's.
    """
    if at_least(s.release, "0.5.14") or not draft_layers(s) or is_compressed(model):
        return 0
    if s.speculative_algorithm in BLOCK_FAMILY and at_least(s.release, "0.5.11"):
        return 0
    if s.draft_cell:
        return round(tokens * s.draft_cell)
    return round(tokens * cell_size(model, s).stored * draft_layers(s) / max(1, kv_layers(model, s)))
