"""One runner per campaign: a lock that the kernel, or the database, lets go when its holder dies."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ullage.core.errors import InputError, UllageError


@contextmanager
def of_file(path: Path) -> Iterator[None]:
    """flock on ``path``, which also tells who has it. Raises InputError where another process has it."""
    import fcntl

    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", where=str(path)) from None
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise _taken(os.pread(handle, 200, 0).decode("utf-8", "replace")) from None
        with suppress(OSError):  # on a full disk nobody learns who has it, but it is held
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"pid {os.getpid()} on {os.uname().nodename}".encode(), 0)
        yield
    finally:
        os.close(handle)


@contextmanager
def of_database(url: str, name: str) -> Iterator[None]:
    """PostgreSQL's advisory lock of the campaign, held by a connection of its own: it goes with the
    connection."""
    import psycopg

    key = int.from_bytes(
        hashlib.blake2b(f"ullage campaign {name}".encode(), digest_size=8).digest(), signed=True
    )
    try:
        with psycopg.connect(
            url, autocommit=True, application_name=f"ullage pid {os.getpid()}", connect_timeout=10,
            client_encoding="utf8", keepalives_idle=20,
        ) as held:  # fmt: skip
            row: Any = held.execute("select pg_try_advisory_lock(%s)", (key,)).fetchone()
            if not row or not row[0]:
                raise _taken(_holder(held))
            yield
    except psycopg.Error as error:
        raise UllageError(" ".join(str(error).split())[:200], where="the campaign's database") from None


def _holder(held: Any) -> str:
    row = held.execute(
        "select a.application_name || ' at ' || coalesce(host(a.client_addr), 'this machine') from pg_locks l"
        " join pg_stat_activity a using (pid)"
        " where l.locktype = 'advisory' and a.application_name like 'ullage%'"
    ).fetchone()
    return str(row[0]) if row else ""


def _taken(holder: str) -> InputError:
    return InputError(f"this campaign runs already{f': {holder}' if holder else ''}",
                      hint="ullage campaign status FILE shows how far it is")  # fmt: skip
