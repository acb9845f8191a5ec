"""Measures collectives through torch.distributed in the engine's Python: fresh processes for each setting.

NCCL reads its variables once a process, so that each row of the matrix is a process group of its own. Every
process that is started here ends here: on success, failure, time-out and interruption (worker.py asks Linux to
end it with its parent, should ullage be killed).
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path

from msgspec import Struct

from ullage.comm.collectives import Kind
from ullage.comm.measured import Measurement, Mode, Point
from ullage.core.errors import InputError
from ullage.core.secrets import masked
from ullage.core.units import KIB

#: rows of a matrix, ranks, sizes of a run, bytes of a message: more is a slip
MOST_SETTINGS, MOST_RANKS, MOST_SIZES, MOST_BYTES = 64, 64, 64, 1 << 30
#: sizes in bytes that decode and verify passes use
SIZES = tuple(KIB << n for n in range(2, 11))
#: what is tried where nobody says: as NCCL chooses, and what most often helps (PCIe), one thing at a time
USUAL: tuple[dict[str, str], ...] = (
    {}, {"NCCL_P2P_LEVEL": "SYS"}, {"NCCL_PROTO": "LL"}, {"NCCL_PROTO": "Simple"}, {"NCCL_ALGO": "Tree"},
)  # fmt: skip
_NAME = re.compile(r"(?:NCCL|TORCH_NCCL|GLOO|CUDA)_[A-Z0-9_]{1,60}")
_VIA = re.compile(rb"via (SHM|P2P|NET)(?:/([A-Za-z]+))?")
_TAIL = 8 * KIB


class Asked(Struct, frozen=True):
    """What to measure. ``python`` runs worker.py and must have torch. ``timeout_s`` bounds each setting."""

    python: str
    backend: str
    ranks: int
    sizes: tuple[int, ...] = SIZES
    kinds: tuple[Kind, ...] = ("all_reduce",)
    modes: tuple[Mode, ...] = ("graph", "eager")
    settings: tuple[dict[str, str], ...] = ({},)
    environment: Mapping[str, str] = {}
    dtype: str = "bfloat16"
    calls: int = 20
    repeats: int = 20
    warmup: int = 3
    timeout_s: float = 120.0


def matrix(given: Sequence[str]) -> tuple[dict[str, str], ...]:
    """The settings of ``--set NAME=A,B`` options: every combination; an empty value leaves the variable out.
    Semicolons part values that hold commas themselves (NCCL_PROTO=LL;LL,Simple). Raises InputError."""
    axes: list[list[tuple[str, str]]] = []
    for text in given:
        name, equals, values = text.partition("=")
        if not equals or not _NAME.fullmatch(name):
            raise InputError(f"is no NAME=VALUE of an NCCL variable: {text[:60]!r}", where="--set",
                             hint="--set NCCL_P2P_LEVEL=,SYS")  # fmt: skip
        axes.append([(name, v.strip()) for v in values.split(";" if ";" in values else ",")])
    found = [{name: value for name, value in row if value} for row in product(*axes)] if axes else [{}]
    if len(found) > MOST_SETTINGS:
        raise InputError(f"makes {len(found)} settings; at most {MOST_SETTINGS} are measured", where="--set")
    return tuple(found)


def run(asked: Asked, progress: Callable[[str], None] | None = None) -> tuple[Measurement, ...]:
    """Measure every setting in turn; one that fails or hangs is a measurement without points. Raises InputError
    where the request itself cannot be."""
    _check(asked)
    found: list[Measurement] = []
    for setting in asked.settings:
        words = " ".join(f"{k}={v}" for k, v in setting.items()) or "no settings"
        if progress:
            progress(f"{asked.ranks} ranks, {asked.backend}, {words}")
        found += measure(asked, setting)
    return tuple(found)


def _check(asked: Asked) -> None:
    faults = {
        f"--ranks: {asked.ranks} is not 2 to {MOST_RANKS}": not 2 <= asked.ranks <= MOST_RANKS,
        f"--sizes: at most {MOST_SIZES}": not 1 <= len(asked.sizes) <= MOST_SIZES,
        f"--sizes: 1 byte to {MOST_BYTES >> 30} GiB": not all(1 <= s <= MOST_BYTES for s in asked.sizes),
        "--timeout: above 0 and at most 3600 seconds": not 0 < asked.timeout_s <= 3600,
    }
    for fault, is_so in faults.items():
        if is_so:
            raise InputError(fault, where="comm bench")


def measure(asked: Asked, setting: dict[str, str]) -> list[Measurement]:
    """One process group with ``setting``."""
    with tempfile.TemporaryDirectory(prefix="ullage-comm-") as name:
        place = Path(name)
        failed, printed = _group(asked, setting, place)
        via = _transport(place)
        if not failed:
            return _read(asked, setting, printed, via)
    return [Measurement(
        "all_reduce", asked.ranks, asked.backend, asked.modes[0], environment=setting, dtype=asked.dtype,
        via=via, when=_now(), source="comm bench", failed=failed,
    )]  # fmt: skip


def _group(asked: Asked, setting: dict[str, str], place: Path) -> tuple[str, str]:
    """(why it failed or "", what rank 0 printed)."""
    started: list[subprocess.Popen[bytes]] = []
    try:
        started.extend(_start(asked, setting, place, rank) for rank in range(asked.ranks))
        failed = _wait(started, asked.timeout_s)
    except OSError as error:
        raise InputError(
            f"cannot be run: {error.strerror}",
            where=asked.python[:200],
            hint="--python PATH of a Python with torch",
        ) from error
    finally:
        _end(started)
    output = (place / "0.out").read_bytes()[: 16 << 20].decode("utf-8", "replace")
    if failed == "time":
        return f"no answer in {asked.timeout_s:g} s: {_last_words(place, asked.ranks)}", output
    return (_last_words(place, asked.ranks) or "the workers failed") if failed else "", output


def _start(asked: Asked, setting: dict[str, str], place: Path, rank: int) -> subprocess.Popen[bytes]:
    spec = {
        "backend": asked.backend, "sizes": list(asked.sizes), "kinds": list(asked.kinds),
        "modes": _modes(asked), "dtype": asked.dtype, "calls": asked.calls, "repeats": asked.repeats,
        "warmup": asked.warmup, "parent": os.getpid(), "timeout_s": asked.timeout_s,
        "meeting": str(place / "meeting"),
    }  # fmt: skip
    worker = str(Path(__file__).with_name("worker.py"))
    with (place / f"{rank}.out").open("wb") as out, (place / f"{rank}.err").open("wb") as err:
        return subprocess.Popen(
            [asked.python, worker, json.dumps(spec)], stdin=subprocess.DEVNULL, stdout=out, stderr=err,
            env=_environment(asked, setting, place, rank), start_new_session=True, cwd=place,
        )  # fmt: skip


def _modes(asked: Asked) -> list[str]:
    """gloo knows no CUDA graphs."""
    return list(asked.modes) if asked.backend == "nccl" else ["eager"]


def _environment(asked: Asked, setting: dict[str, str], place: Path, rank: int) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("NCCL_", "TORCHELASTIC"))}
    return {
        **kept, "NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": str(place / "nccl.%p"),
        "NCCL_DEBUG_SUBSYS": "INIT,P2P,SHM,NET", "NCCL_SOCKET_IFNAME": "lo", "GLOO_SOCKET_IFNAME": "lo",
        **asked.environment, **setting, "RANK": str(rank), "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(asked.ranks), "OMP_NUM_THREADS": "1",
    }  # fmt: skip


def _wait(started: list[subprocess.Popen[bytes]], timeout_s: float) -> str:
    """ "" when all end well; "time", or "failed" as soon as one does not."""
    until = time.monotonic() + timeout_s
    while True:
        codes = [process.poll() for process in started]
        if any(code not in (None, 0) for code in codes):
            return "failed"
        if all(code == 0 for code in codes):
            return ""
        if time.monotonic() > until:
            return "time"
        time.sleep(0.05)


def _end(started: list[subprocess.Popen[bytes]]) -> None:
    """End what still runs, with its children, and wait for it."""
    for process in started:
        if process.poll() is None:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except OSError:
                process.kill()
        process.wait()


def _last_words(place: Path, ranks: int) -> str:
    """The last line of the first rank that complained, without secrets and folders."""
    for rank in range(ranks):
        for ending in ("err", "out"):
            path = place / f"{rank}.{ending}"
            raw = path.read_bytes()[-_TAIL:] if path.exists() else b""
            lines = [line.strip() for line in raw.decode("utf-8", "replace").splitlines() if line.strip()]
            told = [line for line in lines if re.match(r"[\w.]*(?:Error|Exception)\b", line)] or lines
            if told and ending == "err":
                return re.sub(r"(?:/[\w.@+-]+){2,}", "…", masked(told[-1]))[:300]
    return ""


def _transport(place: Path) -> str:
    """The slowest transport of the NCCL logs: NET, else SHM, else P2P with its form."""
    seen: dict[bytes, bytes] = {}
    for path in place.glob("nccl.*"):
        with path.open("rb") as stream:
            for found in _VIA.finditer(stream.read(16 << 20)):
                seen.setdefault(found[1], found[2] or b"")
    for name in (b"NET", b"SHM", b"P2P"):
        if name in seen:
            return b"/".join(filter(None, (name, seen[name] if name == b"P2P" else b""))).decode()
    return ""


def _read(asked: Asked, setting: dict[str, str], printed: str, via: str) -> list[Measurement]:
    line = next((text for text in printed.splitlines() if text.startswith("ULLAGE ")), "")
    answer = json.loads(line.removeprefix("ULLAGE ") or "{}")
    rows: dict[tuple[Kind, Mode], list[Point]] = {}
    for one in answer.get("results", ()):
        point = Point(one["bytes"], one["us"], one["low_us"], one["high_us"], wrong=one["wrong"])
        rows.setdefault((one["kind"], one["mode"]), []).append(point)
    gloo = ("gloo on the CPU: the path was tested, no GPU was measured",) if asked.backend == "gloo" else ()
    setting = {**{k: v for k, v in asked.environment.items() if k.startswith("NCCL_")}, **setting}
    return [
        Measurement(
            kind, asked.ranks, asked.backend, mode, tuple(points), setting, asked.dtype, answer.get("gpu", ""),
            1, answer.get("nccl", ""), answer.get("torch", ""), via, _now(), "comm bench",
            notes=gloo or launch_cost(points, rows.get((kind, "graph")), mode),
        )
        for (kind, mode), points in rows.items()
    ]  # fmt: skip


def launch_cost(eager: Sequence[Point], graph: Sequence[Point] | None, mode: Mode) -> tuple[str, ...]:
    """What a call costs more outside a CUDA graph, a note of the eager measurement; where it costs no more, the
    capture did not work."""
    if mode != "eager" or not graph:
        return ()
    inside = {point.bytes: point.us for point in graph}
    more = sorted(point.us - inside[point.bytes] for point in eager if point.bytes in inside)
    middle = more[len(more) // 2] if more else 0.0
    if middle <= 1:
        return ("as quick as inside a CUDA graph: was nothing captured?",)
    return (f"{middle:.0f} µs more a call than inside a CUDA graph: what each launch costs",)


def _now() -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime())


def here(python: str) -> tuple[str, int]:
    """("nccl", GPUs) of a Python, ("gloo", 0) where it sees none. Raises InputError where it has no torch."""
    code = "import torch;print('ULLAGE', torch.cuda.device_count() if torch.cuda.is_available() else 0)"
    try:
        done = subprocess.run(
            [python, "-c", code], capture_output=True, timeout=120, stdin=subprocess.DEVNULL, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        why = getattr(error, "strerror", None) or "no answer in 120 s"
        raise InputError(f"cannot be run: {why}", where=python[:200], hint="--python PATH") from error
    words = done.stdout.decode("utf-8", "replace").split()
    if done.returncode or "ULLAGE" not in words:
        raise InputError(
            "has no torch", where=python[:200], hint="--python PATH of the Python that runs the engine"
        )
    count = int(words[words.index("ULLAGE") + 1])
    return ("nccl", count) if count else ("gloo", 0)


def sizes_of(text: str) -> tuple[int, ...]:
    """ "8K,42K,1M" -> bytes (K and M are 1024 and 1024^2). Raises InputError."""
    return tuple(_sizes(text))


def _sizes(text: str) -> Iterator[int]:
    for word in text.split(","):
        found = re.fullmatch(r"\s*(\d{1,10})\s*([kKmM]?)(?:i?[bB])?\s*", word)
        if not found:
            raise InputError(f"is no size: {word[:40]!r}", where="--sizes", hint="--sizes 8K,42K,1M")
        yield int(found[1]) * {"": 1, "k": KIB, "m": KIB * KIB}[found[2].lower()]


def default_python() -> str:
    """The Python of an activated environment or on the path, else ullage's own."""
    from shutil import which

    return which("python3") or which("python") or sys.executable
