"""The draft of a speculative launch: its layers, bytes per token and weights, as far as its shape is known.

Read: sglang 0.5.14..0.5.23, model_runner / spec_aux_config (eagle_draft_num_layers: num_nextn_predict_layers of
the draft's config, else its layers), speculative/dflash_utils.
"""

from __future__ import annotations

from msgspec.structs import replace

from ullage.core.deployment import Deployment
from ullage.core.ledger import Entry
from ullage.core.model import Model
from ullage.core.units import Band
from ullage.engines.sglang.cells import cell_size, main_layer
from ullage.engines.sglang.settings import BLOCK_FAMILY, Settings, at_least
from ullage.engines.sglang.weights import draft_weights

NAME = "draft weights"
#: layers of a DFlash draft, as the public ones have them
BLOCK_LAYERS = 5


def own_draft(deployment: Deployment) -> Model | None:
    """The draft's shape where it is a model of its own and known."""
    path = deployment.launch.text("speculative_draft_model_path")
    if path is None or path == deployment.launch.model:
        return None
    from ullage.models.catalogue import find

    return find(path)


def with_draft(s: Settings, deployment: Deployment, model: Model | None) -> Settings:
    """``s`` with the draft's layers and its own bytes per token, where they follow from a known shape."""
    if not s.speculative or s.speculative_algorithm == "NGRAM" or s.draft_layers is not None:
        return s
    draft, path = own_draft(deployment), deployment.launch.text("speculative_draft_model_path")
    if draft is not None and draft.num_layers:
        layers = draft.num_nextn_layers or draft.num_layers
        plain = replace(s, speculative_algorithm=None)
        cell = cell_size(draft, plain).stored if draft.layers else 0
        return replace(s, draft_layers=layers, draft_cell=cell * layers / draft.num_layers or None)
    if path is None or path == deployment.launch.model:
        return replace(s, draft_layers=max(1, model.num_nextn_layers)) if model is not None else s
    return replace(s, draft_layers=BLOCK_LAYERS) if s.speculative_algorithm in BLOCK_FAMILY else s


def loads_draft_first(s: Settings) -> bool:
    """From 0.5.14 on the draft's weights are loaded before any pool is sized."""
    return s.speculative and s.speculative_algorithm != "NGRAM" and at_least(s.release, "0.5.14")


def draft_entry(deployment: Deployment, s: Settings, model: Model | None) -> Entry | None:
    """The draft's weights on one rank by the rules; a draft that is not known is taken to be layers of the
    target. None without one."""
    if model is None or not s.speculative or s.speculative_algorithm == "NGRAM":
        return None
    band, source = draft_weights(deployment), "draft's tensors by the sharding rules"
    if band is None and model.hidden_size:
        band = layer_in_16_bits(model, s.tp, s.draft_layers or 1)
        source = "a draft of layers like the target's, in 16 bits"
    if band is None or band.value <= 0:
        return None
    return Entry("kv_pool", NAME, round(band.value), round(band.low), round(band.high), "estimated", source)


def layer_in_16_bits(model: Model, tp: int, layers: int = 1) -> Band:
    """Bytes of an EAGLE head for ``model``: fusion, attention and MLP; at most an embedding and a head more."""
    hidden, layer = model.hidden_size, main_layer(model)
    heads = 2 * layer.kv_heads * layer.head_dim if layer is not None else hidden
    inner = model.intermediate_size or 4 * hidden
    value = 2.0 * hidden * (2 * hidden + layers * (2 * hidden + heads + 3 * inner)) / tp
    return Band(value, 0.5 * value, 1.3 * value + 4.0 * model.vocab_size * hidden / tp)
