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
from ullage.models.catalogue import beside

#: settings that name a draft model, and the objects that hold one
_DRAFTS = ("speculative_draft_model_path", "speculative_draft_model", "speculative_model")
_CONFIG = "speculative_config"


class Known(Struct, frozen=True):
    """A launch's model, None where nobody knows it; ``note`` says what kept a better source away."""

    model: Model | None
    note: str | None = None


def model_of(launch: Launch, folder: str | None = None, *, hub: bool = False) -> Known:
    """The model from --model-dir, else from the first of these that has it: a folder of its name, the user's
    own cache, the catalogue by the exact id, the hub (asked over the network only with ``hub``), the catalogue
    by a like name. A GGUF file is read by its header. The draft model that the launch names is read likewise,
    and
    then known to the catalogue. Raises InputError where a folder's files cannot be read, or the hub has no such
    model."""
    draft, note = _draft_of(launch, hub)
    beside(draft)
    known = _model_of(launch, folder, hub)
    return replace(known, note=known.note or note) if note else known


def _model_of(launch: Launch, folder: str | None, hub: bool) -> Known:
    if folder is not None and models.is_gguf(folder):
        return Known(models.from_gguf(folder))
    if folder is not None:
        return Known(models.from_directory(folder))
    name = launch.model
    if not name:
        return Known(None)
    if models.is_gguf(name):
        return Known(models.from_gguf(name))
    if models.is_checkpoint(name):
        return Known(models.from_directory(name))
    if name.startswith("<") and launch.get("quantization"):
        name = name.strip("<> ")  # quantised while loading: the files themselves are plain
        return Known(_guessed(models.find(name)))
    if not places.is_hub_id(name):
        return Known(models.find(name))
    return _of_id(name, launch.text("revision"), hub)


def _guessed(model: Model | None) -> Model | None:
    if model is None or not model.source.startswith("catalogue:") or "shape only" in model.source:
        return model
    return replace(model, source=f"{model.source}, shape only: the launch has a placeholder in its place")


def draft_name(launch: Launch) -> str | None:
    """The draft model that a launch names, by whichever flag its engine has for it."""
    inner = launch.get(_CONFIG)
    named = [inner.get("model") if isinstance(inner, dict) else None, *(launch.get(flag) for flag in _DRAFTS)]
    return next((name for name in named if isinstance(name, str) and name and name != launch.model), None)


def _draft_of(launch: Launch, hub: bool) -> tuple[dict[str, Model], str | None]:
    """The draft by its name where a folder, the user's cache or the hub has it; {} leaves it to the catalogue.
    What
    keeps it away is a note: a draft that is not known costs a band, not the plan."""
    name = draft_name(launch)
    if name is None:
        return {}, None
    try:
        if models.is_checkpoint(name):
            return {name: models.from_directory(name)}, None
        if not places.is_hub_id(name):
            return {}, None
        known = _of_id(name, None, hub)
    except InputError as error:
        return {}, f"the draft model: {error.line}"
    model = known.model
    if model is None or model.source.startswith("catalogue:"):
        return {}, f"the draft model: {known.note}" if known.note and model is None else None
    return {name: model}, None


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
