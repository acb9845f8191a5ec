"""What ``ullage ui`` and ``ullage mcp`` both take: an address to listen on, and folders that may be read."""

from __future__ import annotations

import errno
import socket
from pathlib import Path

from ullage.core.errors import InputError


def bound(address: str, port: int) -> tuple[socket.socket, int]:
    """A socket that listens there, and its port (a free one for 0). Raises InputError where that cannot be."""
    kind = socket.AF_INET6 if ":" in address else socket.AF_INET
    made = socket.socket(kind, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((address, port))
        made.listen(128)
    except (OSError, TypeError, UnicodeError) as error:
        made.close()
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        taken = getattr(error, "errno", None) == errno.EADDRINUSE
        hint = "another --port, or 0 for a free one" if taken else None
        where = f"{address[:100]}:{port}"
        raise InputError(f"cannot be listened on: {reason}", where=where, hint=hint) from None
    return made, int(made.getsockname()[1])


def folder(root: str) -> str:
    """The real path of a folder named by --root. Raises InputError where it is none."""
    try:
        real = Path(root).expanduser().resolve(strict=True)
    except (OSError, RuntimeError, ValueError):
        real = None
    if real is None or not real.is_dir():
        raise InputError("is no folder", where=f"--root {root[:200]}")
    return str(real)
