"""How many collectives a forward pass runs, of which kind, over how many ranks, and how large each is.

Pure arithmetic on a model's shape and a launch's layout. Counts were read in vllm 0.32.0 and sglang 0.5.9
(layers/linear.py: RowParallelLinear reduces; vocab_parallel_embedding.py; logits processors; models/*.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from msgspec import Struct

from ullage.core.model import Model

Kind = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv", "broadcast"]
Phase = Literal["prefill", "decode"]
Stage = Literal["target", "draft"]
#: bytes of one activation (bf16, fp16)
ACTIVATION = 2
#: architectures whose attention and MLP share one all-reduce a layer, in both engines' code (models/falcon.py;
#: vllm 0.32.0 models/commandr.py)
_ONE_REDUCE = ("FalconForCausalLM", "RWForCausalLM")
#: model types whose layers hold a single mixer each (attention, Mamba or MLP): one all-reduce a layer
_ONE_MIXER = ("nemotron_h",)


class Layout(Struct, frozen=True):
    """How a launch spreads a model, in words that hold for every engine (``layout.layout_of`` reads a Launch).

    ``tp`` is the size of the whole tensor-parallel group, ``dp`` the number of data-parallel ranks. With
    ``dp_attention`` attention runs on tp / dp ranks each and the MLP or experts on all of them (SGLang);
    without it ``dp`` replicas stand beside each other, and only experts join them (vLLM: ``expert_ranks``).
    ``ep`` is the resolved number of expert-parallel ranks, ``expert_ranks`` all ranks that an expert layer
    spans (tensor or expert parallel). ``a2a`` names an all-to-all dispatch of tokens to experts ("": none;
    their partial sums are then all-reduced, or gathered and scattered between data-parallel ranks).
    ``embedding_ranks`` and ``head_ranks`` share the vocabulary's tables.
    """

    tp: int = 1
    pp: int = 1
    dp: int = 1
    ep: int = 1
    dp_attention: bool = False
    a2a: str = ""
    expert_ranks: int = 1
    embedding_ranks: int = 1
    head_ranks: int = 1
    fused_norm: bool = False
    nodes: int = 1

    @property
    def attention_ranks(self) -> int:
        """Ranks that share one attention: tp, or tp / dp with DP attention."""
        return max(1, self.tp // max(1, self.dp)) if self.dp_attention else self.tp


class Draft(Struct, frozen=True):
    """What a speculating launch runs beside the target.

    ``verify_tokens`` rows of each request go through the target in a verify pass (SGLang:
    speculative_num_draft_tokens; vLLM: num_speculative_tokens + 1). The draft model, of ``num_layers`` layers
    and ``hidden_size``, runs ``steps`` forwards of ``width`` rows a request (SGLang: speculative_eagle_topk).
    ``num_layers`` 0: no draft model (n-gram). ``vocab_size`` is the draft's own head. ``tp``: its ranks.
    """

    verify_tokens: int
    steps: int = 0
    width: int = 1
    num_layers: int = 0
    hidden_size: int = 0
    vocab_size: int = 0
    tp: int = 1


class Collective(Struct, frozen=True):
    """``count`` collectives of one kind and size in one forward pass (for a draft: in all steps of one pass).

    ``bytes`` is the message as nccl-tests counts it: what one rank holds at the end (all_gather) or begins with
    (all_reduce, reduce_scatter, all_to_all, send_recv, broadcast). ``ranks`` is the size of the group. ``rows``
    are the tokens in it. ``what`` says which tensors, for people.
    """

    kind: Kind
    count: int
    bytes: int
    ranks: int
    what: str
    rows: int = 0
    stage: Stage = "target"

    @property
    def total_bytes(self) -> int:
        return self.count * self.bytes


def collectives(
    model: Model, layout: Layout, phase: Phase, num_tokens: int, *, draft: Draft | None = None,
    num_requests: int | None = None,
) -> tuple[Collective, ...]:  # fmt: skip
    """The collectives of one forward pass, largest part first; empty for one rank.

    ``num_tokens`` are the rows that one data-parallel rank feeds in: the batch in decode (times
    ``draft.verify_tokens`` in a verify pass: the caller multiplies), the prompt's chunk in prefill.
    ``num_requests`` are the requests in it (default: the rows in decode, of which a verify pass has
    verify_tokens each; 1 in prefill): the rows whose logits are wanted in prefill, and that a draft steps on.

    Kimi-K2.5 at tp 8 has 61 layers: 122 all-reduces, of 3 x 7168 x 2 = 43,008 B in a verify pass of 3 tokens.
    """
    rows = max(0, num_tokens)
    requests = num_requests or _requests(phase, rows, draft)
    found = [
        *_attention(model, layout, rows), *_mlp(model, layout, rows), *_experts(model, layout, rows),
        *_embedding(model, layout, rows), *_head(model, layout, rows if phase == "decode" else requests),
        *_pipeline(model, layout, rows), *_draft(layout, draft, phase, rows, requests),
    ]  # fmt: skip
    return tuple(item for item in _merged(found, layout) if item.count and item.ranks > 1 and item.bytes)


def per_call_us(step_us: float, count: int) -> float:
    """What one collective takes where ``count`` equal ones fill ``step_us``: 30 ms / 122 = 246 us."""
    return step_us / count if count else 0.0


def num_all_reduces(found: tuple[Collective, ...], stage: Stage = "target") -> int:
    """All-reduces inside the layers: those that the folklore counts (two a layer), without the embedding's."""
    return sum(
        c.count for c in found if c.kind == "all_reduce" and c.stage == stage and "embedding" not in c.what
    )


