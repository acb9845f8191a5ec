"""A Plan to words. Plain text with a little colour on a terminal: rich would take longer than the plan."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from math import ceil, floor
from typing import TextIO

from ullage.core.deployment import Interval
from ullage.core.finding import Change, Prediction
from ullage.core.ledger import Entry, Ledger
from ullage.core.report import Plan
from ullage.core.units import GIB, Band, gib_text, tokens_text

WIDTH = min(112, max(60, int(columns) if (columns := os.environ.get("COLUMNS", "")).isdigit() else 112))
_NAMES = {"sglang": "SGLang", "vllm": "vLLM"}
_VERDICTS = {"starts": "will start", "fails": "will not start", "unsure": "cannot tell"}
_SHADES = {
    "init": "░", "weights": "█", "profile": "▒", "kv_pool": "▓", "graph_capture": "▒", "warmup": "░",
    "serving": "░",
}  # fmt: skip
_COLOURS = {"starts": "1;32", "fails": "1;31", "unsure": "1;33"}


def plan(found: Plan, stream: TextIO | None = None) -> None:
    """Print the whole answer."""
    out = stream or sys.stdout
    colour = out.isatty() and "NO_COLOR" not in os.environ
    for line in lines(found):
        text, style = line if isinstance(line, tuple) else (line, "")
        out.write(f"\x1b[{style}m{text}\x1b[0m\n" if colour and style else f"{text}\n")


Line = str | tuple[str, str]


def lines(p: Plan) -> Iterator[Line]:
    """The answer's lines, each with its colour where it has one."""
    yield title(p), _COLOURS[p.verdict]
    yield ""
    yield from ((text, "1") for text in _wrapped(summary(p), 2))
    if p.budget.formula:
        yield from ((f"  {text}", "36") for text in p.budget.formula.splitlines())
    yield from _section("SETTINGS", _settings(p))
    yield from _section("WHERE THE MEMORY GOES" + _ranks(p), _ledger(p))
    yield from _section("KV CACHE", _pool(p))
    yield from _section("SPEED", _speed(p))
    yield from _section("WHAT STARTS", _interval(p.interval))
    yield from _section("WHAT HELPS" if p.verdict != "starts" else "WHAT GIVES MORE", _changes(p.fixes))
    yield from _section("NOTE", (t for c in p.cautions for t in _bullet(c.text)))


def _section(title: str, body: Iterator[Line]) -> Iterator[Line]:
    found = list(body)
    if found:
        yield ""
        yield title, "1"
        yield from found


def title(p: Plan) -> str:
    parts = [_NAMES.get(p.engine, p.engine) + (f" {p.version}" if p.version else " (newest rules)")]
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
        shade = _SHADES.get(entry.stage, "░")
        head = f"  {shade} {entry.name:<{width}}  {_size(entry):>20}  {entry.certainty:<9} "
        source = wrap(entry.source, max(24, WIDTH - len(head))) or [""]
        yield head + source[0]
        yield from (" " * len(head) + more for more in source[1:])
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
    cells = "".join(
        _SHADES.get(entry.stage, "░") * round(width * max(0, entry.bytes) / total) for entry in ledger.entries
    )
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
    flag = f"--{item.flag.lstrip('-').replace('_', '-')}"
    if item.empty:
        yield f"  no value of {flag}", "1"
    else:
        low = f"above {ceil(item.low * 1000) / 1000:.3f}" if item.low is not None else ""
        high = f"up to {floor(item.high * 1000) / 1000:.3f}" if item.high is not None else ""
        best = f"; best {item.recommended:.3g}" if item.recommended is not None else ""
        yield f"  {flag} {' and '.join(filter(None, (low, high)))}{best}", "1"
    for text in (item.low_because, item.high_because):
        yield from _wrapped(text, 4)


def _changes(changes: tuple[Change, ...]) -> Iterator[Line]:
    for change in changes:
        flags = "  ".join(name if value is True else f"{name} {value}" for name, value in change.change.items())
        said = f"  → {predicted(change.predicted)}" if change.predicted else ""
        yield f"  - {flags}{said}", "32"
        yield from _wrapped(change.why, 4)


def predicted(p: Prediction) -> str:
    """What a change is predicted to do."""
    parts = [_VERDICTS[p.verdict]]
    if p.kv_bytes is not None:
        parts.append(f"pool {gib_text(p.kv_bytes)}")
    if p.kv_tokens:
        parts.append(f"{tokens_text(p.kv_tokens)} tokens")
    return ", ".join(parts)


def _bullet(text: str) -> Iterator[str]:
    for index, line in enumerate(wrap(text, WIDTH - 4) or [""]):
        yield f"  {'-' if not index else ' '} {line}"


def _wrapped(text: str, indent: int) -> Iterator[str]:
    return (" " * indent + line for line in wrap(text, WIDTH - indent))


def wrap(text: str, width: int) -> list[str]:
    """``text`` in lines of at most ``width``, broken at blanks; a longer word stands alone."""
    lines: list[str] = []
    for word in text.split():
        if lines and len(lines[-1]) + 1 + len(word) <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines
