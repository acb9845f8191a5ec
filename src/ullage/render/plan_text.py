"""A Plan to words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TextIO

from ullage.core.deployment import Interval
from ullage.core.finding import Change, Prediction
from ullage.core.ledger import Entry, Ledger
from ullage.core.report import Plan
from ullage.core.units import GIB, Band, gib_text, tokens_text
from ullage.render.lines import Line, bullet, hanging, section, wrapped, write
from ullage.render.names import ENGINES, flag, lower_limit, pasted, upper_limit
from ullage.render.stages import shade

_VERDICTS = {"starts": "will start", "fails": "will not start", "unsure": "cannot tell"}
_COLOURS = {"starts": "1;32", "fails": "1;31", "unsure": "1;33"}


def plan(found: Plan, stream: TextIO | None = None) -> None:
    """Print the whole answer."""
    write(lines(found), stream)


def lines(p: Plan) -> Iterator[Line]:
    """The answer's lines, each with its colour where it has one."""
    yield title(p), _COLOURS[p.verdict]
    yield ""
    yield from ((text, "1") for text in wrapped(summary(p), 2))
    if p.budget.formula:
        yield from ((f"  {text}", "36") for text in p.budget.formula.splitlines())
    yield from section("SETTINGS", _settings(p))
    yield from section("WHERE THE MEMORY GOES" + _ranks(p), _ledger(p))
    yield from section("KV CACHE", _pool(p))
    yield from section("SPEED", _speed(p))
    yield from section("WHAT STARTS", _interval(p.interval))
    yield from section("WHAT HELPS" if p.verdict != "starts" else "WHAT GIVES MORE", _changes(p.fixes))
    yield from section("NOTE", (t for c in p.cautions for t in bullet(c.text)))


def title(p: Plan) -> str:
    parts = [ENGINES.get(p.engine, p.engine) + (f" {p.version}" if p.version else " (newest rules)")]
    if p.model is not None or p.model_id:
        parts.append(p.model.id if p.model else f"{p.model_id} (not known)")
    if p.machine is not None and p.machine.gpu is not None:
        count = f"{p.machine.count} x " if p.machine.count else ""
        parts.append(f"{count}{p.machine.gpu.name}")
    parts.append(_VERDICTS[p.verdict])
    return "  ·  ".join(parts)


def summary(p: Plan) -> str:
    """The verdict in a sentence."""
    if p.verdict == "fails":
        at = f" ({p.fails_at}: {p.cause})" if p.fails_at and p.cause else ""
        return f"It will {'' if p.proven else 'probably '}not start: {p.why}{at}."
    if p.verdict == "unsure":
        needs = f" A surer answer needs: {', '.join(p.missing)}." if p.missing else ""
        return f"It cannot be told: {p.why}.{needs}"
    tokens = p.budget.kv_tokens
    if tokens is None:
        return "It will start."
    return f"It will start with {tokens_text(tokens.value)} tokens of KV cache ({_range(tokens)})."


def _range(band: Band) -> str:
    if round(band.low) == round(band.high):
        return "exactly"
    return f"{tokens_text(band.low)} to {tokens_text(band.high)}"


def _settings(p: Plan) -> Iterator[str]:
    for name, arg in p.settings.items():
        value = arg.value
        if isinstance(value, list):
            value = f"{value[0]} .. {value[-1]} ({len(value)} sizes)" if len(value) > 6 else str(value)
        origin = {"given": "given", "log": "log", "default": "default"}.get(arg.origin, arg.source)
        yield f"  {name:<28} {value!s:<26} {origin}"


def _ranks(p: Plan) -> str:
    return " (on the fullest rank)" if p.budget.ledgers else ""


def _ledger(p: Plan) -> Iterator[Line]:
    if not p.budget.ledgers:
        return
    ledger = max(p.budget.ledgers, key=lambda item: item.used_bytes)
    yield f"  {_bar(ledger)}  {gib_text(ledger.total_bytes)}"
    width = max((len(entry.name) for entry in ledger.entries), default=4)
    for entry in ledger.entries:
        head = f"  {shade(entry.stage)} {entry.name:<{width}}  {_size(entry):>20}  {entry.certainty:<9} "
        yield from hanging(head, entry.source)
    if ledger.left_bytes >= 0:
        yield f"  · {'left':<{width}}  {gib_text(ledger.left_bytes):>20}"
    else:
        yield f"  ! {'missing':<{width}}  {gib_text(-ledger.left_bytes):>20}", "31"


def _size(entry: Entry) -> str:
    if entry.low == entry.high:
        return gib_text(entry.bytes)
    return f"{entry.low / GIB:.2f} to {entry.high / GIB:.2f} GiB"


def _bar(ledger: Ledger, width: int = 56) -> str:
    total = max(ledger.total_bytes, sum(max(0, entry.bytes) for entry in ledger.entries), 1)
    cells = "".join(shade(entry.stage) * round(width * max(0, entry.bytes) / total) for entry in ledger.entries)
    return cells[:width].ljust(width, "·")


def _pool(p: Plan) -> Iterator[str]:
    pool, each = p.budget.pool_bytes, p.budget.bytes_per_token
    if pool is None:
        return
    yield f"  {gib_text(pool.value)} ({pool.low / GIB:.2f} to {pool.high / GIB:.2f})" + (
        f", {each.value:,.0f} bytes a token on each rank" if each else ""
    )
    for length, times in sorted(p.concurrency.items()):
        yield f"  {tokens_text(length):>9} tokens a request: {times:,.1f} at once"


def _speed(p: Plan) -> Iterator[Line]:
    if p.speed is None:
        return
    from ullage.render.speed_text import speed_lines

    yield from speed_lines(p.speed)


def _interval(item: Interval | None) -> Iterator[Line]:
    if item is None or (item.low is None and item.high is None):
        return
    name = flag(item)
    if item.empty:
        yield f"  no value of {name}", "1"
    else:
        low = f"above {lower_limit(item.low)}" if item.low is not None else ""
        high = f"up to {upper_limit(item.high)}" if item.high is not None else ""
        best = f"; best {item.recommended:.3g}" if item.recommended is not None else ""
        yield f"  {name} {' and '.join(filter(None, (low, high)))}{best}", "1"
    for text in (item.low_because, item.high_because):
        yield from wrapped(text, 4)


def _changes(changes: tuple[Change, ...]) -> Iterator[Line]:
    for change in changes:
        flags = "  ".join(pasted(name, value) for name, value in change.change.items())
        said = f"  → {predicted(change.predicted)}" if change.predicted else ""
        yield f"  - {flags}{said}", "32"
        yield from wrapped(change.why, 4)


def predicted(p: Prediction) -> str:
    """What a change is predicted to do."""
    parts = [_VERDICTS[p.verdict]]
    if p.kv_bytes is not None:
        parts.append(f"pool {gib_text(p.kv_bytes)}")
    if p.kv_tokens:
        parts.append(f"{tokens_text(p.kv_tokens)} tokens")
    return ", ".join(parts)
