"""``ullage campaign``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from ullage.cli.help import foot
from ullage.core.errors import InputError, UllageError

F = TypeVar("F", bound=Callable[..., Any])
ENDS: dict[int | str, str] = {
    0: "finished",
    1: "the baseline was not measured",
    3: "unfinished; resume goes on",
    "128 + N": "signal N stopped it; resume goes on",
}
EXAMPLES = foot(
    """\
ullage campaign init -- vllm serve Qwen/Qwen3-32B --max-model-len 32k
ullage campaign run --dry-run campaign.yaml
ullage campaign run campaign.yaml
ullage campaign report campaign.yaml --html report.html""",
    ENDS,
    "campaign.md",
)
INIT = foot(
    """\
ullage campaign init -- vllm serve Qwen/Qwen3-32B --max-model-len 32k
ullage campaign init -o tp.yaml --gpu "8x H100" \\
    -- python -m sglang.launch_server --model-path Qwen/Qwen3-32B --tp 8""",
    {0: "the file was written"},
    "campaign.md",
)
RUN = foot(
    """\
ullage campaign run --dry-run campaign.yaml
ullage campaign run campaign.yaml""",
    {**ENDS, 1: "the baseline was not measured, or will not start"},
    "campaign.md",
)
RESUME = foot(
    """\
ullage campaign resume campaign.yaml""",
    ENDS,
    "campaign.md",
)
STATUS = foot(
    """\
ullage campaign status campaign.yaml
ullage campaign status campaign.yaml --json""",
    {0: "the campaign is finished", 1: "its baseline was not measured", 3: "it is not finished"},
    "campaign.md",
)
REPORT = foot(
    """\
ullage campaign report campaign.yaml
ullage campaign report campaign.yaml --html report.html
ullage campaign report campaign.yaml --markdown > issue.md""",
    {0: "the campaign is finished", 1: "its baseline was not measured", 3: "it is not finished"},
    "campaign.md",
)
EXPORT = foot(
    """\
ullage campaign export campaign.yaml -o campaign.json
ullage campaign export campaign.yaml --format csv -o campaign.csv""",
    {0: "written"},
    "campaign.md",
)
#: exit codes by how a campaign ended
CODES = {"finished": 0, "no-baseline": 1, "limit": 3, "lost": 3, "unclean": 3}


class _Group(click.Group):
    """A group that lists its commands in the order in which they are used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


@click.group("campaign", cls=_Group, epilog=EXAMPLES)
def command() -> None:
    """A controlled campaign: a baseline, approaches that each change one thing, verdicts with their
    uncertainty."""


def _file(function: F) -> F:
    return click.argument("file", metavar="FILE", type=click.Path(path_type=Path))(function)


@command.command(
    "init",
    epilog=INIT,
    short_help="write a commented campaign file for a launch command",
    context_settings={"allow_interspersed_args": False},
)
@click.argument("launch", nargs=-1, type=click.UNPROCESSED, metavar="[--] LAUNCH COMMAND")
@click.option(
    "-o", "--output", metavar="FILE", default="campaign.yaml", show_default=True, help="The file to write."
)
@click.option("--gpu", metavar="NAME", help='The GPUs, e.g. "8x H100".')
@click.option("--engine-version", metavar="V", help="Release of the engine.")
@click.option("--force", is_flag=True, help="Write over a file that is there.")
def init(launch: tuple[str, ...], output: str, gpu: str | None, engine_version: str | None, force: bool) -> int:
    """Write a commented campaign file for LAUNCH COMMAND, and its schema for editors beside it."""
    from ullage.cli.output import write
    from ullage.cli.quick import text_of
    from ullage.lab.campaign import init as writer

    if not launch:
        raise InputError("no launch command", where="campaign init",
                         hint="ullage campaign init -- vllm serve MODEL")  # fmt: skip
    text = writer.text(text_of(launch, None), gpu, engine_version)
    path = Path(output)
    if path.exists() and not force:
        raise InputError("is there already", where=output, hint="--force writes over it")
    write(output, text)
    write(str(path.parent / writer.SCHEMA_FILE), writer.editor_schema().decode())
    click.echo(f"{output} is written; ullage campaign run --dry-run {output} plans it", err=True)
    return 0


@command.command("run", epilog=RUN, short_help="run it from its beginning")
@_file
@click.option("--dry-run", is_flag=True, help="Plan everything, start nothing.")
@click.option("--json", "as_json", is_flag=True, help="With --dry-run: as JSON.")
def run(file: Path, dry_run: bool, as_json: bool) -> int:
    """Run the campaign in FILE from its beginning."""
    if dry_run:
        return _dry(file, as_json)
    return _go(file, resume=False)


