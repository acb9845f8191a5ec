"""LoRA: the buffers that SGLang keeps for the adapters of a batch, allocated between the weights and the pool.

For each slot, layer and target module: A of stacked x rank x inputs, B of outputs x rank, in the model's dtype.
A is cut where the inputs are (o_proj, down_proj), B where the outputs are. Read: sglang 0.4.3..0.5.23,
lora/mem_pool (init_buffers) and lora/utils (get_hidden_dim); model_runner (init_lora_manager before
init_memory_pool, every release), so that the pool is what is left beside them.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from ullage.core.deployment import Deployment
from ullage.core.errors import InputError
from ullage.core.launch import Launch
from ullage.core.ledger import Entry
from ullage.core.model import Model
from ullage.engines.runtime.loading import fields_of
from ullage.engines.sglang.cells import main_layer
from ullage.engines.sglang.layout import Layout, count, layout
from ullage.engines.sglang.settings import at_least

SOURCE = "sglang 0.4.3 to 0.5.23, lora/mem_pool, init_buffers"
NAME = "LoRA buffers"
#: --max-loras-per-batch where none is given
SLOTS = 8
#: ranks of public adapters, where --max-lora-rank does not say the largest: likely, least, most
RANKS = (16, 4, 128)
ATTENTION = frozenset({"qkv_proj", "o_proj"})
ALL = ATTENTION | {"gate_up_proj", "down_proj"}
_MLA = frozenset({"fused_qkv_a_proj_with_mqa", "q_b_proj", "kv_b_proj", "o_proj", "gate_up_proj", "down_proj"})
#: names that share a buffer (get_normalized_target_modules)
_NORMAL = {
    "q_proj": "qkv_proj", "k_proj": "qkv_proj", "v_proj": "qkv_proj",
    "gate_proj": "gate_up_proj", "up_proj": "gate_up_proj",
    "q_a_proj": "fused_qkv_a_proj_with_mqa", "kv_a_proj_with_mqa": "fused_qkv_a_proj_with_mqa",
    "embeddings": "embed_tokens", "word_embeddings": "embed_tokens", "output": "lm_head",
}  # fmt: skip


class Module(Struct, frozen=True):
    """One linear layer that adapters may change: A is ``stacked`` x rank x ``inputs``, B ``outputs`` x rank,
    as a rank holds them, ``copies`` times (layers x experts)."""

    inputs: int
    outputs: int
    copies: int
    stacked: int = 1

    @property
    def per_rank(self) -> int:
        """Elements for one slot of rank one."""
        return (self.stacked * self.inputs + self.outputs) * self.copies


def used(launch: Launch) -> bool:
    return launch.flag("enable_lora") or bool(launch.get("lora_paths"))


def targets(launch: Launch, model: Model) -> frozenset[str] | None:
    """The modules of --lora-target-modules by their buffers' names; None where the adapters decide."""
    given = launch.get("lora_target_modules")
    words = given if isinstance(given, list) else [given] if isinstance(given, str) else []
    names = [str(word).rsplit(".", 1)[-1] for word in words[:64]]
    if not names:
        return None
    everything = _MLA if model.is_mla else ALL
    return everything if {"all", "all-linear"} & {*names} else frozenset(_NORMAL.get(n, n) for n in names)


