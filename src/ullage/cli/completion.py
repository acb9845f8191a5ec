"""``ullage completion``: the script for a shell, and the answers that the script asks for."""

from __future__ import annotations

import re
from collections.abc import Iterable

import click
from click.shell_completion import CompletionItem, get_completion_class

from ullage.cli.group import Commands
from ullage.cli.help import foot

#: the script sets it when it asks; click's convention
VARIABLE = "_ULLAGE_COMPLETE"
_COUNT = re.compile(r"\d{1,4}x?[ -]?(?=\D|$)", re.IGNORECASE)
_FILES = frozenset({"FILE", "FILE...", "LOG", "LOG...", "A", "B", "PATH", "[--] LAUNCH COMMAND"})
Items = list[CompletionItem]
_FOLDERS = frozenset({"DIR", "FOLDER"})


@click.command(
    "completion",
    epilog=foot(
        """\
eval "$(ullage completion bash)"                             in ~/.bashrc
eval "$(ullage completion zsh)"                              in ~/.zshrc
ullage completion fish > ~/.config/fish/completions/ullage.fish""",
        {0: "the script was printed"},
        "completion.md",
    ),
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> int:
    """Print the script that completes commands, options, files and GPU names in SHELL.

    Flags of the launch command behind "--" are the engine's and are not completed; file names are.
    """
    kind = get_completion_class(shell)
    assert kind is not None  # the three above are click's own
    click.echo(kind(Completed("ullage"), {}, "ullage", VARIABLE).source())
    return 0


class Completed(Commands):
    """The commands, with what can stand for their values. Only a shell that completes asks for it."""

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        found = super().get_command(ctx, name)
        if found is not None:
            _attach(found)
        return found


def answer() -> int:
    """Answer the script, whose question stands in the environment; the exit code."""
    Completed("ullage").main(args=[], prog_name="ullage", complete_var=VARIABLE)
    return 0


def _attach(command: click.Command) -> None:
    if isinstance(command, click.Group):
        for name in command.commands:
            _attach(command.commands[name])
    for param in command.params:
        metavar = param.metavar or ""
        if "--gpu" in param.opts:
            param.type = _Gpu()
        elif metavar in _FILES:
            param.type = _File()
        elif metavar in _FOLDERS:
            param.type = click.Path(file_okay=False)
        elif param.name == "names":
            param.type = _Run()


class _File(click.ParamType[str]):
    """A file of any kind."""

    name = "file"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:
        return [CompletionItem(incomplete, type="file")]


class _Gpu(click.ParamType[str]):
    """GPU names as one word ("8xRTX-PRO-6000": letter case and hyphens do not matter), behind a count."""

    name = "gpu"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:
        from ullage.hardware.gpus import aliases

        count = found[0] if (found := _COUNT.match(incomplete)) else ""
        known = ("-".join(alias.split()) for alias in aliases())
        return _begun([*(count + name for name in known), "here"], incomplete)


class _Run(click.ParamType[str]):
    """The name of a run that was kept."""

    name = "run"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:
        from ullage.lab.records import Store

        return _begun(["last", *(record.name for _, record in Store().records())], incomplete)


def _begun(words: Iterable[str], incomplete: str) -> list[CompletionItem]:
    """The words that go on from what is typed, in its letter case."""
    typed = incomplete.lower()
    known = (word.lower() if incomplete == typed and re.search("[a-z]", typed[2:]) else word for word in words)
    fit = dict.fromkeys(word for word in known if word.lower().startswith(typed))
    return [CompletionItem(incomplete + word[len(incomplete) :]) for word in fit]
