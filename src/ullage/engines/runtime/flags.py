"""The rows of an engine's ``flags.toml``, and argv read by them as argparse would."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct, field
from packaging.version import Version

from ullage.core.patterns import lazy
from ullage.core.versions import Span

Scalar = str | int | float | bool | list[str | int | float]
_NUMBER = lazy(r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?$")


class FlagRow(Struct, frozen=True, forbid_unknown_fields=True):
    """A flag from ``since`` to ``until`` (exclusive). See the head of flags.toml for ``type``."""

    name: str
    since: str = ""
    until: str | None = None
    spellings: list[str] = field(default_factory=list)
    type: str = "str"
    default: Scalar | None = None
    of: str = ""
    old: list[str] = field(default_factory=list)
    renamed_to: str = ""
    source: str = ""

    @property
    def spelled(self) -> list[str]:
        return self.spellings or ["--" + self.name.replace("_", "-")]

    @property
    def setting(self) -> str:
        """The setting that the flag feeds."""
        return self.of or self.name

    @property
    def span(self) -> Span:
        return Span(self.since or None, self.until)


class ChoiceRow(Struct, frozen=True, forbid_unknown_fields=True):
    """The values that a flag allows from ``since`` to ``until``; "x@0.5.3..0.5.9": only in these releases."""

    name: str
    since: str
    until: str | None = None
    values: list[str] = field(default_factory=list)

    def at(self, release: Version | None) -> list[str] | None:
        """The values that ``release`` allows; None where the row does not hold."""
        if not Span(self.since, self.until).holds(release):
            return None
        return [value for value, span in map(_dated, self.values) if span.holds(release)]


def _dated(text: str) -> tuple[str, Span]:
    value, at, span = text.rpartition("@")
    since, dots, until = span.partition("..")
    return (value, Span(since or None, until or None)) if at and dots else (text, Span())


class FlagTable(Struct, frozen=True, forbid_unknown_fields=True):
    """A flags.toml. ``releases`` are those that were read, oldest first."""

    releases: list[str] = field(default_factory=list)
    flag: list[FlagRow] = field(default_factory=list)
    choices: list[ChoiceRow] = field(default_factory=list)


class Flags:
    """The flags of one release (None: the newest). ``find`` knows those of other releases too, and says so."""

    def __init__(self, rows: Iterable[FlagRow], release: Version | None) -> None:
        self.now: dict[str, FlagRow] = {}
        self.other: dict[str, FlagRow] = {}
        for row in rows:
            target = self.now if row.span.holds(release) else self.other
            target.update(dict.fromkeys(row.spelled, row))

    def find(self, spelling: str) -> tuple[FlagRow | None, bool]:
        """The row of a spelling and whether this release has it; any unambiguous beginning will do."""
        if spelling in self.now:
            return self.now[spelling], True
        begun = {row.name: row for row in self.begun(spelling).values()}
        if len(begun) == 1:
            return next(iter(begun.values())), True
        return self.other.get(spelling), False

    def begun(self, spelling: str) -> dict[str, FlagRow]:
        """The spellings that begin with this one."""
        if not spelling.startswith("--") or len(spelling) < 4:
            return {}
        return {known: row for known, row in self.now.items() if known.startswith(spelling)}

    def defaults(self) -> dict[str, Scalar]:
        """Setting -> the release's default, where argparse has one."""
        return {row.name: row.default for row in self.now.values() if row.default is not None and not row.of}


class Use(Struct, frozen=True):
    """One word of a command line that is a flag, with what follows it. ``row`` is None for one of no release;
    ``here``: the release has it; ``off``: its "--no-.." form; ``inline``: the value came with "=". A word that
    belongs to no flag has an empty ``spelling`` and itself as the value."""

    spelling: str
    row: FlagRow | None = None
    here: bool = False
    off: bool = False
    values: tuple[str, ...] = ()
    inline: bool = False


def is_flag(word: str) -> bool:
    """True for a word that argparse takes as an option: "-1" and "-0.5" are values."""
    return word.startswith("-") and len(word) > 1 and not _NUMBER.match(word)


def values_after(words: Sequence[str], at: int, *, many: bool) -> list[str]:
    """The values that follow an option at ``at``: one, or all up to the next option."""
    found: list[str] = []
    for place in range(at + 1, len(words)):
        if is_flag(words[place]) or (found and not many):
            break
        found.append(words[place])
    return found
