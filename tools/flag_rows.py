"""Dated rows of flags.toml: what is there stays; a release adds rows, and ends those that no longer hold."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from flag_source import Flag
from packaging.version import Version


@dataclass(frozen=True)
class Row:
    """A flag from ``since`` to ``until`` (exclusive)."""

    flag: Flag
    since: str
    until: str | None = None


@dataclass(frozen=True)
class ChoiceRow:
    """The values that a flag allows; each is (value, since, until), empty where it holds as long as the row."""

    name: str
    values: tuple[tuple[str, str, str], ...]
    since: str
    until: str | None = None


@dataclass
class Table:
    """The whole file: releases read, rows, choices."""

    releases: list[str] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    choices: list[ChoiceRow] = field(default_factory=list)

    def add(self, release: str, flags: Iterable[Flag]) -> None:
        """Take in the flags of a release newer than any that was read. Raises ValueError for an older one."""
        if self.releases and Version(release) <= Version(self.releases[-1]):
            raise ValueError(f"{release} is not newer than {self.releases[-1]}: rebuild the table")
        since = release if self.releases else f"≤{release}"
        found = {flag.name: _settled(flag) for flag in flags}
        self._rows(found, since, release)
        self._choices(found, since, release)
        self.releases.append(release)

    def _rows(self, found: dict[str, Flag], since: str, release: str) -> None:
        current = {row.flag.name: i for i, row in enumerate(self.rows) if row.until is None}
        begun = [flag for name, flag in found.items() if name not in current]
        for name, at in current.items():
            old, new = self.rows[at].flag, found.get(name)
            if new is not None and replace(old, new="") == replace(new, choices=None, new=""):
                said = replace(old, new=new.new or old.new)
                self.rows[at] = replace(self.rows[at], flag=said)
                continue
            gone = old if new is not None else replace(old, new=old.new or successor(old, begun))
            self.rows[at] = Row(gone, self.rows[at].since, release)
            if new is not None:
                self.rows.append(Row(replace(new, choices=None), since))
        self.rows += [Row(replace(flag, choices=None), since) for flag in begun]

    def _choices(self, found: dict[str, Flag], since: str, release: str) -> None:
        current = {row.name: i for i, row in enumerate(self.choices) if row.until is None}
        for name, at in current.items():
            row = self.choices[at]
            now = found[name].choices if name in found else None
            if now is None:
                self.choices[at] = replace(row, until=release)
                continue
            kept = tuple((v, s, u or ("" if v in now else release)) for v, s, u in row.values)
            allowed = {v for v, _, u in kept if not u}
            self.choices[at] = replace(
                row, values=kept + tuple((v, release, "") for v in now if v not in allowed)
            )
        for name, flag in found.items():
            if flag.choices and name not in current:
                self.choices.append(ChoiceRow(name, tuple((v, "", "") for v in flag.choices), since))


def keep_words(table: Table, before: Table) -> None:
    """What people wrote into the table before, and no release says: the successor of a flag that has gone."""
    written = {(row.flag.name, row.until): row.flag.new for row in before.rows if row.until and row.flag.new}
    for at, row in enumerate(table.rows):
        new = written.get((row.flag.name, row.until))
        if new and not row.flag.new:
            table.rows[at] = replace(row, flag=replace(row.flag, new=new))


def _settled(flag: Flag) -> Flag:
    """In the one form in which it is stored: the spelling of its name first, defaults that TOML can hold."""
    main = "--" + flag.name.replace("_", "-")
    spellings = tuple(sorted(set(flag.spellings), key=lambda each: (each in flag.old, each != main, each)))
    default = flag.default
    if flag.type == "flag" or default is False or not isinstance(default, str | int | float | bool):
        default = None
    return replace(flag, spellings=spellings, default=default, old=tuple(sorted(set(flag.old))))


def successor(gone: Flag, begun: Iterable[Flag]) -> str:
    """The flag that takes the place of one that has gone: of the same form, begun in the same release, either
    under a spelling that the old one had or with all the words of its name, in order."""
    words = gone.name.split("_")
    named = [flag for flag in begun if flag.type == gone.type and set(flag.spellings) & set(gone.spellings)]
    alike = [
        flag
        for flag in begun
        if flag.type == gone.type and len(words) > 2 and _within(words, flag.name.split("_"))
    ]
    best = named or (alike if len(alike) == 1 else [])
    return best[0].spellings[0] if best else ""


def _within(words: list[str], longer: list[str]) -> bool:
    rest = iter(longer)
    return len(longer) <= len(words) + 2 and all(word in rest for word in words)


def text(table: Table, head: str) -> str:
    """The file, row by row in the order of names."""
    order = sorted(table.rows, key=lambda row: (row.flag.name, Version(row.since.lstrip("≤"))))
    chosen = sorted(table.choices, key=lambda row: (row.name, Version(row.since.lstrip("≤"))))
    releases = textwrap.fill(
        ", ".join(json.dumps(one) for one in table.releases), 108, initial_indent="  ", subsequent_indent="  "
    )
    parts = [f"{head.rstrip()}\n", f"releases = [\n{releases},\n]\n"]
    parts += [_row_text(row) for row in order] + [_choice_text(row) for row in chosen]
    return "\n".join(parts)


def _row_text(row: Row) -> str:
    flag, lines = row.flag, [f"name = {json.dumps(row.flag.name)}"]
    if flag.spellings != ("--" + flag.name.replace("_", "-"),):
        lines.append(f"spellings = {_listed(flag.spellings)}")
    fields = (
        ("type", flag.type if flag.type != "str" else None),
        ("default", flag.default),
        ("of", flag.of or None),
    )
    lines += [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in fields if value is not None]
    lines += [f"old = {_listed(flag.old)}"] if flag.old else []
    lines += [f"renamed_to = {json.dumps(flag.new)}"] if flag.new else []
    return "[[flag]]\n" + "\n".join(lines + _span(row.since, row.until)) + "\n"


def _choice_text(row: ChoiceRow) -> str:
    values = ", ".join(json.dumps(_dated(*value)) for value in row.values)
    body = textwrap.fill(
        values, 108, initial_indent="  ", subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )
    return (
        f"[[choices]]\nname = {json.dumps(row.name)}\n"
        + "\n".join(_span(row.since, row.until))
        + f"\nvalues = [\n{body},\n]\n"
    )


def _span(since: str, until: str | None) -> list[str]:
    return [f'since = "{since}"', *([f'until = "{until}"'] if until else [])]


def _listed(values: Iterable[str]) -> str:
    return "[" + ", ".join(json.dumps(value) for value in values) + "]"


def _dated(value: str, since: str, until: str) -> str:
    """ "fa4@0.5.3..0.5.9": a value, and the releases that have it where they are fewer than the row's."""
    return f"{value}@{since}..{until}" if since or until else value


def parse(data: dict[str, Any]) -> Table:
    """The table that ``text`` wrote, read back."""
    rows = [
        Row(
            Flag(
                row["name"], tuple(row.get("spellings") or ["--" + row["name"].replace("_", "-")]),
                row.get("type", "str"), row.get("default"), None, row.get("of", ""),
                tuple(row.get("old", [])), row.get("renamed_to", ""),
            ),
            row["since"], row.get("until"),
        )
        for row in data.get("flag", [])
    ]  # fmt: skip
    choices = [
        ChoiceRow(
            row["name"], tuple(_undated(value) for value in row["values"]), row["since"], row.get("until")
        )
        for row in data.get("choices", [])
    ]
    return Table(list(data.get("releases", [])), rows, choices)


def _undated(text: str) -> tuple[str, str, str]:
    value, at, span = text.rpartition("@")
    if not at or ".." not in span:
        return text, "", ""
    since, _, until = span.partition("..")
    return value, since, until
