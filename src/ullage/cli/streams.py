"""The three standard streams as they may be handed to us: closed, full, or not able to show every character."""

from __future__ import annotations

import errno
import io
import os
import sys
from contextlib import suppress

#: what a write to a full disk, a broken terminal or one past a limit gives; errors of named files have a name
_REFUSED = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)


def prepare() -> None:
    """Make the streams safe to use.

    A closed one leads to the null device: otherwise the next file that is opened would take its number and get
    what is printed. What the encoding of stdout lacks is shown as "?" instead of ending the answer.
    """
    if None in (sys.stdin, sys.stdout, sys.stderr):
        _open_closed()
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="replace")


def _open_closed() -> None:
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, encoding="utf-8", errors="replace", closefd=False))  # noqa: SIM115


def refusal(error: OSError) -> str | None:
    """Why stdout takes nothing more ("No space left on device"); None where ``error`` is of something else.
    After a refusal stdout leads to the null device, so that nothing is tried again at exit."""
    if error.filename is not None or error.errno not in _REFUSED:
        return None
    discard()
    return error.strerror


def discard() -> None:
    """Lead stdout to the null device: nobody reads it any more."""
    with suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)


def complain(line: str) -> None:
    """A line on stderr, as far as that takes one."""
    try:
        sys.stderr.write(f"ullage: {line}\n")
        sys.stderr.flush()
    except (OSError, ValueError):
        with suppress(OSError, ValueError):
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, sys.stderr.fileno())
            os.close(null)
