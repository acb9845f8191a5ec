"""Where models come from: a config.json, a checkpoint's folder, or the bundled catalogue. Reads files only."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from ullage.core.errors import InputError
from ullage.core.model import Checkpoint, Model, TensorGroup
from ullage.models.catalogue import exact as exact
from ullage.models.catalogue import find as find_in_catalogue
from ullage.models.config import from_config as from_config

if TYPE_CHECKING:
    from ullage.models.headers import Totals

#: The largest JSON files that are read: a config.json takes some KB, an index of 208,550 tensors 20 MB.
MOST_CONFIG_BYTES = 16 << 20
MOST_INDEX_BYTES = 64 << 20
_INDEX = "model.safetensors.index.json"


class _Index(msgspec.Struct):
    """model.safetensors.index.json: which file holds which tensor."""

    weight_map: dict[str, str]
    metadata: dict[str, object] = {}


def find(model: str, *, local: bool = False) -> Model | None:
    """The model of an id ("moonshotai/Kimi-K2.5"), or of a path's last part; None where it is not known.

    ``local`` lets a folder of that name on this machine come first: right for a launch command typed here,
    wrong for a path in somebody's log.
    """
    if local and is_checkpoint(model):
        return from_directory(model)
    return find_in_catalogue(model)


def is_checkpoint(path: str) -> bool:
    """True if ``path`` is a folder with a config.json."""
    try:
        return (Path(path) / "config.json").is_file()
    except (OSError, ValueError):
        return False


def is_gguf(path: str) -> bool:
    """True if ``path`` is a file of that ending."""
    try:
        return path.endswith(".gguf") and Path(path).is_file()
    except (OSError, ValueError):
        return False


def from_gguf(path: str | Path) -> Model:
    """The model in a GGUF file. Raises InputError where its header is not what it should be."""
    from ullage.models.gguf import from_gguf as read

    return read(path)


def from_directory(path: str | Path) -> Model:
    """The model in a folder: config.json, modelopt's hf_quant_config.json, and the safetensors headers for
    checkpoint_bytes and parameters (None where the folder holds no weights).

    Raises InputError naming the file where one cannot be read as what it should be.
    """
    folder = Path(path)
    config = _object(folder / "config.json")
    side = folder / "hf_quant_config.json"
    model = from_config(
        config,
        id=folder.name or str(folder),
        source=str(folder / "config.json"),
        side=_object(side) if side.is_file() else None,
    )
    found, stored = _weights(folder, 4 if (model.quantization or "").endswith(("gptq 8", "w8a16")) else 8)
    facts: dict[str, object] = {"side": _object(side)} if side.is_file() else {}
    model = replace(model, checkpoint=Checkpoint(config, facts, stored))
    return (
        replace(model, checkpoint_bytes=found.checkpoint_bytes, parameters=found.parameters) if found else model
    )


def _object(path: Path) -> dict[str, object]:
    try:
        return msgspec.json.decode(_bytes(path, MOST_CONFIG_BYTES), type=dict[str, object])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"not a JSON object: {error}", where=str(path)) from error


def _bytes(path: Path, most: int) -> bytes:
    try:
        if not path.is_file():
            raise InputError("no such file", where=str(path), hint="give the folder that holds config.json")
        size = path.stat().st_size
        if size > most:
            raise InputError(f"{size} bytes, where at most {most} are read", where=str(path))
        with path.open("rb") as stream:
            return stream.read(most)
    except (OSError, ValueError) as error:
        raise InputError(f"cannot be read: {error}", where=str(path)) from error


def _weights(folder: Path, packed: int) -> tuple[Totals | None, tuple[TensorGroup, ...]]:
    """What the headers of the folder's safetensors files add up to, and their tensors in groups; None and ()
    where there are no such files."""
    from ullage.models.headers import Totals, read_header, totals
    from ullage.models.named import Gathered

    found, gathered = Totals(), Gathered()
    for shard in _shards(folder):
        try:
            with shard.open("rb") as stream:
                header = read_header(stream, str(shard))
        except OSError as error:
            raise InputError(f"cannot be read: {error}", where=str(shard)) from error
        found = found.plus(totals(header.items(), packed))
        gathered.add(header.items())
    return (found, gathered.groups()) if found.num_tensors else (None, ())


def _shards(folder: Path) -> Iterator[Path]:
    """The files of the index where there is one, else model.safetensors, else all *.safetensors but Mistral's
    consolidated ones, which hold the same weights again."""
    index = folder / _INDEX
    if index.is_file():
        yield from _indexed(folder, index)
    elif (folder / "model.safetensors").is_file():
        yield folder / "model.safetensors"
    else:
        try:
            names = sorted(path for path in folder.glob("*.safetensors") if path.is_file())
        except OSError as error:
            raise InputError(f"cannot be read: {error}", where=str(folder)) from error
        yield from [path for path in names if not path.name.startswith("consolidated")] or names


def _indexed(folder: Path, index: Path) -> list[Path]:
    shards = [folder / name for name in index_names(_bytes(index, MOST_INDEX_BYTES), str(index))]
    missing = [shard.name for shard in shards if not shard.is_file()]
    if missing and len(missing) < len(shards):
        raise InputError(
            f"{len(missing)} of its {len(shards)} files are missing, {missing[0]} first",
            where=str(index),
            hint="finish the download",
        )
    return [] if missing else shards


def index_names(data: bytes, where: str) -> list[str]:
    """The files that a model.safetensors.index.json names, each once, all in its own folder."""
    try:
        names = set(msgspec.json.decode(data, type=_Index).weight_map.values())
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"not an index of safetensors files: {error}", where=where) from error
    return [name for name in sorted(names) if _plain_name(name, where)]


def _plain_name(name: str, where: str) -> bool:
    if name in ("", ".", "..") or name != Path(name).name or "\0" in name or len(name) > 255:
        raise InputError(f"names a file outside its folder: {name[:80]!r}", where=where)
    return True
