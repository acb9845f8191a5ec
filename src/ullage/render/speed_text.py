"""The speed of a plan to words."""

from __future__ import annotations

from collections.abc import Iterator

from ullage.core.timing import Speed, TimeLedger
from ullage.core.units import Band
from ullage.render.lines import WIDTH, wrap


def speed_lines(found: Speed | None) -> Iterator[str]:
    """What a plan says of speed: tokens per second for each request and together."""
    if found is None:
        return
    for item in found.points:
        total = "" if item.batch == 1 else f", {_whole(item.total)} together"
        times = f"{item.batch:,} request{'s' if item.batch > 1 else ''}"
        yield f"  {times:>14}: {_whole(item.per_user)} tok/s each{total}"
    yield f"  a step of one request: {_parts(found.ledger)}"
    if found.measured:
        yield f"  mended by {'; '.join(found.measured)}"
    yield from (f"  assumed: {line}" for text in found.assumed for line in wrap(text, WIDTH - 12))


def _whole(band: Band) -> str:
    return f"{band.value:,.0f} ({band.low:,.0f} to {band.high:,.0f})"


def _parts(found: TimeLedger) -> str:
    """The largest parts of a step in words."""
    names = {"weights": "weights", "experts": "experts", "routing": "experts", "kv": "KV cache",
             "collectives": "all-reduces", "launch": "kernels", "host": "host", "draft": "draft"}  # fmt: skip
    sums: dict[str, float] = {}
    for entry in found.entries:
        name = names.get(entry.factor, entry.factor)
        sums[name] = sums.get(name, 0.0) + entry.microseconds
    largest = sorted(sums.items(), key=lambda item: -item[1])[:5]
    return f"{found.total_us / 1e3:.1f} ms, " + ", ".join(f"{name} {us / 1e3:.1f}" for name, us in largest)
