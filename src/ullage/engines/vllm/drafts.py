"""The draft of a launch: its attention layers in the KV cache, and its weights where only its method is known.

Read: vllm 0.16.0 and 0.27.1, v1/spec_decode/llm_base_proposer.py, models of EAGLE, MTP and DFlash heads.
"""

from __future__ import annotations

from msgspec.structs import replace

from ullage.core.deployment import Deployment
from ullage.core.launch import Launch
from ullage.core.model import Layer, Model
from ullage.core.units import Band
from ullage.engines.vllm.options import config, num_speculative_tokens, speculative_method

#: layers of a published DFlash head, whose own files tell it better
DFLASH_LAYERS = 5


def draft_model(launch: Launch) -> Model | None:
    """The separate draft model, as the catalogue knows it; None for heads inside the checkpoint and for
    n-grams."""
    given = config(launch, "speculative_config").get("model") or launch.get("speculative_model")
    if not isinstance(given, str) or "ngram" in given.lower():
        return None
    from ullage.models.catalogue import find

    return find(given)


def draft_layers(deployment: Deployment) -> tuple[Layer, ...]:
    """The attention layers that a draft adds: an MTP head repeats the model's last attention layer; other
    drafts have their own, and where those are not known an EAGLE head one and a DFlash head five like the
    target's. Unknown (empty) for other draft models that the catalogue lacks."""
    launch, model = deployment.launch, deployment.model
    method = speculative_method(launch)
    if model is None or not method or not num_speculative_tokens(launch):
        return ()
    compressed = next((layer for layer in model.layers if layer.kind == "compressed"), None)
    if compressed is not None and "mtp" in method:  # its head keeps a window alone (models/deepseek_v4, mtp.py)
        return (replace(compressed, compress_ratio=0, index_dim=0),) * nextn(model)
    attention = [layer for layer in model.layers if layer.kind in ("full", "mla", "sliding", "chunked")]
    if not attention:
        return ()
    full = [layer for layer in attention if layer.kind in ("full", "mla")] or attention
    if "mtp" in method:
        return (full[-1],) * nextn(model)
    known = draft_model(launch)
    own = tuple(layer for layer in known.layers if layer.kind != "none") if known is not None else ()
    if own and all(layer.state is None for layer in own):
        return own
    if method == "dflash" and full[-1].kind == "full":
        return (full[-1],) * DFLASH_LAYERS
    return (full[-1],) if method.startswith("eagle") else ()


def nextn(model: Model) -> int:
    return max(1, min(model.num_nextn_layers or 1, 8))


def guessed_weights(model: Model, method: str, tp: int) -> Band | None:
    """Bytes a rank of a head that nothing is known of: dense layers of the target's width in 16 bit, of 2.5 x
    hidden^2 + 3 x hidden x intermediate elements, and what joins the target's states to it. Embedding and head
    are shared."""
    layers = DFLASH_LAYERS if method == "dflash" else 1 if method.startswith("eagle") else 0
    hidden = model.hidden_size
    if not layers or not hidden:
        return None
    inner = model.intermediate_size if not model.num_experts and model.intermediate_size else 3 * hidden
    each = 2.5 * hidden * hidden + 3.0 * hidden * inner
    size = 2.0 * (layers * each / tp + 3.0 * hidden * hidden)
    return Band(size, 0.3 * size, 2.0 * size)
