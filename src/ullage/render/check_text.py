"""A check's answer to words: the machine, the software, then what stops, slows or is worth knowing."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator
from typing import TextIO

from ullage.core.finding import Evidence
from ullage.hardware.check import CheckFinding, Severity
from ullage.hardware.check.summary import Row, machine, software, title
from ullage.planning.checks import Checked
from ullage.render.plan_text import WIDTH, wrap

_HEADS: dict[Severity, str] = {
    "stops": "STOPS A START",
    "slows": "SLOWS, OR TAKES ROOM",
    "worth knowing": "WORTH KNOWING",
}
_COLOURS: dict[Severity, str] = {"stops": "1;31", "slows": "1;33", "worth knowing": "1;36"}
Line = tuple[str, str]


def check(found: Checked, stream: TextIO | None = None) -> None:
    """Print the whole answer."""
    out = stream or sys.stdout
    colour = out.isatty() and "NO_COLOR" not in os.environ
    for text, style in lines(found):
        out.write(f"\x1b[{style}m{text}\x1b[0m\n" if colour and style else f"{text}\n")


def lines(found: Checked) -> Iterator[Line]:
    """The answer's lines, each with its colour ("" for none)."""
    known = found.facts
    yield f"{title(known)}  ·  {verdict(found)}", _colour(found)
    yield from ((text, "") for text in _wrapped(known.outputs.source, 2))
    rows = machine(known)
    if rows:
        yield from _section("MACHINE", _table(rows))
    installed = known.installed
    if installed is not None:
        rows = software(installed)
        none = [("  none of torch, NCCL, an engine or its kernels is installed there", "")]
        yield from _section(
            f"SOFTWARE  {installed.source}", _table(rows, 9) + ([] if installed.packages else none)
        )
        yield from ((text, "") for note in installed.notes for text in _wrapped(note, 2))
    for severity, head in _HEADS.items():
        of_it = [finding for finding in found.findings if finding.severity == severity]
        if of_it:
            yield from _section(
                head, [line for finding in of_it for line in _finding(finding)], _COLOURS[severity]
            )
    if found.backends:
        yield from _section(
            f"BACKENDS ON THESE GPUS{f' ({found.engine})' if found.engine else ''}", list(_backends(found))
        )
    unread = [*known.missing, *known.outputs.left_out]
    if unread:
        yield from _section(
            "NOT SEEN, WOULD TELL MORE", [(text, "") for words in unread for text in _bullet(words)]
        )
    if not known.devices:
        yield from _section("NEXT", [(text, "") for text in _wrapped(_next(found), 2)])


def _backends(found: Checked) -> Iterator[Line]:
    """What works in one line, then the others with what is printed."""
    works = [backend.name for backend in found.backends if backend.result == "works"]
    for number, text in enumerate(wrap(", ".join(works) + ".", WIDTH - 12)) if works else ():
        yield f"  {'work' if not number else '':<8}  {text}", ""
    for result in ("costs", "ignored", "unknown", "fails"):
        for backend in (one for one in found.backends if one.result == result):
            said = f"{backend.name}" + (
                f": “{backend.message.rstrip('.')}”"
                if backend.message
                else f": {backend.text}"
                if backend.text
                else ""
            )
            for number, text in enumerate(wrap(said, WIDTH - 12)):
                yield f"  {backend.result if not number else '':<8}  {text}", ""


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


def _section(head: str, body: list[Line], style: str = "1") -> Iterator[Line]:
    yield "", ""
    yield head, style
    yield from body


def _table(rows: tuple[Row, ...], least: int = 0) -> list[Line]:
    width = max((len(row.name) for row in rows), default=least)
    return [line for row in rows for line in _row(row, max(width, least))]


def _row(row: Row, width: int) -> Iterator[Line]:
    for number, text in enumerate(wrap(row.text, WIDTH - width - 4) or [""]):
        yield f"  {row.name if not number else '':<{width}}  {text}", ""


def _finding(finding: CheckFinding) -> Iterator[Line]:
    for number, text in enumerate(wrap(finding.text, WIDTH - 4)):
        yield f"  {'-' if not number else ' '} {text}", "1"
    yield from ((text, "32") for text in _labelled("helps", finding.remedy))
    if finding.message:
        yield from ((text, "") for text in _labelled("prints", f"“{finding.message}”"))
    for evidence in finding.evidence[:2]:
        yield f"      seen    {shown(evidence)}"[:WIDTH], "2"
    yield from ((text, "2") for text in _labelled("source", f"{finding.source}  [{finding.id}]"))


def shown(evidence: Evidence) -> str:
    """ "nvidia-smi-q.txt:93  Current : 8x"."""
    place = f"{evidence.file}:{evidence.line}" if evidence.line else evidence.file
    return f"{place}  {evidence.text}"


def _labelled(label: str, text: str) -> Iterator[str]:
    for number, line in enumerate(wrap(text, WIDTH - 14)):
        yield f"      {label if not number else '':<6}  {line}"


def _wrapped(text: str, indent: int) -> Iterator[str]:
    return (" " * indent + line for line in wrap(text, WIDTH - indent))


def _bullet(text: str) -> Iterator[str]:
    for number, line in enumerate(wrap(text, WIDTH - 4)):
        yield f"  {'-' if not number else ' '} {line}"
