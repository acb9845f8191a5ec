"""Where a hub's models lie on this machine, and what the environment says of the hub. No network.

The variables and folders are those of huggingface_hub 0.36, constants.py and file_download.py.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from msgspec import Struct

from ullage.core.errors import InputError

#: a refs file holds a commit's hash, a token is some 40 letters: whatever is longer is something else
MOST_NOTE_BYTES = 4096
# compiled when first used: every plan imports this module, and most need one of them
_ID = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,95}/[A-Za-z0-9][A-Za-z0-9_.-]{0,95}"
_REVISION = r"[A-Za-z0-9][A-Za-z0-9_./-]{0,127}"
_COMMIT = r"[0-9a-f]{40,64}"
_TOKEN = r"[!-~]{1,512}"
_HOST = r"https?://([A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?(/[A-Za-z0-9_.~-]+)*/*"


class Kept(Struct, frozen=True):
    """A folder that from_directory can read, and what it is a copy of, in words."""

    folder: Path
    source: str


def is_hub_id(text: str) -> bool:
    """True for owner/name as the hub has them, and so for no path that leaves its folder."""
    return (
        re.fullmatch(_ID, text) is not None
        and not any(part in text for part in ("..", "--"))
        and not text.endswith((".git", ".ipynb", ".gguf", ".", "-"))
    )


def revision_of(text: str | None) -> str:
    """The revision asked for, "main" where none is. Raises InputError where it is no name of one."""
    if text is None:
        return "main"
    if not re.fullmatch(_REVISION, text) or ".." in text or "//" in text or text.endswith(("/", ".lock")):
        raise InputError(f"not a revision of a model: {text[:80]!r}", where="--revision")
    return text


def is_commit(text: str) -> bool:
    return re.fullmatch(_COMMIT, text) is not None


def offline() -> bool:
    """True where the environment forbids the network, by the hub client's own variables or ours."""
    names = ("ULLAGE_OFFLINE", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    return any(_true(os.environ.get(name)) for name in names)


def endpoint() -> str:
    """HF_ENDPOINT, or the public hub; without a slash at its end. Raises InputError for what is no address."""
    text = (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").strip()
    found = re.fullmatch(_HOST, text)
    if found is None:
        # the address is not shown: people put passwords into it
        raise InputError(
            "not the address of a hub", where="HF_ENDPOINT",
            hint="write it as https://host[:port]; a token belongs into HF_TOKEN",
        )  # fmt: skip
    return text.rstrip("/")


def token() -> str | None:
    """The user's token: HF_TOKEN, then the file that `hf auth login` writes. Raises InputError where it cannot
    be sent; the text is never part of a message."""
    if _true(os.environ.get("HF_HUB_DISABLE_IMPLICIT_TOKEN")):
        return None
    said = os.environ.get("HF_TOKEN") or os.environ.get("HUGGING_FACE_HUB_TOKEN")
    where = "HF_TOKEN"
    if not said:
        path = os.environ.get("HF_TOKEN_PATH")
        where = path or "the Hugging Face token file"
        said = _note(_expanded(path) if path else _hf_home() / "token")
    said = (said or "").strip()
    if said and not re.fullmatch(_TOKEN, said):
        raise InputError("does not hold a token", where=where)
    return said or None


def snapshot(model: str, revision: str | None = None) -> Kept | None:
    """The copy of a model in the user's own Hugging Face cache; None where there is none of this revision."""
    if not is_hub_id(model):
        return None
    repository = _hub_cache() / f"models--{model.replace('/', '--')}"
    wanted = revision_of(revision)
    commit = wanted if is_commit(wanted) else (_note(repository / "refs" / wanted) or "").strip()
    if not is_commit(commit):
        return None
    folder = repository / "snapshots" / commit
    found = _is_file(folder / "config.json")
    return Kept(folder, f"Hugging Face cache: {model} at {commit[:12]}") if found else None


def own_folder(model: str, revision: str) -> Path:
    """Where ullage keeps what it read of a model: <cache>/ullage/models/<owner>/<name>/<revision>."""
    return _cache_home() / "ullage" / "models" / model / revision.replace("/", "%2F")


def _cache_home() -> Path:
    said = os.environ.get("XDG_CACHE_HOME")
    return Path(said) if said and os.path.isabs(said) else _home() / ".cache"  # noqa: PTH117


def _hf_home() -> Path:
    said = os.environ.get("HF_HOME")
    return _expanded(said) if said else _cache_home() / "huggingface"


def _hub_cache() -> Path:
    said = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
    return _expanded(said) if said else _hf_home() / "hub"


def _home() -> Path:
    return _expanded("~")


def _expanded(path: str) -> Path:
    # unlike Path.expanduser and Path.home, never raises
    return Path(os.path.expanduser(path))  # noqa: PTH111


def _true(text: str | None) -> bool:
    return (text or "").strip().upper() in ("1", "ON", "YES", "TRUE")


def _note(path: Path) -> str | None:
    """The text of a small file; None where there is none."""
    try:
        if not path.is_file():
            return None
        with path.open("rb") as stream:
            return stream.read(MOST_NOTE_BYTES).decode("utf-8", "replace")
    except (OSError, ValueError):
        return None


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False
