"""A finding of `check`: its words stand in findings.toml, its figures come from the rule."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Literal

from msgspec import Struct

from ullage.core.errors import TableError
from ullage.core.finding import Evidence
from ullage.core.tables import load

Severity = Literal["stops", "slows", "worth knowing"]
SEVERITIES: tuple[Severity, ...] = ("stops", "slows", "worth knowing")
_MOST_EVIDENCE = 4


class CheckFinding(Struct, frozen=True):
    """``id`` stays the same from release to release of ullage. ``source`` is where this is known from,
    ``evidence`` what shows it here, ``message`` what engine, NCCL or CUDA print then, literally."""

    id: str
    severity: Severity
    text: str
    remedy: str
    source: str
    evidence: tuple[Evidence, ...] = ()
    message: str = ""


class Text(Struct, frozen=True, forbid_unknown_fields=True):
    """A row of findings.toml."""

    id: str
    severity: Severity
    text: str
    remedy: str
    source: str
    message: str = ""


class _File(Struct, frozen=True, forbid_unknown_fields=True):
    finding: list[Text]


@cache
def texts() -> dict[str, Text]:
    """The rows by id. Raises TableError for an id that is there twice, or a row without a source."""
    file: _File = load("ullage.hardware.check", "findings.toml", _File)
    found: dict[str, Text] = {}
    for row in file.finding:
        if row.id in found or not row.source.strip():
            raise TableError(f"finding {row.id!r} is there twice or has no source", where="findings.toml")
        found[row.id] = row
    return found


def say(
    name: str, /, *evidence: Evidence | None, severity: Severity | None = None, **words: object
) -> CheckFinding:
    """The finding ``name`` with its figures in place."""
    row = texts()[name]
    seen = tuple(dict.fromkeys(one for one in evidence if one is not None))[:_MOST_EVIDENCE]
    return CheckFinding(
        row.id,
        severity or row.severity,
        row.text.format_map(words),
        row.remedy.format_map(words),
        row.source.format_map(words),
        seen,
        row.message,
    )


def ordered(found: Iterable[CheckFinding]) -> tuple[CheckFinding, ...]:
    """The gravest first, in the order of the rules among alike; each id once."""
    unique: dict[str, CheckFinding] = {}
    for finding in found:
        unique.setdefault(finding.id, finding)
    return tuple(sorted(unique.values(), key=lambda finding: SEVERITIES.index(finding.severity)))
