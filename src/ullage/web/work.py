"""What the page asks of the use-cases, done in other processes: a large log does not hold up the sliders."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import shlex
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

from msgspec import Struct

from ullage.core.errors import UllageError

T = TypeVar("T")


class PlanAsked(Struct, frozen=True, forbid_unknown_fields=True):
    """A launch to plan; ``set`` are the values that sliders give to settings, ``model`` takes the place of
    the command's. ``full``: with changes that help."""

    command: str
    gpu: str = ""
    version: str = ""
    model: str = ""
    set: dict[str, float] = {}
    full: bool = True


class WhyAsked(Struct, frozen=True, forbid_unknown_fields=True):
    """Logs to explain, as the page names them ("id:KEY" or a path)."""

    logs: list[str]
    baseline: list[str] = []
    command: str = ""
    gpu: str = ""
    version: str = ""


class SpecAsked(Struct, frozen=True, forbid_unknown_fields=True):
    """Speculation to judge; texts as the options of ``ullage spec``, empty where nothing was said."""

    command: str
    gpu: str = ""
    version: str = ""
    accept: str = ""
    accept_length: str = ""
    allreduce_us: str = ""
    measured: str = ""
    batch: str = ""
    method: str = ""
    depth: int = 0


def plan_of(asked: PlanAsked) -> dict[str, Any]:
    """The plan as the page shows it. Errors that a person can mend come back as words."""
    from ullage.planning import plan as planning
    from ullage.planning.knobs import knobs, turned
    from ullage.render import html, plan_text

    try:
        command = turned(asked.command, asked.set, asked.version or None, asked.model or None)
        found = planning.plan(
            planning.Asked(command, asked.gpu or None, asked.version or None, fixes=asked.full)
        )
    except UllageError as error:
        return {"error": error.line}
    line = ["ullage", "plan", *_options(gpu=asked.gpu, engine_version=asked.version), "--"]
    return {
        "command": command, "verdict": found.verdict, "says": plan_text.summary(found),
        "html": html.fragment(found), "line": f"{shlex.join(line)} {command.strip()}",
        "knobs": [
            {name: getattr(knob, name) for name in ("setting", "flag", "label", "value", "values", "given")}
            for knob in knobs(found)
        ],
    }  # fmt: skip


def _options(**given: str) -> list[str]:
    return [word for name, value in given.items() if value for word in (f"--{name.replace('_', '-')}", value)]


def why_of(asked: WhyAsked, paths: Mapping[str, str], names: Mapping[str, str]) -> dict[str, Any]:
    """The diagnosis as the page shows it. ``paths`` are the files behind the logs that the page names;
    ``names`` is what the report calls them."""
    from ullage.core.private import renamed
    from ullage.diagnose import why as diagnose
    from ullage.render import html

    try:
        found = diagnose.why(
            [paths[log] for log in asked.logs], baseline=[paths[log] for log in asked.baseline],
            asked=diagnose.Asked(asked.command or None, asked.gpu or None, asked.version or None),
        )  # fmt: skip
    except UllageError as error:
        return {"error": error.line}
    back = {path: log for log, path in paths.items()}
    return {
        "outcome": found.outcome, "cause": found.cause, "html": html.fragment(renamed(found, names)),
        "evidence": [
            {"log": back[e.file], "line": e.line, "role": e.role} for e in found.evidence if e.file in back
        ],
    }  # fmt: skip


def spec_of(asked: SpecAsked) -> dict[str, Any]:
    """Whether speculation pays, as the page shows it."""
    from ullage.diagnose import spoken
    from ullage.planning.drafting import Wish
    from ullage.planning.plan import Asked
    from ullage.planning.speculation import answer
    from ullage.render import html, spec_text

    try:
        given = spoken.Given(asked.accept or None, asked.accept_length or None)
        found = answer(
            Asked(asked.command, asked.gpu or None, asked.version or None),
            Wish(asked.method or None, None, asked.depth or None, None, None), given.acceptance,
            spoken.batches(_several(asked.batch)), None, spoken.call_times(_several(asked.allreduce_us)),
            spoken.benchmarks(_several(asked.measured)),
        )  # fmt: skip
    except UllageError as error:
        return {"error": error.line}
    flags = _options(
        gpu=asked.gpu, engine_version=asked.version, accept=asked.accept, accept_length=asked.accept_length,
        allreduce_us=asked.allreduce_us, measured=asked.measured, batch=asked.batch, method=asked.method,
        depth=str(asked.depth or ""),
    )  # fmt: skip
    line = f"{shlex.join(['ullage', 'spec', *flags, '--'])} {asked.command.strip()}"
    return {"says": spec_text.summary(found), "html": html.spec_fragment(found), "line": line}


def _several(text: str) -> list[str]:
    return [text] if text.strip() else []


def lines_of(path: str, first: int, count: int) -> dict[str, Any]:
    """Lines of a log for the page."""
    from ullage.logs.window import window
    from ullage.render.html.plain import visible

    try:
        found = window(path, first, count)
    except (UllageError, OSError) as error:
        return {"error": error.line if isinstance(error, UllageError) else str(error)}
    return {"first": found.first, "total": found.total, "lines": [visible(line) for line in found.lines]}


class Workers:
    """Processes of their own for short answers and for logs; one that dies is replaced, and the question asked
    once more."""

    def __init__(self, many: int) -> None:
        self._many = many
        self._pool = self._new()

    def _new(self) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(
            self._many, mp_context=multiprocessing.get_context("spawn"), initializer=_worker
        )

    async def ask(self, work: Callable[..., T], *given: Any) -> T:
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._pool, work, *given)
        except BrokenProcessPool:
            self._pool = self._new()
            return await loop.run_in_executor(self._pool, work, *given)

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)


def _worker() -> None:
    """A worker leaves Ctrl-C to the server, yields to its own answers, and ends with it however it ends."""
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(1)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(0)


def names_of() -> dict[str, Any]:
    """The GPUs and models that are known by name."""
    from ullage.hardware import gpus
    from ullage.models import catalogue

    return {
        "gpus": [f"{count}x {name}" for name in gpus.names() for count in (1, 8)],
        "models": catalogue.ids(),
    }
