"""`ullage check`, the use-case: what a machine is, what of it stops or slows, and which engine it would run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace
from packaging.version import Version

from ullage.core.errors import InputError
from ullage.core.versions import parse_release
from ullage.hardware import ask, environment, listed, probe, saved
from ullage.hardware.check import CheckFinding, Facts, facts, findings
from ullage.hardware.check.finding import ordered, say
from ullage.hardware.environment import Installed, Package
from ullage.hardware.outputs import Outputs, Saved
from ullage.hardware.p2p import refused


class Asked(Struct, frozen=True):
    """What is to be looked at: a saved folder, a host, or this machine; and the environment that will run."""

    folder: str | None = None
    host: str | None = None
    python: str | None = None
    image: str | None = None
    image_files: bool = False
    engine: str | None = None


class Backend(Struct, frozen=True):
    """A kernel or way of communication and what becomes of it on these GPUs: works, fails, ignored, costs.
    ``message`` is what is printed then, literally; ``text`` says it where nothing is."""

    name: str
    result: str
    source: str
    message: str = ""
    text: str = ""


class Checked(Struct, frozen=True):
    """The answer: the facts and the findings, the gravest first. ``backends`` are those of ``engine`` (with its
    release) and of every engine, as far as a row tells of these GPUs."""

    facts: Facts
    findings: tuple[CheckFinding, ...]
    engine: str | None = None
    backends: tuple[Backend, ...] = ()

    @property
    def found_gpus(self) -> bool:
        return bool(self.facts.devices)

    @property
    def exit_code(self) -> int:
        """1: something stops a start; 3: no GPU is found, so that nothing can be told; else 0."""
        if any(finding.severity == "stops" for finding in self.findings):
            return 1
        return 0 if self.found_gpus else 3


def check(asked: Asked, run: probe.Run = probe.run) -> Checked:
    """Look, and say. Raises InputError for what cannot be read or reached."""
    if asked.folder is not None and asked.host is not None:
        raise InputError(
            "a saved folder and a host are both named", where="check", hint="--from DIR or --on HOST"
        )
    if asked.image_files and asked.image is None:
        raise InputError("no image is named", where="--image-files", hint="--image IMAGE --image-files")
    if asked.python is not None and asked.image is not None:
        raise InputError("two environments are named", where="check", hint="--python PATH or --image IMAGE")
    outputs = _outputs(asked, run)
    known = facts(outputs, _installed(asked, outputs, run), None)
    found = ordered((*findings(known), *_asked_engine(asked, known)))
    engine, release = _engine(asked, known)
    name = f"{engine} {release}" if engine and release else engine
    return Checked(known, found, name, tuple(_backends(known, engine, release)))


def _engine(asked: Asked, known: Facts) -> tuple[str | None, str | None]:
    """The engine that would run and its release: the one asked for, else the one that is installed."""
    from ullage.engines import NAMES

    for name in (asked.engine,) if asked.engine else NAMES:
        package = known.installed.of(name) if known.installed is not None and name else None
        if package is not None:
            return name, package.version
    return asked.engine, None


def _backends(known: Facts, engine: str | None, release: str | None) -> Iterator[Backend]:
    """What the dated rows tell of this architecture: those that hold for every engine, then the engine's."""
    from ullage.hardware import compat

    capability, machine = known.capability, known.machine
    if capability is None or machine is None or known.amd:
        return
    p2p = None if not known.p2p else not refused(known.p2p)
    tables: list[tuple[str, str, Version | None]] = [("ullage.hardware.compat", "components.toml", None)]
    if engine is not None:
        tables.append((f"ullage.engines.{engine}", "compat.toml", parse_release(release)))
    for package, file, version in tables:
        rows = compat.table(package, file)
        for component in rows.components.values():
            if component.several and (machine.count or 1) < 2:
                continue
            told = compat.status(
                rows,
                component.id,
                capability,
                version,
                ranks=machine.count or 1,
                nvlink=machine.nvlink,
                p2p=p2p,
            )
            if told.row is not None:
                yield Backend(
                    component.name, told.result, told.row.source, told.row.message, _plain(told.row.text)
                )


def _plain(text: str) -> str:
    """A row's sentence where it names no launch; nothing where it does."""
    return "" if "{" in text else text


def _outputs(asked: Asked, run: probe.Run) -> Outputs:
    if asked.folder is not None:
        return saved.folder(Path(asked.folder))
    if asked.host is not None:
        return ask.outputs_ssh(asked.host, run)
    found = ask.outputs(run)
    return replace(found, texts={**found.texts, "variables": Saved("environment", saved.variables(os.environ))})


def _installed(asked: Asked, outputs: Outputs, run: probe.Run) -> Installed | None:
    """The environment asked for; of this machine the present one; of others what their folder tells."""
    if asked.image is not None:
        words = ("docker", "image", "inspect", "--", asked.image)
        found = listed.of_image(asked.image, run(words, 20.0) or "docker: not found")
        if asked.image_files:
            from ullage.hardware.image import with_files

            return with_files(found, asked.image)
        return _shipped(found)
    if asked.python is not None and asked.host is not None:
        return ask.packages_ssh(asked.host, asked.python, run)
    if asked.python is not None:
        return environment.of_path(Path(asked.python))
    if asked.folder is None and asked.host is None:
        return environment.present(os.environ)
    return None


def _shipped(found: Installed) -> Installed:
    """An image's environment with the torch that its engine's release installs, where the image names none."""
    from ullage.engines import NAMES
    from ullage.engines.runtime.compat import ships
    from ullage.hardware.compat import software

    packages = dict(found.packages)
    for name in NAMES:
        engine = found.of(name)
        row = software.stack(ships(f"ullage.engines.{name}"), parse_release(engine.version)) if engine else None
        if engine is None or row is None:
            continue
        where = f"what {engine.name} {engine.version} installs ({row.source})"
        packages.setdefault("torch", Package("torch", row.torch + _local(found, row.torch), where))
        if row.flashinfer:
            packages.setdefault("flashinfer-python", Package("flashinfer-python", row.flashinfer, where))
    return replace(found, packages=packages)


def _local(found: Installed, torch: str) -> str:
    """ "+cu130" where the image names a CUDA release of another major than the index's wheel is built for."""
    from ullage.hardware.compat.software import software

    usual = next((row.cuda for row in software().torch if row.version == torch), None)
    if found.cuda is None or usual is None or found.cuda.partition(".")[0] == usual.partition(".")[0]:
        return ""
    return f"+cu{found.cuda.replace('.', '')}"


def _asked_engine(asked: Asked, known: Facts) -> list[CheckFinding]:
    """That the engine which was asked for is not there."""
    if asked.engine is None:
        return []
    where = known.installed.source if known.installed is not None else "an environment that was named"
    if known.installed is not None and known.installed.of(asked.engine) is not None:
        return []
    return [say("engine-absent", engine=asked.engine, where=where)]


def keep(checked: Checked, folder: str) -> list[str]:
    """Write what the commands printed to ``folder``, masked; the names of the files."""
    texts = dict(checked.facts.outputs.texts)
    if checked.facts.installed is not None and "packages" not in texts:
        texts["packages"] = Saved("packages.txt", listed.as_list(checked.facts.installed))
    return saved.save(Outputs(texts, checked.facts.outputs.source), Path(folder), os.uname().nodename)
