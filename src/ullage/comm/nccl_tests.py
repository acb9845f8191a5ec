"""nccl-tests output (text of 2.0 to 2.19, and -J JSON) -> measurements.

The heading line decides what a column is; read in NVIDIA/nccl-tests at v2.0.0, v2.9.0, v2.13.8,
v2.16.9 and v2.19.6 (src/common.cu, src/util.cu). Host names, process numbers and the environment of the JSON
form are dropped.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from ullage.comm.collectives import Kind
from ullage.comm.measured import Measurement, Point
from ullage.core.errors import InputError

#: no run prints more: tables of a file, sizes of a table, ranks of a run, characters of a line
MOST_TABLES, MOST_POINTS, MOST_RANKS, MOST_LINE = 64, 4096, 65536, 4096
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
#: "[1,0]<stdout>:" of Open MPI, "0: " of srun --label
_TAG = re.compile(r"\s*(?:\[\d{1,6},\d{1,6}\]<std(?:out|err)>:?\s?|\d{1,5}:\s(?=\s*(?:#|\d)))")
_DEVICE = re.compile(
    r"#?\s*Rank\s+(\d{1,6})(?:\s+Group\s+(\d{1,6}))?\s+Pid\s+\d{1,10}\s+on\s+(\S{1,255})\s+device\s+\d{1,4}\s+"
    r"\[[0-9a-fA-Fx:.]{1,20}\]\s*(.{0,120})"
)
_STARTED = re.compile(r"# Collective test starting:\s*(\S{1,200})")
_CONFIG = re.compile(r"#?\s*nThread (\d{1,6}) nGpus (\d{1,6}) minBytes")
_GRAPH = re.compile(r"\bgraph: (\d{1,9})")
_VERSION = re.compile(r"nccl-library=(\d{4,6})")
_KINDS: dict[str, Kind] = {
    "all_reduce": "all_reduce", "all_gather": "all_gather", "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all", "sendrecv": "send_recv", "broadcast": "broadcast",
}  # fmt: skip
_DTYPES = {"half": "float16", "bfloat16": "bfloat16", "float": "float32", "double": "float64"}
_USUAL = "size count type redop root time algbw busbw #wrong time algbw busbw #wrong".split()


class _Run(Struct):
    """What the lines before a table say."""

    name: str = ""
    columns: list[str] = []
    devices: dict[tuple[int, int], tuple[str, str]] = {}
    local_ranks: int = 0
    graph: bool = False
    nccl: str = ""
    rows: list[dict[str, list[str]]] = []
    repeated: bool = False


def read(text: str, where: str = "nccl-tests") -> tuple[Measurement, ...]:
    """The tables of ``text``. Raises InputError where it holds none, or what cannot be a measurement."""
    if text.lstrip()[:1] == "{":
        return _json(text, where)
    found = [measurement for run in _runs(text) if run.rows and (measurement := _measured(run, where))]
    if not found:
        raise InputError(
            "holds no table of nccl-tests", where=where,
            hint="all_reduce_perf -b 4K -e 1M -f 2 -g 8 -d bfloat16 -w 20 -n 200 -G 20",
        )  # fmt: skip
    return tuple(found)


def _runs(text: str) -> Iterator[_Run]:
    run, tables = _Run(), 0
    for raw in text.splitlines():
        line = _TAG.sub("", _ANSI.sub("", raw[:MOST_LINE]), count=1).strip()
        if run.rows and (_STARTED.match(line) or _CONFIG.match(line)):
            yield run
            tables += 1
            if tables >= MOST_TABLES:
                return
            run = _Run(nccl=run.nccl)
        _note(run, line)
    yield run


def _note(run: _Run, line: str) -> None:
    words = line.lstrip("# ").split()
    if started := _STARTED.match(line):
        run.name = started[1]
    elif config := _CONFIG.match(line):
        run.local_ranks = int(config[1]) * int(config[2])
        graph = _GRAPH.search(line)
        run.graph = graph is not None and int(graph[1]) > 0
    elif device := _DEVICE.match(line):
        key = (int(device[2] or 0), int(device[1]))
        run.repeated |= key in run.devices
        if len(run.devices) < MOST_RANKS:
            run.devices[key] = (device[3], device[4].strip())
    elif version := _VERSION.search(line):
        run.nccl = _release(int(version[1]))
    elif words[:2] == ["size", "count"]:
        run.columns = words
    elif words and words[0].isdigit() and not line.startswith("#") and len(run.rows) < MOST_POINTS:
        row = _row(words, run.columns or (_USUAL if len(words) >= 13 else _without_root()))
        if row:
            run.rows.append(row)


def _without_root() -> list[str]:
    return [name for name in _USUAL if name != "root"]


def _row(words: list[str], columns: list[str]) -> dict[str, list[str]]:
    """The cells by column, two of a column that stands twice (out of place, in place); {} for another line."""
    names = [name for name in columns if name != "timestamp"]
    half = names.index("time") if "time" in names else names.index("cputime") if "cputime" in names else -1
    if half < 0 or len(words) < half + 3:
        return {}
    width = (len(names) - half) // 2
    if len(words) < len(names) and len(words) != half + width:
        return {}
    cells: dict[str, list[str]] = {}
    for name, word in zip(names, words, strict=False):
        cells.setdefault("time" if name == "cputime" else name, []).append(word)
    good = all(
        _number(w) is not None for name in ("size", "time", "algbw", "busbw") for w in cells.get(name, [])
    )
    return cells if good and "size" in cells and cells.get("type", ["-"])[0][:1].isalpha() else {}


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 <= value < 1e18 else None


def _measured(run: _Run, where: str) -> Measurement | None:
    groups = {group for group, _ in run.devices}
    ranks = len({rank for group, rank in run.devices if group == min(groups)}) if groups else 0
    ranks = max(ranks, run.local_ranks) or _ranks_of_rows(run)
    if ranks < 2:
        raise InputError(
            "has one rank only: nothing was reduced between GPUs", where=where,
            hint="-g 8, or nccl-tests built with MPI=1",
        )  # fmt: skip
    points = tuple(point for row in run.rows if (point := _point(row)))
    if not points:
        return None
    hosts, names = {host for host, _ in run.devices.values()}, {gpu for _, gpu in run.devices.values()}
    notes = (
        ("several processes printed the same rank: was nccl-tests built with MPI=1?",) if run.repeated else ()
    )
    return Measurement(
        _kind(run, ranks), ranks, "nccl", "graph" if run.graph else "nccl-tests", points,
        dtype=_DTYPES.get(run.rows[0].get("type", [""])[0], run.rows[0].get("type", [""])[0]),
        gpu=min(names) if len(names) == 1 else "", nodes=max(1, len(hosts)), nccl=run.nccl, source=where,
        notes=notes,
    )  # fmt: skip


def _point(row: dict[str, list[str]]) -> Point | None:
    size, times = _number(row["size"][0]), [_number(word) for word in row["time"]]
    if not size or not times or not times[0]:
        return None
    low, high = (_number(row[name][0]) if name in row else None for name in ("i_min", "i_max"))
    wrong = [_number(word) for word in row.get("#wrong", [])]
    return Point(
        int(size), times[0], low, high, times[1] if len(times) > 1 else None,
        int(max(filter(None, wrong), default=0)) if any(one is not None for one in wrong) else None,
    )  # fmt: skip


def _ratios(run: _Run) -> list[float]:
    """Bus over algorithm bandwidth of the rows with figures enough to tell."""
    pairs = [(_number(row["algbw"][0]), _number(row["busbw"][0])) for row in run.rows if row.get("busbw")]
    return [bus / alg for alg, bus in pairs if alg and bus and alg >= 1]


def _ranks_of_rows(run: _Run) -> int:
    """Ranks from the bandwidths' ratio, 2 (n - 1) / n, of an all-reduce whose device lines are missing."""
    ratios = sorted(_ratios(run))
    if not ratios or _named(run) not in ("", "all_reduce"):
        return 0
    middle = ratios[len(ratios) // 2]
    return round(2 / (2 - middle)) if 1 <= middle < 2 - 2 / MOST_RANKS else 0


def _named(run: _Run) -> str:
    return next((name for name in _KINDS if name in run.name), "")


def _kind(run: _Run, ranks: int) -> Kind:
    """By the test's name; by the ratio of the bandwidths where an old release does not print it."""
    if name := _named(run):
        return _KINDS[name]
    ratios = sorted(_ratios(run))
    middle = ratios[len(ratios) // 2] if ratios else 2 * (ranks - 1) / ranks
    reduces = run.rows[0].get("redop", ["sum"])[0] not in ("none", "")
    if abs(middle - 2 * (ranks - 1) / ranks) < 0.05 and reduces:
        return "all_reduce"
    if middle < 0.99:
        return "reduce_scatter" if reduces else "all_gather"
    return "broadcast"


def _release(number: int) -> str:
    """22703 is 2.27.3; before 2.9 it was 2803 for 2.8.3."""
    if number >= 10000:
        return f"{number // 10000}.{number // 100 % 100}.{number % 100}"
    return f"{number // 1000}.{number // 100 % 10}.{number % 100}"


# --- -J FILE ---


def _json(text: str, where: str) -> tuple[Measurement, ...]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError("is not JSON", where=where, hint="the file that -J wrote, whole") from error
    if not isinstance(found, dict) or not isinstance(found.get("results"), list):
        raise InputError("is not the JSON of nccl-tests: no list of results", where=where)
    given = found.get("config")
    config: dict[str, object] = given if isinstance(given, dict) else {}
    run = _Run(columns=_USUAL, graph=_whole(config.get("graph")) > 0)
    names = found.get("args")
    run.name = str(names[0])[-100:] if isinstance(names, list) and names else ""
    run.nccl = _release(version) if (version := _whole(found.get("nccl_version"))) >= 1000 else ""
    run.local_ranks = min(MOST_RANKS, _whole(config.get("nthreads")) * _whole(config.get("ngpus")))
    devices = config.get("devices")
    for device in devices[:MOST_RANKS] if isinstance(devices, list) else ():
        _json_device(run, device)
    run.rows = [row for one in found["results"][:MOST_POINTS] if (row := _json_row(one))]
    measurement = _measured(run, where) if run.rows else None
    if measurement is None:
        raise InputError("holds no result", where=where)
    return (measurement,)


def _json_device(run: _Run, device: object) -> None:
    if isinstance(device, dict):
        key = (_whole(device.get("group")), _whole(device.get("rank")))
        run.devices[key] = (str(device.get("hostname"))[:255], str(device.get("device_info"))[:120].strip())


def _json_row(one: object) -> dict[str, list[str]]:
    if not isinstance(one, dict):
        return {}
    halves = [half for name in ("out_of_place", "in_place") if isinstance(half := one.get(name), dict)]
    if not halves:
        return {}
    row = {
        "size": [str(one.get("size"))], "type": [str(one.get("type"))[:20]],
        "redop": [str(one.get("redop"))[:20]],
        "time": [str(half.get("time", half.get("cpu_time"))) for half in halves],
        "algbw": [str(half.get("alg_bw")) for half in halves],
        "busbw": [str(half.get("bus_bw")) for half in halves],
        "#wrong": [str(half.get("nwrong")) for half in halves],
    }  # fmt: skip
    spread: Any = one.get("out_of_place_per_iter")
    if isinstance(spread, dict):
        row |= {"i_min": [str(spread.get("min_us"))], "i_max": [str(spread.get("p99_us"))]}
    good = all(_number(w[:40]) is not None for name in ("size", "time", "algbw", "busbw") for w in row[name])
    return row if good else {}


def _whole(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 31 else 0
