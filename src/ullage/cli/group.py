"""The commands as click knows them. Imported only where a command line is not a plain ``plan`` (quick.py)."""

from __future__ import annotations

import click

EPILOG = """\b
Exit codes: 0 healthy or will start; 1 a failure was found or it will not start;
2 wrong usage or unreadable input (one line on stderr); 3 cannot tell (what is missing is named)."""


class Commands(click.Group):
    """A group whose commands are imported when they are first asked for, so that --help stays quick."""

    MODULES = {"plan": "plan", "why": "why", "diff": "diff", "sweep": "sweep"}  # noqa: RUF012

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.MODULES)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in self.MODULES:
            return None
        from importlib import import_module

        command: click.Command = import_module(f"ullage.cli.{self.MODULES[name]}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([
                ("plan -- COMMAND", "will this launch start, where does every GiB go, which change gives more"),
                ("why LOG...", "what failed first and why, and which change mends it"),
                ("diff A B", "two runs side by side: settings, environment, both ledgers"),
                ("sweep -- COMMAND", "a whole space of settings planned at once: what starts, what gives most"),
            ])  # fmt: skip


@click.group(cls=Commands, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="ullage", message="%(prog)s %(version)s")
def cli() -> None:
    """Why an LLM server crashed, where every GiB went, and which change mends it: SGLang and vLLM."""


def run(words: list[str]) -> int:
    """Run a command line; the exit code. Errors of usage are click's own words on stderr, and code 2."""
    try:
        code = cli.main(args=words, standalone_mode=False, prog_name="ullage")
    except click.exceptions.Abort:
        return 130
    except click.ClickException as error:
        error.show()
        return 2
    return code if isinstance(code, int) else 0
