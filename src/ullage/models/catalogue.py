"""The bundled catalogue: one TOML file a model in data/, named after it. Nothing is read before asked for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextvars import ContextVar
from functools import cache
from typing import TYPE_CHECKING, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ullage.core.model import Checkpoint, Model
from ullage.core.patterns import lazy
from ullage.core.tables import decode, folder_of
from ullage.models.config import from_config
from ullage.models.variants import gguf_of, guess

if TYPE_CHECKING:
    from ullage.models.naming import Words

T = TypeVar("T")
#: Endings that change how weights are stored, and nothing of the attention's shape.
_VARIANT = lazy(
    r"[-_.](?:"
    r"(?:unsloth-)?bnb-?(?:4|8)-?bit|gptq(?:-int[48]|-[48]bit)?|awq(?:-int4|-4bit|-marlin)?|auto-?round"
    r"|(?:nv|mx)?fp[48](?:-(?:dynamic|block|kv))?|dynamic|block|int[48](?:mix)?|int[48]-int[48]mix|[48]-?bit"
    r"|w\d{1,2}a\d{1,2}|quantized|bf16|fp16|marlin|mtp|hf|mlx|exl[23]|gguf|q[2-8](?:_k(?:_[sml])?)?"
    r")$",
    re.IGNORECASE,
)
_HUB_CACHE = lazy(r"(?:^|/)models--([\w.-]+?)--([\w.-]+)(?:/|$)")
_NAME = lazy(r"[A-Za-z0-9][\w.-]{0,95}(?: [\w.,()+-]{1,40}){0,12}")
#: parts of a path that say where a model lies and not which
_PLACE = lazy(
    r"[0-9a-f]{7,64}|main|master|snapshots?|latest|models?|weights?|hf|checkpoints?|final|v?\d{1,2}",
    re.IGNORECASE,
)


class Row(Struct, frozen=True, forbid_unknown_fields=True):
    """A file of data/. ``config`` holds the keys of config.json that bear on shapes; ``same_as`` names another
    model of the catalogue whose config holds here too, with ``config`` laid over it; ``side`` is modelopt's
    hf_quant_config.json."""

    id: str
    source: str
    checkpoint_bytes: int | None = None
    parameters: int | None = None
    same_as: str | None = None
    config: dict[str, object] = {}
    side: dict[str, object] | None = None


class Beside(Struct, frozen=True, forbid_unknown_fields=True):
    """A file of checkpoints/, by the name of a row: keys of config.json that bear on the weights alone, laid
    over the row's, and ``facts`` that config.json does not say (models/tensors)."""

    config: dict[str, object] = {}
    facts: dict[str, object] = {}


def find(model: str) -> Model | None:
    """The model of an id, of a bare name, of a path one of whose parts is one, or of a description that names
    one
    ("<Qwen2.5-72B>"); letter case does not matter.

    The copy of another owner, a quantised variant ("-FP8", "-AWQ", ...) and a fine-tune of a model that is
    known
    come back with the known shape and without quantisation, bytes and KV scheme; ``source`` says so.
    """
    own = _READ.get().get(model)
    if own is not None:
        return own
    owner, name = split(model)
    if not name:
        return None
    row = _row(name.lower())
    if row is not None and model.lstrip().startswith("<"):
        return _shape_only(row, model, name, f"a checkpoint of {row.id}")
    if row is not None:
        same = owner is None or row.id.lower() == f"{owner}/{name}".lower()
        return _model(row) if same else _shape_only(row, model, name, f"same name as {row.id}")
    row = _base_of(name)
    return _shape_only(row, model, name, f"a variant of {row.id}") if row is not None else None


_NONE: Mapping[str, Model] = {}


def exact(model: str) -> Model | None:
    """The model of an id that has a row of its own; no variant and no copy."""
    owner, name = split(model)
    row = _row(name.lower()) if name else None
    same = row is not None and (owner is None or row.id.lower() == f"{owner}/{name}".lower())
    return _model(row) if row is not None and same else None


#: models that a plan read itself (a draft in a folder, in the user's cache, on the hub): they come before the
#: rows
_READ: ContextVar[Mapping[str, Model]] = ContextVar("read", default=_NONE)


