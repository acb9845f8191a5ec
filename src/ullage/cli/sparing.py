"""What makes a plain ``plan`` start sooner. Only for a process that answers and ends."""

from __future__ import annotations

import gc
import sys


def begin() -> None:
    """Collect nothing, as nothing of a plan lives long enough; and load msgspec without typing_extensions.

    msgspec takes get_type_hints, NotRequired and Required from typing_extensions where that is installed, and
    that loads inspect, ast and tokenize, a tenth of a plan; typing has the same three.
    """
    gc.disable()
    if "typing_extensions" in sys.modules or "msgspec" in sys.modules:
        return
    sys.modules["typing_extensions"] = None  # type: ignore[assignment]  # to an import: not installed
    try:
        import msgspec  # noqa: F401
    finally:
        del sys.modules["typing_extensions"]
