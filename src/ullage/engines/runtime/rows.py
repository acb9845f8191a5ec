"""Causes as data: a phrase in the right place decides. One row a cause, in ``causes/*.toml``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, cached_property
from importlib import import_module, resources
from importlib.resources.abc import Traversable
from pkgutil import iter_modules
from types import ModuleType

from msgspec import Struct, field

from ullage.core.errors import TableError
from ullage.core.finding import Case, CauseText, Change, Evidence, Finding, How, Refuted
from ullage.core.run import Event, Line, Outcome, Phase
from ullage.core.tables import decode
from ullage.core.versions import Span

Scalar = str | int | float | bool


class When(Struct, frozen=True, forbid_unknown_fields=True):
    """Conditions that must all hold. Lists of patterns hold when one of them is found (``all_log``: each one).

    ``text``: the root failure, its message and its whole traceback chain. ``frames``: its frames,
    "file:function". ``log``: any event's text, or the log's last lines. ``settings``: a setting's value,
    with "*" for "given at all", ">1" and "<1" for numbers, "~regex" for text. ``env`` likewise. ``gpu``,
    ``command``, ``model``: patterns. ``phase`` and ``outcome``: one of these. ``note``: a Note event of one of
    these names.
    ``root``: the root failure was recognised as one of these kinds. ``in_phase`` and ``as_outcome``: where this
    proof also tells in which phase, or that, the launch failed (a log that just ends).
    """

    text: list[str] = field(default_factory=list)
    not_text: list[str] = field(default_factory=list)
    frames: list[str] = field(default_factory=list)
    not_frames: list[str] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    all_log: list[str] = field(default_factory=list)
    not_log: list[str] = field(default_factory=list)
    phase: list[Phase] = field(default_factory=list)
    outcome: list[Outcome] = field(default_factory=list)
    root: list[str] = field(default_factory=list)
    note: list[str] = field(default_factory=list)
    settings: dict[str, Scalar] = field(default_factory=dict)
    env: dict[str, Scalar] = field(default_factory=dict)
    gpu: str = ""
    command: str = ""
    model: str = ""
    since: str | None = None
    until: str | None = None
    certainty: How | None = None
    weight: int | None = None
    in_phase: Phase | None = None
    as_outcome: Outcome | None = None


class ChangeRow(Struct, frozen=True, forbid_unknown_fields=True):
    """A remedy: flags or variables as one would paste them; ``change`` may be empty for advice in words.

    ``step``: settings by how much to change them from the value in force, left out where it is not known.
    ``since`` and ``until``: the releases that know it. ``unless``: a pattern of the log that makes it needless.
    """

    why: str
    change: dict[str, Scalar] = field(default_factory=dict)
    step: dict[str, float] = field(default_factory=dict)
    unless: str = ""
    since: str | None = None
    until: str | None = None
    certainty: How = "likely"


class CauseRow(Struct, frozen=True, forbid_unknown_fields=True):
    """A cause. ``summary`` is one sentence for the report and may hold {group} of a pattern's named groups."""

    id: str
    summary: str
    see: str
    misleads: str
    true: str
    helps: str
    when: list[When]
    certainty: How = "likely"
    weight: int = 20
    change: list[ChangeRow] = field(default_factory=list)
    not_this: dict[str, str] = field(default_factory=dict)
    source: str = ""


class CauseTable(Struct, frozen=True, forbid_unknown_fields=True):
    cause: list[CauseRow] = field(default_factory=list)


class RowCause:
    """A cause whose test is its row's conditions."""

    def __init__(self, row: CauseRow) -> None:
        self.row = row
        self.id = row.id
        self.text = CauseText(row.see, row.misleads, row.true, row.helps)

    def test(self, case: Case) -> Finding | None:
        for when in self.row.when:
            groups = _holds(when, case)
            if groups is not None:
                return self._finding(when, case, groups)
        return None

    def _finding(self, when: When, case: Case, groups: Mapping[str, str]) -> Finding:
        row = self.row
        return Finding(
            cause=row.id, certainty=when.certainty or row.certainty,
            weight=row.weight if when.weight is None else when.weight,
            phase=when.in_phase, outcome=when.as_outcome,
            summary=_filled(row.summary, groups), explanation=_filled(f"{row.true} {row.misleads}", groups),
            evidence=tuple(_evidence(when, case)),
            refuted=tuple(Refuted(k, _filled(v, groups)) for k, v in row.not_this.items()),
            fixes=tuple(_changes(row.change, case, groups)),
        )  # fmt: skip


def _changes(rows: Iterable[ChangeRow], case: Case, groups: Mapping[str, str]) -> Iterator[Change]:
    for row in rows:
        if not Span(row.since, row.until).holds(case.deployment.launch.release):
            continue
        if row.unless and _pattern(row.unless).search(case.log):
            continue
        change = {_filled(name, groups): _value(value, groups) for name, value in row.change.items()}
        stepped = _stepped(row.step, case)
        if stepped or not row.step:
            yield Change({**change, **stepped}, _filled(row.why, groups), None, row.certainty)


def _stepped(steps: Mapping[str, float], case: Case) -> dict[str, Scalar]:
    """The settings that the launch states, moved by their step; never to nothing."""
    found: dict[str, Scalar] = {}
    for name, step in steps.items():
        now = case.deployment.launch.number(name)
        if now is not None and now + step > 0:
            found[f"--{name.replace('_', '-')}"] = round(now + step, 3)
    return found


def _value(value: Scalar, groups: Mapping[str, str]) -> Scalar:
    return _filled(value, groups) if isinstance(value, str) else value


