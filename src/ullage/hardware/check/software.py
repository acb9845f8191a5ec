"""Software: torch, its CUDA and NCCL, the engine and its kernels, against each other, driver and GPU."""

from __future__ import annotations

import re
from collections.abc import Iterator

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from ullage.core.finding import Evidence
from ullage.hardware.check.facts import Facts
from ullage.hardware.check.finding import CheckFinding, say
from ullage.hardware.compat.software import software, wheel
from ullage.hardware.compat.subject import matches
from ullage.hardware.environment import Installed, Package, normalised, parts

_ENGINES = ("vllm", "sglang")
_LOCAL_CUDA = re.compile(r"\+(?:[\w.]*?)cu(\d{2})(\d)(?:\D|$)")


def rules(known: Facts) -> Iterator[CheckFinding]:
    """Those on the environment hold without a GPU too."""
    yield from _driver_and_gpu(known)
    installed = known.installed
    if installed is None:
        return
    torch = installed.of("torch")
    if torch is not None:
        yield from _built_for(known, installed, torch)
        yield from _runtime(known, installed, torch)
    yield from _engines(installed, torch)
    yield from _flashinfer(installed)
    yield from _twice(installed)


def seen(package: Package) -> Evidence:
    """Where a package's release was read."""
    file, colon, line = package.where.rpartition(":")
    placed = bool(colon) and line.isdigit()
    return Evidence(
        file if placed else package.where, int(line) if placed else 0, f"{package.name} {package.version}"
    )


def architecture(capability: tuple[int, int]) -> str:
    return f"SM{capability[0]}{capability[1]}"


def cuda_of(installed: Installed, torch: Package) -> str | None:
    """The CUDA release that torch is built for: of its version ("+cu128"), else of the wheel on the index, else
    of the runtime beside it."""
    if found := _LOCAL_CUDA.search(torch.version):
        return f"{found[1]}.{found[2]}"
    base = torch.version.partition("+")[0]
    if row := next((row for row in software().torch if row.version == base), None):
        return row.cuda
    runtime = installed.of("cuda")
    return ".".join(runtime.version.split(".")[:2]) if runtime else installed.cuda


def _without_gpu(version: str) -> bool:
    return "+cpu" in version


def _built_for(known: Facts, installed: Installed, torch: Package) -> Iterator[CheckFinding]:
    if not known.devices:
        return
    rocm = "rocm" in torch.version
    names = f"{len(known.devices)} x {known.devices[0].name}"
    if _without_gpu(torch.version) or rocm != known.amd:
        vendor, index = (
            ("ROCm", "rocm6.4") if known.amd else ("CUDA", "cu130" if (known.cuda or "13") >= "13" else "cu128")
        )
        if _without_gpu(torch.version) or rocm or (known.amd and "+cu" in torch.version):
            yield say(
                "torch-without-gpu", seen(torch), torch=torch.version, vendor=vendor, gpus=names, index=index
            )
        return
    yield from _code(known, installed, torch)


def _code(known: Facts, installed: Installed, torch: Package) -> Iterator[CheckFinding]:
    capability, cuda = known.capability, cuda_of(installed, torch)
    machine = known.host.architecture.text if known.host.architecture else "x86_64"
    row = wheel(torch.version, cuda, machine) if cuda else None
    if capability is None or row is None or row.runs(capability):
        return
    has = ", ".join(f"SM{one.replace('.', '')}" for one in row.architectures)
    newer = capability >= (10, 0)
    helps = (
        "Install a build for CUDA 12.8 or later (torch 2.7 on), with the engine release that asks for it."
        if newer
        else "Stay with a torch that still holds it and the engine release that asks for that one, or build it."
    )
    gpu = known.machine.gpu.name if known.machine is not None and known.machine.gpu is not None else "this GPU"
    finding = say(
        "torch-lacks-architecture",
        seen(torch),
        torch=torch.version,
        cuda=cuda,
        gpu=gpu,
        has=has,
        architecture=architecture(capability),
        helps=helps,
    )
    yield _sourced(finding, row.source)


def _sourced(finding: CheckFinding, source: str) -> CheckFinding:
    from msgspec.structs import replace

    return replace(finding, source=source)


def _number(driver: str | None) -> int | None:
    found = re.match(r"(\d{3})\b", driver or "")
    return int(found[1]) if found else None


def _driver_line(known: Facts) -> Evidence | None:
    for name in ("report", "smi", "gpus", "collected", "module"):
        if known.driver and (found := known.outputs.of(name).find(known.driver)) is not None:
            return found
    return None


def _driver_and_gpu(known: Facts) -> Iterator[CheckFinding]:
    driver, capability = _number(known.driver), known.capability
    if driver is None or capability is None or known.amd:
        return
    for row in software().gpu_driver:
        if driver < row.driver and any(matches(capability, pattern) for pattern in row.architectures):
            gpu = (
                known.machine.gpu.name
                if known.machine is not None and known.machine.gpu is not None
                else "this GPU"
            )
            yield _sourced(
                say(
                    "driver-older-than-gpu",
                    _driver_line(known),
                    driver=known.driver,
                    least=row.driver,
                    architecture=architecture(capability),
                    gpu=gpu,
                ),
                row.source,
            )
            return


