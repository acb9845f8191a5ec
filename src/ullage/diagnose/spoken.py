"""What people say of speculation as values: each text refused in one line where it is not of its form."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import isfinite
from typing import TYPE_CHECKING, cast

from msgspec import Struct

from ullage.core.errors import InputError
from ullage.core.units import parse_size
from ullage.engines.base import Files

if TYPE_CHECKING:
    from ullage.core.launch import Launch
    from ullage.core.timing import Benchmark
    from ullage.spec.acceptance import Acceptance, Where, Width

#: beyond these a figure is a slip of the pen
_MOST_US, _MOST_BATCH, _MOST_TOK_S = 1e7, 1 << 20, 1e9
_SIZED = re.compile(r"(?P<size>\d+(?:\.\d+)?\s*[A-Za-z]*)\s*=\s*(?P<us>\S+)")


class Given(Struct, frozen=True):
    """Where the acceptance comes from; at most one of its kinds. ``files`` reads the metrics by name."""

    positions: str | None = None
    length: str | None = None
    rate: str | None = None
    of: str = "log"
    logs: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()
    files: Files | None = None

    def acceptance(self, launch: Launch, width: Width) -> Acceptance | None:
        """The acceptance that was given, at ``width`` unless it says another; None where nothing was. Raises
        InputError for two of them, and for what cannot be."""
        from ullage.spec.acceptance import of_positions
        from ullage.spec.observed import of_rate

        kinds = [name for name, value in self._kinds().items() if value]
        if len(kinds) > 1:
            raise InputError("give one of them", where=" and ".join(kinds))
        if self.positions:
            rates = tuple(_number(word, "--accept", 0, 1) for word in self.positions.split(","))
            return of_positions(rates, width, "--accept")
        if self.length:
            return _length(self.length, width)
        if self.rate:
            rate = _number(self.rate.removesuffix("%"), "--accept-rate", 0, 100)
            return of_rate(rate, launch.engine, launch.release, width, "--accept-rate", cast("Where", self.of))
        if self.logs:
            return _of_logs(self.logs, width)
        if self.metrics and self.files:
            return _of_metrics(self.metrics, launch, width, self.files)
        return None

    def _kinds(self) -> dict[str, object]:
        return {
            "--accept": self.positions, "--accept-length": self.length, "--accept-rate": self.rate,
            "--log": self.logs, "--metrics": self.metrics,
        }  # fmt: skip


def _length(text: str, width: Width) -> Acceptance:
    """ "2.69", "2.04-2.28", "2.69@3"."""
    from ullage.spec.acceptance import of_length

    where = f"--accept-length {text[:40]}"
    value, at, depth = text.partition("@")
    if at:
        if not depth.isascii() or not depth.isdigit() or not 1 <= int(depth[:4]) <= 64:
            raise InputError("expected a depth of 1 to 64 behind @", where=where)
        width = width.deeper(int(depth[:4]))
    low, dash, high = value.partition("-")
    first = _number(low, where, 1, 100)
    if not dash:
        return of_length(first, width, "--accept-length")
    second = _number(high, where, first, 100)
    return of_length((first + second) / 2, width, "--accept-length", (first, second))


def _of_logs(paths: Sequence[str], width: Width) -> Acceptance:
    from ullage.diagnose.read import read
    from ullage.spec.observed import of_run

    log = read(list(paths))
    found = [item for run in log.runs if (item := of_run(run, width)) is not None]
    if not found:
        raise InputError(
            "shows no acceptance length", where=f"--log {paths[0][:60]}",
            hint="expected lines with 'accept len:' or 'Mean acceptance length:'",
        )  # fmt: skip
    return found[-1]


def _of_metrics(paths: Sequence[str], launch: Launch, width: Width, files: Files) -> Acceptance:
    from ullage.spec import prometheus
    from ullage.spec.observed import of_scrape

    if len(paths) > 2:
        raise InputError("give one scrape, or the earlier and the later one", where="--metrics")
    scrapes = [prometheus.read(_read(path, files), f"--metrics {path[:60]}") for path in paths]
    scrape = scrapes[0] if len(scrapes) == 1 else scrapes[1].since(scrapes[0])
    return of_scrape(scrape, width, launch.release, f"--metrics {paths[-1][:60]}")


def _read(path: str, files: Files) -> str:
    try:
        return files(path)
    except InputError as error:
        hint = "more than a server's metrics" if "larger" in error.line else error.hint
        what = error.what.removesuffix(": no launch command")
        raise InputError(what, where=f"--metrics {path[:80]}", hint=hint) from error


def batches(given: Sequence[str]) -> tuple[int, ...]:
    """--batch 1,8,32 as numbers, in the order given."""
    words = [word.strip() for text in given for word in text.split(",")]
    return tuple(dict.fromkeys(int(_whole(word, "--batch", _MOST_BATCH)) for word in words))[:32]


def call_times(given: Sequence[str]) -> dict[int | None, float]:
    """--allreduce-us: microseconds by bytes, or under None those of the verify pass."""
    found: dict[int | None, float] = {}
    for text in (word for item in given for word in item.split(",")):
        where = f"--allreduce-us {text[:40]}"
        sized = _SIZED.fullmatch(text.strip())
        if sized is None:
            found[None] = _number(text, where, 0.1, _MOST_US)
            continue
        try:
            size = parse_size(sized["size"])
        except (ValueError, OverflowError) as error:
            raise InputError("expected BYTES=US, such as 42KiB=246", where=where) from error
        if not 1 <= size <= 1 << 40:
            raise InputError("expected a size from 1 byte to 1 TiB", where=where)
        found[size] = _number(sized["us"], where, 0.1, _MOST_US)
    return found


def benchmarks(given: Sequence[str]) -> tuple[Benchmark, ...]:
    """--measured batch=1,tok_s=89.5."""
    return tuple(_benchmark(text) for text in given)


def _benchmark(text: str) -> Benchmark:
    from ullage.core.timing import Benchmark

    where = f"--measured {text[:60]}"
    pairs = dict(part.strip().partition("=")[::2] for part in text.split(","))
    unknown = set(pairs) - {"batch", "tok_s", "step_ms", "accept", "context"}
    if unknown or "batch" not in pairs or ("tok_s" in pairs) == ("step_ms" in pairs):
        raise InputError(
            "expected batch=N and either tok_s=X (of all requests) or step_ms=X; also accept=L, context=N",
            where=where,
        )
    batch = int(_whole(pairs["batch"], where, _MOST_BATCH))
    length = _number(pairs["accept"], where, 1, 100) if "accept" in pairs else None
    context = int(_whole(pairs["context"], where, 1 << 24)) if "context" in pairs else None
    if "step_ms" in pairs:
        step_us = 1e3 * _number(pairs["step_ms"], where, 1e-3, 1e6)
    else:
        step_us = 1e6 * batch * (length or 1.0) / _number(pairs["tok_s"], where, 1e-3, _MOST_TOK_S)
    return Benchmark(batch, step_us, text[:80], context, length)


def _number(text: str, where: str, low: float, high: float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not isfinite(value) or not low <= value <= high:
        raise InputError(f"expected a number from {low:g} to {high:g}, not {text[:20]!r}", where=where)
    return value


def _whole(text: str, where: str, most: int) -> float:
    value = _number(text, where, 1, most)
    if value != int(value):
        raise InputError(f"expected a whole number, not {text[:20]!r}", where=where)
    return value
