"""Combinations that are known to fail: the dated rows of pairs.toml, asked about one machine.

A row holds where its component is of a release in its span and every condition of ``when`` is known to hold.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Literal

from msgspec import Struct

from ullage.core.errors import TableError
from ullage.core.finding import Evidence
from ullage.core.tables import load
from ullage.core.versions import Span, parse_release
from ullage.hardware.check.facts import Facts
from ullage.hardware.check.finding import CheckFinding, Severity
from ullage.hardware.check.software import cuda_of, fits, seen
from ullage.hardware.compat.subject import is_pattern, matches
from ullage.hardware.environment import parts
from ullage.hardware.p2p import refused

#: names of facts that conditions may ask for, beside the components of packages.toml
ASKED = (
    "capability",
    "count",
    "nvlink",
    "wsl",
    "gpu",
    "driver",
    "cuda",
    "nvcc",
    "kernel",
    "module",
    "iommu",
    "machine",
    "amd",
    "bus",
    "p2p",
)
#: components that are no Python packages
OTHERS = ("driver", "kernel", "nvcc", "torch-cuda")
Fact = str | int | bool | tuple[int, int]


class Pair(Struct, frozen=True, forbid_unknown_fields=True):
    """A row; the head of pairs.toml says what each key means."""

    id: str
    component: str
    result: Literal["fails", "costs", "works", "unknown"]
    severity: Severity
    text: str
    remedy: str
    source: str
    seen: str
    since: str | None = None
    until: str | None = None
    message: str = ""
    when: dict[str, str | bool | list[str]] = {}

    @property
    def span(self) -> Span:
        return Span(self.since, self.until)


class _File(Struct, frozen=True, forbid_unknown_fields=True):
    pair: list[Pair]


@cache
def pairs() -> tuple[Pair, ...]:
    """The rows. Raises TableError for one that cannot hold."""
    file: _File = load("ullage.hardware.check", "pairs.toml", _File)
    for row in file.pair:
        faults = {
            "has no source": not row.source.strip(),
            "is of an unknown component": row.component not in (*parts(), *OTHERS),
            "asks for an unknown fact": not all(name in (*ASKED, *parts(), *OTHERS) for name in row.when),
            "has an architecture that nothing can match": not _patterns(row.when.get("capability")),
        }
        for fault, found in faults.items():
            if found:
                raise TableError(f"pair {row.id!r} {fault}", where="pairs.toml")
    return tuple(file.pair)


def _patterns(wanted: str | bool | list[str] | None) -> bool:
    return wanted is None or (isinstance(wanted, list) and all(map(is_pattern, wanted)))


def rules(known: Facts) -> Iterator[CheckFinding]:
    about = asked(known)
    for row in pairs():
        release = about.get(row.component)
        if row.result == "works" or not isinstance(release, str) or not _in_span(row, release):
            continue
        if all(_holds(about.get(name), want, name) for name, want in row.when.items()):
            text = row.text.format_map({"version": release, "gpu": about.get("gpu", "this GPU")})
            yield CheckFinding(
                row.id,
                row.severity,
                text,
                row.remedy,
                f"{row.source} ({row.seen})",
                tuple(_evidence(known, row.component)),
                row.message,
            )


def _in_span(row: Pair, release: str) -> bool:
    parsed = parse_release(release)
    return parsed is not None and row.span.holds(parsed)


def asked(known: Facts) -> dict[str, Fact]:
    """What the conditions may ask, as far as it is known."""
    host, machine = known.host, known.machine
    found: dict[str, Fact | None] = {
        "capability": known.capability,
        "count": machine.count if machine else None,
        "nvlink": machine.nvlink if machine else None,
        "wsl": host.wsl,
        "gpu": known.devices[0].name if known.devices else None,
        "driver": known.driver,
        "cuda": known.cuda,
        "nvcc": host.nvcc.text if host.nvcc else None,
        "kernel": host.kernel.text if host.kernel else None,
        "module": host.module.text if host.module else None,
        "iommu": host.iommu,
        "machine": host.architecture.text if host.architecture else None,
        "amd": known.amd,
        "p2p": "unknown" if not known.p2p else "refused" if refused(known.p2p) else "allowed",
        "bus": "; ".join(device.kind for device in known.pci if device.gpu)[:2000] or None,
    }
    if known.installed is not None:
        for part in parts():
            package = known.installed.of(part)
            found[part] = package.version if package is not None else None
        torch = known.installed.of("torch")
        found["torch-cuda"] = cuda_of(known.installed, torch) if torch is not None else None
    return {name: value for name, value in found.items() if value is not None}


def _holds(value: Fact | None, want: str | bool | list[str], name: str) -> bool:
    """A version meets a specifier (">=2.8,<2.9"), a number too; a capability one of the patterns; a word or a
    name one of the regular expressions."""
    if value is None:
        return False
    if isinstance(want, bool):
        return value is want
    if isinstance(value, tuple):
        return isinstance(want, list) and any(matches(value, pattern) for pattern in want)
    if isinstance(want, list):
        return any(re.search(pattern, str(value)) for pattern in want)
    release = parse_release(str(value)) if not isinstance(value, int) else None
    return fits(str(release or value), want)


def _evidence(known: Facts, component: str) -> Iterator[Evidence]:
    package = known.installed.of(component) if known.installed is not None and component in parts() else None
    if package is not None:
        yield seen(package)
    elif component == "driver" and known.driver:
        found = (known.outputs.of(name).find(known.driver) for name in ("report", "smi", "gpus", "collected"))
        yield from [one for one in found if one is not None][:1]


def spans(rows: tuple[Pair, ...]) -> Mapping[tuple[str, str], list[Pair]]:
    """The rows by component and condition: within one such group spans may not overlap."""
    groups: dict[tuple[str, str], list[Pair]] = {}
    for row in rows:
        groups.setdefault((row.component, repr(sorted(row.when.items(), key=repr)) + row.message), []).append(
            row
        )
    return groups