@command.command("resume", epilog=RESUME, short_help="go on where it stopped")
@_file
def resume(file: Path) -> int:
    """Go on with the campaign in FILE: end what was left running, and run what is unfinished."""
    return _go(file, resume=True)


def _dry(file: Path, as_json: bool) -> int:
    from ullage.lab.campaign import dry
    from ullage.lab.campaign.file import load

    found = dry.run(load(file))
    if as_json:
        import msgspec

        sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(found), indent=2) + b"\n")
    else:
        from ullage.render import campaign_text

        campaign_text.dry(found)
    return 1 if found.rows[0].verdict == "fails" else 0


def _go(file: Path, *, resume: bool) -> int:
    from ullage.lab.campaign import loop
    from ullage.lab.campaign.file import load
    from ullage.lab.campaign.stops import caught

    loaded = load(file)
    stopping = loop.Stopping()
    with caught(stopping) as got:
        try:
            outcome = loop.run(loaded, resume=resume, say=_say, stopping=stopping)
        except UllageError as error:
            if got.number is None:
                raise
            _say(error.line)
            return 128 + got.number
    if got.number is not None:
        _say(f"stopped; ullage campaign resume {file.name} goes on")
        return 128 + got.number
    if outcome.text:
        _say(outcome.text)
    _say(f"{outcome.how}; ullage campaign report {file.name} shows what was found")
    return CODES.get(outcome.how, 3)


def _say(text: str) -> None:
    """A line for who watches; nobody may be there any more."""
    import time

    try:
        sys.stderr.write(f"{time.strftime('%H:%M:%S')} {' '.join(text.split())}\n")
        sys.stderr.flush()
    except OSError:
        pass


def _report(file: Path) -> Any:
    from ullage.lab.campaign import report as builder
    from ullage.lab.campaign.file import load
    from ullage.lab.campaign.storage import shown_place
    from ullage.lab.campaign.study import open_study

    loaded = load(file)
    study = open_study(loaded, create=False)
    return builder.build(loaded, study.experiments(), study.about(), shown_place(study.place))


@command.command("status", epilog=STATUS, short_help="how far it is")
@_file
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def status(file: Path, as_json: bool) -> int:
    """How far the campaign in FILE is."""
    return _shown(file, "status", as_json)


@command.command("report", epilog=REPORT, short_help="what it found, and what was ruled out")
@_file
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@click.option("--markdown", is_flag=True, help="As Markdown, to paste into an issue.")
@click.option("--html", metavar="FILE", help="Write one HTML page as well.")
@click.option(
    "--unmasked", is_flag=True, help="Keep hosts, addresses, users and folders in --html and --markdown."
)
def report(file: Path, as_json: bool, markdown: bool, html: str | None, unmasked: bool) -> int:
    """What the campaign in FILE found: verdicts with their intervals, and what was ruled out and why."""
    return _shown(file, "report", as_json, markdown, html, unmasked)


def _shown(
    file: Path,
    kind: str,
    as_json: bool,
    markdown: bool = False,
    html: str | None = None,
    unmasked: bool = False,
) -> int:
    from ullage.core.private import masked
    from ullage.lab.campaign import export

    found = _report(file)
    shared = found if unmasked or not (markdown or html) else masked(found)
    if html is not None:
        from ullage.cli.output import write
        from ullage.render import campaign_html

        write(html, campaign_html.report(shared))
    if as_json:
        sys.stdout.buffer.write(export.json(found))
    elif markdown:
        from ullage.render import campaign_markdown

        sys.stdout.write(campaign_markdown.report(shared))
    else:
        from ullage.render import campaign_text

        (campaign_text.status if kind == "status" else campaign_text.report)(found)
    return {"finished": 0, "no baseline": 1}.get(found.status, 3)


@command.command("export", epilog=EXPORT, short_help="everything as JSON or CSV")
@_file
@click.option("--format", "form", type=click.Choice(["json", "csv"]), default="json", show_default=True)
@click.option("-o", "--output", metavar="FILE", help="Write to a file instead of stdout.")
def export_command(file: Path, form: str, output: str | None) -> int:
    """Every experiment and measurement as JSON or CSV."""
    from ullage.lab.campaign import export

    found = _report(file)
    text = export.json(found).decode() if form == "json" else export.table(found)
    if output is None:
        sys.stdout.write(text)
    else:
        from ullage.cli.output import write

        write(output, text)
    return 0
