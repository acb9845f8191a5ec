"""What is known of a deployment before any rule is asked: settings, model, and the sizes read, in bytes.

The engine takes the smallest free memory of any rank; ``Deployment.readings`` hold that rank's figures. Figures
of a log are bands: two printed decimals are 0.01 GiB.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ullage.core.deployment import Deployment, Reading
from ullage.core.machine import Gpu, Machine
from ullage.core.model import Model
from ullage.core.units import GIB, MIB, Band
from ullage.engines.sglang.defaults import Host, resolved
from ullage.engines.sglang.settings import Settings, at_least, of_launch
from ullage.engines.sglang.weights import draft_weights
from ullage.engines.sglang.weights import weights as weights_by_tensor
from ullage.engines.sglang.weights_by_shape import weights_by_shape

ZERO = Band(0, 0, 0)


class Known(Struct, frozen=True):
    """``given`` is what the launch states, ``settings`` the same with the release's defaults. Bands in bytes;
    None: not known. ``source`` names the line a figure is from, or the rule."""

    deployment: Deployment
    given: Settings
    settings: Settings
    model: Model | None = None
    total: Band | None = None
    total_source: str = ""
    free: Band | None = None
    free_source: str = ""

    def read(self, name: str) -> Band | None:
        """A reading in the unit of its name; sizes in bytes."""
        band = self.deployment.reading(name)
        return band.scaled(GIB) if band is not None and name.endswith("_gib") else band

    def source(self, *names: str) -> str:
        found = (self.deployment.readings.get(name) for name in names)
        return ", ".join(dict.fromkeys(reading.source for reading in found if reading is not None))


def known(deployment: Deployment) -> Known:
    """Everything at hand for ``deployment``. Figures that no machine has are left out."""
    deployment = replace(
        deployment,
        readings=_possible(deployment.readings),
        by_rank={rank: _possible(readings) for rank, readings in deployment.by_rank.items()},
    )
    given = of_launch(deployment.launch)
    model = overridden(deployment.model, deployment.launch.get("json_model_override_args"))
    context = deployment.reading("context_len")
    if given.context_length is None and context is not None:
        given = _with_context(given, int(context.value))
    machine = deployment.machine
    gpu = machine.gpu if machine else None
    mib = gpu.total_bytes // MIB if gpu is not None and gpu.total_bytes else None
    settings = resolved(given, model, Host(mib, gpu.capability if gpu else None))
    base = Known(deployment, given, settings, model)
    total, total_source = _total(base, gpu)
    free, free_source = _free(base, total)
    return Known(deployment, given, settings, model, total, total_source, free, free_source)


def _possible(readings: dict[str, Reading]) -> dict[str, Reading]:
    """Without infinities, NaN and figures beyond a million million."""
    return {name: r for name, r in readings.items() if abs(r.value.value) < 1e12 and 0 <= r.value.step < 1e12}


def overridden(model: Model | None, value: object) -> Model | None:
    """``model`` with what --json-model-override-args changes of its shape: layers and context."""
    try:
        found = msgspec.json.decode(value) if isinstance(value, str) and len(value) < 65_536 else value
    except msgspec.DecodeError:
        return model
    if model is None or not isinstance(found, dict):
        return model
    layers, context = found.get("num_hidden_layers"), found.get("max_position_embeddings")
    if isinstance(layers, int) and 0 < layers < model.num_layers:
        share = layers / model.num_layers
        size = round(model.checkpoint_bytes * share) if model.checkpoint_bytes else None
        model = replace(model, num_layers=layers, layers=model.layers[:layers], checkpoint_bytes=size)
    return replace(model, max_context=context) if isinstance(context, int) and context > 0 else model


def _with_context(given: Settings, context_length: int) -> Settings:
    return replace(given, context_length=context_length) if context_length > 0 else given


def add(*bands: Band) -> Band:
    return Band(sum(b.value for b in bands), sum(b.low for b in bands), sum(b.high for b in bands))


def less(a: Band, b: Band) -> Band:
    return Band(a.value - b.value, a.low - b.high, a.high - b.low)


def times(a: Band, b: Band) -> Band:
    corners = [x * y for x in (a.low, a.high) for y in (b.low, b.high)]
    return Band(a.value * b.value, min(corners), max(corners))


def over(a: Band, b: Band) -> Band | None:
    """a / b; None where b may be (next to) nothing."""
    if b.low < 1e-6:
        return None
    corners = [x / y for x in (a.low, a.high) for y in (b.low, b.high)]
    return Band(a.value / b.value, min(corners), max(corners))


def _total(base: Known, gpu: Gpu | None) -> tuple[Band | None, str]:
    """Free bytes before the weights: printed, else free after + usage of the same rank, else what a GPU of this
    size usually has left once CUDA and NCCL are up (0.5 .. 2.5 GiB less than its memory)."""
    before = base.read("free_before_weights_gib")
    if before is not None:
        return before, base.source("free_before_weights_gib")
    after, used = base.read("free_after_weights_gib"), base.read("weights_gib")
    if after is not None and used is not None:
        return add(after, used), base.source("free_after_weights_gib", "weights_gib")
    share = base.read("minimum_viable")
    if after is not None and share is not None and share.high < 1:
        total = over(after, Band(1 - share.value, 1 - share.high, 1 - share.low))
        return total, base.source("free_after_weights_gib", "minimum_viable")
    if gpu is None or (gpu.free_bytes is None and gpu.cuda_bytes is None and gpu.total_bytes is None):
        return None, ""
    return _idle(gpu, base.settings, base.deployment.machine)


def _idle(gpu: Gpu, s: Settings, machine: Machine | None) -> tuple[Band, str]:
    """Free bytes once CUDA and the process groups are up (estimated): the context takes 0.4 .. 0.7 GiB; NCCL
    with several ranks 0.2 .. 1 GiB over PCIe, to 2.4 GiB over NVLink (tp 8 on H200: 1.77 .. 2.01)."""
    groups = Band(0, 0, 0)
    if s.tp * s.pp > 1:
        linked = machine.nvlink if machine is not None else None
        groups = Band(0.3 * GIB, 0, 1.0 * GIB) if linked is False else Band(1.0 * GIB, 0, 2.4 * GIB)
    if gpu.free_bytes is not None:
        return less(gpu.free_bytes, groups), f"free on an idle {gpu.name}, estimated"
    nameplate = gpu.total_bytes or 0
    whole = gpu.cuda_bytes or Band(nameplate * 0.993, nameplate * 0.985, nameplate)
    context = Band(0.55 * GIB, 0.3 * GIB, 1.0 * GIB)
    return less(whole, add(context, groups)), "GPU memory less CUDA context and NCCL, estimated"


def _free(base: Known, total: Band | None) -> tuple[Band | None, str]:
    """Free bytes after the weights: printed (after the draft's where it loads first, 0.5.14..), else the total
    less the weights."""
    after = base.read("free_after_weights_gib")
    drafted = base.read("draft_free_after_weights_gib")
    if after is not None and drafted is not None and loads_draft_first(base.settings):
        return drafted, base.source("draft_free_after_weights_gib")
    if after is not None:
        return after, base.source("free_after_weights_gib")
    weights, share = base.read("weights_gib"), base.read("minimum_viable")
    if weights is not None and total is not None:
        return less(total, weights), base.source("weights_gib")
    if share is not None and total is not None:
        left = times(total, Band(1 - share.value, 1 - share.high, 1 - share.low))
        return left, base.source("minimum_viable")
    deployment = replace(base.deployment, model=base.model)
    estimate = weights_by_tensor(deployment) or weights_by_shape(base.model, base.settings)
    if estimate is None or total is None:
        return None, ""
    draft = draft_weights(deployment) if loads_draft_first(base.settings) else None
    if draft is not None:
        estimate = add(estimate, draft)
    return less(total, estimate), "checkpoint bytes by the sharding rules, estimated"


def loads_draft_first(s: Settings) -> bool:
    """From 0.5.14 on the draft's weights are loaded before any pool is sized."""
    return s.speculative and at_least(s.release, "0.5.14")


def rank_readings(deployment: Deployment) -> dict[str, dict[str, Reading]]:
    """Each rank's own figures; one nameless rank with the deciding ones where no rank is told apart. What the
    launcher prints (no label) is no rank of its own beside labelled ones."""
    named = {rank: readings for rank, readings in deployment.by_rank.items() if rank}
    return named or deployment.by_rank or {"": deployment.readings}
