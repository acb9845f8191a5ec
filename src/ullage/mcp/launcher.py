"""Becomes ``ullage run ...``, so bound to the server that started it: where that is killed, the kernel asks the
run to end (prctl(2), PR_SET_PDEATHSIG), and it ends its server and all its processes."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(words: list[str]) -> None:
    """``words``: the parent's pid, then those of ``ullage run``."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    if os.getppid() != int(words[0]):
        sys.exit(143)
    os.execv(sys.executable, [sys.executable, "-P", "-m", "ullage", "run", *words[1:]])


if __name__ == "__main__":
    main(sys.argv[1:])
