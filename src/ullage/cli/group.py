"""The commands as click knows them. Imported only where a command line is not a plain ``plan`` (quick.py)."""

from __future__ import annotations

import click

from ullage.cli.help import COMMANDS, page
from ullage.core.errors import InputError


class Commands(click.Group):
    """A group whose commands are imported when they are first asked for, so that --help stays quick."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        from importlib import import_module

        command: click.Command = import_module(f"ullage.cli.{name}").command
        return command

    def get_help(self, ctx: click.Context) -> str:
        return page()


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="ullage", message="%(prog)s %(version)s")
def cli() -> None:
    """Why an LLM server crashed, where every GiB went, and which change mends it: SGLang and vLLM."""


def run(words: list[str]) -> int:
    """Run a command line; the exit code. Raises InputError for an error of usage, in click's own words; a group
    without a command shows its help."""
    try:
        code = cli.main(args=words, standalone_mode=False, prog_name="ullage")
    except click.exceptions.Abort:
        return 130
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return 2
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx is not None else "ullage"
        place = path.removeprefix("ullage").strip() or None
        raise InputError(_said(error), where=place, hint=f"{path} --help") from None
    except click.ClickException as error:
        raise InputError(_said(error)) from None
    return code if isinstance(code, int) else 0


def _said(error: click.ClickException) -> str:
    """Click's sentence, so that it reads well behind the place: no full stop, no capital."""
    text = error.format_message().rstrip(".")
    return text[:1].lower() + text[1:]
