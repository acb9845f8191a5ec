"""Every command's --help says what it answers, its options, examples, exit codes, and where more is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from ullage.cli import main
from ullage.cli.group import cli
from ullage.cli.help import COMMANDS, GROUPS, page

ROOT = Path(__file__).parents[2]


def _commands() -> Iterator[tuple[str, ...]]:
    context = click.Context(cli)
    for name in COMMANDS:
        yield (name,)
        found = cli.get_command(context, name)
        if isinstance(found, click.Group):
            yield from ((name, sub) for sub in found.commands)


@pytest.fixture(params=list(_commands()), ids=" ".join)
def shown(request: pytest.FixtureRequest) -> str:
    text: str = CliRunner().invoke(cli, [*request.param, "--help"], prog_name="ullage").output
    return text


def test_a_page_has_all_that_a_manual_has(shown: str) -> None:
    for part in ("Usage:", "  -h, --help ", "  Examples:\n    ", "  Exit codes:\n    0 "):
        assert part in shown, part
    assert re.search(r"^    2 +wrong usage or unreadable input \(one line on stderr\)$", shown, re.MULTILINE)


def test_its_examples_are_of_this_command(shown: str) -> None:
    name = shown.split("[OPTIONS]")[0].removeprefix("Usage: ").strip()
    examples = shown.split("Examples:\n")[1].split("\n\n")[0]
    assert name in examples


def test_it_fits_a_terminal(shown: str) -> None:
    assert [line for line in shown.splitlines() if len(line) > 80] == []


def test_more_is_where_it_says(shown: str) -> None:
    told = re.search(r"^  More: (docs/\S+)$", shown, re.MULTILINE)
    assert told and (ROOT / told[1]).is_file()


def test_every_option_is_told(shown: str) -> None:
    options = shown.split("Options:\n")[1].split("\n\n")[0]
    blank = re.findall(r"^  (-\S+(?: [A-Z.|=,@\[\]{}\w]+)?) *$\n(?!   )", options, re.MULTILINE)
    assert blank == []


def test_the_first_page_groups_the_commands() -> None:
    text = page()
    assert [line for line in text.splitlines() if len(line) > 80] == []
    assert list(GROUPS) == ["Before a launch", "During a launch", "After a launch", "Faces"]
    for when, commands in GROUPS.items():
        block = text.split(f"{when}:\n")[1].split("\n\n")[0]
        assert [line.split()[0] for line in block.splitlines()] == list(commands)


def test_every_module_of_a_command_is_in_it() -> None:
    here = ROOT / "src" / "ullage" / "cli"
    modules = {path.stem for path in here.glob("*.py") if re.search(r"^def command\(", path.read_text(), re.M)}
    assert modules == set(COMMANDS)


def test_a_command_line_after_every_command_was_imported(capsys: pytest.CaptureFixture[str]) -> None:
    """No command's module takes the place of a function of the package that holds them."""
    assert all(cli.get_command(click.Context(cli), name) for name in COMMANDS)
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert not ended.value.code and capsys.readouterr().out.startswith("ullage ")