def _runtime(known: Facts, installed: Installed, torch: Package) -> Iterator[CheckFinding]:
    driver, cuda = _number(known.driver), cuda_of(installed, torch)
    row = next((row for row in software().toolkit if row.cuda == cuda), None)
    if driver is None or row is None or known.amd or _without_gpu(torch.version):
        return
    what = f"torch {torch.version} for CUDA {cuda}"
    if driver < row.least:
        consumer = any("GeForce" in device.name for device in known.devices)
        forward = "" if consumer else ", or use an image with CUDA's forward-compatibility package"
        newest = max(
            (r for r in software().toolkit if driver >= r.least), key=lambda r: float(r.cuda), default=None
        )
        yield say(
            "driver-older-than-runtime",
            seen(torch),
            _driver_line(known),
            what=what,
            least=row.least,
            driver=known.driver,
            cuda_of_driver=newest.cuda if newest else "an older one",
            forward=forward,
        )
    elif driver < row.driver:
        yield say(
            "driver-older-than-its-runtime",
            seen(torch),
            _driver_line(known),
            what=what,
            shipped=row.driver,
            driver=known.driver,
        )


def _engines(installed: Installed, torch: Package | None) -> Iterator[CheckFinding]:
    for name in _ENGINES:
        engine = installed.of(name)
        if engine is None:
            continue
        if torch is None and engine.where.endswith("METADATA"):
            yield say(
                "engine-without-torch", seen(engine), engine=_named(engine), engine_pinned=_pinned(engine)
            )
        yield from _wanted(installed, engine)
    if torch is not None:
        yield from _nccl(installed, torch)


def _wanted(installed: Installed, engine: Package) -> Iterator[CheckFinding]:
    """What the engine's metadata asks for against what is there. A torch of another release breaks what is
    compiled against it; the local part of a version (+cu128) does not count."""
    unmet = {
        name: (want, there)
        for name, want in engine.wants.items()
        if (there := installed.packages.get(name)) is not None and not fits(there.version, want)
    }
    if "torch" in unmet:
        want, there = unmet.pop("torch")
        compiled = parts().get(engine.name) is None or parts()[engine.name].against_torch
        if compiled or installed.of("sgl-kernel") is not None:
            finding = say(
                "torch-not-the-engines",
                seen(engine),
                seen(there),
                engine=_named(engine),
                wanted=want.removeprefix("=="),
                torch=there.version,
                engine_pinned=_pinned(engine),
            )
            yield finding
    if unmet:
        yield say(
            "pin-not-met",
            seen(engine),
            *(seen(there) for _, there in list(unmet.values())[:3]),
            engine=_named(engine),
            wanted=", ".join(f"{name} {want}" for name, (want, _) in list(unmet.items())[:4]),
            installed=", ".join(f"{there.name} {there.version}" for _, there in list(unmet.values())[:4]),
            engine_pinned=_pinned(engine),
        )


def fits(version: str, want: str) -> bool:
    """True if ``version`` is what ``want`` asks for; what cannot be judged fits.

    >>> fits("2.9.1+cu128", "==2.9.1"), fits("5.0.0", ">=4.56,<5"), fits("nightly", "==2")
    (True, False, True)
    """
    try:
        found = Version(version)
        specifiers = SpecifierSet(want)
    except (InvalidVersion, InvalidSpecifier):
        return True
    return specifiers.contains(found, prereleases=True) or specifiers.contains(found.public, prereleases=True)


def _named(package: Package) -> str:
    return f"{package.name} {package.version}"


def _pinned(package: Package) -> str:
    return f"{package.name}=={package.version.partition('+')[0]}"


def _nccl(installed: Installed, torch: Package) -> Iterator[CheckFinding]:
    for name, want in torch.wants.items():
        there = installed.packages.get(name) if "nccl" in name else None
        if there is not None and not fits(there.version, want):
            yield say(
                "nccl-not-torchs",
                seen(there),
                torch=torch.version,
                wanted=want.removeprefix("=="),
                installed=there.version,
            )


def _flashinfer(installed: Installed) -> Iterator[CheckFinding]:
    python = installed.of("flashinfer")
    for part in ("flashinfer-cubin", "flashinfer-jit-cache"):
        other = installed.of(part)
        if python is None or other is None or normalised(python.name) != "flashinfer-python":
            continue
        if other.version.partition("+")[0] != python.version.partition("+")[0]:
            yield say(
                "flashinfer-parts-differ",
                seen(python),
                seen(other),
                python=python.version,
                part=part,
                other=other.version,
            )
            return


def _twice(installed: Installed) -> Iterator[CheckFinding]:
    for part in ("sgl-kernel", "nccl", "flashinfer", "deep-gemm"):
        found = installed.all_of(part)
        if len(found) > 1:
            yield say(
                "two-of-a-kind", seen(found[0]), seen(found[1]), first=_named(found[0]), second=_named(found[1])
            )
            return
