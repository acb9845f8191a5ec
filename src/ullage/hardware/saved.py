"""A folder of saved outputs: read with care, and written without secrets, hosts and users."""

from __future__ import annotations

import itertools
import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from ullage.core.errors import InputError
from ullage.core.secrets import masked, masked_value
from ullage.hardware.outputs import MOST_BYTES, Outputs, Saved, catalogue, decoded, named, plain

#: files of a folder that are looked at
MOST_FILES = 400
HINT = "ullage check --save DIR writes such a folder; docs/check.md names the files"
#: variables that change what an engine or NCCL does; the others are nobody's business
_TELLING = re.compile(
    r"(?:NCCL|RCCL|CUDA|HIP|ROCR|HSA|VLLM|SGLANG|SGL|PYTORCH|TORCH|FLASHINFER|TRITON|OMP|UCX|GLOO)_"
    r"\w+|LD_PRELOAD|LD_LIBRARY_PATH|CUDA_HOME"
)
_UUID = re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", re.IGNORECASE)
_ADDRESS = re.compile(r"\b(?:\d{1,3}\.){3}\d{1,3}\b(?=[\s:/<,)]|$)")
_MAC = re.compile(r"\b(?:[0-9a-f]{2}:){5}[0-9a-f]{2}\b", re.IGNORECASE)
_HOME = re.compile(r"(?<![\w.])/(?:home|Users)/[^/\s:,]+")
_SERIAL = re.compile(
    r"^(\s*(?:Chassis )?Serial Number\s*:).*$|(<serial>)[^<]*|(\bserial(?:_number)?=)\S+", re.MULTILINE
)
_GUID = re.compile(r"^(\s*(?:GPU PDI|GPU Fabric GUID|ClusterUUID)\s*:).*$", re.MULTILINE)


def folder(path: Path) -> Outputs:
    """The outputs that the files of a folder hold. Raises InputError where it holds none, or one that is no
    text; a link that leaves the folder, a pipe or a device is left out and named."""
    texts: dict[str, Saved] = {}
    left_out: list[str] = []
    for entry in _entries(path):
        row = named(entry.name)
        if row is None or row.name in texts:
            continue
        why = _unfit(entry, path)
        if why:
            left_out.append(f"{plain(entry.name)[:60]}: {why}")
            continue
        raw = _bytes(entry)
        if len(raw) > MOST_BYTES:
            left_out.append(f"{plain(entry.name)[:60]}: only its first 4 MiB are read")
        texts[row.name] = Saved(plain(entry.name), decoded(raw[:MOST_BYTES], str(entry)))
    if not any(saved.text.strip() for saved in texts.values()):
        more = f" ({'; '.join(left_out[:3])})" if left_out else ""
        raise InputError(f"holds no output of a machine that is known{more}", where=str(path)[:200], hint=HINT)
    return Outputs(texts, f"saved in {plain(path.name or str(path))}", tuple(left_out))


def _entries(path: Path) -> list[Path]:
    try:
        if not path.is_dir():
            raise InputError("is no folder", where=str(path)[:200], hint=HINT)
        with os.scandir(path) as entries:
            names = sorted(entry.name for entry in itertools.islice(entries, MOST_FILES))
    except (OSError, ValueError) as error:
        raise InputError(f"cannot be read: {error}", where=str(path)[:200]) from error
    return [path / name for name in names]


def _unfit(entry: Path, folder: Path) -> str | None:
    """Why a file is not read; None where it is."""
    try:
        if not entry.resolve(strict=True).is_relative_to(folder.resolve(strict=True)):
            return "a link out of the folder, not followed"
        if not stat.S_ISREG(entry.stat().st_mode):
            return "no file"
    except (OSError, RuntimeError):
        return "cannot be read"
    return None


def _bytes(entry: Path) -> bytes:
    try:
        with entry.open("rb") as stream:
            return stream.read(MOST_BYTES + 1)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=str(entry)[:200]) from error


def save(outputs: Outputs, path: Path, host: str = "") -> list[str]:
    """Write each output to its file of ``path`` (made where it is missing); the names written. Nothing that is
    there already is overwritten: raises InputError."""
    files = [(catalogue()[name].file, saved) for name, saved in outputs.texts.items() if saved.text.strip()]
    hide = Mask(host)
    try:
        path.mkdir(parents=True, exist_ok=True)
        if there := [file for file, _ in files if (path / file).exists()]:
            raise InputError(f"already holds {there[0]}", where=str(path)[:200], hint="name a new folder")
        for file, saved in files:
            (path / file).write_text(hide(saved.text), encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", where=str(path)[:200]) from error
    return [file for file, _ in files]


class Mask:
    """Takes secrets, host, users, serial numbers and addresses out of texts; a UUID becomes the same made-up
    one wherever it stands, so that what belongs together stays so."""

    def __init__(self, host: str = "") -> None:
        self.host = re.compile(rf"\b{re.escape(host)}\b", re.IGNORECASE) if len(host) > 2 else None
        self.uuids: dict[str, str] = {}

    def __call__(self, text: str) -> str:
        text = _SERIAL.sub(lambda m: f"{m[1] or m[2] or m[3]} 0", masked(text))
        text = _UUID.sub(self._uuid, _GUID.sub(r"\1 0", text))
        text = _HOME.sub("/home/user", _MAC.sub("00:00:00:00:00:00", _ADDRESS.sub("0.0.0.0", text)))
        return self.host.sub("host", text) if self.host else text

    def _uuid(self, found: re.Match[str]) -> str:
        number = len(self.uuids) + 1
        return self.uuids.setdefault(found[0].lower(), f"00000000-0000-0000-0000-{number:012d}")


def variables(environment: Mapping[str, str]) -> str:
    """The variables that engines, CUDA and NCCL look at, NAME=VALUE a line, without secrets."""
    return "".join(f"{line}\n" for line in _variables(environment))


def telling(name: str) -> bool:
    """True for a variable that engines, CUDA or NCCL look at; the others are nobody's business."""
    return _TELLING.fullmatch(name) is not None


def _variables(environment: Mapping[str, str]) -> Iterator[str]:
    for name in sorted(environment):
        if telling(name):
            yield f"{name}={masked_value(name, plain(environment[name])[:400])}"
