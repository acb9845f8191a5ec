"""Which failure came first, and what merely followed it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from msgspec import Struct

from ullage.core.finding import Evidence, Role
from ullage.core.run import Event, Failure, Outcome, Phase, Run, Served

#: A victim's words: a rank that waits for a dead one reports the connection, never the fault.
_VICTIM = re.compile(
    r"nccl|gloo|c10d|DistBackend|Connection (?:closed|reset|refused)|broken pipe|EOFError|time[d -]?out|"
    r"watchdog|collective|ProcessGroup|heartbeat|shm_broadcast|exit code|died|is dead|killed",
    re.IGNORECASE,
)
#: Within this many seconds of the first failure another rank's failure may be the one that came first.
WINDOW_S = 60.0
#: A stage without progress for so long hangs, while other lines still come; loading and compiling may be slow.
SILENT_S, SLOW_S = 900.0, 5400.0
#: After so many statistics lines a server has survived its failure.
SURVIVED = 3
#: kinds of failure rows that only tell of an end that came from elsewhere
_IDLE = frozenset({"interrupted"})


class Verdict(Struct, frozen=True):
    """What a run came to. ``root`` is None for a run without failure, or one that ended without a word."""

    outcome: Outcome
    phase: Phase | None
    root: Failure | None
    followed: tuple[Failure, ...] = ()


def judge(run: Run) -> Verdict:
    """The outcome of a run, its first failure, and those that followed."""
    failures = _counting(run)
    roots = [failure for failure in failures if not failure.cascade]
    root = _first(roots)
    if root is not None:
        followed = tuple(f for f in failures if f is not root)
        return Verdict("hang" if root.hang else "crashed", root.at or run.reached, root, followed)
    if failures:
        hang = failures[0].hang
        at = failures[0].at or run.reached
        return Verdict("hang" if hang else "crashed", at, None, tuple(failures))
    if run.ready is not None:
        return Verdict("started", "serving", None)
    if _silent(run):
        return Verdict("hang", run.reached, None)
    if run.reached in ("kv_pool", "graph_capture", "warmup", "serving"):
        return Verdict("started", run.reached, None)
    return Verdict("unknown", run.reached, None)


def _silent(run: Run) -> bool:
    """True if the log goes on (polls, waiting messages) long after an open stage last showed progress."""
    progress = max((e.time for e in run.events if e.phase and e.time is not None), default=None)
    last = max((line.time for line in run.last if line.time is not None), default=None)
    if progress is None or last is None or run.reached is None:
        return False
    return last - progress > (SLOW_S if run.reached in ("weights", "profile") else SILENT_S)


def _counting(run: Run) -> list[Failure]:
    """The failures that count: not those after a stop on request, nor those that the server outlived."""
    events = list(run.events)
    stop = next((i for i, e in enumerate(events) if e is run.stopped), len(events))
    counting: list[Failure] = []
    for index, event in enumerate(events):
        if isinstance(event, Failure) and index < stop and not _survived(event, events[index + 1 :], run):
            counting.append(event)
    return counting


def _survived(failure: Failure, later: Sequence[Event], run: Run) -> bool:
    """True if the server became ready, or went on serving, after this point. What never fails by itself (a
    client that left, a cancelled task) needs one line of statistics behind it, a fault several."""
    if any(event is run.ready for event in later):
        return True
    return sum(isinstance(event, Served) for event in later) >= (1 if failure.kind in _IDLE else SURVIVED)


def _first(roots: Sequence[Failure]) -> Failure | None:
    """The failure on which the others depend: the earliest, but a fault before its victims."""
    if not roots:
        return None
    near = [f for f in roots if _near(roots[0], f)]
    faults = [f for f in near if not f.hang and not _VICTIM.search(f.kind + " " + f.message[:300])]
    return (faults or near)[0]


def _near(first: Failure, other: Failure) -> bool:
    if first.time is None or other.time is None:
        return True
    return abs(other.time - first.time) <= WINDOW_S


def _shape(text: str) -> str:
    return re.sub(r"\d+", "#", text)[:200]


def alike(a: str, b: str) -> bool:
    """True if two lines say the same but for their numbers."""
    return _shape(a) == _shape(b)


def rank_order(label: str) -> tuple[tuple[str, int], ...]:
    """A key that sorts rank labels by their numbers: TP2 before TP10."""
    return tuple((word, int(number[:9] or 0)) for word, number in re.findall(r"([^0-9]+)([0-9]*)", label))


def spread(*labels: str) -> str:
    """Labels of one line of evidence as one: "TP0 … TP7", the lowest and the highest."""
    ranks = sorted({part for label in labels for part in label.split(" … ") if part}, key=rank_order)
    return ranks[0] if len(ranks) == 1 else f"{ranks[0]} … {ranks[-1]}" if ranks else ""


def evidence_of(verdict: Verdict) -> list[Evidence]:
    """The root, then what followed: alike lines of several ranks folded into one."""
    found = [_evidence(verdict.root, "root")] if verdict.root else []
    return found + fold(verdict.followed, verdict.root)


def fold(failures: Iterable[Failure], root: Failure | None) -> list[Evidence]:
    """One line for each kind of text; "TP1 … TP7" and a count where several ranks print it."""
    groups: dict[str, list[Failure]] = {}
    for failure in failures:
        groups.setdefault(_shape(failure.message or failure.text), []).append(failure)
    same = _shape(root.message) if root else None
    folded = []
    for key, group in groups.items():
        first = group[0]
        role: Role = "cascade" if first.cascade or key != same else "root"
        label = spread(*(f.rank.label for f in group))
        folded.append(_evidence(first, role, label, len(group)))
    return folded


def _evidence(failure: Failure, role: Role, rank: str | None = None, count: int = 1) -> Evidence:
    label = failure.rank.label if rank is None else rank
    return Evidence(failure.source.file, failure.source.line, failure.text, label, role, count)
