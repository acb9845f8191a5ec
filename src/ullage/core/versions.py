"""What holds from one release to the next: releases, spans, dated rows and dated functions."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Generic, ParamSpec, TypeVar

from msgspec import Struct
from packaging.version import InvalidVersion, Version

_RELEASE = re.compile(r"\d+(?:\.\d+)+(?:\.?(?:post|rc|dev|a|b)\d*)*(?:\+[0-9A-Za-z.]+)?")

#: releases whose form of a rule is kept: a process asks about few
MOST_RELEASES = 256


@lru_cache(1024)
def parse_release(text: str | None) -> Version | None:
    """The release in ``text`` ("0.5.8.post1 (rocm)", "v0.20.2rc1.dev249+x", "0.4.4.post3-like"), else None."""
    match = _RELEASE.search(text or "")
    if match is None:
        return None
    try:
        version = Version(match[0])
    except InvalidVersion:
        return None
    # "0.1.dev1+g4d2a68d64" is a build from a checkout without tags: it names no release
    return None if version.release[:2] in ((0, 0), (0, 1)) and version.is_devrelease else version


@lru_cache(1024)
def _limit(text: str) -> Version:
    return Version(text.lstrip("≤<= "))


class Span(Struct, frozen=True):
    """The releases for which something holds: ``since`` inclusive ("≤0.4.0": seen there, may be older),
    ``until`` exclusive; an open side is None."""

    since: str | None = None
    until: str | None = None

    def holds(self, release: Version | None) -> bool:
        """True if ``release`` lies within; an unknown release is taken as the newest."""
        if release is None:
            return self.until is None
        if self.until is not None and release >= _limit(self.until):
            return False
        return self.since is None or self.since.startswith("≤") or release >= _limit(self.since)


P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])


class Dated(Struct, frozen=True):
    """One form of a rule, the releases it holds for, and where it was read."""

    span: Span
    source: str
    function: Callable[..., Any]


class Rules(Generic[P, R]):
    """A rule of an engine that changes from release to release.

    >>> POOL = Rules("pool")
    >>> @POOL.since("≤0.4.0", source="sglang 0.5.9, model runner")
    ... def pool(free, total, fraction): return free - total * (1 - fraction)
    >>> POOL.at(None)(10, 20, 0.9)
    8.0
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.forms: list[Dated] = []
        self._found: dict[Version | None, Dated] = {}

    def since(self, since: str, *, until: str | None = None, source: str) -> Callable[[F], F]:
        """Register the decorated function for ``since`` <= release < ``until`` (or the next form's since)."""

        def register(function: F) -> F:
            self.forms.append(Dated(Span(since, until), source, function))
            self._found.clear()
            return function

        return register

    def form(self, release: Version | None) -> Dated:
        """The form in force at ``release`` (None: the newest). The latest ``since`` that holds wins."""
        found = self._found.get(release)
        if found is not None:
            return found
        holding = [form for form in self.forms if form.span.holds(release)]
        if not holding:
            raise LookupError(f"no form of rule {self.name} for release {release}")
        found = max(holding, key=lambda form: _limit(form.span.since or "0"))
        if len(self._found) < MOST_RELEASES:
            self._found[release] = found
        return found

    def at(self, release: Version | None) -> Callable[P, R]:
        return self.form(release).function
