"""The answer of ``spec`` to words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TextIO

from ullage.core.timing import TimeEntry, TimeLedger
from ullage.core.units import GIB, Band
from ullage.render.lines import WIDTH, Line, bullet, hanging, section, wrapped, write
from ullage.render.names import ENGINES
from ullage.spec.report import AtBatch, Payoff, Verdict

_VERDICTS: dict[Verdict, str] = {
    "pays": "pays", "loses": "does not pay", "cannot": "cannot pay", "unsure": "too near to tell",
}  # fmt: skip
_COLOURS: dict[Verdict, str] = {"pays": "1;32", "loses": "1;31", "cannot": "1;31", "unsure": "1;33"}


def spec(found: Payoff, stream: TextIO | None = None) -> None:
    """Print the whole answer."""
    write(lines(found), stream)


def lines(p: Payoff) -> Iterator[Line]:
    """The answer's lines, each with its colour where it has one."""
    first = p.batches[0]
    yield title(p), _COLOURS[first.verdict]
    yield ""
    yield from ((text, "1") for text in wrapped(summary(p), 2))
    yield from section("AT EACH BATCH SIZE", _batches(p))
    yield from section("WHERE A ROUND'S TIME GOES (batch " + f"{first.batch})", _round(first))
    yield from section("ALL-REDUCES OF THE VERIFY PASS", _all_reduces(p))
    yield from section("DEPTH", _depths(p))
    yield from section("EXPERTS", _experts(p))
    yield from section("MEMORY ON EACH RANK", _memory(p))
    yield from section("TAKEN FOR GRANTED", (t for text in p.assumed for t in bullet(text)))
    yield from section("NOTE", (t for text in p.notes for t in bullet(text)))


def title(p: Payoff) -> str:
    rows = p.width.verify_rows
    drafts = f"{p.method}, {p.width.steps} deep" + (f", top {p.width.topk}" if p.width.topk > 1 else "")
    parts = [ENGINES.get(p.engine, p.engine) + (f" {p.version}" if p.version else ""), p.model, p.gpu]
    parts += [f"{drafts}, {rows} rows", _VERDICTS[p.batches[0].verdict]]
    return "  ·  ".join(part for part in parts if part)


def summary(p: Payoff) -> str:
    """The verdict of the first batch size in a few sentences."""
    first, length = p.batches[0], p.acceptance
    needed, rows = first.break_even_length, p.width.verify_rows
    at = f"at batch {first.batch}"
    if first.verdict == "cannot":
        text = (
            f"It cannot pay {at}: a round needs more than {needed.value:.2f} tokens ({_span(needed, 2)}), and"
            f" {rows} rows give at most {p.cap}, however good the drafts."
        )
    else:
        word = {"pays": "It pays", "loses": "It does not pay"}.get(first.verdict, "It is too near to tell")
        text = (
            f"{word} {at}: {first.speedup.value:.2f} times as fast ({_span(first.speedup, 2)}) with"
            f" {_length(p)} tokens a round; it needs more than {needed.value:.2f} ({_span(needed, 2)})"
            f" and can give at most {p.cap}."
        )
    calls = first.all_reduces
    if calls is not None and first.verdict in ("cannot", "loses"):
        text += f" {calls.count} all-reduces of {_kib(calls.bytes)} at {_us(calls.us.value)} take"
        text += f" {calls.count * calls.us.value / 1e3:.1f} of its {first.round.total_us / 1e3:.1f} ms."
    if p.usual is not None:
        text += (
            f" With about {p.usual.us.value:.0f} µs ({_span(p.usual.us, 0)}), as hosts of this kind show, it"
            f" would give {_span(p.usual.with_drafts, 0)} tok/s, {p.usual.speedup.value:.2f} times as much as"
            " without drafts."
        )
    return text + ("" if length.source.startswith("--") else f" Acceptance: {length.source}.")


def _length(p: Payoff) -> str:
    length = p.acceptance.at(p.width)
    low, high = p.acceptance.limits(p.width)
    return f"{length:.2f}" if high - low < 0.01 else f"{low:.2f} to {high:.2f}"


def _span(band: Band, digits: int) -> str:
    low, high = f"{band.low:.{digits}f}", f"{band.high:.{digits}f}"
    return low if low == high else f"{low} to {high}"