def _filled(text: str, groups: Mapping[str, str]) -> str:
    """``text`` with {name} replaced by the group of that name, or by "?" where it did not match. A part in
    [[ ]] is left out where a group of it did not match."""

    def part(found: re.Match[str]) -> str:
        known = all(groups.get(name) for name in re.findall(r"\{(\w+)\}", found[1]))
        return found[1] if known else ""

    whole = re.sub(r"\[\[(.*?)\]\]", part, text)
    return re.sub(r"\{(\w+)\}", lambda m: groups.get(m[1]) or "?", whole)


def _holds(when: When, case: Case) -> dict[str, str] | None:
    """The named groups of all patterns that matched, or None where a condition does not hold."""
    if not _fits(when, case):
        return None
    groups: dict[str, str] = {}
    for patterns, text in ((when.text, case.text), (when.frames, case.frames), (when.log, case.log)):
        if patterns and not _collect(patterns, text, groups):
            return None
    if any(not _collect([pattern], case.log, groups) for pattern in when.all_log):
        return None
    for patterns, text in (
        (when.not_text, case.text), (when.not_frames, case.frames), (when.not_log, case.log)
    ):  # fmt: skip
        if any(_pattern(pattern).search(text) for pattern in patterns):
            return None
    return groups


def _collect(patterns: Iterable[str], text: str, groups: dict[str, str]) -> bool:
    for pattern in patterns:
        found = _pattern(pattern).search(text)
        if found is not None:
            groups.update({k: v for k, v in found.groupdict().items() if v is not None})
            return True
    return False


def _fits(when: When, case: Case) -> bool:
    """The conditions that need no pattern on the log's text."""
    launch, machine = case.deployment.launch, case.deployment.machine
    gpu = machine.gpu.name if machine is not None and machine.gpu is not None else ""
    model = case.deployment.model.id if case.deployment.model else launch.model or ""
    return (
        (not when.phase or case.phase in when.phase)
        and (not when.outcome or case.outcome in when.outcome)
        and (not when.root or (case.root is not None and case.root.kind in when.root))
        and (not when.note or any(case.run.notes_named(name) for name in when.note))
        and Span(when.since, when.until).holds(launch.release)
        and (not when.gpu or bool(_pattern(when.gpu).search(gpu)))
        and (not when.command or bool(_pattern(when.command).search(launch.command or "")))
        and (not when.model or bool(_pattern(when.model).search(model)))
        and all(_is(launch.get(name), wanted) for name, wanted in when.settings.items())
        and all(_is(launch.env.get(name), wanted) for name, wanted in when.env.items())
    )


def _is(value: object, wanted: Scalar) -> bool:
    if not isinstance(wanted, str):
        return value == wanted
    if wanted == "*":
        return value is not None and value is not False
    if wanted[:1] in "<>" and wanted[1:]:
        number = value if isinstance(value, int | float) and not isinstance(value, bool) else None
        limit = float(wanted[1:])
        return number is not None and (number > limit if wanted[0] == ">" else number < limit)
    if wanted.startswith("~"):
        return value is not None and bool(_pattern(wanted[1:]).search(str(value)))
    return str(value) == wanted


@cache
def _pattern(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE | re.MULTILINE)


def _evidence(when: When, case: Case) -> Iterator[Evidence]:
    """The root failure, and the lines outside it that the row asked for."""
    if case.root is not None:
        yield evidence(case.root, "root")
    items: list[Event | Line] = [*case.run.events, *case.run.last]
    for pattern in [_pattern(p) for p in [*when.log, *when.all_log]]:
        for item in items:
            if pattern.search(item.text):
                if case.root is None or item.source != case.root.source:
                    yield evidence(item, "root" if case.root is None else "context")
                break


def evidence(item: Event | Line, role: str = "context") -> Evidence:
    """A log line as proof; ``role`` is "root", "cascade" or "context"."""
    return Evidence(
        file=item.source.file, line=item.source.line, text=item.text, rank=item.rank.label,
        role="root" if role == "root" else "cascade" if role == "cascade" else "context",
    )  # fmt: skip


class ModuleCause:
    """A cause that needs arithmetic: one module, its docstring the page, its ``test`` the rule."""

    def __init__(self, module: ModuleType) -> None:
        self.module = module
        self.id = getattr(module, "ID", module.__name__.rsplit(".", 1)[-1].replace("_", "-"))

    @cached_property
    def text(self) -> CauseText:
        return docstring_parts(self.module.__doc__ or "", self.module.__name__)

    def test(self, case: Case) -> Finding | None:
        found: Finding | None = self.module.test(case)
        return found


_HEADS = ("What you see", "What misleads", "What is true", "What helps")


def docstring_parts(text: str, where: str) -> CauseText:
    """The four parts of a cause's docstring. Raises TableError where one is missing."""
    pieces = re.split(rf"^\s*({'|'.join(_HEADS)})\.?:?\s*", text, flags=re.MULTILINE)
    found = {head: " ".join(body.split()) for head, body in zip(pieces[1::2], pieces[2::2], strict=True)}
    missing = [head for head in _HEADS if not found.get(head)]
    if missing:
        raise TableError(f"the docstring lacks {', '.join(missing)}", where=where)
    return CauseText(*(found[head] for head in _HEADS))


def load(package: str) -> list[RowCause | ModuleCause]:
    """Every cause of a ``causes`` package: its modules in front (they compute), then its rows by file name."""
    package_module = import_module(package)
    modules = [
        ModuleCause(import_module(f"{package}.{info.name}"))
        for info in sorted(iter_modules(package_module.__path__), key=lambda info: info.name)
        if not info.name.startswith("_")
    ]
    tables = sorted((t for t in resources.files(package).iterdir() if t.name.endswith(".toml")), key=_name)
    return [*modules, *(RowCause(row) for table in tables for row in decode(table, CauseTable).cause)]


def _name(table: Traversable) -> str:
    return table.name
