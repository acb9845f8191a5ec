"""``ullage runs``."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from ullage.cli.help import foot

EXAMPLES = foot(
    """\
ullage runs                       every run that was kept
ullage runs show last             the newest: settings, stages, outcome
ullage why Qwen3-32B-1129-2000    why a run ended as it did
ullage runs rm Qwen3-32B-1129-2000""",
    {0: "listed, shown or removed"},
    "runs.md",
)


@click.command("runs", epilog=EXAMPLES)
@click.argument("what", required=False, default="list", type=click.Choice(["list", "show", "rm"]))
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--json", "as_json", is_flag=True, help="Print the records as JSON.")
def command(what: str, names: tuple[str, ...], as_json: bool) -> int:
    """List the runs that were kept, show or remove some. NAME "last" is the newest."""
    from ullage.core.errors import InputError
    from ullage.lab.records import Store
    from ullage.render import run_text

    store = Store()
    if what == "list" and not names:
        records = [record for _, record in store.records()]
        if as_json:
            _json(records)
        else:
            run_text.runs(records)
        return 0
    if not names:
        raise InputError("which run?", where=f"runs {what}", hint="ullage runs lists them")
    folders = [store.get(name) for name in names]
    if what == "rm":
        for folder in folders:
            folder.remove()
        return 0
    found = [(folder, folder.record()) for folder in folders]
    if as_json:
        _json([record for _, record in found])
        return 0
    for folder, record in found:
        run_text.shown(record, str(folder.log))
    return 0


def _json(found: Sequence[object]) -> None:
    import msgspec

    from ullage.lab.durable import encoded

    sys.stdout.buffer.write(msgspec.json.format(encoded(found), indent=2) + b"\n")
