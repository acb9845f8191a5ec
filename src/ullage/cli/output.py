"""Where an answer goes: words, JSON or Markdown to stdout, and one HTML page to a file."""

from __future__ import annotations

import os
import stat
import sys
import tempfile
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, TypeVar

import click
from msgspec import Struct

from ullage.core.errors import InputError

Kind = Literal["why", "diff", "plan"]
F = TypeVar("F", bound=Callable[..., Any])


class Output(Struct, frozen=True):
    """What was asked for. ``unmasked`` keeps hosts, addresses, users and folders in Markdown and HTML."""

    as_json: bool = False
    html: str | None = None
    markdown: bool = False
    unmasked: bool = False


def output_options(function: F) -> F:
    """The options of every command that has a report."""
    for option in (
        click.option("--unmasked", is_flag=True,
                     help="Keep hosts, addresses, users and folders in --html and --markdown."),
        click.option("--markdown", is_flag=True, help="Print the answer as Markdown, to paste into an issue."),
        click.option("--html", metavar="FILE", help="Write the answer as one HTML page as well."),
    ):  # fmt: skip
        function = option(function)
    return function


def show(kind: Kind, found: Any, asked: Output, files: Sequence[str] = ()) -> None:
    """Print the report ``found`` of this ``kind``; ``files`` are the logs that it was made from."""
    if asked.html is not None or asked.markdown:
        from ullage.core.private import masked

        shared = found if asked.unmasked else masked(found, files)
        if asked.html is not None:
            write(asked.html, _renderer("html", kind)(shared))
    if asked.as_json:
        sys.stdout.buffer.write(_renderer("plan_json" if kind == "plan" else "json", kind)(found))
    elif asked.markdown:
        sys.stdout.write(_renderer("markdown", kind)(shared))
    else:
        _renderer("plan_text" if kind == "plan" else "text", kind)(found)


def _renderer(module: str, kind: Kind) -> Callable[[Any], Any]:
    """The function of ullage.render that shows this kind of report; imported now, not before."""
    found: Callable[[Any], Any] = getattr(import_module(f"ullage.render.{module}"), kind)
    return found


def write(path: str, text: str) -> None:
    """Write a file whole or not at all: one that is there keeps its mode, and a link still leads to it; what is
    no file (/dev/stdout) is written to. Raises InputError where it cannot be written."""
    try:
        target = Path(path).resolve() if path else Path(path)
        if target.is_dir() or not path:
            raise InputError("names no file to write", where=path or "--html")
        if target.exists() and not target.is_file():
            with target.open("w", encoding="utf-8", errors="replace") as stream:
                stream.write(text)
            return
        _replace(target, text)
    except (OSError, RuntimeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"cannot be written: {reason}", where=path[:200]) from error


def _replace(target: Path, text: str) -> None:
    mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else 0o666 & ~_umask()
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=".ullage-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", errors="replace") as stream:
            stream.write(text)
        Path(name).chmod(mode)
        Path(name).replace(target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
