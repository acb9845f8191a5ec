"""Logs that the page may read: those dropped on it, and files below the roots that were named at the start."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from ullage.core.errors import InputError
from ullage.core.units import GIB, gib_text

MOST_BYTES = 1 * GIB
#: logs kept at once; the oldest goes when another comes
MOST_LOGS = 16


PREFIX = "ullage-ui-"


def _remove_abandoned() -> None:
    """Remove the folders of servers that were killed: those of ours whose process is gone."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*-*"):
        pid = folder.name.removeprefix(PREFIX).split("-")[0]
        with suppress(OSError):
            if pid.isdigit() and folder.stat().st_uid == os.getuid() and not Path(f"/proc/{pid}").exists():
                shutil.rmtree(folder, ignore_errors=True)


class Dropped(Struct, frozen=True):
    """A log that the browser sent."""

    id: str
    name: str
    path: str


class Files:
    """Uploads live in a folder of their own that goes with the server."""

    def __init__(self, roots: Sequence[str]) -> None:
        self.roots = tuple(Path(root).resolve() for root in roots)
        _remove_abandoned()
        self._folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-"))
        self._kept: dict[str, Dropped] = {}

    async def keep(self, name: str, chunks: AsyncIterator[bytes]) -> Dropped:
        """A log as it comes in. Raises InputError where it is too large; such a one is not kept."""
        plain = "".join(c for c in name.replace("\\", "/").rsplit("/", 1)[-1] if c.isprintable())[:120] or "log"
        key = secrets.token_urlsafe(12)
        folder = self._folder / key
        folder.mkdir(mode=0o700)
        path, size = folder / plain.lstrip("."), 0
        path = path if path.name else folder / "log"
        try:
            with path.open("wb") as stream:
                async for chunk in chunks:
                    size += len(chunk)
                    if size > MOST_BYTES:
                        raise InputError(
                            f"larger than {gib_text(MOST_BYTES)}", where=plain, hint="give its path instead"
                        )
                    stream.write(chunk)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        self._kept[key] = Dropped(key, plain, str(path))
        while len(self._kept) > MOST_LOGS:
            oldest = next(iter(self._kept))
            shutil.rmtree(Path(self._kept.pop(oldest).path).parent, ignore_errors=True)
        return self._kept[key]

    def path(self, given: str) -> str:
        """The file behind ``given``: "id:KEY" of a dropped log, or a path below a root. Raises InputError."""
        if given.startswith("id:"):
            found = self._kept.get(given[3:])
            if found is None:
                raise InputError("is no longer here", where="log", hint="drop it again")
            return found.path
        try:
            real = Path(given).expanduser().resolve(strict=True)
        except (OSError, RuntimeError, ValueError):
            raise InputError("is no file that can be read", where=given[:200]) from None
        if not any(real == root or root in real.parents for root in self.roots):
            raise InputError(
                "lies outside the folders that this page may read", where=given[:200],
                hint="start it with --root FOLDER",
            )  # fmt: skip
        return str(real)

    def names(self, paths: Sequence[str]) -> dict[str, str]:
        """What a report calls the files at ``paths``: a dropped one by its own name, another by its path."""
        dropped = {kept.path: kept.name for kept in self._kept.values()}
        return {path: dropped[path] for path in paths if path in dropped}

    def close(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
