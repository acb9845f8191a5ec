"""Model: what an engine needs to know of a checkpoint to size its KV cache and weights."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

LayerKind = Literal["full", "sliding", "chunked", "mla", "compressed", "linear", "none", "shared"]


class LinearState(Struct, frozen=True):
    """State of one Mamba / linear-attention layer for one request, before division by tensor parallel size.

    conv_dim x (kernel - 1) elements of convolution state; heads x head_dim x state_size of recurrent state.
    ``dtype`` is the recurrent state's as config.json names it; None: the engine decides.
    """

    kind: Literal["mamba2", "mamba1", "gdn", "kda", "short_conv", "lightning"]
    conv_dim: int
    kernel: int
    num_heads: int
    head_dim: int
    state_size: int
    num_groups: int = 0
    inner_size: int = 0
    dtype: str | None = None


class Layer(Struct, frozen=True):
    """The attention of one layer. Sizes are those of the whole model, before any sharding.

    ``full`` and ``sliding`` use kv_heads, head_dim, v_head_dim; ``mla`` uses kv_lora_rank + rope_dim and, for
    sparse attention (DSA), index_dim, with one index key for ``index_pool`` tokens; ``linear`` uses state (so
    does a ``full`` layer that runs a recurrent mixer beside its attention); ``none`` (an MLP or MoE layer of a
    hybrid) keeps nothing, nor does ``shared``, which reads another layer's cache; its sizes are those that a
    cache of its own would have. ``compressed`` (DeepSeek-V4) keeps one latent of head_dim for the last
    ``window`` tokens and one for every ``compress_ratio`` tokens (0: none).
    """

    kind: LayerKind
    kv_heads: int = 0
    head_dim: int = 0
    v_head_dim: int = 0
    window: int = 0
    kv_lora_rank: int = 0
    rope_dim: int = 0
    index_dim: int = 0
    index_pool: int = 1
    compress_ratio: int = 0
    state: LinearState | None = None


class Vision(Struct, frozen=True):
    """The vision tower as the engines' memory heuristics read it: attribute names taken literally."""

    num_hidden_layers: int | None = None
    hidden_size: int | None = None


Split = Literal["whole", "columns", "rows", "kv_heads", "vocabulary"]


class TensorGroup(Struct, frozen=True):
    """Tensors of a checkpoint that differ only in the number of their layer and expert.

    ``name`` has a {} for the layer's number where there are ``layers``, and one for the expert's where there
    are ``experts``; ``stacked`` experts are the first dimension of one tensor instead. ``dtype`` is spelled as
    safetensors does (BF16, F8_E4M3, I32), or as GGUF's types are (Q4_K). ``part`` is the line of the ledger
    it counts to; ``split`` is how tensor parallelism cuts it, if the engine cuts that part.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    part: str
    split: Split = "whole"
    layers: tuple[int, ...] = ()
    experts: int = 0
    stacked: bool = False


class Checkpoint(Struct, frozen=True):
    """What the files of a checkpoint say: config.json as read, what it does not say of the tensors (``facts``:
    see models/tensors), and the tensors themselves where their headers were read. ``assumed`` is True where the
    quantisation was guessed from the model's name."""

    config: dict[str, object] = {}
    facts: dict[str, object] = {}
    tensors: tuple[TensorGroup, ...] = ()
    assumed: bool = False

    def __repr__(self) -> str:
        return f"Checkpoint({len(self.config)} keys, {len(self.tensors)} groups of tensors)"

    def __hash__(self) -> int:
        return hash((len(self.config), self.tensors, self.assumed))


class Model(Struct, frozen=True):
    """A checkpoint's shape. None means unknown, never a default."""

    id: str
    source: str
    architecture: str | None = None
    model_type: str | None = None
    num_layers: int = 0
    hidden_size: int = 0
    num_heads: int = 0
    intermediate_size: int = 0
    vocab_size: int = 0
    max_context: int | None = None
    dtype: str | None = None
    layers: tuple[Layer, ...] = ()
    num_experts: int = 0
    experts_per_token: int = 0
    moe_intermediate_size: int = 0
    num_nextn_layers: int = 0
    tied_embeddings: bool = False
    quantization: str | None = None
    kv_quantization: str | None = None
    vision: Vision | None = None
    checkpoint_bytes: int | None = None
    parameters: int | None = None
    checkpoint: Checkpoint | None = None

    @property
    def is_mla(self) -> bool:
        return any(layer.kind == "mla" for layer in self.layers)

    @property
    def is_hybrid(self) -> bool:
        """More than one kind of cache: sliding beside full, or a recurrent state beside attention."""
        return len({layer.kind for layer in self.layers} - {"none", "shared"}) > 1
