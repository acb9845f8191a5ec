"""The benchmark: its command for a server, and the figures in what it gives."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from msgspec import Struct

from ullage.core import tables
from ullage.core.errors import InputError
from ullage.core.launch import Launch
from ullage.lab.campaign import metrics
from ullage.lab.campaign.approach import Command
from ullage.lab.campaign.file import Benchmark, FlagValue, Source

#: what a benchmark prints or writes beyond this is not read
MOST_BYTES = 64 << 20
#: seconds that a regular expression of the file may take: one that backtracks without end is given up
REGEX_S = 10.0
_INDEX = re.compile(r"([^\[\]]*)((?:\[-?\d+\])*)")


class Row(Struct, frozen=True, forbid_unknown_fields=True):
    """A benchmark known by name: see the head of benchmarks.toml."""

    kind: str
    program: tuple[str, ...]
    module: tuple[str, ...]
    model: str
    served: str
    words: tuple[tuple[str, ...], ...]
    defaults: tuple[tuple[str, ...], ...]
    at: str
    source: str


class _Table(Struct, frozen=True, forbid_unknown_fields=True):
    benchmark: tuple[Row, ...]


class Point(Struct, frozen=True):
    """Where a server answers, and as which model."""

    host: str
    port: int
    model: str = ""
    served: str = ""

    @property
    def url(self) -> str:
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"


class Load(Struct, frozen=True):
    """One run of a benchmark: its words, and the file that its result is read from (None: what it prints)."""

    words: tuple[str, ...]
    result: str | None


@cache
def rows() -> dict[str, Row]:
    return {row.kind: row for row in tables.load("ullage.lab.campaign", "benchmarks.toml", _Table).benchmark}


def point(launch: Launch, host: str, port: int) -> Point:
    """The point of a launch: its model's name or folder, and the name that it is served under."""
    given = launch.get("served_model_name")
    served = next(iter(given), None) if isinstance(given, list) else given
    return Point(host, port, launch.model or "", str(served or ""))


def load(benchmark: Benchmark, command: Command, target: Point, result: str) -> Load:
    """The command of one run against ``target``; ``result`` is the file that it may write."""
    if benchmark.kind == "command":
        words = tuple(_put(word, target, result) for word in shlex.split(benchmark.command or ""))
        return Load(words, result if "{result}" in (benchmark.command or "") else None)
    row = rows()[benchmark.kind]
    program = tuple(shlex.split(benchmark.program)) if benchmark.program else _program(row, command)
    given = [_flag(name, value) for name, value in benchmark.args.items()]
    known = [[_put(word, target, result) for word in group] for group in (*row.words, *row.defaults)]
    if row.model and target.model:
        known.insert(0, [row.model, target.model])
    if row.served and target.served:
        known.insert(1, [row.served, target.served])
    named = {_stem(name) for name in benchmark.args}
    kept = [group for group in known if _stem(group[0]) not in named]
    return Load(
        (*program, *(w for group in kept for w in group), *(w for group in given for w in group)), result
    )


def _stem(flag: str) -> str:
    return flag.lstrip("-").replace("_", "-")


def _flag(name: str, value: FlagValue) -> list[str]:
    flag = name if name.startswith("-") else f"--{name}"
    if value is None or value is False:
        return []
    if value is True:
        return [flag]
    return [flag, *(map(str, value) if isinstance(value, list) else [str(value)])]


def _put(word: str, target: Point, result: str) -> str:
    """``word`` with its placeholders filled; other braces stay as they are."""
    path = Path(result)
    places = {"{url}": target.url, "{host}": target.host, "{port}": str(target.port), "{model}": target.model,
              "{served}": target.served or target.model, "{result}": result, "{folder}": str(path.parent),
              "{file}": path.name}  # fmt: skip
    return re.sub(r"\{[a-z]+\}", lambda m: places.get(m[0], m[0]), word)


def _program(row: Row, command: Command) -> tuple[str, ...]:
    """How the benchmark starts: the executable beside the server's, else its module by the server's Python,
    else the name alone. Raises InputError where the server is in a container."""
    if command.contained and row.kind != "guidellm":
        raise InputError(
            "the server is in a container, and the benchmark is not", where="benchmark.program",
            hint=f'say how it is started, such as "{" ".join(row.program or ("python", "-m", *row.module))}"',
        )  # fmt: skip
    for i, word in enumerate(command.words):
        folder, _, name = word.rpartition("/")
        beside = f"{folder}/" if folder else ""
        if re.fullmatch(r"python[\d.]*", name) and row.module:
            return (word, "-m", *row.module)
        if row.program and name == row.program[0] and i == 0:
            return (word, *row.program[1:])
        if i == 0 and row.module and not row.program:
            return (f"{beside}python", "-m", *row.module)
    return row.program


