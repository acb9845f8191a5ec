"""Reports as Markdown that reads well in an issue: short tables, the proof folded, nobody pinged."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from ullage import __version__
from ullage.core.deployment import Interval
from ullage.core.finding import Change
from ullage.core.ledger import Ledger
from ullage.core.report import Comparison, Diagnosis, Plan
from ullage.core.units import GIB, gib_text, tokens_text
from ullage.render import plan_text
from ullage.render.html.bars import LEAST_BYTES, fullest
from ullage.render.html.plain import visible
from ullage.render.names import flag, lower_limit, pasted, short, told, upper_limit, words
from ullage.render.remedies import title
from ullage.render.shown import bounds, decides, reached
from ullage.render.spec_text import rate
from ullage.render.words import (
    effect,
    headline,
    mark,
    number,
    sentence,
    shortened,
    summary,
    telling,
)  # fmt: skip

#: what would be a link, a mention, an issue's number, HTML or markup
_MARKS = re.compile(r"[\\`*\[<>|@&]|~~|#(?=\d)|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|://|\bwww\.")


def why(d: Diagnosis) -> str:
    """The answer of ``why``."""
    return _document(_why(d))


def diff(d: Diagnosis) -> str:
    """Two runs side by side."""
    return _document(_diff(d))


def plan(p: Plan) -> str:
    """The answer of ``plan``."""
    return _document(_plan(p))


def _document(parts: Iterable[str]) -> str:
    return "\n\n".join(part for part in parts if part) + f"\n\n<sub>ullage {__version__}</sub>\n"


def plain(text: str) -> str:
    """``text`` of strangers on one line, with nothing in it that Markdown or GitHub would act on."""
    one = " ".join(visible(text).split())
    return _MARKS.sub(lambda found: f"&#{ord(found[0][0])};{found[0][1:]}", one)


def code(text: str) -> str:
    """``text`` as a code span, with a fence longer than any in it."""
    one = " ".join(visible(text).split())
    longest = max((len(run) for run in re.findall("`+", one)), default=0)
    fence = "`" * (longest + 1)
    pad = " " if one.startswith("`") or one.endswith("`") else ""
    return f"{fence}{pad}{one}{pad}{fence}" if one else ""


def block(text: str) -> str:
    """``text`` as a code block, with a fence longer than any in it."""
    shown = visible(text)
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", shown)), default=0))
    return f"{fence}text\n{shown}\n{fence}"


def _why(d: Diagnosis) -> Iterator[str]:
    yield f"### {plain(headline(d))}"
    yield f"**{plain(summary(d))}**"
    if d.cause and d.cause != "none":
        yield f"cause: {code(d.cause)} ({d.certainty})"
    if decides(d):
        yield block(d.budget.formula)
    yield from (plain(paragraph) for paragraph in d.explanation.split("\n\n"))
    item = bounds(d)
    if d.fixes or item is not None:
        yield f"#### {title(d).capitalize()}"
        yield _interval(item, flag(item)) if item else ""
        yield _changes(d.fixes)
    if ledgers := reached(d):
        yield "#### Where the memory is"
        yield _memory(ledgers, d.files)
    if d.compare is not None:
        yield f"#### Compared with {code(short(d.compare.baseline_file, d.files))}"
        yield _compared(d.compare)
    if d.refuted:
        yield "#### It is not"
        yield "\n".join(f"- **{plain(r.hypothesis)}**: {plain(r.because)}" for r in d.refuted)
    yield from _proof(d)
    found = [item for item in d.inferred.values() if told(item.name, item.value)]
    if found:
        worked = [(plain(words(i.name)), number(i), plain(short(i.basis, d.files))) for i in found]
        yield _folded("Worked out from the figures", _table(("figure", "value", "from"), worked))
    said = [*d.contradictions, *d.notes]
    if said:
        yield "\n".join(f"- {plain(short(text, d.files))}" for text in said)


def _proof(d: Diagnosis) -> Iterator[str]:
    heads = {"root": "first", "cascade": "then ", "context": "see  "}
    lines = [
        f"{heads[e.role]} {short(f'{e.file}:{e.line}', d.files)}  {f'[{e.rank}] ' if e.rank else ''}"
        f"{shortened(e.text)}{f' ({e.count} lines)' if e.count > 1 else ''}"
        for e in telling(d.evidence, 4)[:14]
    ]
    if lines:
        yield _folded("The lines that prove it", block("\n".join(lines)))


def _diff(d: Diagnosis) -> Iterator[str]:
    if d.compare is None:
        yield "Nothing to compare: the second log is of no known engine."
        return
    yield f"### {plain(headline(d))}"
    yield f"A: {code(short(d.compare.baseline_file, d.files))}, B: {', '.join(map(code, d.files))}"
    yield _compared(d.compare)
    for name, budget in (("A", d.compare.baseline_budget), ("B", d.budget)):
        if budget is not None and budget.ledgers:
            yield f"#### Memory of {name}"
            yield _memory(budget.ledgers, d.files)


def _plan(p: Plan) -> Iterator[str]:
    yield f"### {plain(plan_text.title(p))}"
    yield f"**{plain(plan_text.summary(p))}**"
    yield block(p.budget.formula) if p.budget.formula else ""
    if p.interval is not None:
        yield _interval(p.interval, flag(p.interval))
    if p.budget.ledgers:
        yield "#### Where the memory goes"
        yield _memory(p.budget.ledgers, ())
    pool = p.budget.pool_bytes
    if pool is not None:
        yield f"KV cache: {gib_text(pool.value)} ({pool.low / GIB:.2f} to {pool.high / GIB:.2f})"
        held = [(tokens_text(length), f"{times:,.1f}") for length, times in sorted(p.concurrency.items())]
        yield _table(("tokens a request", "requests at once"), held) if held else ""
    if p.speed is not None:
        yield "#### Decode speed"
        fast = [(str(at.batch), rate(at.per_user), rate(at.total)) for at in p.speed.points]
        yield _table(("requests at once", "tok/s each", "tok/s together"), fast)
    if p.fixes:
        yield f"#### {'What gives more' if p.verdict == 'starts' else 'What helps'}"
        yield _changes(p.fixes)
    yield "\n".join(f"- {plain(caution.text)}" for caution in p.cautions)
    rows = [
        (code(k), code(shortened(str(v.value), 120)), plain(v.source or v.origin))
        for k, v in p.settings.items()
    ]
    yield _folded("Settings in force", _table(("setting", "value", "from"), rows)) if rows else ""
    yield _folded("Launch command", block(p.command)) if p.command else ""


def _memory(ledgers: Sequence[Ledger], files: Sequence[str]) -> str:
    ledger = fullest(ledgers)
    if ledger is None:
        return ""
    rows = [
        ("memory to begin with", gib_text(ledger.total_bytes), "", plain(short(ledger.total_source, files)))
    ]
    for entry in ledger.entries:
        if entry.high >= LEAST_BYTES:
            sure = entry.certainty != "estimated" or entry.low == entry.high
            size = gib_text(entry.bytes) if sure else f"{entry.low / GIB:.2f} to {entry.high / GIB:.2f} GiB"
            rows.append((plain(entry.name), size, entry.certainty, plain(short(entry.source, files))))
    left = ledger.left_bytes
    rows.append(("**left**", f"**{gib_text(left)}**", "", "") if left > -0.03 * GIB
                else ("**missing**", f"**{gib_text(-left)}**", "", ""))  # fmt: skip
    of = f"Rank {plain(ledger.rank)}, the fullest of {len(ledgers)}:\n\n" if len(ledgers) > 1 else ""
    return of + _table(("use", "size", "known", "from"), rows)


def _interval(item: Interval, name: str) -> str:
    if item.low is None and item.high is None:
        return ""
    if item.empty:
        return f"No value of {code(name)} starts: {plain(item.low_because)}; {plain(item.high_because)}."
    low = f"above {lower_limit(item.low)}" if item.low is not None else ""
    high = f"at most {upper_limit(item.high)}" if item.high is not None else ""
    best = f"; best {item.recommended:.3g}" if item.recommended is not None else ""
    return f"{code(name)} must be {' and '.join(filter(None, (low, high)))}{best}."


def _changes(changes: Sequence[Change]) -> str:
    lines = []
    for change in changes:
        flags = code("  ".join(pasted(name, value) for name, value in change.change.items()))
        said = f" → {plan_text.predicted(change.predicted)}" if change.predicted else ""
        reason = plain(sentence(change.why)) if change.why else ""
        lines.append(f"1. {flags}{said}{'<br>' if flags and reason else ''}{reason}")
    return "\n".join(lines)


def _compared(c: Comparison) -> str:
    if not c.differences:
        return "No difference that either log shows."
    rows = [
        (f"**{mark(d)}**" if d.decisive else mark(d), plain(words(d.setting)), plain(d.baseline), plain(d.this),
         plain(effect(d)))
        for d in c.differences
    ]  # fmt: skip
    table = _table(("", "setting or figure", "baseline", "this run", "effect on the pool"), rows)
    return "\n\n".join((table, *(plain(text) for text in c.confounded)))


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '&#124;') for cell in line)} |" for line in lines)


def _folded(head: str, body: str) -> str:
    return f"<details><summary>{head}</summary>\n\n{body}\n\n</details>"
