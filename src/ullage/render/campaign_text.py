"""A campaign for the terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ullage.lab.campaign.dry import Dry
from ullage.lab.campaign.experiment import Experiment
from ullage.lab.campaign.preflight import pasteable
from ullage.lab.campaign.report import Report, Row, at, figures
from ullage.render import campaign_words as words
from ullage.render.html.plain import visible
from ullage.render.text import console

_STYLES = {"better": "bold green", "worse": "red", "crashed": "red", "refused": "yellow"}


def _text(text: str, style: str = "") -> Text:
    """Text of strangers: its control characters are shown and not obeyed."""
    return Text(visible(text), style=style)


def report(found: Report, to: Console | None = None) -> None:
    """Print the whole report."""
    to = to or console()
    for part in _report(found):
        to.print(part)


def status(found: Report, to: Console | None = None) -> None:
    """Print how far the campaign is."""
    to = to or console()
    to.print(_title(found))
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("#", "experiment", "state", "since", "run"):
        table.add_column(name, justify="right" if name == "#" else "left")
    every = [found.baseline, *(row.experiment for row in found.rows), found.again]
    for each in every:
        if each is not None:
            since = at(each.history[-1].at) if each.history else "-"
            state = _text(words.state(each), style=_STYLES.get(each.stage, ""))
            run = _text(each.runs[-1] if each.runs else "-")
            table.add_row(str(each.number), _text(each.name), state, since, run)
    to.print(Padding(table, (1, 2)))


def dry(found: Dry, to: Console | None = None) -> None:
    """Print what would be done, and how long it is expected to take."""
    to = to or console()
    to.print(_text(f"{found.name}: nothing is started", style="bold"))
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    told = any(row.predicted.get(found.goal) for row in found.rows)
    for name in ("experiment", "plan", "takes", *([found.goal] if told else []), "why, and what comes along"):
        table.add_column(_text(name), overflow="fold")
    for row in found.rows:
        said = [row.why, *(words.confounder(c) for c in row.confounded)]
        goal = [_text(words.predicted(row.predicted.get(found.goal), found.unit))] if told else []
        verdict = _text(row.verdict, style="red" if row.verdict == "fails" else "")
        table.add_row(
            _text(row.name), verdict, _text(row.expected), *goal, _text("; ".join(s for s in said if s))
        )
    to.print(Padding(table, (1, 2)))
    for note in found.notes:
        to.print(Padding(_text(f"- {note}"), (0, 2)))


def _report(r: Report) -> Iterator[RenderableType]:
    yield _title(r)
    if r.baseline is not None:
        yield _section("BASELINE", *_baseline(r))
    if r.rows:
        yield _section("WHAT WAS TRIED", _table(r))
    if r.best:
        yield _section("BEST", *(_bullet(name, _why_best(r, name)) for name in r.best))
    mixed = [row for row in r.rows if row.experiment.confounded]
    if mixed:
        yield _section(
            "CONFOUNDED: MORE CHANGED THAN WAS DECLARED", *(p for row in mixed for p in _confounded(row))
        )
    out = [row for row in r.rows if row.ruled_out]
    if out:
        yield _section("RULED OUT", *(p for row in out for p in _ruled_out(row)))
    if notes := words.notes(r):
        yield _section("NOTE", *(_text(f"- {note}") for note in notes))


def _title(r: Report) -> RenderableType:
    head = _text(r.name, style="bold")
    head.append(f"  ·  {words.STATUS[r.status]}  ·  {words.counts(r)}", style="dim")
    return Group(head, _text(f"kept in {r.storage}", style="dim"))


def _baseline(r: Report) -> Iterator[RenderableType]:
    assert r.baseline is not None
    if r.baseline.stage != "done":
        yield _text(f"{words.state(r.baseline)}{': ' if r.baseline.why else ''}{r.baseline.why}")
        yield from _told(r.baseline)
        return
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in words.BASELINE:
        table.add_column(name)
    for row in words.baseline(r):
        table.add_row(*map(_text, row))
    yield table


def _table(r: Report) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    first = r.targets[0]
    for name in ("experiment", "change", f"{first.metric} ({first.better} is better)", "effect", "verdict"):
        table.add_column(_text(name), overflow="fold")
    for row in r.rows:
        table.add_row(*_cells(r, row))
    return table


def _cells(r: Report, row: Row) -> tuple[Text, ...]:
    shown = figures(row.experiment, r.targets[:1])
    value = words.figure(shown[0]) if shown and row.effect else "-"
    if shown and shown[0].predicted:
        value = f"{value}; predicted {words.predicted(shown[0].predicted, shown[0].unit)}"
    effect = words.change(row.effect)
    word = words.verdict(row)
    mixed = ", confounded" if row.experiment.confounded else ""
    said = _text(f"{word}{mixed}", style=_STYLES.get(word, ""))
    change = words.changes(row.experiment.changes)
    return _text(row.experiment.name), _text(change), _text(value), _text(effect), said


def _why_best(r: Report, name: str) -> str:
    row = next(row for row in r.rows if row.experiment.name == name)
    parts = [f"{e.metric} {words.effect(e)}" for e in row.effects]
    return f"{words.changes(row.experiment.changes)}: {'; '.join(parts)}"


def _confounded(row: Row) -> Iterator[RenderableType]:
    yield _bullet(row.experiment.name, "; ".join(words.confounder(c) for c in row.experiment.confounded))
    if row.experiment.split:
        yield Padding(_text("to tell the parts apart, add under approaches:", style="dim"), (0, 4))
    for proposal in row.experiment.split:
        yield Padding(_text(pasteable(proposal)), (0, 6))


def _ruled_out(row: Row) -> Iterator[RenderableType]:
    yield _bullet(row.experiment.name, row.ruled_out)
    yield Padding(_text(f"tried because: {row.experiment.reason}", style="dim"), (0, 4))
    yield from _told(row.experiment)


def _told(experiment: Experiment) -> Iterator[RenderableType]:
    if experiment.told is not None:
        for line in experiment.told.evidence:
            yield Padding(_text(line, style="dim"), (0, 4))
        for fix in experiment.told.fixes:
            yield Padding(_text(f"try {fix}"), (0, 4))
    elif experiment.preflight is not None and experiment.stage == "refused":
        for fix in experiment.preflight.fixes:
            yield Padding(_text(f"try {fix}"), (0, 4))
    if experiment.runs and experiment.stage == "crashed":
        yield Padding(_text(f"ullage why {experiment.runs[-1]}", style="dim"), (0, 4))


def _bullet(head: str, text: str) -> Text:
    found = _text("- ")
    found.append(visible(head), style="bold")
    found.append(visible(f": {text}"))
    return found


def _section(title: str, *parts: RenderableType) -> RenderableType:
    return Group(
        Padding(_text(title, style="bold cyan"), (1, 0, 0, 0)), *(Padding(part, (0, 2)) for part in parts)
    )