def read(benchmark: Benchmark, printed: str, written: str | None) -> dict[str, float]:
    """The figures of one run. Raises InputError where there are none, or one is no number."""
    found: dict[str, float] = {}
    text = written if written is not None else printed
    document = _document(text) if _wants_json(benchmark) else None
    if benchmark.kind != "command":
        found = _standard(benchmark, document)
    for name, source in benchmark.metrics.items():
        found[name] = _own(name, source, document, f"{printed}\n{written or ''}")
    if not found:
        raise InputError("holds none of the figures that it should", where="the benchmark's result")
    return found


def _wants_json(benchmark: Benchmark) -> bool:
    return benchmark.kind != "command" or any(source.json for source in benchmark.metrics.values())


def _standard(benchmark: Benchmark, document: Any) -> dict[str, float]:
    row = rows()[benchmark.kind]
    at = value_at(document, row.at) if row.at else document
    found: dict[str, float] = {}
    kind: metrics.Kind = benchmark.kind  # type: ignore[assignment]
    for metric in metrics.standard().values():
        for path in metric.paths(kind):
            value = value_at(at, path)
            if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
                found[metric.name] = float(value)
                break
    if found.get("completed") == 0:
        raise InputError("not one request was answered", where="the benchmark's result")
    return found


def _own(name: str, source: Source, document: Any, text: str) -> float:
    where = f"the benchmark's result, {name}"
    if source.json is not None:
        value = value_at(document, source.json)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise InputError(f"no number at {source.json[:80]!r}", where=where)
        return float(value)
    found = last_match(source.regex or "", text)
    if found is None:
        raise InputError(f"nothing matches {(source.regex or '')[:80]!r}", where=where)
    try:
        value = float(found.replace(",", ""))
    except ValueError:
        raise InputError(f"not a number: {found[:40]!r}", where=where) from None
    if not math.isfinite(value):
        raise InputError(f"not a number: {found[:40]!r}", where=where)
    return value


def _document(text: str) -> Any:
    """The JSON in ``text``: all of it, else its last line that is an object (JSON lines, a log before it)."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    for candidate in _candidates(text):
        try:
            return json.loads(candidate)
        except (ValueError, RecursionError):
            continue
    raise InputError("is no JSON", where="the benchmark's result")


def _candidates(text: str) -> Iterator[str]:
    lines = text.splitlines()[-2000:]
    yield from (line for line in reversed(lines) if line.startswith("{") and line.rstrip().endswith("}"))
    starts = [i for i, line in enumerate(lines) if line.startswith("{")]
    yield from ("\n".join(lines[i:]) for i in reversed(starts[-20:]))


def value_at(document: Any, path: str) -> Any:
    """What stands at ``path`` ("runs[0].tok_s"), else None. A key that holds dots is found whole too."""
    if isinstance(document, dict) and path in document:
        return document[path]
    current = document
    for step in path.split("."):
        found = _INDEX.fullmatch(step)
        if found is None:
            return None
        if found[1]:
            current = current.get(found[1]) if isinstance(current, dict) else None
        for index in re.findall(r"-?\d+", found[2]):
            inside = isinstance(current, list) and -len(current) <= int(index) < len(current)
            current = current[int(index)] if inside else None
    return current


def last_match(pattern: str, text: str) -> str | None:
    """The group of the last match of ``pattern``, found by another process, which may be given up. Raises
    InputError where it takes too long."""
    import subprocess
    import sys

    script = (
        "import re,sys,json;p=sys.argv[1];t=sys.stdin.buffer.read().decode('utf-8','replace');"
        "f=[m[1] for m in re.finditer(p,t)];print(json.dumps(f[-1] if f else None))"
    )
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", script, pattern], input=text.encode("utf-8", "replace"),
            capture_output=True, timeout=REGEX_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise InputError(
            f"takes longer than {REGEX_S:.0f} s: {pattern[:60]!r}", where="the benchmark's regex"
        ) from None
    found = json.loads(done.stdout or b"null")
    return found if isinstance(found, str) else None


def failed(words: Sequence[str], code: int, printed: str) -> str:
    """Why a benchmark that ended with ``code`` failed: its last words."""
    said = [line.strip() for line in printed.splitlines() if line.strip()]
    last = said[-1][:300] if said else "it printed nothing"
    return f"{Path(words[0]).name} ended with code {code}: {last}"
