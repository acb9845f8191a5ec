"""Runs by their names, where a command takes a log: ``ullage why NAME``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


def logs_of(names: Sequence[str], command: str | None = None) -> tuple[tuple[str, ...], str | None]:
    """(the logs to read, the launch command): files as they are, a run's name as its log; the command is the
    recorded one of the last run named, where none is given."""
    if all(name == "-" or "/" in name or Path(name).exists() for name in names):
        return tuple(names), command
    from ullage.lab.durable import StoreError
    from ullage.lab.records import Store, log_of

    logs = tuple(log_of(name) for name in names)
    for name, log in zip(names, logs, strict=True):
        if command is None and name != log:
            try:
                folder = Store().find(name)
            except StoreError:
                continue
            record = folder.read() if folder else None
            command = record.command if record and record.engine else None
    return logs, command
