"""A command run to its end on another machine, over ssh, beside the server that it loads."""

from __future__ import annotations

import shlex
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ullage.lab.campaign import child
from ullage.lab.remote import RemoteServer
from ullage.lab.server import Start

#: where results are written there, one folder a run; removed when they were read
FOLDER = ".cache/ullage/results"
MARK = "ullage-result-begins"
LOOK_S = 0.1


def with_result(words: Sequence[str], result: str) -> tuple[str, ...]:
    """``words`` followed by what they wrote to ``result``, behind a mark, and by its removal."""
    name = shlex.quote(result)
    folder = shlex.quote(result.rpartition("/")[0])
    script = (
        f"mkdir -p {folder} && {shlex.join(words)}; code=$?; echo; echo {MARK}; cat {name} 2>/dev/null; "
        f"rm -rf {folder}; exit $code"
    )
    return ("/bin/sh", "-c", script)


def result_of(text: str) -> tuple[str, str | None]:
    """(what was printed, what was written)."""
    printed, mark, written = text.rpartition(f"\n{MARK}\n")
    return (printed, written) if mark else (text, None)


def run(
    host: str, words: Sequence[str], env: Mapping[str, str], run_id: str, folder: Path, timeout_s: float,
    watch: Callable[[], bool],
) -> child.Ran:  # fmt: skip
    """Run ``words`` at ``host``; as child.run. What it printed passes through a file in ``folder``."""
    began = time.monotonic()
    with tempfile.NamedTemporaryFile(dir=folder, suffix=".out") as out:
        start = Start(tuple(words), dict(env))
        # a mark of its own: ending it must not end the server
        there = RemoteServer(host, start, f"{run_id}-load", Path(out.name), grace_s=child.GRACE_S)
        there.start()
        how = "ended"
        try:
            while there.poll() is None:
                if watch():
                    how = "stopped"
                    break
                if time.monotonic() - began >= timeout_s:
                    how = "timeout"
                    break
                time.sleep(LOOK_S)
        finally:
            there.stop(child.GRACE_S)
        code = there.poll()
        text = Path(out.name).read_bytes()[-child.KEPT_BYTES :].decode("utf-8", "replace")
    return child.Ran(how, code if code is not None else -9, text, time.monotonic() - began)  # type: ignore[arg-type]
