"""What is known of a deployment before any rule is asked: settings, model, and the sizes read, in bytes.

The engine takes the smallest free memory of any rank; ``Deployment.readings`` hold that rank's figures. Figures
of a log are bands: two printed decimals are 0.01 GiB.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ullage.core.deployment import Deployment, Reading
from ullage.core.ledger import Entry
from ullage.core.machine import Gpu, Machine
from ullage.core.model import Model
from ullage.core.units import GIB, MIB, Band
from ullage.engines.sglang.defaults import Host, resolved
from ullage.engines.sglang.drafts import draft_entry, loads_draft_first, with_draft
from ullage.engines.sglang.lora import lora_buffers
from ullage.engines.sglang.settings import Settings, of_launch
from ullage.engines.sglang.weights import weights as weights_by_tensor
from ullage.engines.sglang.weights_by_shape import weights_by_shape

ZERO = Band(0, 0, 0)


class Known(Struct, frozen=True):
    """``given`` is what the launch states, ``settings`` the same with the release's defaults. Bands in bytes;
    None: not known. ``source`` names the line a figure is from, or the rule. ``before_pool``: what is allocated
    beside the target's weights before the pool is sized (adapters; the draft's weights, 0.5.14..), already off
    ``free``."""

    deployment: Deployment
    given: Settings
    settings: Settings
    model: Model | None = None
    total: Band | None = None
    total_source: str = ""
    free: Band | None = None
    free_source: str = ""
    before_pool: tuple[Entry, ...] = ()

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
    model = own_caches(overridden(deployment.model, deployment.launch.get("json_model_override_args")))
    context = deployment.reading("context_len")
    if given.context_length is None and context is not None:
        given = _with_context(given, int(context.value))
    machine = deployment.machine
    gpu = machine.gpu if machine else None
    mib = gpu.total_bytes // MIB if gpu is not None and gpu.total_bytes else None
    deployment = replace(deployment, model=model)
    amd = gpu is not None and gpu.vendor == "amd"
    settings = resolved(given, model, Host(mib, gpu.capability if gpu else None, amd))
    settings = with_draft(settings, deployment, model)
    base = Known(deployment, given, settings, model)
    base = replace(base, before_pool=_before_pool(base))
    total, total_source = _total(base, gpu)
    free, free_source = _free(replace(base, total=total), total)
    return replace(base, total=total, total_source=total_source, free=free, free_source=free_source)


def _before_pool(base: Known) -> tuple[Entry, ...]:
    """Adapters always; the draft's weights where they load first and no log tells what is left after them."""
    found = [lora_buffers(base.deployment)]
    unread = base.read("free_after_weights_gib") is None and base.read("minimum_viable") is None
    if unread and loads_draft_first(base.settings):
        found.append(draft_entry(base.deployment, base.settings, base.model))
    return tuple(entry for entry in found if entry is not None)


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


def own_caches(model: Model | None) -> Model | None:
    """``model`` with a cache in every layer: SGLang's pools have one also for the layers that read another's
    (Gemma-3n, Gemma-4; sglang 0.5.23, kv_cache_configurator: E4B stores 42 layers, not 24)."""
    if model is None or not any(layer.kind == "shared" and layer.kv_heads for layer in model.layers):
        return model
    layers = tuple(
        replace(layer, kind="sliding" if layer.window else "full") if layer.kind == "shared" else layer
        for layer in model.layers
    )
    return replace(model, layers=layers)


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
    """Free bytes once CUDA and the process groups are up (estimated): what CUDA gives a process, less its
    context and the groups' buffers; of memory that is the host's too, what its own processes have."""
    if gpu.free_bytes is not None and (_stated(gpu) or gpu.cuda_bytes is None):
        return gpu.free_bytes, f"free on an idle {gpu.name}, estimated"
    nameplate = gpu.total_bytes or 0
    whole = gpu.cuda_bytes or Band(nameplate * 0.993, nameplate * 0.985, nameplate)
    if gpu.used_bytes and not gpu.unified_memory:
        whole = less(whole, Band(gpu.used_bytes, gpu.used_bytes, gpu.used_bytes))
    linked = machine.nvlink if machine is not None else None
    groups = _groups(s.tp * s.pp, True if gpu.vendor == "amd" and linked is None else linked)
    context = _CONTEXT.get(gpu.vendor, _SEVERAL)
    if gpu.vendor == "nvidia" and s.tp * s.pp == 1:
        context = _DESKTOP if "GeForce" in gpu.name else _ALONE
    taken = add(context, groups)
    if gpu.unified_memory and gpu.used_bytes and gpu.free_bytes is not None:  # probed
        return gpu.free_bytes, f"free on this {gpu.name}, estimated"
    if gpu.unified_memory:  # what the host's own processes have of it
        taken = Band(0.062 * whole.value, 0.03 * whole.value, 0.16 * whole.value)
    return less(whole, taken), "GPU memory less CUDA context and NCCL, estimated"


