"""The command line: each command parses, asks one use-case, renders, and exits with a meaning."""

from __future__ import annotations

import os
import sys

from ullage.core.errors import UllageError


def main(argv: list[str] | None = None) -> None:
    """The console script. Exits; errors that a user can mend are one line on stderr and code 2."""
    words = sys.argv[1:] if argv is None else argv
    try:
        code = answer(words)
    except UllageError as error:
        sys.stderr.write(f"ullage: {error.line}\n")
        code = 2
    except BrokenPipeError:
        # the reader of our output has gone; nothing more to say, at exit either
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 141
    except KeyboardInterrupt:
        code = 130
    except Exception as error:
        if os.environ.get("ULLAGE_DEBUG"):
            raise
        sys.stderr.write(f"ullage: {fault(error)}\n")
        code = 3
    sys.exit(code)


def fault(error: Exception) -> str:
    """A fault of ullage itself in one line: what, where, and how to see more."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    where = f"{last.tb_frame.f_code.co_filename.rpartition('/')[2]}:{last.tb_lineno}" if last else "unknown"
    what = " ".join(f"{type(error).__name__}: {error}".split())[:300]
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
