"""``ullage plan`` itself, and its plain command lines read without click: what ``plan.py`` declares, no more.

Anything unusual (--help, an abbreviation, a missing value) is left to click and its messages.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from msgspec import Struct

from ullage.core.deployment import Verdict
from ullage.core.errors import InputError

if TYPE_CHECKING:
    from ullage.core.timing import Benchmark

CODES: dict[Verdict, int] = {"starts": 0, "fails": 1, "unsure": 3}
#: a launch command or a fragment that holds one; more is some other file
MOST_BYTES = 1 << 20
#: lengths of a request, in tokens
MOST_TOKENS = 1 << 40
HINT = 'ullage plan --gpu "8x H100" -- vllm serve MODEL'
_TEXTS = {"--gpu": "gpu", "--engine-version": "engine_version", "--model-dir": "model_dir", "--file": "file"}


class Options(Struct, frozen=True):
    """What the command line says; ``launch`` are the words of the launch command."""

    launch: tuple[str, ...] = ()
    gpu: str | None = None
    engine_version: str | None = None
    model_dir: str | None = None
    reading: tuple[str, ...] = ()
    context: tuple[int, ...] = ()
    file: str | None = None
    as_json: bool = False
    no_hub: bool = False
    html: str | None = None
    markdown: bool = False
    unmasked: bool = False
    measured: tuple[str, ...] = ()


def options_of(words: list[str]) -> Options | None:
    """The options of a plain command line; None where click must judge."""
    texts: dict[str, str] = {}
    reading: list[str] = []
    context: list[int] = []
    as_json = no_hub = False
    at = 0
    while at < len(words) and words[at].startswith("-") and words[at] not in ("-", "--"):
        name, equals, value = words[at].partition("=")
        at += 1
        if name == "--json" and not equals:
            as_json = True
            continue
        if name == "--no-hub" and not equals:
            no_hub = True
            continue
        if name not in _TEXTS and name not in ("--reading", "--context"):
            return None
        if not equals:
            if at >= len(words):
                return None
            value, at = words[at], at + 1
        if name == "--reading":
            reading.append(value)
        elif name == "--context":
            if not value.isascii() or not value.isdigit() or not 1 <= int(value[:20]) <= MOST_TOKENS:
                return None
            context.append(int(value))
        else:
            texts[_TEXTS[name]] = value
    rest = words[at + 1 :] if words[at : at + 1] == ["--"] else words[at:]
    return Options(
        tuple(rest),
        texts.get("gpu"),
        texts.get("engine_version"),
        texts.get("model_dir"),
        tuple(reading),
        tuple(context),
        texts.get("file"),
        as_json,
        no_hub,
    )


def plan(options: Options) -> int:
    """Answer; the exit code. Raises UllageError for what cannot be read."""
    from ullage.cli.readings import readings
    from ullage.planning import plan as planning

    found = planning.plan(planning.Asked(
        text_of(options.launch, options.file), options.gpu, options.engine_version, options.model_dir,
        readings(options.reading), options.context, read, not options.no_hub,
        measured=_measured(options.measured),
    ))  # fmt: skip
    if options.html is not None or options.markdown:
        from ullage.cli.output import Output, show

        show("plan", found, Output(options.as_json, options.html, options.markdown, options.unmasked))
    elif options.as_json:
        from ullage.render import plan_json

        sys.stdout.buffer.write(plan_json.plan(found))
    else:
        from ullage.render import plan_text

        plan_text.plan(found)
    sys.stdout.flush()
    return CODES[found.verdict]


def _measured(given: tuple[str, ...]) -> Sequence[Benchmark]:
    """--measured as benchmarks; read by the module of ``ullage spec`` only where there are any."""
    if not given:
        return ()
    from ullage.diagnose.spoken import benchmarks

    return benchmarks(given)


def leave(code: int) -> NoReturn:
    """End the process at once: taking the interpreter down would last as long as a tenth of the plan."""
    sys.stderr.flush()
    os._exit(code)


def text_of(launch: tuple[str, ...], file: str | None) -> str:
    """The command as text. Raises InputError where there is none, or two."""
    if launch and file:
        raise InputError("the command is given twice", where="--file", hint="give it once")
    if len(launch) == 1 and (" " in launch[0] or "\n" in launch[0]):
        return launch[0]
    if launch and launch != ("-",):
        return shlex.join(launch)
    if file is None and not launch and sys.stdin.isatty():
        raise InputError("no launch command", where="plan", hint=HINT)
    text = read(file)
    if not text.strip():
        raise InputError("no launch command", where=file or "stdin", hint=HINT)
    return text


def read(file: str | None, what: str = "launch command") -> str:
    """The text of a file that should be a ``what``, of stdin where none is named. Raises InputError where there
    is none, or too much."""
    try:
        if file is None or file == "-":
            raw = sys.stdin.buffer.read(MOST_BYTES + 1)
        else:
            with Path(file).open("rb") as stream:
                raw = stream.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"cannot be read: {reason}", where=file) from error
    if len(raw) > MOST_BYTES:
        raise InputError(f"is larger than 1 MiB: no {what}", where=file or "stdin")
    return raw.decode("utf-8", "replace")
