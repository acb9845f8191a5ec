"""``ullage run``."""

from __future__ import annotations

import os
import sys
from typing import Any

import click

from ullage.cli.help import foot
from ullage.core.errors import InputError

EXAMPLES = foot(
    """\
ullage run -- vllm serve Qwen/Qwen3-32B --max-model-len 32k
ullage run --on gpu-box -- python -m sglang.launch_server \\
    --model-path Qwen/Qwen3-32B --tp 8
ullage run -- docker run --gpus all -p 8000:8000 \\
    vllm/vllm-openai:v0.20.2 --model Qwen/Qwen3-8B
ullage runs; ullage why last        what was kept, and why it ended""",
    {
        0: "the server ended with 0",
        1: "not launched, or stopped since it could not succeed",
        "other": "the server's own; 128 + N where signal N ended it",
    },
    "run.md",
)


@click.command("run", epilog=EXAMPLES, context_settings={"allow_interspersed_args": False})
@click.argument("launch", nargs=-1, type=click.UNPROCESSED, metavar="[--] LAUNCH COMMAND")
@click.option("--on", "host", metavar="HOST", help="Run it there, over ssh with its own config.")
@click.option("--name", metavar="NAME", help="Name of the run (made from model and time otherwise).")
@click.option("--keep-going", is_flag=True, help="Launch what will not start, and go on with what is doomed.")
@click.option("--no-preflight", is_flag=True, help="Launch without asking the plan.")
@click.option("--request", is_flag=True, help="Once it is ready, send a request of one token.")
@click.option("--hang-after", type=click.FloatRange(1), default=300.0, show_default=True, metavar="S",
              help="Seconds without a line before it is ready, after which a hang is reported.")  # fmt: skip
@click.option("--grace", type=click.FloatRange(0), default=30.0, show_default=True, metavar="S",
              help="Seconds to stop in when asked, before everything is killed.")  # fmt: skip
@click.option(
    "--gpu", metavar="NAME", help="For the preflight: the GPUs, where they are not those of the machine."
)
@click.option("--engine-version", metavar="V", help="For the preflight: release of the engine.")
@click.option("--model-dir", metavar="DIR", help="For the preflight: folder with the model's config.json.")
@click.option("--reading", multiple=True, metavar="NAME=VALUE", help="For the preflight: a figure you know.")
@click.option("--json", "as_json", is_flag=True,
              help="Print the record as JSON at the end; the server's output goes to stderr.")  # fmt: skip
def command(
    launch: tuple[str, ...],
    host: str | None,
    name: str | None,
    keep_going: bool,
    no_preflight: bool,
    request: bool,
    hang_after: float,
    grace: float,
    gpu: str | None,
    engine_version: str | None,
    model_dir: str | None,
    reading: tuple[str, ...],
    as_json: bool,
) -> int:
    """Launch LAUNCH COMMAND with foresight: will it start, how far is it, why did it fail?

    Output, input, signals and exit code pass through. Everything is recorded.
    """
    from ullage.cli.quick import read
    from ullage.cli.readings import readings
    from ullage.lab import run as lab
    from ullage.lab.launching import of_words
    from ullage.lab.records import Store
    from ullage.planning.plan import Asked

    if not launch:
        raise InputError("no launch command", where="run", hint="ullage run -- vllm serve MODEL")
    launching = of_words(launch)
    asked = lab.Asked(
        launching, Asked(launching.text, gpu, engine_version, model_dir, readings(reading), (), read),
        host, name, keep_going, not no_preflight, request, hang_after, grace, _separate(as_json),
    )  # fmt: skip
    result = lab.run(asked, Store(), _screen(as_json))
    if as_json:
        import msgspec

        from ullage.lab.durable import encoded

        sys.stdout.buffer.write(msgspec.json.format(encoded(result.record), indent=2) + b"\n")
    return result.code


def _separate(as_json: bool) -> bool:
    """True if stdout and stderr lead to different places, so that they must be kept apart."""
    try:
        out, err = os.fstat(1), os.fstat(2)
    except OSError:
        return not as_json
    return not as_json and (out.st_dev, out.st_ino) != (err.st_dev, err.st_ino)


def _screen(as_json: bool) -> Any:
    from ullage.render.run_text import RunScreen

    out = sys.stderr.buffer if as_json else sys.stdout.buffer
    live = sys.stderr.isatty() and (as_json or sys.stdout.isatty()) and os.environ.get("TERM") != "dumb"
    return RunScreen(out, sys.stderr.buffer, sys.stderr, live=live)
