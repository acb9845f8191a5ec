"""A Diagnosis or a Plan to HTML: a whole page that needs nothing else, or the part of it that a page shows."""

from __future__ import annotations

from typing import Any

from ullage import __version__
from ullage.core.deployment import Interval
from ullage.core.report import Diagnosis, Plan, Span
from ullage.core.run import PHASES
from ullage.lab.records import Record
from ullage.render import plan_text, run_text, spec_text
from ullage.render.html import chart
from ullage.render.html.env import asset, environment
from ullage.render.names import flag, told
from ullage.render.remedies import title as remedies_title
from ullage.render.shown import bounds, decides, reached
from ullage.render.words import headline, telling
from ullage.spec import curves
from ullage.spec.report import Payoff


def why(d: Diagnosis) -> str:
    """The whole page of a diagnosis."""
    return page(f"why: {d.cause or d.outcome}", fragment(d))


def diff(d: Diagnosis) -> str:
    """The whole page of two runs side by side."""
    return page("diff", fragment(d, "diff"))


def plan(p: Plan) -> str:
    """The whole page of a plan."""
    return page(f"plan: {p.verdict}", fragment(p))


def page(title: str, body: str) -> str:
    """``body`` (HTML of ours) as a page with its style and script inside: no other file, no other host."""
    from markupsafe import Markup

    return environment().get_template("page.html.j2").render(
        title=title, body=Markup(body), css=Markup(asset("style.css")), js=Markup(asset("report.js")),
        version=__version__,
    )  # fmt: skip


def fragment(found: Diagnosis | Plan, kind: str = "") -> str:
    """The report alone, to be put into a page that has the style."""
    if isinstance(found, Plan):
        return environment().get_template("plan.html.j2").render(**_plan(found))
    return environment().get_template(f"{kind or 'why'}.html.j2").render(**_why(found))


def spec(p: Payoff) -> str:
    """The whole page of a payoff."""
    return page("spec", spec_fragment(p))


def spec_fragment(p: Payoff) -> str:
    """Whether speculation pays, with the time ledgers as bars and the speed-up as charts."""
    drawn = (
        chart.lines(curves.over_length(p), "Speed-up over the tokens that a round gives"),
        chart.lines(curves.over_call(p), "Speed-up over the time of an all-reduce"),
    )
    return environment().get_template("spec.html.j2").render(
        p=p, title=spec_text.title(p), says=spec_text.summary(p), charts=[c for c in drawn if c],
        rate=spec_text.rate,
    )  # fmt: skip


def run_fragment(record: Record, log: str) -> str:
    """A run that is kept: how it went, its stages, what was planned and what was seen."""
    ends = [*list(record.stages.values())[1:], max(record.stages.values(), default=0.0)]
    spans = tuple(
        Span("", phase, begin, end)
        for (phase, begin), end in zip(record.stages.items(), ends, strict=False) if phase in PHASES
    )  # fmt: skip
    facts = [(name, value) for name, value in run_text.facts(record, log) if value]
    found = environment().get_template("run.html.j2")
    return found.render(r=record, facts=facts, spans=spans, outcome=run_text.outcome(record), log=log)


def _why(d: Diagnosis) -> dict[str, Any]:
    item = bounds(d)
    return {
        "d": d, "title": headline(d), "decides": decides(d), "ledgers": reached(d),
        "inferred": [i for i in d.inferred.values() if told(i.name, i.value)], "interval": item,
        "flag": flag(item) if item else "", "now": _now(d, item), "remedies": remedies_title(d).capitalize(),
        "evidence": telling(d.evidence, 4), "reserve": d.budget.reserve, "said": [*d.contradictions, *d.notes],
    }  # fmt: skip


def _now(d: Diagnosis, item: Interval | None) -> object:
    if item is None:
        return None
    name = item.flag.lstrip("-").replace("-", "_")
    found = d.settings.get(name) or d.inferred.get(name)
    return found.value if found is not None else None


def _plan(p: Plan) -> dict[str, Any]:
    item = p.interval if p.interval and (p.interval.low is not None or p.interval.high is not None) else None
    now = p.settings.get(item.flag.lstrip("-").replace("-", "_")) if item else None
    return {
        "p": p, "title": plan_text.title(p), "says": plan_text.summary(p), "interval": item,
        "flag": flag(item) if item else "", "now": now.value if now else None,
        "predicted": plan_text.predicted, "rate": spec_text.rate, "concurrency": sorted(p.concurrency.items()),
    }  # fmt: skip
