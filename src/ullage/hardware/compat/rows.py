"""The rows: their schema, which of them hold for a subject, and the sentence that each makes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Literal

from msgspec import Struct
from packaging.version import Version

from ullage.core.errors import TableError
from ullage.core.finding import Hazard
from ullage.core.launch import Value
from ullage.core.run import Phase
from ullage.core.tables import load
from ullage.core.versions import Span
from ullage.hardware.compat.subject import Subject, between_releases, is_pattern, matches

Result = Literal["works", "fails", "ignored", "costs", "unknown"]
#: "a|b" -> values: one of these settings has one of these values; "*" stands for any value but None and False
When = dict[str, list[str | int | bool]]


class Component(Struct, frozen=True, forbid_unknown_fields=True):
    """A kernel, backend or mechanism. ``when``: the launches that use it; ``instead``: what to do without;
    ``several``: it works between GPUs, one alone has no use for it."""

    id: str
    name: str
    when: When = {}
    instead: str = ""
    quiet: bool = False
    several: bool = False
    cause: str | None = None
    phase: Phase | None = None


class Row(Struct, frozen=True, forbid_unknown_fields=True):
    """One piece of knowledge; the head of components.toml says what each key means."""

    component: str
    result: Result
    source: str
    id: str = ""
    since: str = ""
    until: str | None = None
    architectures: list[str] = []
    vendor: str = "nvidia"
    ranks_over: int = 0
    nvlink: bool | None = None
    p2p: bool | None = None
    when: When = {}
    unless: When = {}
    message: str = ""
    text: str = ""
    certain: bool = True
    stops: bool | None = None
    cause: str | None = None
    phase: Phase | None = None

    @property
    def span(self) -> Span:
        return Span(self.since or None, self.until)

    @property
    def always(self) -> bool:
        """True if it holds in every release that is known."""
        return self.until is None and (not self.since or self.since.startswith("≤"))

    @property
    def name(self) -> str:
        """The warning's id: the row's own, else the component's with what becomes of it."""
        ending = {"fails": "unsupported", "unknown": "untested"}.get(self.result, self.result)
        return self.id or f"{self.component}-{ending}"

    @property
    def stopping(self) -> bool:
        return self.result == "fails" and self.certain if self.stops is None else self.stops

    def of_architecture(self, capability: tuple[int, int] | None, vendor: str) -> bool:
        if not self.architectures:
            return True
        if vendor != self.vendor:
            return False
        if "*" in self.architectures:
            return True
        return capability is not None and any(matches(capability, one) for one in self.architectures)


class _File(Struct, frozen=True, forbid_unknown_fields=True):
    component: list[Component] = []
    row: list[Row] = []


class Table(Struct, frozen=True):
    """Components by id, and rows in the order of the file."""

    components: dict[str, Component]
    rows: list[Row]


class Known(Struct, frozen=True):
    """What is known of a component on an architecture in a release; ``row`` is None where nothing is."""

    result: Result
    row: Row | None = None


@cache
def table(package: str, name: str) -> Table:
    """The rows of a file. Raises TableError for one without a source, or that cannot hold."""
    file: _File = load(package, name, _File)
    components = {component.id: component for component in file.component}
    for row in file.row:
        _check(row, components, name)
    return Table(components, file.row)


def _check(row: Row, components: dict[str, Component], where: str) -> None:
    faults = {
        "has no source": not row.source.strip(),
        "names no component of this file": row.component not in components,
        "has an architecture that nothing can match": not all(map(is_pattern, row.architectures)),
        "stops without being certain": row.stopping and not row.certain,
        "is never said: neither text nor message": row.result != "works" and not (row.text or row.message),
    }
    for fault, found in faults.items():
        if found:
            raise TableError(f"row {row.name!r} {fault}", where=where)


def hazards(rows: Table, asked: Subject) -> list[Hazard]:
    """What the rows say of a launch: the first that holds of each id."""
    found: dict[str, Hazard] = {}
    for row in rows.rows:
        component = rows.components[row.component]
        spoken = row.result != "works" and not component.quiet
        if spoken and row.name not in found and holds(row, component, asked):
            found[row.name] = _hazard(row, component, asked)
    return list(found.values())


def holds(row: Row, component: Component, asked: Subject) -> bool:
    """True if the launch uses the row's component, on such a GPU, in such a release."""
    if row.ranks_over and (asked.group is None or asked.group <= row.ranks_over):
        return False
    if row.nvlink is not None and asked.nvlink is not row.nvlink:
        return False
    vendor = asked.gpu.vendor if asked.gpu else ""
    if not (row.span.holds(asked.release) and row.of_architecture(asked.capability, vendor)):
        return False
    wanted = (*component.when.items(), *row.when.items())
    if not all(_has(asked, names, values) for names, values in wanted):
        return False
    return not any(_has(asked, names, values) for names, values in row.unless.items())


def _has(asked: Subject, names: str, values: list[str | int | bool]) -> bool:
    return any(_one(asked.value(name), values) for name in names.split("|"))


def _one(value: Value, values: list[str | int | bool]) -> bool:
    if value is None or value is False:
        return value is False and False in values
    if "*" in values:
        return True
    plain = value.lower() if isinstance(value, str) else value
    return any(plain == (one.lower() if isinstance(one, str) else one) for one in values)


def _released(release: Version | None) -> bool:
    """False for what is between releases, and for a release that nobody named, which is taken as the newest."""
    return release is not None and not between_releases(release)


def _hazard(row: Row, component: Component, asked: Subject) -> Hazard:
    certain = row.certain and (row.always or _released(asked.release))
    stops = row.stopping and certain
    return Hazard(
        row.name, " ".join(_sentences(row, component, asked)), row.source, certain=certain, stops=stops,
        phase=(row.phase or component.phase or "init") if stops else None,
        cause=(row.cause or component.cause or "gpu-arch-unsupported") if stops else None,
        message=row.message,
    )  # fmt: skip


def _sentences(row: Row, component: Component, asked: Subject) -> Iterator[str]:
    words = {
        "gpu": asked.gpu.name if asked.gpu else "this GPU", "sm": asked.architecture, "engine": asked.engine,
        "group": asked.group or "several", "name": component.name,
    }  # fmt: skip
    if row.text:
        yield row.text.format_map(words)
    else:
        place = f" on {words['sm']}" if row.architectures else ""
        yield f"{component.name}: {asked.engine} refuses this{place} with “{row.message.rstrip('.')}”."
    if component.instead:
        yield component.instead.format_map(words)


def status(
    rows: Table,
    component: str,
    capability: tuple[int, int],
    release: Version | None,
    *,
    ranks: int = 1,
    nvlink: bool | None = None,
    p2p: bool | None = None,
) -> Known:
    """What is known of ``component`` on an architecture in a release, for who builds a table of it.

    Of several rows the first that names the architecture counts; rows that depend on other settings do not.
    """
    for row in rows.rows:
        if row.component != component or row.when or row.unless or not row.architectures:
            continue
        fabric = ranks > row.ranks_over and row.nvlink in (None, nvlink) and row.p2p in (None, p2p)
        if fabric and row.span.holds(release) and row.of_architecture(capability, "nvidia"):
            return Known(row.result, row)
    return Known("unknown")
