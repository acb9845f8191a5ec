"""What loading takes for a moment beyond what stays: 16-bit weights that are quantised online, and copies for a
kernel's layout. Bytes of the fullest rank."""

from __future__ import annotations

from msgspec.structs import replace

from ullage.core.deployment import Deployment
from ullage.core.ledger import Entry, Ledger
from ullage.core.model import Model
from ullage.core.units import GIB, Band
from ullage.core.versions import Rules
from ullage.engines.runtime.loading import groups_of
from ullage.engines.runtime.shards import repacked
from ullage.engines.vllm.layout import Layout, cuts_of, layout
from ullage.engines.vllm.weights import fullest

ONLINE: Rules[[int, int], int] = Rules("beyond what stays while 16-bit weights are quantised online")


@ONLINE.since("≤0.6.0", source="vllm 0.12.0, quantization/fp8.py, process_weights_after_loading")
def after_loading(saved: int, num_layers: int) -> int:
    """All weights are loaded in 16 bit, then rewritten one by one; ``saved`` is what FP8 saves of them."""
    return saved + saved // num_layers


@ONLINE.since("0.13.0", source="vllm 0.13.0, fp8.py, patched_weight_loader; vllm-project/vllm#31914")
def both_copies(saved: int, num_layers: int) -> int:
    """Each is rewritten once it is loaded, but the loader's own list keeps the 16-bit ones until the end."""
    return 2 * saved


@ONLINE.since("0.16.0", source="vllm 0.16.0, fp8.py, weights on the meta device until they are loaded")
def layer_by_layer(saved: int, num_layers: int) -> int:
    """16-bit weights exist one layer at a time."""
    return 2 * saved // num_layers


def load_peak(deployment: Deployment) -> Band | None:
    """Bytes that loading takes for a moment beyond what stays; None where the model is not known. Estimated.

    With --quantization fp8 of a 16-bit checkpoint what the release's rule (ONLINE) says; quantised experts are
    rewritten for their kernel layer by layer, gate and up of a layer at a time.
    """
    model = deployment.model
    groups = groups_of(model) if model is not None else ()
    if model is None or not groups:
        return None
    at = layout(deployment)
    saved = _saved(model, at)
    if saved:
        beyond = ONLINE.at(at.release)(saved, max(1, model.num_layers))
        return Band(beyond, 0.97 * beyond, 1.03 * beyond + 0.3 * GIB)
    copy = repacked(groups, cuts_of(model, at))
    return Band(copy, 0, 2 * copy + 0.3 * GIB)


def _saved(model: Model, at: Layout) -> int:
    """Bytes that online FP8 saves of the weights; 0 where nothing is quantised online."""
    if at.online != "fp8":
        return 0
    kept, plain = fullest(model, at), fullest(model, replace(at, online=None))
    if kept is None or plain is None:
        return 0
    return max(0, sum(held for _, held in plain) - sum(held for _, held in kept))


def while_loading(ledgers: tuple[Ledger, ...], peak: Band) -> tuple[Ledger, ...]:
    """The ledgers at the fullest moment of loading: what comes after it has not been."""
    entry = Entry(
        "weights", "16-bit weights while they are quantised", round(peak.value), round(peak.low),
        round(peak.high), "estimated", "what loading holds beyond what stays",
    )  # fmt: skip
    early = ("init", "weights")
    return tuple(
        replace(one, entries=(*(e for e in one.entries if e.stage in early), entry)) for one in ledgers
    )
