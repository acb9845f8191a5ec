"""``ullage check``: the machine as it is, and what of it stops a start or slows a server."""

from __future__ import annotations

import sys

import click

from ullage.cli.help import foot
from ullage.engines import NAMES

EXAMPLES = foot(
    """\
ullage check
ullage check --python ~/venvs/serving --save report
ullage check --on gpu07 --json
ullage check --from report --image vllm/vllm-openai:v0.11.0""",
    {0: "nothing that stops a start", 1: "something that does", 3: "cannot tell: no GPU was found"},
    "check.md",
)


@click.command("check", epilog=EXAMPLES)
@click.option(
    "--from",
    "folder",
    metavar="DIR",
    help="Read saved outputs (nvidia-smi -q, topo -m, ...) instead of asking.",
)
@click.option("--on", "host", metavar="HOST", help="Ask another machine over ssh, without a prompt.")
@click.option(
    "--python",
    metavar="PATH",
    help="The environment that will run: a venv or its bin/python. It is read, not run.",
)
@click.option("--image", metavar="IMAGE", help="The container image that will run, by what docker knows of it.")
@click.option(
    "--image-files",
    is_flag=True,
    help="Read the packages from the image's layers (docker image save: minutes for a large one).",
)
@click.option("--engine", type=click.Choice(NAMES), help="The engine that must be there.")
@click.option(
    "--save", metavar="DIR", help="Write what the commands printed to a new folder, without secrets and hosts."
)
@click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")
def command(
    folder: str | None,
    host: str | None,
    python: str | None,
    image: str | None,
    image_files: bool,
    engine: str | None,
    save: str | None,
    as_json: bool,
) -> int:
    """What is this machine, and what of it stops a start or slows a server?

    GPUs, links, driver, limits and the releases of torch, NCCL, engine and kernels; known bad combinations of
    them, each with its source and what helps. Nothing is changed, and no code of the environment is run.
    """
    from ullage.planning import checks

    found = checks.check(checks.Asked(folder, host, python, image, image_files, engine))
    if save is not None:
        names = checks.keep(found, save)
        click.echo(f"{len(names)} outputs written to {save}", err=True)
    if as_json:
        from ullage.render import check_json

        sys.stdout.buffer.write(check_json.check(found))
    else:
        from ullage.render import check_text

        check_text.check(found)
    sys.stdout.flush()
    return found.exit_code