def modules(model: Model, at: Layout, wanted: frozenset[str]) -> Iterator[Module]:
    """What the buffers are made for. Every pipeline stage has those of all layers."""
    yield from _attention(model, at, wanted)
    experts = model.num_experts if model.num_experts and at_least(at.release, "0.5.10") else 0
    if not experts:
        yield from _mlp(model.hidden_size, model.intermediate_size, at.tp, model.num_layers, wanted)
        return
    # 0.5.10..: a buffer an expert, and one for the shared ones
    local = experts // at.ep if at_least(at.release, "0.5.12") else experts
    ways = max(1, at.tp // at.ep)
    yield from _mlp(model.hidden_size, model.moe_intermediate_size, ways, model.num_layers * local, wanted)
    fields = fields_of(model)
    if fields is not None:
        width = fields.size("shared_expert_intermediate_size")
        width = width or fields.size("n_shared_experts") * model.moe_intermediate_size
        yield from _mlp(model.hidden_size, width, at.tp, model.num_layers if width else 0, wanted)


def _mlp(hidden: int, inner: int, ways: int, copies: int, wanted: frozenset[str]) -> Iterator[Module]:
    if "gate_up_proj" in wanted:
        yield Module(hidden, 2 * inner // ways, copies, 2)
    if "down_proj" in wanted:
        yield Module(inner // ways, hidden, copies)


def _attention(model: Model, at: Layout, wanted: frozenset[str]) -> Iterator[Module]:
    layer, hidden = main_layer(model), model.hidden_size
    if layer is None:
        return
    if layer.kind == "mla":
        yield from _latent(model, at, wanted)
        return
    queries = model.num_heads * layer.head_dim
    keys = layer.kv_heads * layer.head_dim * 2 // at.attn_tp
    if at_least(at.release, "0.5.12"):
        keys = max(keys, 2 * layer.head_dim)  # fewer heads than ranks: each rank has one
    if "qkv_proj" in wanted:
        yield Module(hidden, queries // at.attn_tp + keys, model.num_layers, 3)
    if "o_proj" in wanted:
        yield Module(queries // at.attn_tp, hidden, model.num_layers)


def _latent(model: Model, at: Layout, wanted: frozenset[str]) -> Iterator[Module]:
    """The projections of MLA (0.5.12..); the first ones are whole on every rank."""
    fields = fields_of(model)
    if fields is None or not at_least(at.release, "0.5.12"):
        return
    query, rope = fields.size("q_lora_rank"), fields.size("qk_rope_head_dim")
    latent, heads = fields.size("kv_lora_rank"), model.num_heads
    plain, value = fields.size("qk_nope_head_dim"), fields.size("v_head_dim")
    found = {
        "fused_qkv_a_proj_with_mqa": Module(model.hidden_size, query + latent + rope, model.num_layers, 2),
        "q_b_proj": Module(query, heads * (plain + rope) // at.attn_tp, model.num_layers),
        "kv_b_proj": Module(latent, heads * (plain + value) // at.attn_tp, model.num_layers),
        "o_proj": Module(heads * value // at.attn_tp, model.hidden_size, model.num_layers),
    }
    yield from (module for name, module in found.items() if name in wanted)


def _ends(model: Model, wanted: frozenset[str]) -> Iterator[Module]:
    """Embedding and head, whole on every rank."""
    for name in wanted & {"embed_tokens", "lm_head"}:
        ends = (model.vocab_size, model.hidden_size)
        yield Module(*(ends if name == "embed_tokens" else ends[::-1]), 1)


def _elements(model: Model, at: Layout, wanted: frozenset[str]) -> int:
    try:
        return sum(module.per_rank for module in (*modules(model, at, wanted), *_ends(model, wanted)))
    except InputError:
        return 0


def lora_buffers(deployment: Deployment) -> Entry | None:
    """The adapter slots of one rank; None without LoRA. Exact where rank and targets are given; else the
    adapters decide, which are not read: a likely rank, from attention alone to all linear layers."""
    launch, model = deployment.launch, deployment.model
    if model is None or not model.num_layers or not used(launch):
        return None
    at, slots = layout(deployment), min(count(launch, "max_loras_per_batch") or SLOTS, 4096)
    each = slots * (4 if at.dtype in ("float32", "float") else 2)
    wanted, rank = targets(launch, model), count(launch, "max_lora_rank")
    everything = _MLA if model.is_mla else ALL
    most = _elements(model, at, wanted if wanted is not None else everything) * each
    least = most if wanted is not None else _elements(model, at, ATTENTION) * each
    if not most:
        return None
    if rank and wanted is not None:
        return Entry.exact("kv_pool", NAME, most * rank, SOURCE)
    likely, low, high = (rank, rank, rank) if rank else RANKS
    return Entry(
        "kv_pool", NAME, most * likely, least * low, most * high, "estimated",
        f"{SOURCE}; the adapters' rank and targets are not known: give --max-lora-rank, --lora-target-modules",
    )  # fmt: skip
