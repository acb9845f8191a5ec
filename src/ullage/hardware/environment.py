"""Which releases of torch, NCCL, engines and kernels an environment holds: read from files, nothing is run.

A virtual environment by the METADATA of its dist-info folders; lists and images are read in listed.py.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

from msgspec import Struct

from ullage.core.errors import InputError
from ullage.core.tables import load
from ullage.hardware.outputs import plain

#: folders of an environment that are looked at, and how much of each METADATA: its head is 2 to 20 KiB
MOST_PACKAGES = 20_000
HEAD_BYTES = 128 << 10
_DIST_INFO = re.compile(r"([A-Za-z0-9][\w.]*)-(\d[\w.!+-]*)\.dist-info")
_REQUIRED = re.compile(
    r"([A-Za-z0-9][\w.-]*)\s*(?:\[[^\]]*\])?\s*\(?\s*([=<>!~][^;()]{1,200}?)\s*\)?\s*(?:;(.*))?$"
)


class Part(Struct, frozen=True, forbid_unknown_fields=True):
    """A component of packages.toml: what the report calls it, and the distributions that are it."""

    id: str
    name: str
    packages: list[str]
    shown: bool = True
    #: built against torch's headers: another torch breaks it at import
    against_torch: bool = False


class _File(Struct, frozen=True, forbid_unknown_fields=True):
    part: list[Part]


class Package(Struct, frozen=True):
    """An installed distribution; ``wants`` are the releases that its metadata asks for ("==2.9.1"), by
    normalised name, of packages that matter here; ``where`` is the file (or line) that says so."""

    name: str
    version: str
    where: str
    wants: dict[str, str] = {}


class Installed(Struct, frozen=True):
    """An environment: the packages that matter here, by normalised name. ``variables`` are those of an image or
    of a saved list; ``cuda`` is the toolkit that an image names."""

    source: str
    packages: dict[str, Package] = {}
    python: str | None = None
    variables: dict[str, str] = {}
    cuda: str | None = None
    notes: tuple[str, ...] = ()

    def of(self, part: str) -> Package | None:
        """The package that is this component (an id of packages.toml); None where there is none."""
        for pattern in parts()[part].packages:
            for name, package in self.packages.items():
                if re.fullmatch(pattern, name):
                    return package
        return None

    def all_of(self, part: str) -> list[Package]:
        """Every package that is this component: two of them quarrel."""
        patterns = parts()[part].packages
        return [p for name, p in self.packages.items() if any(re.fullmatch(one, name) for one in patterns)]


@cache
def parts() -> dict[str, Part]:
    """The components by id, in the order in which they are shown."""
    file: _File = load("ullage.hardware", "packages.toml", _File)
    return {part.id: part for part in file.part}


@cache
def matters() -> re.Pattern[str]:
    return re.compile("|".join(pattern for part in parts().values() for pattern in part.packages))


def normalised(name: str) -> str:
    """ "flash_attn" and "Flash.Attn" are one name (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


# --- a folder ---------------------------------------------------------------------------------------------


def of_path(path: Path) -> Installed:
    """The environment of a virtual environment's folder, its ``bin/python``, or a site-packages folder.

    Raises InputError where there is none. Nothing of it is imported or run.
    """
    try:
        return _of_path(path)
    except (OSError, ValueError) as error:
        raise InputError(f"cannot be read: {error}", where=str(path)[:200]) from error


def _of_path(path: Path) -> Installed:
    if not path.exists():
        raise InputError("is not there", where=str(path)[:200], hint="--python VENV or VENV/bin/python")
    base = path.parent.parent if path.is_file() else path
    sites = list(_sites(base))
    if not sites:
        raise InputError(
            "holds no Python environment (no site-packages)",
            where=str(path)[:200],
            hint="--python VENV or VENV/bin/python",
        )
    packages: dict[str, Package] = {}
    for site in sites:
        for package in _folder(site):
            packages.setdefault(normalised(package.name), package)
    return Installed(str(path), packages, _python(base, sites))


def _sites(base: Path) -> Iterator[Path]:
    if base.name in ("site-packages", "dist-packages"):
        yield base
        return
    patterns = [
        "lib/python3*/site-packages",
        "lib64/python3*/site-packages",
        "Lib/site-packages",
        "local/lib/python3*/dist-packages",
        "lib/python3/dist-packages",
        "lib/python3*/dist-packages",
    ]
    seen: set[Path] = set()
    for pattern in patterns:
        for found in sorted(base.glob(pattern)):
            if found.is_dir() and (real := found.resolve()) not in seen:
                seen.add(real)
                yield found


def _folder(site: Path) -> Iterator[Package]:
    with os.scandir(site) as entries:
        for count, entry in enumerate(entries):
            if count >= MOST_PACKAGES:
                return
            found = _DIST_INFO.fullmatch(entry.name)
            if found and matters().fullmatch(normalised(found[1])) and _is_folder(entry):
                yield _package(Path(entry.path) / "METADATA", found[1], found[2])


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def _package(file: Path, name: str, version: str) -> Package:
    """By METADATA; by the folder's name where that cannot be read."""
    try:
        if not file.is_file():
            return Package(name, version, file.parent.name)
        with file.open("rb") as stream:
            text = stream.read(HEAD_BYTES).decode("utf-8", "replace")
    except OSError:
        return Package(name, version, file.parent.name)
    return read_head(text, name, version, f"{file.parent.name}/METADATA")


def read_head(text: str, name: str, version: str, where: str) -> Package:
    """The package that a METADATA file describes; ``version`` (its folder's) where it does not say one."""
    head = text.replace("\r\n", "\n").partition("\n\n")[0].splitlines()
    said = next((line[8:].strip() for line in head if line.startswith("Version:")), version)
    wants = _wants(line[14:] for line in head if line.startswith("Requires-Dist:"))
    return Package(name, plain(said)[:60], where, wants)


def _wants(requirements: Iterable[str]) -> dict[str, str]:
    """What is asked of packages that matter here; what is for an extra or another platform is left out."""
    found: dict[str, str] = {}
    for requirement in requirements:
        match = _REQUIRED.match(requirement.strip()[:400])
        if match and matters().fullmatch(normalised(match[1])) and _here(match[3]):
            found.setdefault(normalised(match[1]), match[2])
    return found


def _here(marker: str | None) -> bool:
    """True if a requirement with this marker holds on Linux, for x86-64, without extras. What cannot be judged
    does not hold: a pin that is not certain proves nothing."""
    if not marker:
        return True
    from packaging.markers import InvalidMarker, Marker

    linux = {
        "sys_platform": "linux",
        "platform_system": "Linux",
        "os_name": "posix",
        "platform_machine": "x86_64",
        "extra": "",
    }
    if "platform_machine" in marker:
        return False
    try:
        return Marker(marker).evaluate(linux)
    except (InvalidMarker, KeyError, ValueError):
        return False


def _python(base: Path, sites: list[Path]) -> str | None:
    """The release of Python: of pyvenv.cfg, else of the folder's name."""
    config = base / "pyvenv.cfg"
    if config.is_file():
        with config.open("rb") as stream:
            text = stream.read(1 << 16).decode("utf-8", "replace")
        if found := re.search(r"^version(?:_info)?\s*=\s*(\d+\.\d+(?:\.\d+)?)", text, re.MULTILINE):
            return found[1]
    names = [match[1] for site in sites if (match := re.search(r"python(3\.\d{1,2})", str(site)))]
    return names[0] if names else None


def present(environment: Mapping[str, str]) -> Installed | None:
    """The environment that a launch from here would use: VIRTUAL_ENV, CONDA_PREFIX, else ``python3``'s."""
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        if environment.get(name) and Path(environment[name]).is_dir():
            found = _quietly(Path(environment[name]))
            if found is not None:
                return Installed(f"{found.source} (${name})", found.packages, found.python)
    for folder in environment.get("PATH", "").split(os.pathsep)[:200]:
        python = shutil.which("python3", path=folder) if folder else None
        found = _quietly(Path(python)) if python else None
        if found is not None:
            return Installed(f"{python} (first in PATH)", found.packages, found.python)
    return None


def _quietly(path: Path) -> Installed | None:
    try:
        return of_path(path)
    except InputError:
        return None
