"""A deployment's Work: what one rank reads and multiplies in a forward pass, from the checkpoint's own
tensors."""

from __future__ import annotations

from math import prod

from msgspec import Struct

from ullage.comm.collectives import Layout
from ullage.comm.layout import layout_of
from ullage.core.deployment import Deployment
from ullage.core.launch import Launch
from ullage.core.model import Layer, Model, TensorGroup
from ullage.engines.runtime.loading import cast_of, converted, groups_of
from ullage.engines.runtime.shards import VISION, Cuts, Stage, held, is_mtp, one
from ullage.models.attention import dtype_bytes, elements_per_token
from ullage.models.stored import DTYPE_BYTES, GGUF_BLOCKS
from ullage.spec.work import Arithmetic, Cache, Experts, Matrices, Work

#: parts as a reader of a ledger wants them
_NAMES = {
    "attention": "attention", "linear attention": "linear attention", "mlp": "MLP", "head": "lm_head",
    "shared experts": "shared experts", "router": "router", "norms": "norms",
    "indexer": "sparse attention index",
    "embedding": "lm_head",
}  # fmt: skip
#: pieces of a quantised matrix that are no operands of their own
_BESIDE = ("scale", "zero", "qzeros", "g_idx", "shape", "bias", "absmax", "quant_map", "nested")
#: tokens that DeepSeek's sparse attention reads, where the model has an index (config: index_topk)
SPARSE_TOKENS = 2048


def work_of(deployment: Deployment) -> Work | None:
    """The target's forward pass on one rank; None where the model's tensors are not known."""
    model = deployment.model
    groups = groups_of(model) if model is not None else ()
    if model is None or not groups or not model.num_layers:
        return None
    launch = deployment.launch
    kept = tuple(converted(groups, launch.text("quantization"), cast_of(model, launch.text("dtype"))))
    at, capability = layout_of(launch, model), _capability(deployment)
    found = _weights(model, kept, at, capability)
    kinds = [layer.kind for layer in model.layers]
    return Work(
        found.matrices,
        caches(model, at, _kv_bytes(launch, model), capability),
        model.num_layers,
        found.experts,
        latent_layers=kinds.count("mla"),
        stages=at.pp,
    )


def mtp_work(deployment: Deployment) -> Work | None:
    """One forward of the model's own layer for multi-token prediction; its head and embedding are the
    target's."""
    model = deployment.model
    groups = groups_of(model) if model is not None else ()
    if model is None or not any(is_mtp(group, model.num_layers) for group in groups):
        return None
    at = layout_of(deployment.launch, model)
    own = [g for g in groups if is_mtp(g, model.num_layers) and g.part not in ("head", "embedding")]
    heads = [g for g in groups if not is_mtp(g, model.num_layers) and g.part == _head_part(model)]
    moved = [_as_first(group) for group in own]
    last = model.layers[-1:] if model.layers else ()
    found = _weights(model, (*moved, *heads), at, _capability(deployment), layers=1)
    return Work(
        found.matrices,
        caches(model, at, _kv_bytes(deployment.launch, model), _capability(deployment), last),
        1,
        found.experts,
        latent_layers=int(model.is_mla),
    )


def head_work(draft: Model, deployment: Deployment, tp: int) -> Work | None:
    """One forward of a draft model (EAGLE head or a small model) on ``tp`` ranks; one without an output matrix
    of its own uses the target's."""
    groups = groups_of(draft)
    if not groups:
        return None
    at = Layout(tp=tp, expert_ranks=tp)
    if not any(group.part == "head" for group in groups) and deployment.model is not None:
        target = deployment.model
        groups = (*groups, *(g for g in groups_of(target) if g.part == _head_part(target)))
    layers = max(1, draft.num_layers)
    found = _weights(draft, groups, at, _capability(deployment), layers=layers)
    return Work(
        found.matrices,
        caches(draft, at, 2.0, _capability(deployment)),
        layers,
        found.experts,
        latent_layers=layers if draft.is_mla else 0,
    )


