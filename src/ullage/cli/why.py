"""``ullage why``."""

from __future__ import annotations

import sys

import click

from ullage.cli.help import foot
from ullage.cli.kept import logs_of
from ullage.cli.options import ask_options, exit_code, progress_bar, readings
from ullage.cli.output import Output, output_options, show
from ullage.diagnose.why import Asked, why

EXAMPLES = foot(
    """\
ullage why server.log
ullage why crashed.log --baseline worked.log
ullage why node0.log node1.log --markdown > issue.md
kubectl logs pod/llm-0 --previous | ullage why - --gpu "8x H100" --json""",
    {0: "healthy: no failure was found", 1: "a failure was found", 3: "cannot tell; what is missing is named"},
    "why.md",
)


@click.command("why", epilog=EXAMPLES)
@click.argument("logs", nargs=-1, required=True, metavar="LOG...")
@click.option("--baseline", multiple=True, metavar="LOG", help="The log of a run that worked, to compare with.")
@click.option(
    "--run", "run", type=int, metavar="N", help="Explain the Nth start of a log with several (-1: the last)."
)
@output_options
@ask_options
def command(
    logs: tuple[str, ...],
    baseline: tuple[str, ...],
    run: int | None,
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
    """Say what failed first in the LOGs of one run, why, and what mends it.

    LOG is a file ("-" is stdin), plain, gzip or zstd; several files of one run (one per node or rank) are read
    together. Docker, Kubernetes and JSON-lines wrappers are taken off. The name of a run that "ullage run" kept
    (or "last") stands for its log.
    """
    logs, command = logs_of(logs, command)
    baseline, _ = logs_of(baseline)
    asked = Asked(command, gpu, engine_version, model_dir, readings(reading), run)
    with progress_bar([*logs, *baseline]) as progress:
        found = why(logs, baseline=baseline, asked=asked, stdin=sys.stdin.buffer, progress=progress)
    show("why", found, Output(as_json, html, markdown, unmasked), (*logs, *baseline))
    return exit_code(found.outcome)
