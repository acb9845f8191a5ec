"""The short text of each answer: verdict, cause, formula, the best change ready to paste. The objects have the
rest. The words are those of the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from io import StringIO
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ullage.core.finding import Change
    from ullage.core.report import Diagnosis, Plan
    from ullage.lab.records import Record
    from ullage.planning.checks import Checked
    from ullage.planning.comm import CommPlan
    from ullage.render.lines import Line
    from ullage.spec.report import Payoff

#: characters of a text, changes and lines of a section that are shown
MOST, MOST_CHANGES, MOST_LINES = 4000, 4, 12


def plan(p: Plan) -> str:
    from ullage.render import plan_text

    kept = _sections(plan_text.lines(p))
    return _text(
        plan_text.title(p), plan_text.summary(p), *p.budget.formula.splitlines(),
        *kept.get("WHAT STARTS", [])[:1], *_changes(p.fixes),
        *(f"note: {caution.text}" for caution in p.cautions[:MOST_LINES]),
    )  # fmt: skip


def why(d: Diagnosis) -> str:
    from ullage.render.shown import decides
    from ullage.render.words import headline, summary, telling

    root = [e for e in telling(d.evidence, 1) if e.role == "root"][:1]
    return _text(
        headline(d), summary(d),
        f"cause: {d.cause} ({d.certainty})" if d.cause and d.cause != "none" else "",
        *(d.budget.formula.splitlines() if decides(d) else []), *_deciding(d),
        "it is not: " + ", ".join(r.hypothesis for r in d.refuted) if d.refuted else "",
        *_bounds(d), *_changes(d.fixes),
        *(f"first: {e.file}:{e.line}  {_one(e.text)}" for e in root),
        *(f"note: {text}" for text in (*d.contradictions, *d.notes)[:MOST_LINES]),
    )  # fmt: skip


def diff(d: Diagnosis) -> str:
    from ullage.render.names import words
    from ullage.render.words import effect, headline, mark

    if d.compare is None:
        return _text(headline(d), "Nothing to compare: the second log is of no known engine.")
    rows = [
        f"{mark(x)}: {words(x.setting)}  a: {x.baseline}  b: {x.this}  {effect(x)}".rstrip()
        for x in d.compare.differences
    ]
    return _text(headline(d), *(rows or ["No difference that either log shows."])[:30], *d.compare.confounded)


def spec(p: Payoff) -> str:
    from ullage.render import spec_text

    kept = _sections(spec_text.lines(p))
    return _text(spec_text.title(p), spec_text.summary(p), *kept.get("AT EACH BATCH SIZE", [])[:MOST_LINES])


def comm(p: CommPlan) -> str:
    from ullage.render import comm_text

    kept = _sections(comm_text.plan_lines(p))
    backends = next((lines for name, lines in kept.items() if name.startswith("BACKENDS")), [])
    return _text(*kept[""], *backends[:MOST_LINES], *kept.get("WHAT TO TRY FIRST", [])[:MOST_LINES])


def check(found: Checked) -> str:
    from ullage.render import check_text

    kept = _sections(check_text.lines(found))
    facts = ("MACHINE", "SOFTWARE", "BACKENDS", "NOT SEEN")
    told = [line for name, lines in kept.items() if not name.startswith(facts) for line in lines]
    return _text(*told[:40])


def run(record: Record | None, log: str = "") -> str:
    from ullage.render import run_text

    if record is None:
        return "its record cannot be read"
    return _text(*(f"{name}: {value}" for name, value in run_text.facts(record, log) if value))


def runs(records: Sequence[Record], of: int) -> str:
    from ullage.render import run_text

    out = StringIO()
    run_text.runs(records, out)
    return _text(f"{len(records)} of {of} runs, newest first" if records else "", *out.getvalue().splitlines())


def _deciding(d: Diagnosis) -> Iterator[str]:
    from ullage.render.words import effect

    for x in d.compare.differences if d.compare else ():
        if x.decisive:
            yield f"decides: {x.setting} is {x.this}, was {x.baseline} in the run that worked ({effect(x)})"


def _bounds(d: Diagnosis) -> Iterator[str]:
    """The interval of the fraction, as the terminal says it."""
    from rich.console import Console

    from ullage.render.remedies import remedies
    from ullage.render.shown import bounds

    if bounds(d) is None:
        return
    out = StringIO()
    Console(file=out, width=1000, color_system=None).print(next(iter(remedies(d))))
    yield out.getvalue().strip()


def _changes(fixes: Sequence[Change]) -> Iterator[str]:
    from ullage.render.names import pasted
    from ullage.render.plan_text import predicted
    from ullage.render.words import sentence

    for change in fixes[:MOST_CHANGES]:
        flags = "  ".join(pasted(name, value) for name, value in change.change.items())
        said = f" -> {predicted(change.predicted)}" if change.predicted else ""
        head = f"try: {flags}{said}. " if flags else "try: "
        yield head + _one(sentence(change.why))


def _sections(lines: Iterable[Line]) -> dict[str, list[str]]:
    """The lines of a report by the heading above them; "" for those before the first."""
    found: dict[str, list[str]] = {"": []}
    name, after_blank = "", False
    for line in lines:
        text = line[0] if isinstance(line, tuple) else line
        if after_blank and text and not text.startswith(" ") and text[:4].upper() == text[:4]:
            name = text
            found[name] = []
        elif text.strip():
            found[name].append(text)
        after_blank = not text.strip()
    return found


def _one(text: str) -> str:
    from ullage.render.words import shortened

    return shortened(text, 400)


def _text(*lines: str) -> str:
    text = "\n".join(line.rstrip() for line in lines if line.strip())
    return text if len(text) <= MOST else f"{text[:MOST]}\n... (the structured result has all of it)"
