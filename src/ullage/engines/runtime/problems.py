"""What is wrong with the flags of a command, by the dated rows of the engine's flags.toml."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property

from packaging.version import Version

from ullage.core.patterns import lazy
from ullage.core.problem import Problem, ProblemKind
from ullage.core.versions import Span, parse_release
from ullage.engines.runtime.flags import FlagRow, Flags, FlagTable, Use
from ullage.engines.runtime.nearest import nearest

#: words that stand for a value: $TP, ${TP}, <tp>, TP_SIZE, {{tp}}
PLACEHOLDER = lazy(r"\$.*|<[^>]*>|\{\{.*\}\}|[A-Z][A-Z0-9_]*|\.\.\.|…")
MOST_CHOICES = 12
#: more is no launch command any more
MOST_PROBLEMS = 40

#: a word and the row whose value it is -> what is wrong with it, or None
Check = Callable[[FlagRow, str], str | None]


class Judge:
    """Judges the flags of one command. ``elsewhere`` names flags of other programs, and what they are here;
    ``check`` knows the engine's own forms of numbers and objects."""

    def __init__(
        self, title: str, table: FlagTable, version: str | None, check: Check, elsewhere: Mapping[str, str]
    ) -> None:
        self.title, self.table, self.version, self.check, self.elsewhere = (
            title,
            table,
            version,
            check,
            elsewhere,
        )
        self.release = parse_release(version)
        self.flags = Flags(table.flag, self.release)

    @cached_property
    def by_spelling(self) -> dict[str, list[FlagRow]]:
        found: dict[str, list[FlagRow]] = {}
        for row in self.table.flag:
            for spelling in row.spelled:
                found.setdefault(spelling, []).append(row)
        return found

    @cached_property
    def certain(self) -> bool:
        """True if the release is one of those that were read."""
        read = {Version(text) for text in self.table.releases}
        return self.release is not None and self.release in read

    @property
    def where(self) -> str:
        if self.release is None:
            return f"{self.title} up to {self.table.releases[-1]}"
        return f"{self.title} {self.release}"

    def judge(self, uses: Iterable[Use]) -> Iterator[Problem]:
        """The problems in the order of the command, each once, MOST_PROBLEMS at most."""
        seen: set[tuple[str, tuple[str, ...]]] = set()
        found = 0
        for use in _joined(uses):
            if (use.spelling, use.values) in seen or found >= MOST_PROBLEMS:
                continue
            seen.add((use.spelling, use.values))
            problem = self._of(use)
            if problem is not None:
                found += 1
                yield problem

    def _of(self, use: Use) -> Problem | None:
        if not use.spelling:
            text = f"{use.values[0][:60]!r} belongs to no flag"
            return Problem(use.values[0][:60], "unknown", text, certain=False)
        spelling = use.spelling.partition(".")[0]
        anywhere = self.release is None and spelling in self.by_spelling
        if use.row is None or not (use.here or anywhere):
            return self._strange(use.spelling, spelling)
        return self._value(use, use.row) or self._deprecated(use.spelling, spelling, use.row)

    def _made(
        self, flag: str, kind: ProblemKind, text: str, suggestion: str | None = None, *, certain: bool = True,
        stops: bool = True,
    ) -> Problem:  # fmt: skip
        return Problem(flag, kind, text, suggestion or None, certain and self.certain, stops)

    def _strange(self, flag: str, spelling: str) -> Problem:
        """A flag that this release does not have."""
        if spelling in self.by_spelling and self.release is not None:
            return self._of_others(flag, spelling, self.by_spelling[spelling], self.release)
        begun = sorted(self.flags.begun(spelling))
        if len(begun) > 1:
            text = f"{flag} is short for several flags of {self.where}: {_listed(begun)}"
            return self._made(flag, "mistyped", text, begun[0])
        positive = "--" + spelling.removeprefix("--no-")
        if spelling.startswith("--no-") and positive in self.flags.now:
            text = f"{flag} is not a flag of {self.where}: {positive} is off where it is left out"
            return self._made(flag, "unknown", text)
        return self._nearest(flag, spelling)

    def _of_others(self, flag: str, spelling: str, rows: list[FlagRow], release: Version) -> Problem:
        later = [
            row for row in rows if row.since and not row.since.startswith("≤") and Version(row.since) > release
        ]
        past = [row for row in rows if row.until and Version(row.until) <= release]
        if past:
            return self._gone(flag, spelling, max(past, key=_end), later)
        instead = self._before(spelling, later)
        began = min(later, key=lambda row: Version(row.since)).since
        text = f"{flag} exists from {began}"
        text += f"; in {release} it is {instead}" if instead else f"; {self.where} does not have it"
        return self._made(flag, "not_yet", text, instead)

    def _gone(self, flag: str, spelling: str, last: FlagRow, later: list[FlagRow]) -> Problem:
        text = f"{flag} is gone from {self.title} since {last.until}"
        instead = self._successor(last)
        if instead:
            return self._made(flag, "renamed", f"{text}; write {instead}", instead)
        if later:
            return self._made(flag, "removed", f"{text}; it is back from {later[0].since}")
        return self._made(flag, "removed", f"{text}; no other flag takes its place")

    def _successor(self, row: FlagRow, depth: int = 0) -> str:
        """What to write instead: the name that was given for it, followed to one that this release has."""
        for known in self.flags.now.values():
            if known.name == row.name and row.until:
                return next(each for each in known.spelled if each not in known.old)
        new = row.renamed_to
        head = re.match(r"--(?:no-)?[a-z][\w-]*", new)
        if head is None or depth > 5 or self._has(head[0]):
            return new
        onwards = [each for each in self.by_spelling.get(head[0], []) if each.until and each.renamed_to != new]
        return self._successor(max(onwards, key=_end), depth + 1) if onwards else ""

    def _has(self, spelling: str) -> bool:
        """True for a flag of this release, and for one that its own help names with braces ("--x-{a,b}")."""
        positive = "--" + spelling.removeprefix("--no-")
        return spelling in self.flags.now or positive in self.flags.now or spelling.endswith("-")

    def _before(self, spelling: str, later: list[FlagRow]) -> str:
        """What this release calls a flag that a later one has under ``spelling``."""
        for row in self.flags.now.values():
            if row.renamed_to == spelling and row.until:
                return row.spelled[0]
        names = {row.setting for row in later}
        return next((row.spelled[0] for row in self.flags.now.values() if row.name in names), "")

    def _nearest(self, flag: str, spelling: str) -> Problem:
        text = f"{flag} is not a flag of {self.where}"
        other = self.elsewhere.get(spelling)
        if other:
            return self._made(flag, "unknown", f"{text}; there it is {other}", other)
        written = "--" + spelling.lstrip("-").replace("_", "-")
        if written in self.flags.now:
            return self._made(flag, "mistyped", f"{text}; write {written}", written)
        enabled = self.flags.now.get(written.replace("--disable-", "--enable-", 1))
        if enabled is not None and written.startswith("--disable-"):
            off = f"--no-{enabled.spelled[0].lstrip('-')}" if enabled.type == "switch" else None
            return self._made(flag, "unknown", f"{text}; {f'write {off}' if off else 'leave it out'}", off)
        known = [each for each in self.flags.now if each.startswith("--")]
        best, near = nearest(spelling, known)
        if best is None or not near:
            far, closer = nearest(spelling, self.by_spelling)
            if far is not None and closer:
                began, ended = self._span_of(far)
                dates = f"from {began} to before {ended}" if ended else f"from {began}"
                return self._made(flag, "unknown", f"{text}; nearest: {far}, which exists {dates}", None)
        text += f"; nearest: {best}" if best else ""
        return self._made(flag, "mistyped" if near else "unknown", text, best)

    def _span_of(self, spelling: str) -> tuple[str, str | None]:
        rows = self.by_spelling[spelling]
        return rows[0].since.lstrip("≤"), rows[-1].until

    def _deprecated(self, flag: str, spelling: str, row: FlagRow) -> Problem | None:
        if spelling not in row.old or self.release is None:
            return None
        current = next((each for each in row.spelled if each not in row.old), "")
        instead = current or row.renamed_to
        text = f"{flag} is deprecated in {self.where}" + (f"; write {instead}" if instead else "")
        return self._made(flag, "renamed", text, instead, stops=False)

    def _value(self, use: Use, row: FlagRow) -> Problem | None:
        """What is wrong with the value, if anything."""
        flag = use.spelling
        if row.type in ("flag", "unflag", "switch"):
            if not use.values or self.release is None:
                return None
            written = f"{'=' if use.inline else ''}{use.values[0][:40]}"
            return self._made(flag, "bad_value", f"{flag} takes no value: leave out {written}", flag)
        if not use.values:
            if row.type.startswith("optional-") or row.type.startswith("list-"):
                return None
            return self._made(flag, "bad_value", f"{flag} lacks its value")
        if "." in flag:
            return None
        for word in use.values:
            if PLACEHOLDER.fullmatch(word) is None:
                problem = self._word(flag, row, word)
                if problem is not None:
                    return problem
        return None

    def _word(self, flag: str, row: FlagRow, word: str) -> Problem | None:
        wrong = self.check(row, word)
        if wrong is not None:
            certain = row.type != "json" and self.release is not None
            return self._made(flag, "bad_value", f"{flag} {wrong}, not {word[:60]!r}", certain=certain)
        allowed = self._allowed(row.name)
        if not allowed or any(form in allowed for form in (word, word.lower().replace("-", "_"))):
            return None
        longer = [each for each in allowed if each.startswith(word)]
        best = longer[0] if longer else nearest(word, allowed)[0]
        text = f"{flag} {word[:40]} is not allowed in {self.where}{self._when(row.name, word)}; it takes"
        return self._made(flag, "bad_value", f"{text} {_listed(allowed)}", best)

    def _allowed(self, name: str) -> list[str]:
        """The values that the release allows; of an unknown release those of any. Empty: any value will do."""
        rows = [row for row in self.table.choices if row.name == name]
        if self.release is None:
            ever = rows and all(row.until is None for row in rows)
            return [value.rpartition("@")[0] or value for row in rows for value in row.values] if ever else []
        return next((found for row in rows if (found := row.at(self.release)) is not None), [])

    def _when(self, name: str, word: str) -> str:
        """The releases that do allow a value."""
        for row in self.table.choices:
            for value in row.values if row.name == name else ():
                text, at, span = value.rpartition("@")
                if (text if at else value) == word:
                    dates = Span(*[part or None for part in span.split("..")]) if at else Span()
                    since, until = dates.since or row.since, dates.until or row.until
                    return f" (it is from {since.lstrip('≤')}" + (f" to before {until})" if until else ")")
        return ""


def _joined(uses: Iterable[Use]) -> Iterator[Use]:
    """Words that belong to no flag, those that stand together as one: prose behind a command is one remark."""
    loose: list[str] = []
    for use in uses:
        if use.spelling:
            if loose:
                yield Use("", values=(" ".join(loose),))
                loose = []
            yield use
        else:
            loose += use.values
    if loose:
        yield Use("", values=(" ".join(loose),))


def _end(row: FlagRow) -> Version:
    return Version(row.until or "0")


def _listed(words: list[str]) -> str:
    shown = ", ".join(words[:MOST_CHOICES])
    return f"{shown}, … ({len(words)} in all)" if len(words) > MOST_CHOICES else shown
