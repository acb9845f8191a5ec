"""A campaign as Markdown that reads well in an issue."""

from __future__ import annotations

from collections.abc import Iterator

from ullage import __version__
from ullage.lab.campaign.preflight import pasteable
from ullage.lab.campaign.report import Report, Row, figures
from ullage.render import campaign_words as words
from ullage.render.markdown import code, plain


def report(r: Report) -> str:
    """The whole report."""
    return "\n\n".join(_parts(r)) + f"\n\n<sub>ullage {__version__}</sub>\n"


def _parts(r: Report) -> Iterator[str]:
    yield f"## {plain(r.name)}: {words.STATUS[r.status]}"
    yield plain(words.counts(r))
    if r.launch:
        yield f"Launch: {code(r.launch)}"
    if r.baseline is not None:
        yield "\n".join(_baseline(r))
    if r.rows:
        yield "\n".join(_table(r))
    if r.best:
        yield f"**Best**: {', '.join(plain(name) for name in r.best)}"
    mixed = [row for row in r.rows if row.experiment.confounded]
    if mixed:
        yield "### Confounded: more changed than was declared\n\n" + "\n".join(
            _confounded(row) for row in mixed
        )
    out = [row for row in r.rows if row.ruled_out]
    if out:
        yield "### Ruled out\n\n" + "\n".join(_ruled_out(row) for row in out)
    if notes := words.notes(r):
        yield "\n".join(f"- {plain(note)}" for note in notes)


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _baseline(r: Report) -> Iterator[str]:
    assert r.baseline is not None
    if r.baseline.stage != "done":
        yield f"Baseline: {plain(words.state(r.baseline))} {plain(r.baseline.why)}".rstrip()
        return
    yield _row("baseline", *words.BASELINE[1:])
    yield _row("---", "---", "---", "---", "---")
    yield from (_row(*map(plain, row)) for row in words.baseline(r))


def _table(r: Report) -> Iterator[str]:
    first = r.targets[0]
    yield _row("experiment", "change", plain(f"{first.metric} ({first.better} is better)"), "effect", "verdict")
    yield _row("---", "---", "---", "---", "---")
    for row in r.rows:
        shown = figures(row.experiment, r.targets[:1])
        yield _row(
            plain(row.experiment.name), _cell(words.changes(row.experiment.changes)),
            plain(words.figure(shown[0])) if shown and row.effect else "-",
            words.change(row.effect),
            f"**{words.verdict(row)}**{', confounded' if row.experiment.confounded else ''}",
        )  # fmt: skip


def _cell(text: str) -> str:
    """A code span inside a table: a bar would end the cell."""
    return code(text.replace("|", "\\|"))


def _confounded(row: Row) -> str:
    settings = "; ".join(words.confounder(c) for c in row.experiment.confounded)
    text = f"- **{plain(row.experiment.name)}**: {plain(settings)}"
    if row.experiment.split:
        snippet = "\n".join(pasteable(each) for each in row.experiment.split).replace("```", "'''")
        text += f"\n\n```yaml\n{snippet}\n```"
    return text


def _ruled_out(row: Row) -> str:
    told = row.experiment.told
    proof = "".join(f"\n  - {code(line)}" for line in told.evidence) if told else ""
    return f"- **{plain(row.experiment.name)}**: {plain(row.ruled_out)}{proof}"
