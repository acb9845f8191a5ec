"""What the causes ask of a case: figures with their lines, places in the start, proof, checked changes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache

from msgspec import Struct
from packaging.version import Version

from ullage.core.finding import Case, Change, Evidence, Finding, How, Refuted
from ullage.core.run import Event, Line, Outcome, Phase
from ullage.core.units import GIB
from ullage.engines.runtime.changes import Scalar
from ullage.engines.runtime.rows import evidence

#: boards whose CPU and GPU share one memory; the engine reads host memory there (vLLM 0.11.0+, platform cuda)
_UNIFIED = re.compile(
    r"\bGB10\b|DGX Spark|\bThor\b|\bOrin\b|Jetson|unified|Strix Halo|Ryzen AI|8060S|gfx1151", re.IGNORECASE
)
_FRAME = re.compile(r'File "([^"]+)"(?:, line \d+)?, in (\S+)')
_WSL = re.compile(r"\bWSL2?\b|microsoft-standard|dxgkio|/mnt/wslg|libdxcore", re.IGNORECASE)


class Known(Struct, frozen=True):
    """A figure in the unit of its name, as printed, with the place that shows it."""

    value: float
    text: str
    source: str

    def __str__(self) -> str:
        return self.text


def figure(case: Case, *names: str) -> Known | None:
    """The first of ``names`` that the deployment's readings or the log give."""
    for name in names:
        reading = case.deployment.readings.get(name)
        if reading is not None:
            return Known(reading.value.value, str(reading.value), reading.source)
        shown = case.run.figure(name)
        if shown is not None:
            return Known(shown.value.value, str(shown.value), str(shown.source))
    return None


def smallest(case: Case, name: str) -> Known | None:
    """The smallest printing of a figure over the ranks: the one that decides for the group."""
    shown = case.run.figures(name)
    if not shown:
        return figure(case, name)
    least = min(shown, key=lambda one: one.value.value)
    return Known(least.value.value, str(least.value), str(least.source))


def numbers(pattern: re.Pattern[str], case: Case) -> dict[str, float]:
    """The named groups of ``pattern`` in the root failure, else beside it, as numbers; else empty."""
    for text in (case.text, case.log):
        found = pattern.search(text)
        if found is not None:
            groups = found.groupdict()
            return {k: float(v.replace(",", "")) for k, v in groups.items() if v is not None}
    return {}


def machine_total(case: Case) -> float | None:
    """GiB of one card as CUDA gives it to a process, by the GPU's name."""
    machine = case.deployment.machine
    gpu = machine.gpu if machine is not None else None
    if gpu is None:
        return None
    if gpu.cuda_bytes is not None:
        return gpu.cuda_bytes.value / GIB
    return 0.99 * gpu.total_bytes / GIB if gpu.total_bytes else None  # as settings.total_bytes has it


def says(case: Case, pattern: str, *, anywhere: bool = False) -> bool:
    """True if the root failure (``anywhere``: any event or the log's tail) matches, case ignored."""
    compiled = _pattern(pattern)
    return bool(compiled.search(case.text)) or (anywhere and bool(compiled.search(case.log)))


def frames(case: Case) -> str:
    """The root failure's frames, "file:function" a line; loose frame lines before it where the log has lost
    the traceback around them."""
    if case.frames or case.root is None:
        return case.frames
    at = case.root.source
    before = [line.text for line in case.run.last if line.source.file == at.file and line.source.line < at.line]
    return "\n".join(f"{m[1]}:{m[2]}" for text in before if (m := _FRAME.search(text)) is not None)


def ran(case: Case, pattern: str) -> bool:
    """True if a frame "file:function" of the root failure matches."""
    return bool(_pattern(pattern).search(frames(case)))


@cache
def _pattern(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE | re.MULTILINE)


def between(case: Case, since: str | None, until: str | None, *, unknown: bool) -> bool:
    """True if the release lies in ``since`` <= release < ``until``; ``unknown`` where it is not known."""
    release = case.deployment.launch.release
    if release is None:
        return unknown
    return (since is None or release >= Version(since)) and (until is None or release < Version(until))


def on_unified_memory(case: Case) -> bool:
    """True if CPU and GPU of this machine share one memory."""
    machine = case.deployment.machine
    gpu = machine.gpu if machine is not None else None
    if gpu is not None and (gpu.unified_memory or _UNIFIED.search(gpu.name)):
        return True
    return bool(_UNIFIED.search(case.log))


def under_wsl(case: Case) -> bool:
    return bool(_WSL.search(case.log))


def utilization(case: Case) -> float:
    """The share in force: as set, else the engine's default (0.9, and 0.92 from 0.20.0)."""
    shown = figure(case, "gpu_memory_utilization")
    number = case.deployment.launch.number("gpu_memory_utilization")
    if number is not None:
        return number
    return shown.value if shown is not None else 0.92 if between(case, "0.20.0", None, unknown=True) else 0.9


def size(case: Case, name: str, default: int = 1) -> int:
    """A parallel size or another count of the launch."""
    return case.deployment.launch.integer(name) or default


def gib(value: float) -> str:
    """GiB for people, two decimals, never "-0.00"."""
    return f"{round(value, 2) + 0.0:.2f} GiB"


def mib(num_bytes: float) -> str:
    return f"{num_bytes / (1 << 20):,.0f} MiB" if num_bytes < GIB else gib(num_bytes / GIB)


def advice(why: str, certainty: How = "likely", **change: Scalar) -> Change:
    """A change that no formula covers; flags by keyword (``max_num_seqs=64``), none for advice in words."""
    return Change({f"--{k.replace('_', '-')}": v for k, v in change.items()}, why, None, certainty)


def verbatim(name: str, value: Scalar, why: str, certainty: How = "likely") -> Change:
    """A change written as it is pasted: a variable, or a flag whose value is JSON."""
    return Change({name: value}, why, None, certainty)


def starts(changes: Iterable[Change]) -> list[Change]:
    """The changes that the engine's formula does not refuse."""
    return [c for c in changes if c.predicted is None or c.predicted.verdict != "fails"]


def found(
    case: Case,
    cause: str,
    certainty: How,
    weight: int,
    summary: str,
    explanation: str,
    *,
    shown: Iterable[str] = (),
    lines: Iterable[str] = (),
    fixes: Iterable[Change] = (),
    refuted: Iterable[Refuted] = (),
    contributing: Iterable[str] = (),
    phase: Phase | None = None,
    outcome: Outcome | None = None,
) -> Finding:
    """A finding with its proof: the root failure, the lines of the figures ``shown``, lines that match.

    Fixes that the engine's own formula refuses are left out.
    """
    from ullage.engines.vllm.causes._checks import settled

    return Finding(
        cause=cause, certainty=certainty, weight=weight, summary=summary, explanation=explanation, phase=phase,
        outcome=outcome, evidence=tuple(_proof(case, shown, lines)), refuted=tuple(refuted),
        fixes=tuple(settled(case, fixes)),
        contributing=tuple(dict.fromkeys(contributing)),
    )  # fmt: skip


def _proof(case: Case, shown: Iterable[str], patterns: Iterable[str]) -> Iterator[Evidence]:
    seen = set()
    if case.root is not None:
        seen.add(case.root.source)
        yield evidence(case.root, "root")
    figures = [case.run.figure(name) for name in shown]
    items: list[Event | Line] = [*case.run.events, *case.run.last]
    matches = [next((i for i in items if _pattern(p).search(i.text)), None) for p in patterns]
    for item in [*figures, *matches]:
        if item is not None and item.source not in seen:
            seen.add(item.source)
            yield evidence(item)
