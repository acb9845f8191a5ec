"""Builder: collects the groups of tensors of one checkpoint, layer by layer alike."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from ullage.core.model import TensorGroup
from ullage.models.fields import Fields
from ullage.models.parts import part_of
from ullage.models.stored import Storage, gguf_type

GATED = ("gate_proj", "up_proj", "down_proj")
UNGATED = ("up_proj", "down_proj")


class Source(Struct, frozen=True):
    """A config.json and what is known beside it. ``kind`` is the model type of the language model."""

    top: Fields
    text: Fields
    facts: dict[str, object]
    kind: str
    storage: Storage

    def fact(self, name: str) -> str | None:
        """A dtype or a word among the facts."""
        found = self.facts.get(name)
        return found if isinstance(found, str) else None

    def holds(self, name: str, default: bool = False) -> bool:
        found = self.facts.get(name)
        return found if isinstance(found, bool) else default

    @property
    def tied(self) -> bool:
        """As transformers resolves it: the wrapper's own word, else the text part's, else its class default."""
        found = self.top.flag("tie_word_embeddings")
        return bool(self.text.flag("tie_word_embeddings", "tie_embedding") if found is None else found)


class Builder:
    """Collects groups; ``at`` gives the place that names are relative to."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.found: list[TensorGroup] = []

    def at(self, prefix: str, layers: Sequence[int] | None = None) -> Place:
        """The place ``prefix`` ("model.layers.{}"); with ``layers``, in each of these layers."""
        return Place(self, prefix, None if layers is None else tuple(layers))


class Place:
    """A prefix, the layers that it stands in, and the number of experts under it."""

    def __init__(self, builder: Builder, prefix: str, layers: tuple[int, ...] | None, experts: int = 0) -> None:
        self.builder = builder
        self.prefix = prefix
        self.layers = layers
        self.experts = experts

    def under(self, name: str) -> Place:
        return Place(self.builder, f"{self.prefix}.{name}" if self.prefix else name, self.layers, self.experts)

    def each_expert(self, name: str, count: int) -> Place:
        """``count`` experts under ``name``: "mlp.experts" -> mlp.experts.0, .1, ..."""
        return Place(self.builder, f"{self.prefix}.{name}.{{}}", self.layers, count)

    def tensor(
        self, name: str, shape: Sequence[int], dtype: str | None = None, *, stacked: bool = False
    ) -> None:
        """A tensor that no quantisation touches. ``stacked``: its first dimension counts the experts."""
        self._put(name, dtype or self.builder.source.storage.dtype, tuple(shape), self.layers, stacked)

    def norm(self, name: str, size: int, *, bias: bool = False, dtype: str | None = None) -> None:
        self.tensor(f"{name}.weight", (size,), dtype)
        if bias:
            self.tensor(f"{name}.bias", (size,), dtype)

    def linear(self, name: str, out: int, into: int, *, bias: bool = False, plain: bool = False) -> None:
        """A linear layer of ``out`` x ``into``, stored as the checkpoint's quantisation says unless
        ``plain``."""
        storage, layers = self.builder.source.storage, self.layers
        if layers == ():
            return
        whole = f"{self.prefix}.{name}" if self.prefix else name
        if storage.gguf and not plain:
            self._mixed(name, (out, into))
        else:
            for form, at in [(None, None)] if plain else storage.forms(whole, layers or ()):
                where = layers if at is None else at
                for piece, dtype, shape in (
                    form(out, into) if form else [("weight", storage.dtype, (out, into))]
                ):
                    self._put(f"{name}.{piece}", dtype, shape, where)
        if bias:
            self._put(f"{name}.bias", storage.dtype, (out,), layers)

    def mlp(self, hidden: int, inner: int, names: Sequence[str] = GATED, **how: bool) -> None:
        """gate, up and down projections, or the two of an ungated MLP."""
        *first, last = names
        for name in first:
            self.linear(name, inner, hidden, **how)
        self.linear(last, hidden, inner, **how)

    def _mixed(self, name: str, shape: tuple[int, ...]) -> None:
        storage, last = self.builder.source.storage, name.rsplit(".", 1)[-1]
        count = self.builder.source.text.size("num_hidden_layers")
        by_type: dict[str, list[int]] = {}
        for n in self.layers or (0,):
            by_type.setdefault(gguf_type(storage.gguf, last, n, count), []).append(n)
        for dtype, layers in by_type.items():
            self._put(f"{name}.weight", dtype, shape, None if self.layers is None else tuple(layers))

    def _put(
        self,
        name: str,
        dtype: str,
        shape: tuple[int, ...],
        layers: tuple[int, ...] | None,
        stacked: bool = False,
    ) -> None:
        if layers == ():
            return
        whole = f"{self.prefix}.{name}" if self.prefix else name
        part = part_of(whole)
        self.builder.found.append(
            TensorGroup(
                whole, dtype, shape, part.part, part.split, layers or (), self.experts,
                stacked,
            )
        )  # fmt: skip
