"""``ullage plan``."""

from __future__ import annotations

import gc
import shlex
import sys
from pathlib import Path

import click

from ullage.core.deployment import Verdict
from ullage.core.errors import InputError

CODES: dict[Verdict, int] = {"starts": 0, "fails": 1, "unsure": 3}
#: a launch command or a fragment that holds one; more is some other file
MOST_BYTES = 1 << 20
EXAMPLES = """\b
Examples:
  ullage plan --gpu "8x RTX PRO 6000" -- python -m sglang.launch_server --model-path moonshotai/Kimi-K2.5 --tp 8
  ullage plan --gpu H100 "vllm serve Qwen/Qwen3-32B --max-model-len 32k"
  ullage plan --gpu "2x L40S" --file compose.yaml --json
Exit codes: 0 will start; 1 will not; 2 wrong usage; 3 cannot tell (what is missing is named)."""


@click.command("plan", epilog=EXAMPLES, context_settings={"allow_interspersed_args": False})
@click.argument("launch", nargs=-1, type=click.UNPROCESSED, metavar="[--] LAUNCH COMMAND")
@click.option("--gpu", metavar="NAME", help='The GPUs, e.g. "8x RTX PRO 6000", or their GiB, "8x 94.08".')
@click.option("--engine-version", metavar="V", help="Release of the engine, e.g. 0.5.9.")
@click.option("--model-dir", metavar="DIR", help="Folder with the model's config.json.")
@click.option("--reading", multiple=True, metavar="NAME=VALUE",
              help="A figure you know (free_after_weights_gib=21.71): it beats a rule.")  # fmt: skip
@click.option("--context", multiple=True, type=click.IntRange(1, 1 << 40), metavar="N",
              help="Length of a request, in tokens, for the concurrency.")  # fmt: skip
@click.option("--file", "file", metavar="FILE", help='Read the command from a file ("-" is stdin).')
@click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")
def command(
    launch: tuple[str, ...],
    gpu: str | None,
    engine_version: str | None,
    model_dir: str | None,
    reading: tuple[str, ...],
    context: tuple[int, ...],
    file: str | None,
    as_json: bool,
) -> int:
    """Will this LAUNCH COMMAND start, where does every GiB go, and which change gives more?

    The command comes as its words behind "--", as one quoted text, or from --file or stdin.
    """
    from ullage.cli.options import readings
    from ullage.plan.plan import Asked, plan

    gc.disable()  # nothing of a plan lives long enough to be collected
    asked = Asked(text_of(launch, file), gpu, engine_version, model_dir, readings(reading), context, _read)
    found = plan(asked)
    if as_json:
        from ullage.render import plan_json

        sys.stdout.buffer.write(plan_json.plan(found))
    else:
        from ullage.render import plan_text

        plan_text.plan(found)
    return CODES[found.verdict]


def text_of(launch: tuple[str, ...], file: str | None) -> str:
    """The command as text. Raises InputError where there is none, or two."""
    if launch and file:
        raise InputError("the command is given twice", where="--file", hint="give it once")
    if len(launch) == 1 and (" " in launch[0] or "\n" in launch[0]):
        return launch[0]
    if launch and launch != ("-",):
        return shlex.join(launch)
    if file is None and not launch and sys.stdin.isatty():
        raise InputError("no launch command", where="plan", hint='ullage plan --gpu "8x H100" -- vllm serve MODEL')
    text = _read(file)
    if not text.strip():
        raise InputError("no launch command", where=file or "stdin",
                         hint='ullage plan --gpu "8x H100" -- vllm serve MODEL')  # fmt: skip
    return text


def _read(file: str | None) -> str:
    """The text of a file, of stdin where none is named. Raises InputError where it is too large or not there."""
    try:
        if file is None or file == "-":
            raw = sys.stdin.buffer.read(MOST_BYTES + 1)
        else:
            with Path(file).open("rb") as stream:
                raw = stream.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        raise InputError(f"cannot be read: {error}", where=file) from error
    if len(raw) > MOST_BYTES:
        raise InputError("larger than 1 MiB: no launch command", where=file or "stdin")
    return raw.decode("utf-8", "replace")
