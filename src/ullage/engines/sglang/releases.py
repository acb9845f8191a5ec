"""Which release wrote a log that does not name it: the spans of the line forms it holds, intersected."""

from __future__ import annotations

from functools import cache

from msgspec import Struct
from packaging.version import Version

from ullage.core.run import Note, Run, Settings
from ullage.core.tables import load
from ullage.core.versions import Span
from ullage.engines.sglang.args import all_names, names_of
from ullage.engines.sglang.log import grammar

MANY_SETTINGS = 70


class Image(Struct, frozen=True, forbid_unknown_fields=True):
    """An image whose tag begins with ``tag`` and names no release: its code is nearest to ``release``."""

    tag: str
    release: str
    source: str


class ReleaseTable(Struct, frozen=True, forbid_unknown_fields=True):
    releases: list[str]
    image: list[Image] = []


def of_image(text: str) -> str | None:
    """The release nearest to the image in ``text`` ("lmsysorg/sglang:deepseek-v4-hopper"); None where it is
    none of those."""
    tag = text[:512].rpartition(":")[2]
    rows = load("ullage.engines.sglang", "releases.toml", ReleaseTable).image
    return next((row.release for row in rows if tag.startswith(row.tag)), None) if ":" in text else None


@cache
def releases() -> list[Version]:
    """Every release, oldest first."""
    return [Version(text) for text in load("ullage.engines.sglang", "releases.toml", ReleaseTable).releases]


def possible(run: Run) -> list[Version]:
    """The releases that could have printed every dated form of the log, and every setting in it, oldest first.

    Empty where forms contradict each other (a build between two releases) or none is dated.
    """
    rows = grammar().rows
    names = {note.name for note in run.all(Note) if note.name.startswith("mark-")}
    spans = [Span(rows[name].since or None, rows[name].until or None) for name in names]
    if not spans:
        return []
    found = [release for release in releases() if all(span.holds(release) for span in spans)]
    settings = run.first(Settings)
    return _of_settings(found, set(settings.values)) if settings is not None else found


def _of_settings(candidates: list[Version], printed: set[str]) -> list[Version]:
    """Those of ``candidates`` whose flags fit the printed settings best. A shortened line (people cut it) lacks
    names, so only a line with most of them speaks against a release that has more."""
    whole = len(printed) > MANY_SETTINGS
    misfit = {release: _misfit(names_of(release), printed, whole) for release in candidates}
    least = min(misfit.values(), default=0)
    return [release for release in candidates if misfit[release] == least]


def _misfit(known: frozenset[str], printed: set[str], whole: bool) -> int:
    unborn = len((printed & all_names()) - known)
    return unborn + (len(known - printed) if whole else 0)


def inferred(run: Run) -> str | None:
    """The newest release that fits the log, or None."""
    fitting = possible(run)
    return str(fitting[-1]) if fitting else None