def _requests(phase: Phase, rows: int, draft: Draft | None) -> int:
    if phase == "prefill":
        return 1
    return max(1, rows // max(1, draft.verify_tokens)) if draft else rows


def _activations(model: Model, rows: int) -> int:
    return rows * model.hidden_size * ACTIVATION


def mixers(model: Model) -> tuple[int, int]:
    """(layers with attention or a recurrent mixer, layers with an MLP or experts)."""
    if model.model_type in _ONE_MIXER or any(layer.kind == "none" for layer in model.layers):
        without = sum(layer.kind == "none" for layer in model.layers)
        return max(0, model.num_layers - without), without
    return model.num_layers, model.num_layers


def moe_layers(model: Model) -> int:
    """Layers of experts. 0 for a dense model; where config.json does not say which, all that have an MLP."""
    if not model.num_experts:
        return 0
    total = mixers(model)[1]
    config = model.checkpoint.config if model.checkpoint is not None else {}
    inner = config.get("text_config")
    values = inner if isinstance(inner, dict) else config
    dense = values.get("first_k_dense_replace")
    listed = values.get("mlp_only_layers")
    step = values.get("decoder_sparse_step")
    if isinstance(dense, int) and 0 <= dense <= total:
        return total - dense
    if isinstance(step, int) and step > 1:
        return total // step
    return total - min(total, len(listed)) if isinstance(listed, list) else total


def _attention(model: Model, at: Layout, rows: int) -> Iterator[Collective]:
    count, mlps = mixers(model)
    if model.architecture in _ONE_REDUCE and at.tp == at.attention_ranks:
        count = 0 if mlps else count
    size = _activations(model, rows)
    yield Collective("all_reduce", count, size, at.attention_ranks, "attention output", rows)
    extra = sum(layer.state is not None and layer.state.kind == "mamba1" for layer in model.layers)
    if extra:
        yield Collective("all_reduce", extra, _mamba1(model, rows), at.attention_ranks, "Mamba x_proj", rows)


def _mamba1(model: Model, rows: int) -> int:
    """x_proj of Mamba-1: dt_rank (hidden / 16 by its default) and two states a row (mamba_mixer.py)."""
    states = next((layer.state.state_size for layer in model.layers if layer.state is not None), 16)
    return rows * (-(-model.hidden_size // 16) + 2 * states) * ACTIVATION


def _mlp(model: Model, at: Layout, rows: int) -> Iterator[Collective]:
    """Dense layers: their down projection's partial sums. With DP attention the rows of all ranks are gathered
    before and scattered behind."""
    count = mixers(model)[1] - moe_layers(model)
    yield from _gathered("MLP output", model, at, rows, count, at.tp)


def _experts(model: Model, at: Layout, rows: int) -> Iterator[Collective]:
    count = moe_layers(model)
    if not count:
        return
    if at.a2a:
        own = -(
            -rows // at.attention_ranks
        )  # the ranks of one attention share its rows; bf16 is the worst case
        size = own * max(1, model.experts_per_token) * model.hidden_size * ACTIVATION
        yield Collective("all_to_all", count, size, at.ep, "MoE dispatch", own)
        yield Collective("all_to_all", count, size, at.ep, "MoE combine", own)
        return
    yield from _gathered("MoE output", model, at, rows, count, max(at.tp, at.expert_ranks))


def _gathered(what: str, model: Model, at: Layout, rows: int, count: int, ranks: int) -> Iterator[Collective]:
    joined = ranks // max(1, at.attention_ranks)
    if joined <= 1:
        yield Collective("all_reduce", count, _activations(model, rows), ranks, what, rows)
        return
    total = rows * joined
    size = _activations(model, total)
    yield Collective("all_gather", count, size, ranks, f"rows for the {what.split()[0]}", total)
    yield Collective("reduce_scatter", count, size, ranks, what, total)


def _embedding(model: Model, at: Layout, rows: int) -> Iterator[Collective]:
    yield Collective("all_reduce", 1, _activations(model, rows), at.embedding_ranks, "embedding", rows)


def _head(model: Model, at: Layout, rows: int) -> Iterator[Collective]:
    joined = at.head_ranks // max(1, at.attention_ranks)
    total = rows * max(1, joined)
    yield Collective("all_gather", 1, total * model.vocab_size * ACTIVATION, at.head_ranks, "lm_head", total)


def _pipeline(model: Model, at: Layout, rows: int) -> Iterator[Collective]:
    """One hand-over a boundary: hidden states and residual (vllm and sglang, distributed/parallel_state.py)."""
    if at.pp > 1:
        size = 2 * _activations(model, rows)
        yield Collective("send_recv", at.pp - 1, size, 2, "pipeline stage to the next", rows)


def _draft(at: Layout, draft: Draft | None, phase: Phase, rows: int, requests: int) -> Iterator[Collective]:
    """The draft's own steps: two all-reduces a layer, the embedding's and the head's, in each step."""
    if draft is None or not draft.num_layers or draft.tp <= 1:
        return
    steps = draft.steps if phase == "decode" else 1
    stepped = requests * draft.width if phase == "decode" else rows
    size = stepped * draft.hidden_size * ACTIVATION
    count = 2 * draft.num_layers * steps
    yield Collective("all_reduce", count, size, draft.tp, "draft layers", stepped, "draft")
    yield Collective("all_reduce", steps, size, draft.tp, "draft embedding", stepped, "draft")
    wanted = stepped if phase == "decode" else requests
    logits = wanted * draft.vocab_size * ACTIVATION
    yield Collective("all_gather", steps, logits, draft.tp, "draft lm_head", wanted, "draft")


def _merged(found: list[Collective], at: Layout) -> Iterator[Collective]:
    """Equal collectives of one stage as one, in the order in which each first stands; the fused norm named."""
    groups: dict[tuple[str, int, int, str, bool], Collective] = {}
    for item in found:
        if not item.count:
            continue
        alone = "embedding" in item.what or item.kind != "all_reduce"
        key = (
            item.kind if not alone else f"{item.kind} {item.what}",
            item.bytes,
            item.ranks,
            item.stage,
            alone,
        )
        before = groups.get(key)
        groups[key] = _together(before, item) if before else item
    for item in groups.values():
        yield _named(item, at)


def _together(a: Collective, b: Collective) -> Collective:
    return Collective(a.kind, a.count + b.count, a.bytes, a.ranks, f"{a.what}, {b.what}", a.rows, a.stage)


def _named(item: Collective, at: Layout) -> Collective:
    if not at.fused_norm or item.kind != "all_reduce" or "embedding" in item.what or item.stage == "draft":
        return item
    what = f"{item.what} + residual + norm"
    return Collective(item.kind, item.count, item.bytes, item.ranks, what, item.rows, item.stage)
