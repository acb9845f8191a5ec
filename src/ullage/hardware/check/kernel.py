"""What the kernel's log complains of: errors of GPUs and of the bus, processes ended for want of memory."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

from msgspec import Struct

from ullage.core.tables import load
from ullage.hardware.check.facts import Facts
from ullage.hardware.check.finding import CheckFinding, say


class Xid(Struct, frozen=True, forbid_unknown_fields=True):
    """A row of xids.toml."""

    number: int
    meaning: str
    helps: str
    stops: bool


class _File(Struct, frozen=True, forbid_unknown_fields=True):
    xid: list[Xid]


@cache
def xids() -> dict[int, Xid]:
    """The errors that matter, by number."""
    file: _File = load("ullage.hardware.check", "xids.toml", _File)
    return {row.number: row for row in file.xid}


def rules(known: Facts) -> Iterator[CheckFinding]:
    for rule in (_xid, _aer, _killed):
        yield from rule(known)


_XID = re.compile(r"NVRM: Xid \(.{4,40}?\): (\d{1,3}),")


def _xid(known: Facts) -> Iterator[CheckFinding]:
    log = known.outputs.of("dmesg")
    found: dict[int, int] = {}
    for number, line in enumerate(log.text.splitlines(), 1):
        if (match := _XID.search(line[:400])) and int(match[1]) in xids():
            found[int(match[1])] = number
    if not found:
        return
    gravest = min((xids()[number] for number in found), key=lambda row: (not row.stops, row.number))
    yield say(
        "xid",
        *(log.quote(line) for line in list(found.values())[:3]),
        severity="stops" if gravest.stops else "slows",
        numbers=", ".join(map(str, sorted(found))),
        meaning=gravest.meaning,
        helps=gravest.helps,
    )


_AER = re.compile(r"(?:AER: |PCIe Bus Error: ).{0,160}", re.IGNORECASE)
_ADDRESS = re.compile(r"\b(?:[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]\b")


def _aer(known: Facts) -> Iterator[CheckFinding]:
    log = known.outputs.of("dmesg")
    found: dict[str, int] = {}
    for number, line in enumerate(log.text.splitlines(), 1):
        match = _AER.search(line[:600])
        if match and "enabled with" not in line.lower() and (address := _ADDRESS.search(line[:600])):
            found.setdefault(address[0], number)
    if found:
        devices = ", ".join(list(found)[:4]) + (f" and {len(found) - 4} more" if len(found) > 4 else "")
        yield say("aer-errors", *(log.quote(line) for line in list(found.values())[:2]), devices=devices)


def _killed(known: Facts) -> Iterator[CheckFinding]:
    log = known.outputs.of("dmesg")
    found = log.find("Out of memory: Killed process") or log.find("Memory cgroup out of memory: Killed process")
    if found is not None:
        match = re.search(r"Killed process (\d{1,10}) \(([^)]{1,40})\)", found.text)
        yield say("killed-before", found, text=f"{match[2]} (pid {match[1]})" if match else "see the line")
