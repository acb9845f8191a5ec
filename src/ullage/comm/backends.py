"""Which backends of an all-reduce can run here: dated rows of backends.toml, each with its source."""

from __future__ import annotations

from functools import cache
from typing import Literal

from msgspec import Struct
from packaging.version import Version

from ullage.comm.allreduce import Backend
from ullage.comm.links import Links
from ullage.core.errors import TableError
from ullage.core.tables import load
from ullage.core.versions import Span
from ullage.hardware.compat.subject import is_pattern, matches

Result = Literal["works", "fails", "ignored", "unknown"]


class Info(Struct, frozen=True, forbid_unknown_fields=True, rename={"switch": "try"}):
    """A backend of backends.toml; the file's head says what each key means."""

    id: Backend
    name: str
    switch: dict[str, dict[str, str | bool]] = {}
    default: dict[str, tuple[str, str]] = {}
    most_bytes: int | None = None
    memory: str = ""

    def on_by_default(self, engine: str, release: Version | None) -> bool:
        since, until = self.default.get(engine, ("", "0"))
        return engine in self.default and Span(since or None, until or None).holds(release)


class Row(Struct, frozen=True, forbid_unknown_fields=True, rename={"switch": "try"}):
    """One piece of knowledge of one backend."""

    backend: Backend
    result: Result
    source: str
    engine: str = ""
    since: str = ""
    until: str | None = None
    architectures: list[str] = []
    vendor: str = "nvidia"
    ranks: list[int] = []
    not_ranks: list[int] = []
    ranks_over: int = 0
    nvlink: bool | None = None
    p2p: bool | None = None
    multicast: bool | None = None
    most_bytes: int | None = None
    switch: dict[str, str | bool] = {}
    message: str = ""
    text: str = ""


class Standing(Struct, frozen=True):
    """Whether a backend can run: ``message`` is what the engine prints where it cannot, ``text`` a sentence.
    ``foreign``: it is for another maker's GPUs."""

    backend: Backend
    name: str
    result: Result
    message: str = ""
    text: str = ""
    source: str = ""
    default: bool = False
    switch: dict[str, str | bool] = {}
    most_bytes: int | None = None
    memory: str = ""
    foreign: bool = False

    @property
    def possible(self) -> bool:
        return self.result in ("works", "unknown")


class _File(Struct, frozen=True, forbid_unknown_fields=True):
    backend: list[Info]
    row: list[Row]


@cache
def table() -> tuple[list[Info], list[Row]]:
    """The backends and their rows. Raises TableError for a row without a source, or of no backend."""
    file: _File = load("ullage.comm", "backends.toml", _File)
    for row in file.row:
        check(row, {info.id for info in file.backend})
    return file.backend, file.row


def check(row: Row, known: set[Backend]) -> None:
    """Raises TableError for a row that cannot stand."""
    faults = {
        "has no source": not row.source.strip(),
        "is of no backend of this file": row.backend not in known,
        "has an architecture that nothing can match": not all(map(is_pattern, row.architectures)),
        "says neither message nor text": row.result != "works" and not (row.message or row.text),
    }
    for fault, found in faults.items():
        if found:
            raise TableError(f"row of {row.backend!r} ({row.result}) {fault}", where="backends.toml")


def standings(engine: str, release: Version | None, links: Links, ranks: int) -> list[Standing]:
    """Every backend, in the order of the file, with what its first row that holds says."""
    infos, rows = table()
    return [_standing(info, rows, engine, release, links, ranks) for info in infos]


def _standing(
    info: Info, rows: list[Row], engine: str, release: Version | None, links: Links, ranks: int
) -> Standing:
    row = next((r for r in rows if r.backend == info.id and _holds(r, engine, release, links, ranks)), None)
    return Standing(
        info.id, info.name, row.result if row else "unknown",
        row.message if row else "", row.text if row else "nobody has shown it here", row.source if row else "",
        info.on_by_default(engine, release), (row.switch if row else {}) or info.switch.get(engine, {}),
        row.most_bytes if row is not None and row.most_bytes else info.most_bytes, info.memory,
        foreign=row is not None and row.text.endswith("GPUs only."),
    )  # fmt: skip


def _holds(row: Row, engine: str, release: Version | None, links: Links, ranks: int) -> bool:
    if row.engine and row.engine != engine:
        return False
    if not Span(row.since or None, row.until).holds(release):
        return False
    return _of_gpu(row, links) and _of_group(row, links, ranks)


def _of_gpu(row: Row, links: Links) -> bool:
    if row.vendor == "amd" and links.vendor != "amd":
        return False
    if not row.architectures:
        return True
    if row.vendor != links.vendor:
        return False
    capability = links.capability
    return "*" in row.architectures or (
        capability is not None and any(matches(capability, one) for one in row.architectures)
    )


def _of_group(row: Row, links: Links, ranks: int) -> bool:
    if (row.ranks and ranks not in row.ranks) or ranks in row.not_ranks or ranks <= row.ranks_over:
        return False
    return (
        row.nvlink in (None, links.nvlink)
        and row.p2p in (None, links.p2p)
        and row.multicast in (None, links.multicast)
    )
