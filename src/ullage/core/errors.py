"""The exception tree. Every error names what was read, where, and what would help."""

from __future__ import annotations


class UllageError(Exception):
    """Something a user can mend; shown as one line, exit code 2."""

    def __init__(self, what: str, *, where: str | None = None, hint: str | None = None) -> None:
        self.what = what
        self.where = where
        self.hint = hint
        super().__init__(self.line)

    @property
    def line(self) -> str:
        """The whole error in one line: place, fault, hint; no secrets, nothing that a screen obeys."""
        from ullage.core.plain import visible
        from ullage.core.secrets import masked

        head = masked(f"{self.where}: {self.what}" if self.where else self.what)
        text = f"{head} (hint: {self.hint})" if self.hint else head
        return visible(" ".join(text.split()))


class InputError(UllageError):
    """A file, stream or value that cannot be read as what it should be."""


class CommandError(UllageError):
    """A launch command that is not one of a known engine, or a flag used wrongly."""


class TableError(UllageError):
    """A data file of ullage itself breaks its own schema: a fault of the release, or of a local edit."""