def beside(models: Mapping[str, Model]) -> None:
    """Lets ``find`` know ``models`` by the names that a launch has for them, in place of those it knew before:
    in
    this context (thread or task) alone."""
    _READ.set(dict(models))


def _base_of(name: str) -> Row | None:
    """The row that ``name`` is a variant of: without its endings, else by its words (models/naming)."""
    base = name.replace(" ", "-")
    while (shorter := _VARIANT.sub("", base)) != base:
        base = shorter
        row = _row(base.lower())
        if row is not None:
            return row
    from ullage.models.naming import nearest

    found = nearest(name, _named(), _shape)
    return _row(found) if found is not None else None


@cache
def _named() -> Mapping[str, Words]:
    """The words of every row's name, without reading one row."""
    from ullage.models.naming import Words, words

    index = _twin("index")
    if index is not None:
        return msgspec.json.decode(index, type=dict[str, Words])
    return {path.stem: words(path.stem) for path in (folder_of("ullage.models") / "data").glob("*.toml")}


def _shape(name: str) -> str:
    """What tells the shape of a row from another's."""
    row = _row(name)
    config = _config(row) if row is not None else {}
    inner = next((found for part in _TEXT if isinstance(found := config.get(part), dict)), config)
    return repr([inner.get(key) for key in _SHAPE])


_TEXT = ("text_config", "llm_config")
_SHAPE = (
    "hidden_size", "num_hidden_layers", "layers_block_type", "hybrid_override_pattern", "vocab_size",
    "intermediate_size",
    "moe_intermediate_size", "n_routed_experts", "num_experts", "num_local_experts", "num_attention_heads",
    "layer_types",
)  # fmt: skip


def split(model: str) -> tuple[str | None, str]:
    """(owner, name) of an id or path; the owner is None for a bare name or a path, name "" where there is none.

    >>> split("/models/Kimi-K2.5/")
    (None, 'Kimi-K2.5')
    >>> split("/cache/hub/models--Qwen--Qwen3-8B/snapshots/abc")
    ('Qwen', 'Qwen3-8B')
    >>> split("<Qwen3.6-27B INT4>")
    (None, 'Qwen3.6-27B INT4')
    """
    text = model.strip(" \t<>\"'`")[-1024:].replace("\\", "/").rstrip("/")
    cached = _HUB_CACHE.search(text)
    if cached:
        return cached[1], cached[2]
    parts = text.split("/")
    while len(parts) > 1 and _PLACE.fullmatch(parts[-1]):
        parts.pop()
    last = parts[-1].replace(":", "-").removesuffix(".gguf") if len(parts[-1]) > 1 else ""
    name = last if _NAME.fullmatch(last) else ""
    return (parts[0] if len(parts) == 2 and _NAME.fullmatch(parts[0]) else None), name


def ids() -> list[str]:
    """Every id of the catalogue: reads all of it, so for lists and tests only."""
    names = sorted(
        path.name for path in (folder_of("ullage.models") / "data").iterdir() if path.name.endswith(".toml")
    )
    return [row.id for name in names if (row := _row(name.removesuffix(".toml"))) is not None]


class _Twin(Struct, frozen=True):
    """A file's compiled twin, out of the one file that holds them all."""

    name: str
    text: str

    def read_bytes(self) -> bytes:
        return self.text.encode()


@cache
def _twins() -> dict[str, msgspec.Raw]:
    """Path below models/ -> compiled twin (core/tables) as a JSON text, written by tools/compile_tables.py.
    Each is
    decoded when it is asked for: most plans need one."""
    path = folder_of("ullage.models") / "catalogue.json"
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, msgspec.Raw])
    except (OSError, msgspec.MsgspecError):
        return {}


def _twin(name: str) -> str | None:
    found = _twins().get(name)
    try:
        return msgspec.json.decode(found, type=str) if found is not None else None
    except msgspec.MsgspecError:
        return None


def _read(name: str, kind: type[T]) -> T | None:
    path, twin = folder_of("ullage.models") / name, _twin(name)
    if not path.is_file():
        return None
    return decode(path, kind, _Twin(name, twin) if twin is not None else None)


@cache
def _row(name: str) -> Row | None:
    return _read(f"data/{name}.toml", Row)


def _config(row: Row, depth: int = 4) -> dict[str, object]:
    base = _row(split(row.same_as)[1].lower()) if row.same_as and depth else None
    return {**(_config(base, depth - 1) if base else {}), **row.config}


