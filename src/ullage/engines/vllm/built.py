"""Builds without a release's number, by their date: which release's rules they have."""

from __future__ import annotations

from datetime import date

from msgspec import Struct

from ullage.core.patterns import lazy
from ullage.core.tables import load
from ullage.core.versions import parse_release

#: "0.1.dev1+g4d2a68d64.d20260816", "main of 2026-04", "nightly 2026-07-11"
_DAY = lazy(r"(?<!\d)(20[2-9]\d)-?([01]\d)(?:-?([0-3]\d))?(?!\d)")
#: local labels of builds that are not patched: a commit, a day, the toolkit
_PLAIN = lazy(r"(?:g[0-9a-f]{6,40}|d20\d{6}|cu\d+|rocm\d*|cpu|xpu|precompiled|empty|\d+)")


class Built(Struct, frozen=True, forbid_unknown_fields=True):
    """A release and the day (YYYY-MM-DD) its wheel was built."""

    version: str
    built: str


class BuiltTable(Struct, frozen=True, forbid_unknown_fields=True):
    release: list[Built]


def release_of(text: str | None) -> str | None:
    """The version in ``text``; of a build that is known by its date alone "RELEASE (text)", with the release
    whose branch was cut next: 0.28.0 was built on 2026-08-25, and a build of 2026-08-16 prints its lines."""
    if text is None or parse_release(text) is not None:
        return text
    day = _day(text)
    if day is None:
        return text
    rows = sorted(load("ullage.engines.vllm", "built.toml", BuiltTable).release, key=lambda row: row.built)
    following = [row for row in rows if row.built >= day.isoformat()]
    if not rows or day.isoformat() < rows[0].built:
        return text
    return f"{(following or rows)[0 if following else -1].version} ({text})"


def _day(text: str) -> date | None:
    found = _DAY.search(text)
    if found is None:
        return None
    try:
        return date(int(found[1]), int(found[2]), int(found[3] or 15))
    except ValueError:
        return None


def patched(version: str | None) -> bool:
    """True for a build with a name of its own ("0.26.1rc0+glm53.flash"): it may do what the release refuses."""
    release = parse_release(version)
    label = release.local if release is not None else None
    return label is not None and any(not _PLAIN.fullmatch(part) for part in label.split("."))
