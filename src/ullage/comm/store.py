"""Where measurements are kept: a JSON file each below $ULLAGE_HOME/comm, else $XDG_DATA_HOME/ullage/comm."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import msgspec

from ullage.comm.measured import SCHEMA, File, Measurement
from ullage.core.errors import InputError
from ullage.core.secrets import is_secret, masked, masked_value

#: a file of measurements is small; more is some other file
MOST_BYTES = 16 << 20
#: files of the store that are read, the newest first
MOST_FILES = 200


def folder() -> Path:
    """The store's folder; it need not exist."""
    home, data = os.environ.get("ULLAGE_HOME"), os.environ.get("XDG_DATA_HOME")
    try:
        if home:
            return Path(home).expanduser() / "comm"
        return (Path(data) if data else Path.home() / ".local" / "share") / "ullage" / "comm"
    except RuntimeError as error:
        raise InputError("no home folder to keep measurements in", where=home or "~",
                         hint="set ULLAGE_HOME to a whole path") from error  # fmt: skip


def keep(found: tuple[Measurement, ...], name: str) -> Path:
    """Write measurements as a new file of the store, whole or not at all; its path. Raises InputError."""
    content = msgspec.json.format(msgspec.json.encode(File(tuple(map(_clean, found)))), indent=1)
    place = folder()
    try:
        place.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle, temporary = tempfile.mkstemp(dir=place, suffix=".part")
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(content)
            target = _free(place, name)
            Path(temporary).replace(target)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise InputError(
            f"cannot be written: {error.strerror}", where=str(place), hint="ULLAGE_HOME"
        ) from error
    return target


def _free(place: Path, name: str) -> Path:
    plain = "".join(c if c.isalnum() or c in "-." else "-" for c in name)[:80].strip(".-") or "comm"
    names = (f"{plain}{'' if n == 1 else f'-{n}'}.json" for n in range(1, 10_000))
    return next(place / one for one in names if not (place / one).exists())


def _clean(one: Measurement) -> Measurement:
    environment = {k: masked_value(k, v) for k, v in one.environment.items() if not is_secret(k)}
    return msgspec.structs.replace(
        one,
        environment=environment,
        failed=masked(one.failed),
        source=Path(one.source).name if one.source else "",
    )


def read_text(path: str) -> str:
    """The text of a file, bounded. Raises InputError."""
    try:
        with Path(path).open("rb") as stream:
            raw = stream.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"cannot be read: {reason}", where=path) from error
    if len(raw) > MOST_BYTES:
        raise InputError(f"is larger than {MOST_BYTES >> 20} MiB: no file of measurements", where=path)
    return raw.decode("utf-8", "replace")


def stdin_text() -> str:
    """What stdin holds, bounded. Raises InputError."""
    raw = sys.stdin.buffer.read(MOST_BYTES + 1)
    if len(raw) > MOST_BYTES:
        raise InputError(f"is larger than {MOST_BYTES >> 20} MiB: no file of measurements", where="stdin")
    return raw.decode("utf-8", "replace")


def read(path: str) -> tuple[Measurement, ...]:
    """The measurements of a file that ``comm bench`` or ``comm import`` wrote, or of nccl-tests' own output."""
    text = read_text(path)
    if f'"{SCHEMA}"' in text[:200] or f'"{SCHEMA}"' in text[-200:]:
        return decoded(text, path)
    from ullage.comm import nccl_tests

    return nccl_tests.read(text, Path(path).name)


def decoded(text: str, where: str) -> tuple[Measurement, ...]:
    """The measurements of ``ullage.comm/1`` JSON. Raises InputError for anything else."""
    try:
        file = msgspec.json.decode(text.encode(), type=File)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InputError(f"is no file of measurements: {error}", where=where) from error
    if file.schema != SCHEMA:
        raise InputError(f"has the schema {file.schema[:40]!r}, not {SCHEMA}", where=where)
    good = all(p.bytes > 0 and 0 < p.us < 1e12 for one in file.measurements for p in one.points)
    if not good:
        raise InputError("holds a point without a size or a time", where=where)
    return file.measurements


def kept() -> tuple[Measurement, ...]:
    """Everything in the store, the newest file first; what cannot be read is passed over."""
    try:
        files = sorted(folder().glob("*.json"), key=lambda p: p.stat().st_mtime, reverse=True)[:MOST_FILES]
    except (OSError, InputError):
        return ()
    found: list[Measurement] = []
    for path in files:
        try:
            found += decoded(read_text(str(path)), path.name)
        except InputError:
            continue
    return tuple(found)
