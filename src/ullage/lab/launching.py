"""A launch command as it is typed -> what is started here: words, environment, and what stands around them."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Mapping, Sequence

from msgspec import Struct

from ullage.core.errors import InputError

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)


class Launching(Struct, frozen=True):
    """``text`` is what is planned, ``argv`` what is started, ``given`` the variables in front of it."""

    text: str
    argv: tuple[str, ...]
    given: dict[str, str] = {}

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        return {**base, **self.given}


def of_words(words: Sequence[str]) -> Launching:
    """The launch of a command line: words with variables in front, or one text, which a shell reads as it would
    where it was pasted from. Raises InputError for an empty one."""
    if len(words) == 1 and re.search(r"\s", words[0].strip()):
        return of_text(words[0])
    given: dict[str, str] = {}
    rest = list(words)
    while rest and (found := _ASSIGNMENT.fullmatch(rest[0])):
        given[found[1]] = found[2]
        rest.pop(0)
    if not rest or not rest[0].strip():
        raise InputError("no launch command", where="run", hint="ullage run -- vllm serve MODEL")
    return Launching(shlex.join(words), tuple(rest), given)


def of_text(text: str) -> Launching:
    """The launch of a pasted text. A plain command is started as such; anything else (variables that expand,
    several commands, redirection) by a shell."""
    try:
        words = shlex.split(text.replace("\\\n", " "), comments=True)
    except ValueError as error:
        raise InputError(f"{error}", where="launch command", hint="close the quote") from error
    if not words:
        raise InputError("no launch command", where="run", hint="ullage run -- vllm serve MODEL")
    if re.search(r"[$`;&|<>(){}*?~]|\n\s*\S", text.replace("\\\n", " ").strip()):
        shell = shutil.which("bash") or "/bin/sh"
        return Launching(text, (shell, "-c", text))
    found = of_words(words) if len(words) > 1 else Launching(text, tuple(words))
    return Launching(text, found.argv, found.given)
