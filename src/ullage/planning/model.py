"""The model of a launch: a folder here, the user's Hugging Face cache, the bundled catalogue, the hub."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from ullage.core.errors import InputError
from ullage.core.launch import Launch
from ullage.core.model import Model
from ullage.models import hub_places as places
from ullage.models import load as models


class Known(Struct, frozen=True):
    """A launch's model, None where nobody knows it; ``note`` says what kept a better source away."""

    model: Model | None
    note: str | None = None


def model_of(launch: Launch, folder: str | None = None, *, hub: bool = False) -> Known:
    """The model from --model-dir, else from the first of these that has it: a folder of its name, the user's
    own cache, the catalogue by the exact id, the hub (asked over the network only with ``hub``), the catalogue
    by a like name. Raises InputError where a folder's files cannot be read, or the hub has no such model."""
    if folder is not None:
        return Known(models.from_directory(folder))
    name = launch.model
    if not name:
        return Known(None)
    if models.is_checkpoint(name):
        return Known(models.from_directory(name))
    if not places.is_hub_id(name):
        return Known(models.find(name))
    return _of_id(name, launch.text("revision"), hub)


def _of_id(name: str, revision: str | None, hub: bool) -> Known:
    cached = _complete(places.snapshot(name, revision), name)
    if cached is not None:
        return Known(cached)
    known = models.find(name)
    if known is not None and "shape only" not in known.source:
        return Known(known)
    if Path(name).exists():
        return Known(known)
    try:
        found = _fetched(name, revision, hub)
    except InputError as error:
        if known is None:
            raise
        return Known(known, error.line)
    return found if found.model else Known(known, found.note)


def _complete(kept: places.Kept | None, name: str) -> Model | None:
    """The model of a cached copy; None where its weights are not all there."""
    if kept is None:
        return None
    try:
        model = models.from_directory(kept.folder)
    except InputError:
        return None
    return replace(model, id=name, source=kept.source) if model.checkpoint_bytes is not None else None


def _fetched(name: str, revision: str | None, hub: bool) -> Known:
    from ullage.models.hub import fetch, source

    notes: list[str] = []
    folder = fetch(name, revision=revision, online=hub, note=notes.append)
    note = notes[0] if notes else None
    if folder is None:
        return Known(None, note)
    return Known(replace(models.from_directory(folder), id=name, source=source(folder, name)), note)
