"""Problem: what is wrong with one word of a launch command, in the words that its writer needs."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

ProblemKind = Literal["unknown", "not_yet", "removed", "renamed", "mistyped", "bad_value"]


class Problem(Struct, frozen=True):
    """``flag`` is the word as typed. ``suggestion`` is what to write instead, where something is known.
    ``certain`` is False where the release is not known or was not read. ``stops``: the engine refuses to start;
    it goes on with a deprecated spelling."""

    flag: str
    kind: ProblemKind
    text: str
    suggestion: str | None = None
    certain: bool = True
    stops: bool = True
