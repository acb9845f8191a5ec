"""What a sweep found, in words: a table of rows, and how many configurations start."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from ullage.sweep.sweep import Found

SCHEMA = "ullage.sweep/1"
#: columns of a table on a screen; the files have them all
_LEFT_OUT = ("low_tokens", "high_tokens", "bytes_per_token")


def text(found: Found) -> str:
    """The table and a line below it, with a newline at the end."""
    rows = found.rows.rows()
    lines = [*_table(rows), ""] if rows else []
    lines.append(summary(found))
    return "\n".join(lines) + "\n"


def summary(found: Found) -> str:
    """How many there were, how many match, and how they would end."""
    verdicts = ", ".join(f"{found.verdicts.get(word, 0):,} {said}" for word, said in (
        ("starts", "start"), ("fails", "do not"), ("unsure", "unsure"),
    ))  # fmt: skip
    matching = "" if found.num_matching == found.num_rows else f", {found.num_matching:,} match"
    return f"{found.num_rows:,} configurations{matching}: {verdicts}"


def json(found: Found) -> bytes:
    """One JSON object, with a newline at its end."""
    return msgspec.json.format(msgspec.json.encode({
        "schema": SCHEMA,
        "over": [
            {"name": s.axis.name, "setting": s.name, "values": len(s.axis.values)} for s in found.settings
        ],
        "configurations": found.num_rows, "matching": found.num_matching,
        "verdicts": {word: found.verdicts.get(word, 0) for word in ("starts", "fails", "unsure")},
        "rows": [{name: _number(value) for name, value in row.items()} for row in found.rows.rows()],
    }), indent=2) + b"\n"  # fmt: skip


def _number(value: Any) -> Any:
    """Whole numbers as such; others to twelve digits."""
    if not isinstance(value, float):
        return value
    return int(value) if value.is_integer() and abs(value) < 1 << 53 else float(f"{value:.12g}")


def _table(rows: list[dict[str, Any]]) -> Iterator[str]:
    names = [
        name for name in rows[0]
        if name not in _LEFT_OUT and (name != "cause" or any(row[name] for row in rows))
        and (name != "fails_at" or any(row[name] for row in rows))
    ]  # fmt: skip
    cells = [[_cell(row[name]) for name in names] for row in rows]
    widths = [max(len(name), *(len(line[i]) for line in cells)) for i, name in enumerate(names)]
    numbers = [isinstance(rows[0][name], int | float) for name in names]
    for line in [names, *cells]:
        padded = (
            cell.rjust(width) if number else cell.ljust(width)
            for cell, width, number in zip(line, widths, numbers, strict=True)
        )  # fmt: skip
        yield "  ".join(padded).rstrip()


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool | str):
        return str(value)
    if isinstance(value, int) or float(value).is_integer():
        return f"{value:,.0f}"
    return f"{value:.6g}" if abs(value) < 1 else f"{value:,.2f}"
