"""The bundled catalogue: one TOML file a model in data/, named after it. Nothing is read before asked for."""

from __future__ import annotations

import re
from functools import cache
from typing import TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ullage.core.model import Checkpoint, Model
from ullage.core.tables import decode, folder_of
from ullage.models.config import from_config
from ullage.models.variants import gguf_of, quantization_of

T = TypeVar("T")
#: Endings that change how weights are stored, and nothing of the attention's shape.
_VARIANT = re.compile(
    r"[-_.](?:"
    r"(?:unsloth-)?bnb-?(?:4|8)-?bit|gptq(?:-int[48]|-[48]bit)?|awq(?:-int4|-4bit|-marlin)?|auto-?round"
    r"|(?:nv|mx)?fp[48](?:-(?:dynamic|block|kv))?|dynamic|block|int[48](?:mix)?|int[48]-int[48]mix|[48]-?bit"
    r"|w\d{1,2}a\d{1,2}|quantized|bf16|fp16|marlin|mtp|hf|mlx|exl[23]|gguf|q[2-8](?:_k(?:_[sml])?)?"
    r")$",
    re.IGNORECASE,
)
_HUB_CACHE = re.compile(r"(?:^|/)models--([\w.-]+?)--([\w.-]+)(?:/|$)")
_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}")


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
    """The model of an id, of a bare name, or of a path whose last part is one; letter case does not matter.

    The copy of another owner, and a quantised variant ("-FP8", "-AWQ", ...) of a model that is known, come back
    with the known shape and without quantisation, bytes and KV scheme; ``source`` says so.
    """
    owner, name = split(model)
    if not name:
        return None
    row = _row(name.lower())
    if row is not None:
        same = owner is None or row.id.lower() == f"{owner}/{name}".lower()
        return _model(row) if same else _shape_only(row, model, f"same name as {row.id}")
    base = name
    while (shorter := _VARIANT.sub("", base)) != base:
        base = shorter
        row = _row(base.lower())
        if row is not None:
            return _shape_only(row, model, f"a variant of {row.id}")
    return None


def split(model: str) -> tuple[str | None, str]:
    """(owner, name) of an id or path; the owner is None for a bare name or a path, name "" where there is none.

    >>> split("/models/Kimi-K2.5/")
    (None, 'Kimi-K2.5')
    >>> split("/cache/hub/models--Qwen--Qwen3-8B/snapshots/abc")
    ('Qwen', 'Qwen3-8B')
    """
    text = model.strip()[-1024:].replace("\\", "/").rstrip("/")
    cached = _HUB_CACHE.search(text)
    if cached:
        return cached[1], cached[2]
    parts = text.split("/")
    name = parts[-1] if _NAME.fullmatch(parts[-1]) else ""
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
def _twins() -> dict[str, str]:
    """Path below models/ -> compiled twin (core/tables), written by tools/compile_tables.py."""
    path = folder_of("ullage.models") / "catalogue.json"
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, str])
    except (OSError, msgspec.MsgspecError):
        return {}


def _read(name: str, kind: type[T]) -> T | None:
    path, twin = folder_of("ullage.models") / name, _twins().get(name)
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


def _renamed(plain: Checkpoint, name: str, row: Row) -> Checkpoint:
    """The checkpoint of a variant by its name: the shapes that are known, stored as the name says."""
    mix, said = gguf_of(name), quantization_of(name, plain.config)
    if mix is None and said is None:
        return replace(plain, assumed=split(row.id)[1].lower() != name.lower())
    facts = {key: plain.facts[key] for key in _SHAPE_FACTS & plain.facts.keys()}
    config = {key: value for key, value in plain.config.items() if key not in _QUANTIZATION}
    if isinstance(text := config.get("text_config"), dict):
        config["text_config"] = {key: value for key, value in text.items() if key not in _QUANTIZATION}
    if mix is not None:
        facts["gguf"] = mix
    elif said:
        config["quantization_config"] = said
    return Checkpoint(config=config, facts=facts, assumed=True)


_QUANTIZATION = {"quantization_config", "compression_config", "expert_dtype"}
_SHAPE_FACTS = {"norms", "router", "redundant_head", "own_embedding", "no_head", "mtp_embedding", "extra_norms"}


def _shape_only(row: Row, asked: str, because: str) -> Model:
    model, name = _model(row), split(asked)[1]
    return replace(
        model,
        id=asked.strip()[-1024:],
        source=f"catalogue: {because}, shape only; quantisation and size of the files unknown",
        quantization=None,
        kv_quantization=None,
        checkpoint_bytes=None,
        checkpoint=_renamed(model.checkpoint, name, row) if model.checkpoint else None,
    )
