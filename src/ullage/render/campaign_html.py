"""A campaign as one HTML page: no script, nothing loaded from anywhere, every text of strangers escaped."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape

from ullage import __version__
from ullage.core.units import percent_text
from ullage.lab.campaign.experiment import Experiment
from ullage.lab.campaign.preflight import pasteable
from ullage.lab.campaign.report import Report, Row, at, figures
from ullage.render import campaign_plots as plots
from ullage.render import campaign_words as words

#: experiments that a page shows in full; the export has them all
MOST_ROWS = 400
MOST_TEXT = 600
_STYLE = """
:root{color-scheme:light dark;--ink:#1b1f24;--dim:#57606a;--line:#d0d7de;--back:#fff;--good:#1a7f37;
--bad:#b42318;--none:#57606a;--mark:#0969da;--soft:#f6f8fa}
@media (prefers-color-scheme:dark){:root{--ink:#e6edf3;--dim:#9da7b3;--line:#3d444d;--back:#0d1117;
--good:#4ac26b;--bad:#ff8f85;--none:#9da7b3;--mark:#58a6ff;--soft:#161b22}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--back);margin:0 auto;max-width:70rem;
padding:1.5rem}
h1{font-size:1.6rem;margin:0}h2{font-size:1.15rem;margin:2rem 0 .6rem}p{margin:.3rem 0}
.dim{color:var(--dim)}.scroll{overflow-x:auto}table{border-collapse:collapse;width:100%}
th,td{text-align:left;vertical-align:top;padding:.35rem .7rem .35rem 0;border-bottom:1px solid var(--line)}
th{font-weight:600}code,pre{font:13px/1.45 ui-monospace,monospace;overflow-wrap:anywhere}
pre{background:var(--soft);padding:.7rem;border-radius:6px;white-space:pre-wrap}
.better{color:var(--good);font-weight:600}.worse,.crashed{color:var(--bad);font-weight:600}
svg{max-width:100%;height:auto;display:block}svg text{fill:var(--ink);font:13px system-ui,sans-serif}
svg .dim{fill:var(--dim)}svg .axis{stroke:var(--line)}svg .zero{stroke:var(--dim)}
svg .better{stroke:var(--good);fill:var(--good)}svg .worse{stroke:var(--bad);fill:var(--bad)}
svg .none{stroke:var(--none);fill:var(--none)}svg .base{stroke:var(--mark);fill:var(--mark)}
"""


def report(r: Report) -> str:
    """The whole page."""
    body = "\n".join(_body(r))
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{_t(r.name)}: campaign</title><style>{_STYLE}</style></head>
<body><main>
{body}
</main><footer class="dim"><p>ullage {_t(__version__)}</p></footer></body></html>
"""


def fragment(r: Report) -> str:
    """The report alone, to be put into a page that has a style of its own."""
    return "\n".join(_body(r))


def _t(text: object) -> str:
    """Text of strangers, escaped, without control characters, of a bounded length."""
    plain = "".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in str(text))
    return escape(plain if len(plain) <= MOST_TEXT else f"{plain[:MOST_TEXT]} ..")


def _body(r: Report) -> Iterator[str]:
    yield f"<h1>{_t(r.name)}</h1><p>{_t(words.STATUS[r.status])} · {_t(words.counts(r))}</p>"
    counted = f"intervals at {r.confidence:.0%}, effects below {r.least_effect:.0%} do not count"
    yield f'<p class="dim">begun {_t(at(r.began))} · {r.repeats} repeats · {counted}</p>'
    if r.launch:
        yield f"<p><code>{_t(r.launch)}</code></p>"
    shown = r.rows[:MOST_ROWS]
    judged = [row for row in shown if row.effect is not None and row.effect.word != "not judged"]
    for index, target in enumerate(r.targets):
        effects = [(row, row.effects[index]) for row in judged if len(row.effects) > index]
        if effects:
            yield f"<h2>Effect on {_t(target.metric)} ({_t(target.better)} is better)</h2>"
            yield plots.forest([(row.experiment.name, found) for row, found in effects], target.metric)
    if r.baseline is not None and r.baseline.stage == "done":
        yield f"<h2>Every measurement of {_t(r.targets[0].metric)}</h2>"
        yield plots.dots(_series(r, shown), r.targets[0])
    yield from _baseline(r)
    if shown:
        yield f"<h2>What was tried</h2>{_tried(r, shown)}"
    if len(r.rows) > MOST_ROWS:
        yield f"<p>{len(r.rows) - MOST_ROWS} more are in <code>ullage campaign export</code>.</p>"
    yield from _mixed(shown)
    yield from _out(shown)
    if notes := words.notes(r):
        yield f"<h2>Notes</h2><ul>{''.join(f'<li>{_t(note)}</li>' for note in notes)}</ul>"


def _series(r: Report, rows: Iterable[Row]) -> list[tuple[str, tuple[float, ...], str]]:
    """(name, values, class) of everything measured, the baseline first and last."""
    metric = r.targets[0].metric
    found = [("baseline", r.baseline.values(metric) if r.baseline else (), "base")]
    found += [(row.experiment.name, row.experiment.values(metric), plots.css(row.effect)) for row in rows
              if row.experiment.values(metric)]  # fmt: skip
    if r.again is not None and r.again.values(metric):
        found.append((r.again.name, r.again.values(metric), "base"))
    return found


def _table(heads: Iterable[str], rows: Iterable[Iterable[str]], caption: str) -> str:
    head = "".join(f'<th scope="col">{_t(name)}</th>' for name in heads)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    region = f'<div class="scroll" tabindex="0" role="region" aria-label="{_t(caption)}">'
    return f"{region}<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"


def _baseline(r: Report) -> Iterator[str]:
    if r.baseline is None:
        return
    yield "<h2>Baseline</h2>"
    if r.baseline.stage != "done":
        yield f"<p>{_t(words.state(r.baseline))} {_t(r.baseline.why)}</p>{_told(r.baseline)}"
        return
    yield _table(words.BASELINE, (map(_t, row) for row in words.baseline(r)), "Baseline")


def _class(word: str) -> str:
    return word if word in ("better", "worse", "crashed") else "none"


def _tried(r: Report, rows: Iterable[Row]) -> str:
    cells = []
    for row in rows:
        e = row.experiment
        shown = figures(e, r.targets[:1])
        word, mixed = words.verdict(row), ", confounded" if e.confounded else ""
        cells.append((
            f"<strong>{_t(e.name)}</strong><br><span class='dim'>{_t(e.reason)}</span>",
            f"<code>{_t(words.changes(e.changes))}</code>",
            _t(words.figure(shown[0])) if shown and row.effect else "-",
            _t(words.predicted(shown[0].predicted, shown[0].unit)) if shown else "",
            _t(words.change(row.effect)),
            f'<span class="{_class(word)}">{_t(word)}</span>{mixed}',
            "<br>".join(_t(f"{b.metric} {percent_text(b.value)}") for b in row.beside),
        ))  # fmt: skip
    heads = ("experiment", "change", r.targets[0].metric, "predicted", "effect", "verdict", "beside it")
    return _table(heads, cells, "What was tried")


def _mixed(rows: Iterable[Row]) -> Iterator[str]:
    found = [row for row in rows if row.experiment.confounded]
    if not found:
        return
    yield "<h2>Confounded: more changed than was declared</h2>"
    for row in found:
        items = "".join(f"<li>{_t(words.confounder(c))}</li>" for c in row.experiment.confounded)
        yield f"<p><strong>{_t(row.experiment.name)}</strong></p><ul>{items}</ul>"
        if row.experiment.split:
            snippet = "\n".join(pasteable(each) for each in row.experiment.split)
            yield f"<p>To tell the parts apart, add under <code>approaches:</code></p><pre>{_t(snippet)}</pre>"


def _out(rows: Iterable[Row]) -> Iterator[str]:
    found = [row for row in rows if row.ruled_out]
    if not found:
        return
    yield "<h2>Ruled out</h2>"
    for row in found:
        yield f"<p><strong>{_t(row.experiment.name)}</strong>: {_t(row.ruled_out)}</p>{_told(row.experiment)}"


def _told(e: Experiment) -> str:
    told = e.told
    lines = told.evidence if told else ()
    fixes = told.fixes if told else e.preflight.fixes if e.preflight and e.stage == "refused" else ()
    proof = f"<pre>{_t(chr(10).join(lines))}</pre>" if lines else ""
    more = f"<ul>{''.join(f'<li>try {_t(fix)}</li>' for fix in fixes)}</ul>" if fixes else ""
    return proof + more
