"""Which files a tool may read: those below the folders named at the start, and ullage's own records.

Two fences. ``Roots.path`` and ``Roots.read`` check what a caller names. ``confine`` then holds for the whole
process that computes: whatever opens a file there (a model folder that a launch command names, a shard behind a
symlink) is refused beyond the roots by Python's own audit hook, so that no way to a file is forgotten.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ullage.core.errors import InputError

#: a configuration file, a topology, measurements; logs are read in pieces and have no such limit
MOST_BYTES = 1 << 20
OUTSIDE = "outside the folders that this server may read"
HINT = "ullage mcp --root FOLDER"
_EVENTS = frozenset({"open", "os.listdir", "os.scandir"})


class Roots:
    """``folders`` are absolute and without links; a relative path is one of the first that has it."""

    def __init__(self, folders: Sequence[str]) -> None:
        self.folders = tuple(os.path.realpath(folder) for folder in folders)

    def path(self, given: str, *, folder: bool = False) -> str:
        """The file (or ``folder``) that ``given`` names, as a path to open. Raises InputError beyond the roots,
        and alike for what is no regular file there, so that nothing beyond is told."""
        where = given[:200]
        if not given or "\0" in given or given.startswith("~"):
            raise InputError("is no path here: give it in full, or below a root", where=repr(where), hint=HINT)
        for root in self.folders:
            found = os.path.realpath(os.path.join(root, given))  # noqa: PTH118
            if self.holds(found) and _is(found, folder):
                return found
        if any(self.holds(os.path.realpath(os.path.join(root, given))) for root in self.folders):  # noqa: PTH118
            raise InputError(f"is no {'folder' if folder else 'file'} that can be read", where=where)
        raise InputError(f"{OUTSIDE}: {where}", hint=HINT)

    def read(self, given: str) -> str:
        """The text of a small file that a launch command names. Raises InputError."""
        path = self.path(given)
        try:
            with Path(path).open("rb") as stream:
                raw = stream.read(MOST_BYTES + 1)
        except OSError as error:
            raise InputError(f"cannot be read: {error.strerror}", where=given[:200]) from None
        if len(raw) > MOST_BYTES:
            raise InputError("larger than 1 MiB", where=given[:200])
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise InputError("is not UTF-8 text", where=given[:200]) from None

    def holds(self, path: str) -> bool:
        """True if ``path``, without links, lies below a root."""
        return any(_below(path, root) for root in self.folders)


def _is(path: str, folder: bool) -> bool:
    try:
        mode = Path(path).stat().st_mode
    except (OSError, ValueError):
        return False
    return stat.S_ISDIR(mode) if folder else stat.S_ISREG(mode)


def _below(path: str, root: str) -> bool:
    return path == root or path.startswith(root.rstrip("/") + "/")


class Fence:
    """The audit hook of a process, up while ``up``: it cannot be taken out again."""

    def __init__(self, roots: Roots, *, hub: bool) -> None:
        self.allowed = (*roots.folders, *_own(hub))
        self.up = False
        sys.addaudithook(self._hook)

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.up or event not in _EVENTS:
            return
        name = arguments[0]
        if name is None or isinstance(name, int):
            return
        path = os.path.realpath(os.fsdecode(name))
        if not any(_below(path, folder) for folder in self.allowed):
            raise PermissionError(errno.EACCES, f"{OUTSIDE} ({HINT})", os.fsdecode(name)[:200])


def _own(hub: bool) -> list[str]:
    """What the program itself reads: Python and its packages, ullage's records, copies of models by their id,
    and what the system shows of itself."""
    from ullage.lab.records import default_root
    from ullage.models import hub_places as places

    models = [places._hub_cache(), places.own_folder("owner", "name").parent.parent]
    folders: list[str | Path] = [
        *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
        *filter(None, sys.path), Path(__file__).parents[1], default_root(), *models, "/dev/null",
        "/dev/urandom", "/proc", "/sys",
    ]  # fmt: skip
    if hub:
        folders.append(os.environ.get("HF_TOKEN_PATH") or places._hf_home() / "token")
    return sorted({os.path.realpath(places._expanded(str(folder))) for folder in folders})
