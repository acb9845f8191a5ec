"""Answers as lines of plain text with a little colour on a terminal: rich would take longer than a plan."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from typing import TextIO

#: a line, or a line and its colour (the parameters of an SGR sequence: "1;32")
Line = str | tuple[str, str]
#: columns of an answer: as many as the terminal has, from 60 to 112
WIDTH = min(112, max(60, int(columns) if (columns := os.environ.get("COLUMNS", "")).isdigit() else 112))


def write(lines: Iterable[Line], stream: TextIO | None = None) -> None:
    """Print to ``stream`` (stdout), in colour on a terminal where NO_COLOR is not set."""
    out = stream or sys.stdout
    colour = out.isatty() and "NO_COLOR" not in os.environ
    for line in lines:
        text, style = line if isinstance(line, tuple) else (line, "")
        out.write(f"\x1b[{style}m{text}\x1b[0m\n" if colour and style else f"{text}\n")


def section(title: str, body: Iterable[Line], style: str = "1") -> Iterator[Line]:
    """An empty line, the title, the body; nothing at all where the body is empty."""
    found = list(body)
    if found:
        yield ""
        yield title, style
        yield from found


def bullet(text: str) -> Iterator[str]:
    """``text`` as an item of a list."""
    for index, line in enumerate(wrap(text, WIDTH - 4) or [""]):
        yield f"  {'-' if not index else ' '} {line}"


def wrapped(text: str, indent: int) -> Iterator[str]:
    """``text`` with ``indent`` blanks in front of each of its lines."""
    return (" " * indent + line for line in wrap(text, WIDTH - indent))


def hanging(head: str, text: str) -> Iterator[str]:
    """``head``, and beside it ``text`` in as many lines as it needs."""
    shown = wrap(text, max(24, WIDTH - len(head))) or [""]
    yield head + shown[0]
    yield from (" " * len(head) + more for more in shown[1:])


def wrap(text: str, width: int) -> list[str]:
    """``text`` in lines of at most ``width``, broken at blanks; a longer word stands alone."""
    lines: list[str] = []
    for word in text.split():
        if lines and len(lines[-1]) + 1 + len(word) <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines
