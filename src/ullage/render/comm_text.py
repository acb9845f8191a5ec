"""What ``comm`` found, in words: collectives and their time, backends, what to try, measurements."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import wrap
from typing import TextIO

from ullage.comm.links import Links
from ullage.comm.measured import Measurement, Outlier
from ullage.core.units import KIB, MIB, Band, gib_text
from ullage.planning.comm import Advice, Choice, CommPlan, Forward, Item
from ullage.render.lines import Line, section, write
from ullage.render.names import ENGINES, pasted

WIDTH = 108
#: a band wider than this share of its middle is shown to two digits
ROUGH = 0.2
_RESULTS = {"works": "can run", "fails": "cannot", "ignored": "stays off", "unknown": "not known"}
_FABRICS = {
    "nvlink": "NVLink between all", "switch": "PCIe, below switches", "pcie": "PCIe, one CPU",
    "sockets": "PCIe, across CPUs", "host": "PCIe without P2P, through host memory",
    "unknown_pcie": "PCIe, links not known",
}  # fmt: skip


def plan(found: CommPlan, stream: TextIO | None = None) -> None:
    """Print the answer of ``comm plan``."""
    write(plan_lines(found), stream)


def measurements(
    found: Sequence[Measurement], slow: Sequence[Outlier] = (), kept: str = "", stream: TextIO | None = None
) -> None:
    """Print what ``comm bench`` or ``comm import`` has."""
    write(_measurement_lines(found, slow, kept), stream)


def plan_lines(p: CommPlan) -> Iterator[Line]:
    """The answer's lines, each with its colour where it has one."""
    engine = ENGINES.get(p.engine, p.engine)
    yield (
        f"{engine}{f' {p.version}' if p.version else ''}  ·  {p.model_id or 'model not known'}  ·  {_where(p)}",
        "1",
    )
    yield from (f"  not known: {name}" for name in p.missing)
    if not p.forwards:
        return
    yield ""
    yield from _wrapped(_summary(p))
    for forward in p.forwards:
        yield from section(_title(forward), _forward(forward))
    yield from section("BACKENDS" + _main(p), _choices(p))
    yield from section("NCCL'S BUFFERS", _memory(p))
    yield from section("WHAT TO TRY FIRST", (line for one in p.advice for line in _advice(one)))
    yield from section("OUT OF LINE", (line for one in p.outliers for line in _wrapped(one.text, "  - ")))


def _where(p: CommPlan) -> str:
    gpus = f"{p.links.num_gpus} x {p.links.gpu}" if p.links.gpu else f"{p.links.num_gpus} GPUs"
    hosts = f" on each of {p.links.nodes} hosts" if p.links.nodes > 1 else ""
    return f"{gpus}{hosts}"


def _summary(p: CommPlan) -> str:
    if p.main is None:
        return "No all-reduce at all: one rank holds the model."
    first = p.forwards[0]
    main = first.main
    time = _band(main.call.band) if main else "nothing"
    return (
        f"{p.num_all_reduces} all-reduces of {size(p.main.bytes)} in the layers of each {_kind(first)} "
        f"({p.main.ranks} ranks; {_FABRICS[p.links.fabric]}: {p.links.source}), {time} a call: "
        f"{_band(first.total)} a forward for all collectives."
    )


def _kind(forward: Forward) -> str:
    return "verify pass" if forward.verify else forward.phase


def _title(forward: Forward) -> str:
    if forward.phase == "prefill":
        return f"PREFILL OF {forward.rows:,} TOKENS  {_band(forward.total)}"
    name = "VERIFY PASS" if forward.verify else "DECODE"
    rows = f", {forward.rows:,} rows" if forward.rows != forward.batch else ""
    return f"{name}, BATCH {forward.batch:,}{rows}  {_band(forward.total)}"


def _forward(forward: Forward) -> Iterator[Line]:
    shown = sorted(forward.items, key=lambda item: -item.total.value)
    kinds = max((len(_name(item)) for item in shown), default=0)
    for item in shown:
        one = item.collective
        yield (
            f"  {one.count:>4} x {_name(item):<{kinds}} {size(one.bytes):>9} {_band(item.call.band):>19}"
            f" {_band(item.total):>21}  {one.what}"
        )
        if item.measured:
            yield f"         {item.measured}"
    for how in dict.fromkeys(item.call.how for item in shown[:1] if not item.measured):
        yield f"         {how}"


def _name(item: Item) -> str:
    return f"{item.collective.kind.replace('_', '-')} ({item.backend})"


def _main(p: CommPlan) -> str:
    return f" for {size(p.main.bytes)} over {p.main.ranks} ranks" if p.main else ""


def _choices(p: CommPlan) -> Iterator[Line]:
    yield from (line for c in p.choices if not c.standing.foreign for line in _choice(c))
    others = ", ".join(c.standing.name for c in p.choices if c.standing.foreign)
    if others:
        yield from _wrapped(f"for other GPUs: {others}", "    ")


