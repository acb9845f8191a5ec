"""The terms of SGLang's pool rule as a case shows them, and changes checked by that rule."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from math import floor

from msgspec import Struct
from packaging.version import Version

from ullage.core.deployment import Reading
from ullage.core.finding import Case, Change, Evidence, How
from ullage.core.run import Event, Figure, Line
from ullage.core.units import GIB
from ullage.engines.runtime.changes import Scalar, check
from ullage.engines.runtime.rows import evidence

#: texts of "the budget leaves no KV pool" (0.4.0-0.5.23: model_runner, later pool_configurator)
NO_ROOM = re.compile(
    r"Not enough memory\. Please try to increase --mem-fraction-static"
    r"|Loaded weights leave no GPU memory for the KV cache"
    r"|Memory pool size is too small|max_running_requests? is zero"
)
_SUGGESTED = re.compile(r"--mem-fraction-static above (\d*\.?\d+)")
_MINIMUM = re.compile(r"minimum viable = 1 - available/pre = (\d*\.?\d+)")
_IN_FORCE = re.compile(r"mem[_-]fraction[_-]static=([01]?\.\d+|[01]\b)")
#: speculation whose draft is charged to the budget from this release on
DRAFT_CHARGED = Version("0.5.14")
#: --cuda-graph-max-bs is --cuda-graph-max-bs-decode from this release on
GRAPHS_RENAMED = Version("0.5.14")


class Terms(Struct, frozen=True):
    """GiB, or None where the case does not show it. ``minimum`` and ``suggested`` are the message's own."""

    total: float | None = None
    free: float | None = None
    fraction: float | None = None
    minimum: float | None = None
    suggested: float | None = None

    @property
    def pool(self) -> float | None:
        """free_after_weights - total x (1 - f), in GiB."""
        if self.total is None or self.free is None or self.fraction is None:
            return None
        return self.free - self.total * (1 - self.fraction)

    @property
    def share(self) -> float | None:
        """The part of ``total`` that weights and the rest already hold: the fraction must be larger."""
        if self.minimum is not None:
            return self.minimum
        if self.total is None or self.free is None or not self.total:
            return None
        return 1 - self.free / self.total

    @property
    def formula(self) -> str:
        if self.pool is None or self.total is None or self.free is None or self.fraction is None:
            return ""
        return f"{self.free:.2f} - {self.total:.2f} x (1 - {self.fraction:g}) = {self.pool:.2f} GiB"


def no_room(case: Case) -> bool:
    """True if the engine itself said that the budget leaves no pool."""
    return bool(NO_ROOM.search(case.text))


def terms(case: Case) -> Terms:
    free, used = smallest(case, "free_after_weights_gib"), largest(case, "weights_gib")
    total = smallest(case, "free_before_weights_gib")
    if total is None and free is not None and used is not None:
        total = free + used
    minimum = _number(_MINIMUM, case.text)
    if total is None and free is not None and minimum is not None and minimum < 1:
        total = free / (1 - minimum)
    return Terms(total, free, fraction(case), minimum, _number(_SUGGESTED, case.text))


def fraction(case: Case) -> float | None:
    """mem_fraction_static in force: as the failure prints it, else as set."""
    printed = _number(_IN_FORCE, case.text)
    if printed is not None:
        return printed
    given = case.deployment.launch.number("mem_fraction_static")
    shown = case.run.figure("mem_fraction_static")
    return given if given is not None else shown.value.value if shown is not None else None


def _number(pattern: re.Pattern[str], text: str) -> float | None:
    found = pattern.search(text)
    return float(found[1]) if found else None


def readings(case: Case, name: str) -> list[Reading]:
    """Every printing of a figure (GiB for names in _gib), the deployment's own reading in front."""
    own = [case.deployment.readings[n] for n in (f"{name}_min", name) if n in case.deployment.readings]
    return own + [Reading(name, f.value, str(f.source)) for f in case.run.figures(name)]


def smallest(case: Case, name: str) -> float | None:
    return min((r.value.value for r in readings(case, name)), default=None)


def largest(case: Case, name: str) -> float | None:
    return max((r.value.value for r in readings(case, name)), default=None)


def count(case: Case, name: str) -> int | None:
    """A count such as kv_tokens: the first printing."""
    found = readings(case, name)
    return int(found[0].value.value) if found else None


def speculates(case: Case) -> bool:
    algorithm = case.deployment.launch.text("speculative_algorithm")
    return algorithm is not None and algorithm.upper() not in ("NONE", "NGRAM")


def charges_draft(case: Case) -> bool:
    """True if this release takes the draft's weights and KV out of the budget (0.5.14 on; unknown: newest)."""
    release = case.deployment.launch.release
    if "leave no GPU memory" in case.text:
        return True
    if "Please try to increase" in case.text and "Current value" not in case.text and release is None:
        return False  # the text of 0.4.0-0.5.2
    return release is None or release >= DRAFT_CHARGED


