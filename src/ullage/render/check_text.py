"""A check's answer to words: the machine, the software, then what stops, slows or is worth knowing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TextIO

from ullage.core.finding import Evidence
from ullage.hardware.check import CheckFinding, Severity
from ullage.hardware.check.summary import Row, machine, software, title
from ullage.planning.checks import Checked
from ullage.render.lines import WIDTH, Line, bullet, hanging, section, wrapped, write

_HEADS: dict[Severity, str] = {
    "stops": "STOPS A START",
    "slows": "SLOWS, OR TAKES ROOM",
    "worth knowing": "WORTH KNOWING",
}
_COLOURS: dict[Severity, str] = {"stops": "1;31", "slows": "1;33", "worth knowing": "1;36"}


def check(found: Checked, stream: TextIO | None = None) -> None:
    """Print the whole answer."""
    write(lines(found), stream)


def lines(found: Checked) -> Iterator[Line]:
    """The answer's lines, each with its colour where it has one."""
    known = found.facts
    yield f"{title(known)}  ·  {verdict(found)}", _colour(found)
    yield from wrapped(known.outputs.source, 2)
    rows = machine(known)
    if rows:
        yield from section("MACHINE", _table(rows))
    installed = known.installed
    if installed is not None:
        rows = software(installed)
        none = ["  none of torch, NCCL, an engine or its kernels is installed there"]
        body = [*_table(rows, 9), *([] if installed.packages else none)]
        yield from section(f"SOFTWARE  {installed.source}", body)
        yield from (text for note in installed.notes for text in wrapped(note, 2))
    for severity, head in _HEADS.items():
        of_it = (one for one in found.findings if one.severity == severity)
        yield from section(head, (line for one in of_it for line in _finding(one)), _COLOURS[severity])
    engine = f" ({found.engine})" if found.engine else ""
    yield from section(f"BACKENDS ON THESE GPUS{engine}", _backends(found))
    unread = [*known.missing, *known.outputs.left_out]
    yield from section("NOT SEEN, WOULD TELL MORE", (text for words in unread for text in bullet(words)))
    if not known.devices:
        yield from section("NEXT", wrapped(_next(found), 2))


def _backends(found: Checked) -> Iterator[str]:
    """What works in one line, then the others with what is printed."""
    works = [backend.name for backend in found.backends if backend.result == "works"]
    if works:
        yield from hanging(f"  {'work':<8}  ", ", ".join(works) + ".")
    for result in ("costs", "ignored", "unknown", "fails"):
        for backend in (one for one in found.backends if one.result == result):
            said = f"“{backend.message.rstrip('.')}”" if backend.message else backend.text
            yield from hanging(f"  {result:<8}  ", f"{backend.name}{f': {said}' if said else ''}")


def _next(found: Checked) -> str:
    if found.facts.refusal is not None:
        return f"The tool's own words: {found.facts.refusal.text}"
    return (
        "Nothing here names a GPU: nvidia-smi and rocm-smi do not answer, or were not saved. On the machine "
        "that will run: ullage check (or from here --on HOST, over ssh). Where ullage is not: nvidia-smi -q > "
        "DIR/nvidia-smi-q.txt; nvidia-smi topo -m > DIR/nvidia-smi-topo-m.txt; then ullage check --from DIR."
    )


def verdict(found: Checked) -> str:
    """How many findings of each kind."""
    counted = Counter(finding.severity for finding in found.findings)
    words = [
        f"{counted[severity]} {_counted(severity, counted[severity])}"
        for severity in _HEADS
        if counted[severity]
    ]
    if not found.found_gpus and not words:
        return "cannot tell"
    return ", ".join(words) or "nothing found that stops or slows"


def _counted(severity: Severity, count: int) -> str:
    return severity if count == 1 or severity == "worth knowing" else severity.removesuffix("s")


def _colour(found: Checked) -> str:
    if found.findings:
        return _COLOURS[found.findings[0].severity]
    return "1;32" if found.found_gpus else "1;33"


def _table(rows: tuple[Row, ...], least: int = 0) -> Iterator[str]:
    width = max(least, *(len(row.name) for row in rows), 0)
    return (line for row in rows for line in hanging(f"  {row.name:<{width}}  ", row.text))


def _finding(finding: CheckFinding) -> Iterator[Line]:
    yield from ((text, "1") for text in bullet(finding.text))
    yield from ((text, "32") for text in _labelled("helps", finding.remedy))
    if finding.message:
        yield from _labelled("prints", f"“{finding.message}”")
    for evidence in finding.evidence[:2]:
        yield f"      seen    {shown(evidence)}"[:WIDTH], "2"
    yield from ((text, "2") for text in _labelled("source", f"{finding.source}  [{finding.id}]"))


def shown(evidence: Evidence) -> str:
    """ "nvidia-smi-q.txt:93  Current : 8x"."""
    place = f"{evidence.file}:{evidence.line}" if evidence.line else evidence.file
    return f"{place}  {evidence.text}"


def _labelled(label: str, text: str) -> Iterator[str]:
    return hanging(f"      {label:<6}  ", text) if text else iter(())