def _choice(choice: Choice) -> Iterator[Line]:
    s = choice.standing
    mark = ">" if choice.runs else " "
    time = _band(choice.call.band) if choice.call else ""
    memory = f"  {_bytes(choice.memory)}" if choice.memory and choice.memory.high else ""
    gain = f"  {_gain(choice.gain_us)} a forward" if choice.gain_us is not None else ""
    yield f"  {mark} {s.name}: {_RESULTS[s.result]}{f'  {time}' if time else ''}{memory}{gain}"
    if choice.call and not choice.runs and s.memory and not memory:
        yield from _wrapped(f"memory: {s.memory}", "      ")
    told = f"“{s.message}” {s.text}".strip() if s.message else s.text
    if told and s.result != "works":
        yield from _wrapped(told, "      ")
    if s.source and s.result != "works":
        yield from _wrapped(f"({s.source})", "      ")


def _memory(p: CommPlan) -> Iterator[Line]:
    if p.nccl_memory is None or p.main is None:
        return
    when = "when the communicator starts" if p.at_init else "at the first collective"
    yield from _wrapped(
        f"{_bytes(p.nccl_memory.total)} of each GPU for a communicator, {when}: {p.nccl_memory.basis}", "  "
    )


def _advice(one: Advice) -> Iterator[Line]:
    words = (
        "  ".join(pasted(name.removeprefix("$"), value) for name, value in one.change.items())
        or "as NCCL chooses"
    )
    gain = f": {_gain(one.gain_us)} a forward" if one.gain_us is not None else ""
    yield f"  - {words}{gain}"
    yield from _wrapped(one.why, "    ")


def _gain(band: Band) -> str:
    if band.value <= 0 < band.high:
        return f"up to {_time(band.high, 2)} less"
    word = "less" if band.value >= 0 else "more"
    ends = (
        sorted((abs(band.low), abs(band.high)))
        if band.low * band.high > 0
        else [0.0, max(band.high, -band.low)]
    )
    return f"{_time(abs(band.value), 2)} {word} ({_time(ends[0], 2)} to {_time(ends[1], 2)})"


def _measurement_lines(found: Sequence[Measurement], slow: Sequence[Outlier], kept: str) -> Iterator[Line]:
    for one in found:
        yield ""
        yield measurement_title(one), "1"
        if one.failed:
            yield from _wrapped(f"failed: {one.failed}", "  ")
        for point in one.points:
            spread = f"  ({_time(point.band.low)} to {_time(point.band.high)})"
            wrong = f"  {point.wrong:,} elements wrong!" if point.wrong else ""
            yield f"  {size(point.bytes):>10}  {_time(point.us):>10}{spread}{wrong}"
        yield from (line for note in one.notes for line in _wrapped(note, "  "))
    yield from section("OUT OF LINE", (line for one in slow for line in _wrapped(one.text, "  - ")))
    if kept:
        yield ""
        yield f"kept: {kept}"


def measurement_title(one: Measurement) -> str:
    """What was measured, in one line."""
    gpu = f"{one.ranks} x {one.gpu}" if one.gpu else f"{one.ranks} ranks"
    words = [
        f"{one.kind.replace('_', '-')}, {gpu}",
        f"{one.backend} {one.nccl}".strip(),
        one.mode,
        one.settings_text,
    ]
    words += [f"via {one.via}"] if one.via else []
    words += [f"{one.nodes} hosts"] if one.nodes > 1 else []
    return "  ·  ".join(words)


def links_text(links: Links) -> str:
    """The fabric in words."""
    return _FABRICS[links.fabric]


def size(num_bytes: int) -> str:
    """Bytes for people: "42 KiB", "1.5 MiB", "300 B"."""
    for unit, name in ((MIB, "MiB"), (KIB, "KiB")):
        if num_bytes >= unit:
            value = num_bytes / unit
            return f"{value:.0f} {name}" if value >= 100 or value == int(value) else f"{value:.1f} {name}"
    return f"{num_bytes} B"


def _bytes(band: Band) -> str:
    if band.low == band.high:
        return gib_text(band.value) if band.value >= 1 << 30 else f"{band.value / MIB:.0f} MiB"
    return f"{band.low / MIB:.0f} to {band.high / MIB:.0f} MiB"


def _band(band: Band) -> str:
    """ "30 µs (16-370)": one unit for all three, and no more digits than the band bears out."""
    scale, unit = (1000.0, "ms") if band.value >= 1000 else (1.0, "µs")
    digits = 2 if band.high - band.low > ROUGH * band.value else 3
    low, value, high = (_digits(one / scale, digits) for one in (band.low, band.value, band.high))
    return f"{value} {unit} ({low}-{high})"


def _digits(value: float, digits: int) -> str:
    """So many significant digits, without an exponent: 2.1, 16, 370, 1,600."""
    rounded = float(f"{value:.{digits}g}")
    decimals = max(0, digits - len(str(int(abs(rounded))))) if rounded >= 1 else digits - 1
    return f"{rounded:,.{decimals}f}"


def _time(us: float, digits: int = 3) -> str:
    """One time: "246 µs", "2.07 ms"."""
    return f"{_digits(us / 1000, digits)} ms" if us >= 1000 else f"{_digits(us, digits)} µs"


def _wrapped(text: str, indent: str = "  ") -> list[str]:
    return wrap(text, WIDTH, initial_indent=indent, subsequent_indent=" " * len(indent)) or [indent]