def guessed_head(target: Model, tp: int) -> Work:
    """An EAGLE-3 head whose shape is not known: some 25 x hidden^2 parameters, as those of Llama-3.1-8B (25.2),
    Qwen3-8B (24) and gpt-oss-120b (37) have, in 16 bit."""
    params = 25.0 * target.hidden_size**2 / tp
    return Work((Matrices("draft head", 2 * params, params),), (), 1)


def _head_part(model: Model) -> str:
    return "embedding" if model.tied_embeddings else "head"


def _as_first(group: TensorGroup) -> TensorGroup:
    """A group of an MTP layer as if of layer 0, so that it counts."""
    from msgspec.structs import replace

    return replace(group, name=group.name.removeprefix("mtp."), layers=(0,) if group.layers else ())


class _Weights(Struct, frozen=True):
    matrices: tuple[Matrices, ...]
    experts: Experts | None


def _weights(
    model: Model, groups: tuple[TensorGroup, ...], at: Layout, capability: tuple[int, int] | None,
    layers: int | None = None,
) -> _Weights:  # fmt: skip
    """What a pass reads of each part, on one rank. The embedding is looked up, not read; of a tied one the
    output matrix is."""
    cuts, stage = _cuts(model, at), Stage(0, layers or model.num_layers)
    found: dict[tuple[str, Arithmetic], tuple[float, float]] = {}
    inside: dict[Arithmetic, tuple[float, float]] = {}
    for group in groups:
        if (
            group.part in VISION
            or _unread(group, model)
            or (layers is None and is_mtp(group, model.num_layers))
        ):
            continue
        times = held(group, stage, layers or model.num_layers, tied=False)
        size, kind = times * one(group, cuts), arithmetic(group.dtype, capability)
        count = params_of(group, size)
        into = inside if group.part == "experts" else None
        if into is not None:
            before = into.get(kind, (0.0, 0.0))
            into[kind] = (before[0] + size, before[1] + count)
            continue
        key = (_NAMES.get(group.part, "other matrices"), kind)
        before = found.get(key, (0.0, 0.0))
        found[key] = (before[0] + size, before[1] + count)
    matrices = tuple(Matrices(name, size, count, kind) for (name, kind), (size, count) in found.items() if size)
    return _Weights(matrices, _experts(model, groups, inside, at, stage))


def _unread(group: TensorGroup, model: Model) -> bool:
    return group.part == ("head" if model.tied_embeddings else "embedding")


def _experts(
    model: Model, groups: tuple[TensorGroup, ...], inside: dict[Arithmetic, tuple[float, float]], at: Layout,
    stage: Stage,
) -> Experts | None:  # fmt: skip
    if not inside or not model.num_experts:
        return None
    kind = max(inside, key=lambda name: inside[name][1])
    numbers = {n for g in groups if g.part == "experts" for n in g.layers or (0,)}
    layers = sum(1 for n in numbers if stage.first_layer <= n < stage.end_layer)
    return Experts(
        sum(size for size, _ in inside.values()), sum(count for _, count in inside.values()),
        model.num_experts, max(1, model.experts_per_token), max(1, layers), at.ep, kind,
    )  # fmt: skip


