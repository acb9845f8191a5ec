"""The outputs that `check` reads: which command prints each, and the files that hold one in a saved folder.

One row of outputs.toml an output. Nothing is run and nothing is read here.
"""

from __future__ import annotations

from functools import cache

from msgspec import Struct

from ullage.core.errors import InputError
from ullage.core.finding import Evidence
from ullage.core.secrets import masked
from ullage.core.tables import load

#: of one output; `nvidia-smi -q` prints 14 KiB a GPU, `lspci -vvv` 500 KiB a large host
MOST_BYTES = 4 << 20
_QUOTED = 160


class Output(Struct, frozen=True, forbid_unknown_fields=True):
    """``file`` is its name in a folder that --save writes; ``also`` are other names that people give it, in
    lower case and without the ending. ``words`` are the command; none: it is not asked of a machine."""

    name: str
    file: str
    words: list[str] = []
    also: list[str] = []
    root: bool = False

    @property
    def stems(self) -> frozenset[str]:
        return frozenset({stem(self.file), *self.also})


class _File(Struct, frozen=True, forbid_unknown_fields=True):
    output: list[Output]


class Saved(Struct, frozen=True):
    """What one command printed. ``label`` is how evidence calls it: the file's name, or the command."""

    label: str
    text: str

    def quote(self, line: int) -> Evidence:
        """Line ``line`` (from 1) as evidence."""
        lines = self.text.splitlines()
        text = lines[line - 1] if 0 < line <= len(lines) else ""
        return Evidence(self.label, line, masked(plain(text))[:_QUOTED])

    def find(self, phrase: str) -> Evidence | None:
        """The first line that holds ``phrase`` (in any letter case)."""
        lower = phrase.lower()
        for number, line in enumerate(self.text.splitlines(), 1):
            if lower in line.lower():
                return Evidence(self.label, number, masked(plain(line))[:_QUOTED])
        return None


NOTHING = Saved("", "")


class Outputs(Struct, frozen=True):
    """The outputs of one machine by name; ``source`` says where they are from. ``left_out`` names files of a
    folder that are not read, with the reason."""

    texts: dict[str, Saved] = {}
    source: str = ""
    left_out: tuple[str, ...] = ()

    def of(self, name: str) -> Saved:
        """The output, or one that is empty."""
        return self.texts.get(name, NOTHING)

    def text(self, name: str) -> str:
        return self.of(name).text


@cache
def catalogue() -> dict[str, Output]:
    """Every output by its name."""
    file: _File = load("ullage.hardware", "outputs.toml", _File)
    return {row.name: row for row in file.output}


def named(file: str) -> Output | None:
    """The output that a file of this name holds."""
    wanted = stem(file)
    return next((row for row in catalogue().values() if wanted in row.stems), None)


def stem(file: str) -> str:
    """A file's name in lower case without its ending, blanks and underscores as hyphens."""
    name = file.lower()
    for ending in (".txt", ".log", ".out", ".csv", ".json", ".xml"):
        name = name.removesuffix(ending)
    return name.replace("_", "-").replace(" ", "-")


def decoded(raw: bytes, where: str) -> str:
    """The text of a saved output: UTF-8, or the UTF-16 that Windows shells write. Raises InputError for what
    is no text."""
    if raw[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return raw.decode("utf-16", "replace")
    if b"\x00" in raw[: 1 << 16]:
        raise InputError("is binary: expected what the command printed, as text", where=where)
    return raw.decode("utf-8", "replace").removeprefix("\ufeff")


def plain(text: str) -> str:
    """Printable characters of ``text`` only, colours taken off: it goes to screens and reports."""
    import re

    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text[:4000])
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())