def draft_begun(case: Case) -> bool:
    """True if the target's pool is in place, or the draft's own lines have begun."""
    begun = any(f.draft for f in case.run.all(Figure))
    return begun or bool(case.run.figures("free_after_kv_pool_gib") or case.run.figures("kv_tokens"))


def card_gib(case: Case) -> float | None:
    """What the card has in all, in GiB, by its name or by an out-of-memory message."""
    machine = case.deployment.machine
    if machine is not None and machine.gpu is not None and machine.gpu.total_bytes:
        return machine.gpu.total_bytes / GIB
    return smallest(case, "oom_total_gib")


def weights_predicted(case: Case) -> float | None:
    """Weights per rank in GiB as the rules expect them, without any figure of this log; None if unknown."""
    for ledger in case.budget.ledgers:
        entries = [e for e in ledger.entries if e.stage == "weights"]
        if entries:
            return sum(e.bytes for e in entries) / GIB
    return None


def checked(
    case: Case, settings: dict[str, Scalar], why: str, certainty: How = "likely", note: str = ""
) -> Change:
    """A change with what the engine's own rule predicts of it."""
    from ullage.engines import get

    return check(get("sglang"), case.deployment, settings, why, certainty=certainty, note=note)


def advice(why: str, certainty: How = "likely", **change: Scalar) -> Change:
    """A change that no formula covers; flags by keyword, none for advice in words."""
    return Change({f"--{k.replace('_', '-')}": v for k, v in change.items()}, why, None, certainty)


def max_bs(case: Case, value: int, why: str, certainty: How = "likely", **change: Scalar) -> Change:
    """Smaller decode graphs, by the flag's name in this release."""
    release = case.deployment.launch.release
    name = (
        "cuda_graph_max_bs" if release is not None and release < GRAPHS_RENAMED else "cuda_graph_max_bs_decode"
    )
    return advice(why, certainty, **{name: value}, **change)


def more_ranks(case: Case) -> Change:
    """More GPUs under each copy of the weights: the smallest doubling that the rule does not refuse."""
    ranks = case.deployment.launch.integer("tp_size") or 1
    for factor in (2, 4, 8):
        change = checked(case, {"tp_size": factor * ranks}, f"each GPU then holds 1/{factor} of these weights")
        if change.predicted is None or change.predicted.verdict != "fails":
            return change
    return advice("more GPUs, so that each holds fewer bytes of weights")


def better_fractions(case: Case, known: Terms) -> list[Change]:
    """Fractions that start by the rule: the interval's own recommendation, else a step above the minimum."""
    interval, share = case.interval, known.share
    wanted: list[float] = []
    if interval is not None and interval.recommended is not None and not interval.empty:
        wanted.append(round(interval.recommended, 3))
    if share is not None and not wanted:
        wanted += [f for f in (0.8, 0.85, 0.88, 0.9, 0.92, 0.94, 0.95, 0.96) if f > share + 0.01][:1]
    floor = max(share or 0.0, known.fraction or 0.0)
    above = [f for f in wanted if f > floor]
    return [
        checked(
            case,
            {"mem_fraction_static": f},
            "more than the weights hold, with room for the rest beside the pool",
        )
        for f in above
    ]


def lower_fraction(case: Case, lacking: float, least: float, why: str) -> Iterator[Change]:
    """A fraction below the one in force: by ``least``, and by half as much again as the ``lacking`` bytes; the
    interval's own recommendation where that is lower still. None where no pool would be left."""
    f, interval, total = fraction(case), case.interval, terms(case).total or card_gib(case)
    if f is None:
        return
    step = max(least, 1.5 * lacking / (total * GIB) if total else 0.0)
    value = floor(round((f - step) * 100, 6)) / 100
    best = interval.recommended if interval is not None else None
    value = min(value, best) if best is not None else value
    low = interval.low if interval is not None and interval.low is not None else terms(case).share
    if value > max(low if low is not None else 0.0, 0.05):
        yield checked(case, {"mem_fraction_static": value}, why)


def proof(case: Case, *names: str) -> tuple[Evidence, ...]:
    """The root failure and the first line of each figure named."""
    found = [evidence(case.root, "root")] if case.root is not None else []
    seen = {case.root.source} if case.root is not None else set()
    for figure in (case.run.figure(name) for name in names):
        if figure is not None and figure.source not in seen:
            seen.add(figure.source)
            found.append(evidence(figure))
    return tuple(found)


def lines(case: Case, patterns: Iterable[re.Pattern[str]]) -> tuple[Evidence, ...]:
    """The first event or last line that each pattern finds."""
    items: list[Event | Line] = [*case.run.events, *case.run.last]
    hits = [next((i for i in items if p.search(i.text)), None) for p in patterns]
    return tuple(evidence(hit) for hit in hits if hit is not None)