def _cuts(model: Model, at: Layout) -> Cuts:
    ways = {
        "attention": at.attention_ranks,
        "linear attention": at.attention_ranks,
        "norms": at.attention_ranks,
    }
    heads = max((layer.kv_heads for layer in model.layers if layer.kind != "mla"), default=0)
    return Cuts(
        ways, default=at.tp, kv_heads=heads or model.num_heads, expert_ranks=at.ep,
        expert_ways=max(1, at.expert_ranks // at.ep),
    )  # fmt: skip


def params_of(group: TensorGroup, num_bytes: float) -> float:
    """Operands in ``num_bytes`` of a group: packed types hold several in an element; scales are none."""
    last = group.name.rsplit(".", 1)[-1]
    if any(word in last for word in _BESIDE) or len(group.shape) < 2:
        return 0.0
    block = GGUF_BLOCKS.get(group.dtype)
    if block is not None:
        return num_bytes * block[0] / block[1]
    packed = {"I32": 8, "U8": 2}.get(group.dtype, 1)
    return num_bytes / DTYPE_BYTES.get(group.dtype, 2) * packed


def arithmetic(dtype: str, capability: tuple[int, int] | None) -> Arithmetic:
    """What the kernels multiply in: FP8 where the GPU has it (SM89 on), packed FP4 from SM100 on, else 16 bit
    (4-bit weights with 16-bit activations are unpacked on the way)."""
    major = capability or (9, 0)
    if dtype.startswith("F8") and major >= (8, 9):
        return "fp8"
    return "fp4" if dtype == "U8" and major >= (10, 0) else "bf16"


def _capability(deployment: Deployment) -> tuple[int, int] | None:
    gpu = deployment.machine.gpu if deployment.machine else None
    return gpu.capability if gpu else None


# --- caches -------------------------------------------------------------------------------------------------


#: majors whose latent attention takes all rows of a request in one pass (FlashMLA, TRT-LLM's)
_LATENT_ROWS = (9, 10)


def caches(
    model: Model, at: Layout, element: float, capability: tuple[int, int] | None,
    layers: tuple[Layer, ...] | None = None,
) -> tuple[Cache, ...]:  # fmt: skip
    """What attention reads a token, by kind: keys and values of the heads on this rank; MLA's latent whole on
    every rank; windows; the state of recurrent layers."""
    found: dict[tuple[str, int | None], Cache] = {}
    for layer in model.layers if layers is None else layers:
        item = _cache(layer, model, at, element, capability)
        if item is not None:
            before = found.get((item.name, item.window))
            found[item.name, item.window] = _together(before, item) if before else item
    return tuple(found.values())


def _together(a: Cache, b: Cache) -> Cache:
    return Cache(
        a.name, a.bytes_per_token + b.bytes_per_token, a.window, a.state_bytes + b.state_bytes,
        a.flops_per_token + b.flops_per_token, a.layers + b.layers, a.shared and b.shared,
    )  # fmt: skip


def _cache(
    layer: Layer, model: Model, at: Layout, element: float, capability: tuple[int, int] | None
) -> Cache | None:
    """One layer's cache; None where it keeps none."""
    heads, size = max(1, model.num_heads // at.attention_ranks), elements_per_token(layer) * element
    if layer.kind == "mla":
        each = (2 * layer.kv_lora_rank + layer.rope_dim) * 2.0 * heads
        if layer.index_dim:
            return Cache("latent KV cache, sparse", size, SPARSE_TOKENS, 0.0, each, 1, shared=False)
        together = capability is None or capability[0] in _LATENT_ROWS
        return Cache("latent KV cache", size, None, 0.0, each, 1, together)
    if layer.kind in ("full", "sliding", "chunked"):
        shared = max(1, min(at.attention_ranks, layer.kv_heads))
        each = 2.0 * heads * (layer.head_dim + (layer.v_head_dim or layer.head_dim))
        window = layer.window if layer.kind != "full" and layer.window else None
        name = "KV cache" if window is None else "KV cache, windows"
        return Cache(name, size / shared, window, _state(layer, at), each, 1)
    if layer.kind == "compressed":
        stride = layer.compress_ratio or 1
        return Cache("compressed KV cache", layer.head_dim * element / stride, None, 0.0, 0.0, 1, shared=False)
    return Cache("recurrent state", 0.0, 0, _state(layer, at), 0.0, 1) if layer.kind == "linear" else None


def _state(layer: Layer, at: Layout) -> float:
    """Bytes of one request's recurrent state on one rank; 4 bytes an element unless the model says
    otherwise."""
    state = layer.state
    if state is None:
        return 0.0
    width = dtype_bytes(state.dtype) or 4.0
    size = prod((state.num_heads, state.head_dim, state.state_size)) * width + state.conv_dim * 8.0
    return size / at.attention_ranks


def _kv_bytes(launch: Launch, model: Model) -> float:
    given = launch.text("kv_cache_dtype")
    known = dtype_bytes(given) if given and given != "auto" else None
    if known is None and given and given.startswith("fp8"):
        known = 1.0
    return known or dtype_bytes(model.kv_quantization) or 2.0
