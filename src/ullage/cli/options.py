"""What several commands share: options, the progress bar, exit codes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click

from ullage.cli.readings import readings as readings
from ullage.core.run import Outcome

F = TypeVar("F", bound=Callable[..., Any])
CODES: dict[Outcome, int] = {"started": 0, "crashed": 1, "hang": 1, "unknown": 3}
#: files smaller than this are read before a bar could be seen
BAR_FROM_BYTES = 64 << 20


def exit_code(outcome: Outcome) -> int:
    return CODES[outcome]


def ask_options(function: F) -> F:
    """The options that say what a short log does not."""
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON."),
        click.option("--reading", multiple=True, metavar="NAME=VALUE",
                     help="A figure you know (free_after_weights_gib=21.71)."),
        click.option("--model-dir", metavar="DIR", help="Folder with the model's config.json."),
        click.option("--engine-version", metavar="V", help="Release of the engine, e.g. 0.5.9."),
        click.option("--gpu", metavar="NAME", help='The GPUs, e.g. "8x RTX PRO 6000".'),
        click.option("--command", metavar="TEXT", help="The launch command as it was run."),
    ):  # fmt: skip
        function = option(function)
    return function


@contextmanager
def progress_bar(paths: Sequence[str]) -> Iterator[Callable[[int, int | None], None] | None]:
    """A bar on stderr while a large log is read; None where stderr is no terminal or the files are small."""
    size = sum(_size(path) for path in paths)
    if not sys.stderr.isatty() or size < BAR_FROM_BYTES:
        yield None
        return
    with click.progressbar(length=size, label="reading", file=sys.stderr) as bar:
        yield lambda done, _total: bar.update(max(0, done - bar.pos))


def _size(path: str) -> int:
    try:
        return Path(path).stat().st_size
    except OSError:
        return 0