def _stated(gpu: Gpu) -> bool:
    """True where the name itself said how much was free ("24 GB, 21.63 GiB free")."""
    free = gpu.free_bytes
    return free is not None and gpu.source == "given" and free.high - free.low < 0.1 * GIB


#: what a context takes, with torch's own first allocations
_SEVERAL = Band(0.62 * GIB, 0.45 * GIB, 0.9 * GIB)
_ALONE = Band(0.62 * GIB, 0.4 * GIB, 1.3 * GIB)
#: a single GeForce often drives a screen as well: six public starts show 0.33 to 1.18 GiB
_DESKTOP = Band(0.85 * GIB, 0.33 * GIB, 1.6 * GIB)
_CONTEXT = {
    "amd": Band(1.2 * GIB, 0.5 * GIB, 6.0 * GIB),
    "ascend": Band(2.8 * GIB, 2.0 * GIB, 3.6 * GIB), "hygon": Band(1.5 * GIB, 0.8 * GIB, 2.5 * GIB),
}  # fmt: skip


def _groups(ranks: int, linked: bool | None) -> Band:
    """Buffers of NCCL and the custom all-reduce: with NVLink 0.17 GiB a rank of a node (tp 8 on H200: 1.3 to
    1.9 in public logs), over PCIe 0.03 (tp 8 on RTX PRO 6000: 0.3)."""
    if ranks <= 1:
        return Band(0, 0, 0)
    local = min(ranks, 8)
    linked_value, plain = 0.17 * local, 0.04 + 0.03 * local
    value = linked_value if linked else plain if linked is False else (linked_value + plain) / 2
    high = (2 if linked is not False else 4) * max(value, linked_value if linked is None else value)
    return Band(value * GIB, 0.5 * plain * GIB, high * GIB)


def _free(base: Known, total: Band | None) -> tuple[Band | None, str]:
    """Free bytes when the pool is sized: after the weights, less what lies between them and the pool."""
    free, source = _after_weights(base, total)
    for entry in base.before_pool if free is not None else ():
        free = less(free, Band(entry.bytes, entry.low, entry.high)) if free is not None else None
    return free, source


def _after_weights(base: Known, total: Band | None) -> tuple[Band | None, str]:
    """Free bytes after the weights: printed (after the draft's where it loads first, 0.5.14..), else the total
    less the target's weights."""
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
    estimate = weights_by_tensor(base.deployment) or weights_by_shape(base.model, base.settings)
    if estimate is None or total is None:
        return None, ""
    return less(total, estimate), "checkpoint bytes by the sharding rules, estimated"


def rank_readings(deployment: Deployment) -> dict[str, dict[str, Reading]]:
    """Each rank's own figures; one nameless rank with the deciding ones where no rank is told apart. What the
    launcher prints (no label) is no rank of its own beside labelled ones."""
    named = {rank: readings for rank, readings in deployment.by_rank.items() if rank}
    return named or deployment.by_rank or {"": deployment.readings}