def _model(row: Row) -> Model:
    model = from_config(_config(row), id=row.id, source=f"catalogue: {row.source}", side=row.side)
    return replace(
        model,
        checkpoint_bytes=row.checkpoint_bytes,
        parameters=row.parameters,
        checkpoint=_checkpoint(row),
    )


@cache
def _beside(name: str) -> Beside | None:
    return _read(f"checkpoints/{name}.toml", Beside)


def _checkpoint(row: Row) -> Checkpoint:
    config = _config(row)
    facts: dict[str, object] = {"side": row.side} if row.side else {}
    chain, depth = [row], 4
    while chain[-1].same_as and depth and (base := _row(split(chain[-1].same_as)[1].lower())):
        chain, depth = [*chain, base], depth - 1
    for member in reversed(chain):
        beside = _beside(split(member.id)[1].lower())
        if beside is not None:
            config, facts = merged(config, beside.config), {**facts, **beside.facts}
    return Checkpoint(config=config, facts=facts)


def merged(base: dict[str, object], over: dict[str, object]) -> dict[str, object]:
    """``base`` with ``over`` laid on it, object by object."""
    found = dict(base)
    for key, value in over.items():
        below = found.get(key)
        found[key] = merged(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return found


def _renamed(plain: Checkpoint, name: str, row: Row, owner: str | None = None) -> Checkpoint:
    """The checkpoint of a variant by its name and owner: the shapes that are known, stored as the name says."""
    mix, found, (maker, own) = gguf_of(name), guess(name, plain.config, owner), split(row.id)
    as_known = found is None or (found == guess(own, plain.config, maker) and not _more_mtp(name, own))
    if mix is None and as_known:
        return replace(plain, assumed=own.lower() != name.lower())
    facts = {key: plain.facts[key] for key in _SHAPE_FACTS & plain.facts.keys()}
    config = {key: value for key, value in plain.config.items() if key not in _QUANTIZATION}
    if isinstance(text := config.get("text_config"), dict):
        config["text_config"] = {key: value for key, value in text.items() if key not in _QUANTIZATION}
    if mix is not None:
        facts["gguf"] = mix
    elif found is not None:
        facts["band"] = list(found.band)
        if found.value is not None:
            facts["value"] = found.value
        if found.config:
            config["quantization_config"] = found.config
        if found.forms:
            facts["forms"] = found.forms
    return Checkpoint(config=config, facts=facts, assumed=True)


def _more_mtp(name: str, own: str) -> bool:
    """True if a copy says that its MTP layer is quantised too, and the row's own name does not."""
    return "mtp" in name.lower() and "mtp" not in own.lower()


_QUANTIZATION = {"quantization_config", "compression_config", "expert_dtype"}
_SHAPE_FACTS = {"norms", "router", "redundant_head", "own_embedding", "no_head", "mtp_embedding", "extra_norms"}


def _stored(name: str, checkpoint: Checkpoint | None, owner: str | None = None) -> str:
    """In words, how the files are taken to be stored."""
    if checkpoint is None or "band" not in checkpoint.facts:
        return "quantisation and size of the files unknown"
    found = guess(name, checkpoint.config, owner)
    if found is None:
        return "a placeholder, which may stand for a quantised copy"
    return f"its files are guessed by the name ({found.source})"


#: a placeholder without a word of storage may stand for a 4-bit copy as well
_PLACEHOLDER = (0.72, 0.02)


def _shape_only(row: Row, asked: str, name: str, because: str) -> Model:
    model = _model(row)
    owner = split(asked)[0]
    checkpoint = _renamed(model.checkpoint, name, row, owner) if model.checkpoint else None
    if checkpoint and asked.lstrip().startswith("<") and "gguf" not in checkpoint.facts:
        facts = {"band": [*_PLACEHOLDER], **checkpoint.facts}
        checkpoint = replace(checkpoint, facts=facts, assumed=True)
    return replace(
        model,
        id=asked.strip()[-1024:],
        source=f"catalogue: {because}, shape only; {_stored(name, checkpoint, owner)}",
        quantization=None,
        kv_quantization=None,
        checkpoint_bytes=None,
        checkpoint=checkpoint,
    )
