"""Where a campaign is kept: SQLite beside its file, or PostgreSQL; and who may write there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ullage.core.errors import UllageError
from ullage.core.secrets import masked
from ullage.lab.campaign import lock
from ullage.lab.campaign.file import Loaded

#: seconds that SQLite waits for another reader or writer
BUSY_S = 30


class StorageError(UllageError):
    """The campaign's database cannot be read or written: the disk is full, the server is away."""


def url(loaded: Loaded) -> str:
    """Where the campaign is kept: SQLite beside the file unless it names another place."""
    given = loaded.campaign.storage
    if given is None:
        return f"sqlite:///{loaded.folder('db')}"
    scheme = given.partition("://")[0]
    if scheme == "sqlite":
        path = given.removeprefix("sqlite:///")
        return f"sqlite:///{path if path.startswith('/') else loaded.path.parent / path}"
    if scheme.partition("+")[0] in ("postgresql", "postgres"):
        return f"postgresql+psycopg://{given.partition('://')[2]}"
    raise loaded.marked.error(f"{scheme[:20]}: is no storage that ullage knows", ("storage",),
                              "sqlite:///FILE or postgresql://USER@HOST/DATABASE")  # fmt: skip


def sqlite_path(place: str) -> Path | None:
    return Path(place.removeprefix("sqlite:///")) if place.startswith("sqlite:") else None


def only_runner(loaded: Loaded) -> AbstractContextManager[None]:
    """The campaign's lock: InputError where somebody runs it."""
    place = url(loaded)
    path = sqlite_path(place)
    if path is not None:
        return lock.of_file(path.with_name(f"{path.name}.lock"))
    return lock.of_database(place.replace("postgresql+psycopg", "postgresql", 1), loaded.name)


@contextmanager
def guarded(place: str) -> Iterator[None]:
    """Optuna's and SQLAlchemy's errors as one clear line."""
    import optuna
    import sqlalchemy.exc

    try:
        yield
    except (optuna.exceptions.StorageInternalError, sqlalchemy.exc.SQLAlchemyError) as error:
        said = error.__cause__ if isinstance(error.__cause__, Exception) else error
        text = " ".join(str(getattr(said, "orig", None) or said).split())
        hint = "make room and resume" if "full" in text else "the campaign can be resumed once it is back"
        raise StorageError(f"cannot be used: {masked(text)[:200]}", where=masked(place), hint=hint) from None
    except UnicodeDecodeError as error:  # SQLAlchemy reads a damaged text of SQLite
        raise StorageError(f"is damaged: {error}"[:200], where=masked(place)) from None
    except ImportError:
        raise StorageError(
            "needs psycopg", where=masked(place), hint='pip install "ullage[postgres]"'
        ) from None


def connection(place: str) -> dict[str, Any]:
    """What SQLAlchemy is told of a connection there."""
    if sqlite_path(place) is not None:
        return {"connect_args": {"timeout": BUSY_S}}
    return {"pool_pre_ping": True, "connect_args": {"connect_timeout": 10, "client_encoding": "utf8"}}


def shown_place(place: str) -> str:
    """The storage for people, without a password."""
    path = sqlite_path(place)
    if path is not None:
        return str(path)
    parts = urlsplit(place)
    return f"PostgreSQL at {parts.hostname or 'this machine'}{parts.path}"