def _batches(p: Payoff) -> Iterator[Line]:
    yield f"  {'batch':>6} {'without':>16} {'with drafts':>16} {'speed-up':>19} {'needs':>7} {'best depth':>11}"
    for item in p.batches:
        gain = f"{item.speedup.value:.2f} ({_span(item.speedup, 2)})"
        best = p.best.get(item.batch)
        depth = "" if best is None else str(best) if best else "none pays"
        yield (
            (
                f"  {item.batch:>6} {rate(item.without):>16} {rate(item.with_drafts):>16} {gain:>19}"
                f" {item.break_even_length.value:>7.2f} {depth:>11}"
            ),
            _COLOURS[item.verdict],
        )
    yield f"  tok/s of each request, at {p.context:,} tokens of context"
    yield f"  {_ranges(p)}"


def rate(band: Band) -> str:
    return f"{band.low:.0f} to {band.high:.0f}" if band.value >= 10 else f"{band.low:.1f} to {band.high:.1f}"


def _ranges(p: Payoff) -> str:
    if not p.paying:
        return f"pays at no batch size up to {p.tried_to:,}"
    words = [
        f"{first:,} to {last:,}" if last is not None else f"{first:,} and all above, as far as {p.tried_to:,}"
        for first, last in p.paying
    ]
    return f"pays at batch sizes {'; '.join(words)}, by the middle of the estimate"


def _round(item: AtBatch) -> Iterator[Line]:
    yield from time_lines(item.round, item.baseline)


def time_lines(found: TimeLedger, beside: TimeLedger | None = None) -> Iterator[Line]:
    """The entries of a step, largest first, small ones together; ``beside``: the same without drafts."""
    total = found.total_us or 1.0
    shown = sorted((e for e in found.entries if e.microseconds >= 0.01 * total), key=lambda e: -e.microseconds)
    small = total - sum(e.microseconds for e in shown)
    width = max((len(e.name) for e in shown), default=8)
    for entry in shown:
        yield from _entry(entry, width)
    if small > 0:
        yield f"  {'the rest':<{width}}  {small / 1e3:>7.2f} ms"
    text = f"  {'together':<{width}}  {total / 1e3:>7.2f} ms ({_span(found.band_us.scaled(1e-3), 1)})"
    if beside is not None:
        text += f", without drafts {beside.total_us / 1e3:.2f} ms ({_span(beside.band_us.scaled(1e-3), 1)})"
    yield text, "1"


def _entry(entry: TimeEntry, width: int) -> Iterator[str]:
    head = f"  {entry.name:<{width}}  {entry.microseconds / 1e3:>7.2f} ms  {entry.certainty:<9} "
    return hanging(head, entry.source)


def _all_reduces(p: Payoff) -> Iterator[Line]:
    for item in p.batches:
        calls = item.all_reduces
        if calls is None:
            continue
        usual = f"; usual here {_span(calls.usual_us, 0)} µs" if calls.usual_us else ""
        yield f"  batch {item.batch}: {calls.count} of {_kib(calls.bytes)} at {_us(calls.us.value)}{usual}"
        allowed = [
            f"{us:.0f} µs to be {'as fast' if gain == 1 else f'{gain:g} times as fast'}" if us is not None
            else f"none is quick enough to be {'as fast' if gain == 1 else f'{gain:g} times as fast'}"
            for gain, us in calls.allowed_us
        ]  # fmt: skip
        yield f"    each may take {', '.join(allowed)}"


def _depths(p: Payoff) -> Iterator[Line]:
    if not p.depths:
        return
    yield "  " + "".join(f"{item.depth:>8}" for item in p.depths) + "   drafts"
    yield "  " + "".join(f"{item.length:>8.2f}" for item in p.depths) + "   tokens a round"
    yield "  " + "".join(f"{item.speedup.value:>8.2f}" for item in p.depths) + "   times as fast"


def _experts(p: Payoff) -> Iterator[Line]:
    if p.experts is None:
        return
    for item in p.batches:
        if item.experts_decode is not None and item.experts_verify is not None:
            yield (
                f"  batch {item.batch}: a step reads {item.experts_decode:.1f} of {p.experts[0]} experts a"
                f" layer, a verify pass {item.experts_verify:.1f}"
            )


def _memory(p: Payoff) -> Iterator[Line]:
    for item in p.memory:
        size = f"{item.low / GIB:+.2f} to {item.high / GIB:+.2f} GiB"
        yield f"  {item.name:<28} {size:>24}  {item.source[: max(20, WIDTH - 58)]}"
    before, after = p.tokens
    if before is not None and after is not None:
        yield f"  KV pool: {before:,} tokens without drafts, {after:,} with"


def _us(value: float) -> str:
    return f"{value:,.0f} µs" if value >= 100 else f"{value:.3g} µs"


def _kib(num_bytes: int) -> str:
    return f"{num_bytes / 1024:,.4g} KiB"
