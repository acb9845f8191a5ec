"""The command line: each command parses, asks one use-case, renders, and exits with a meaning."""

from __future__ import annotations

import os
import sys

from ullage.cli import streams
from ullage.core.errors import InputError, UllageError


def main(argv: list[str] | None = None) -> None:
    """The console script. Exits; errors that a user can mend are one line on stderr and code 2."""
    words = sys.argv[1:] if argv is None else argv
    streams.prepare()
    try:
        code = _answered(words)
    except BrokenPipeError:
        # the reader of our output has gone; nothing more to say, at exit either
        streams.discard()
        code = 141
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)


def _answered(words: list[str]) -> int:
    """The exit code; what went wrong is told."""
    try:
        _legible(words)
        code = answer(words)
        sys.stdout.flush()
        return code
    except UllageError as error:
        streams.complain(error.line)
        return 2
    except BrokenPipeError:
        raise
    except Exception as error:
        refused = streams.refusal(error) if isinstance(error, OSError) else None
        if refused is not None:
            streams.complain(f"stdout: cannot be written: {refused}")
            return 2
        if os.environ.get("ULLAGE_DEBUG"):
            raise
        streams.complain(fault(error))
        return 3


def _legible(words: list[str]) -> None:
    """Raises InputError for a word that is no UTF-8 text: it could stand in no report and in no record."""
    for number, word in enumerate(words, 1):
        if not word.isascii() and not word.isprintable() and any("\ud800" <= c <= "\udfff" for c in word):
            shown = "".join(c if c.isprintable() else "?" for c in word)[:60]
            raise InputError(f"is not UTF-8 text: {shown!r}", where=f"word {number} of the command line",
                             hint="a file of such a name: give it on stdin, or rename it")  # fmt: skip


def fault(error: Exception) -> str:
    """A fault of ullage itself in one line: what, where, and how to see more."""
    from ullage.core.plain import visible
    from ullage.core.secrets import masked

    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    where = f"{last.tb_frame.f_code.co_filename.rpartition('/')[2]}:{last.tb_lineno}" if last else "unknown"
    what = visible(masked(" ".join(f"{type(error).__name__}: {error}".split())[:300]))
    return f"a fault of ullage itself, please report it: {what} ({where}; ULLAGE_DEBUG=1 shows the traceback)"


def answer(words: list[str]) -> int:
    """Run a command line; the exit code. The first page of help and a plain ``plan`` answer without click,
    whose import takes longer than they do."""
    if not words and "_ULLAGE_COMPLETE" in os.environ:
        from ullage.cli import completion

        return completion.answer()
    if words in (["--help"], ["-h"]):
        from ullage.cli.help import page

        print(page())
        return 0
    if words[:1] == ["plan"]:
        from ullage.cli import sparing

        sparing.begin()
        from ullage.cli import quick

        options = quick.options_of(words[1:])
        if options is not None:
            quick.leave(quick.plan(options))
    from ullage.cli import group

    return group.run(words)
