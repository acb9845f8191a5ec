"""``ullage diff``."""

from __future__ import annotations

import sys

import click

from ullage.cli.help import foot
from ullage.cli.kept import logs_of
from ullage.cli.options import ask_options, progress_bar, readings
from ullage.cli.output import Output, output_options, show
from ullage.diagnose.why import Asked, why

EXAMPLES = foot(
    """\
ullage diff worked.log crashed.log
ullage diff monday.log.gz tuesday.log.gz --json
ullage diff Qwen3-32B-1129-2000 last --html diff.html""",
    {0: "both were read", 3: "no engine wrote the log of B"},
    "diff.md",
)


@click.command("diff", epilog=EXAMPLES)
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
@output_options
@ask_options
def command(
    a: str,
    b: str,
    command: str | None,
    gpu: str | None,
    engine_version: str | None,
    model_dir: str | None,
    reading: tuple[str, ...],
    as_json: bool,
    html: str | None,
    markdown: bool,
    unmasked: bool,
) -> int:
    """Show two runs side by side: settings, environment, both ledgers, and which difference decides.

    A is taken as the run to compare with, B as the one to explain. --command, --gpu and --reading speak of B.
    Each is a log, or the name of a run that was kept.
    """
    (b,), command = logs_of([b], command)
    (a,), _ = logs_of([a])
    asked = Asked(command, gpu, engine_version, model_dir, readings(reading))
    with progress_bar([a, b]) as progress:
        found = why([b], baseline=[a], asked=asked, stdin=sys.stdin.buffer, progress=progress)
    show("diff", found, Output(as_json, html, markdown, unmasked), (a, b))
    return 0 if found.engine else 3
