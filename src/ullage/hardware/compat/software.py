"""torch, CUDA and the driver under a release of an engine, and whether the GPU and the driver fit them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import Struct
from packaging.version import Version

from ullage.core.finding import Hazard
from ullage.core.tables import load
from ullage.core.versions import Span, parse_release
from ullage.hardware.compat.subject import Subject, matches


class Toolkit(Struct, frozen=True, forbid_unknown_fields=True):
    cuda: str
    driver: int
    least: int
    source: str


class GpuDriver(Struct, frozen=True, forbid_unknown_fields=True):
    architectures: list[str]
    driver: int
    source: str


class Torch(Struct, frozen=True, forbid_unknown_fields=True):
    version: str
    cuda: str
    nccl: str
    architectures: list[str]
    source: str


class Software(Struct, frozen=True, forbid_unknown_fields=True):
    toolkit: list[Toolkit]
    gpu_driver: list[GpuDriver]
    torch: list[Torch]


class Ships(Struct, frozen=True, forbid_unknown_fields=True):
    """What a release of an engine installs with itself, by its metadata; from ``since`` to the next row."""

    since: str
    torch: str
    source: str
    flashinfer: str = ""
    until: str | None = None

    @property
    def span(self) -> Span:
        return Span(self.since, self.until)


def software() -> Software:
    table: Software = load("ullage.hardware.compat", "software.toml", Software)
    return table


def stack(rows: Iterable[Ships], release: Version | None) -> Ships | None:
    """What ``release`` ships; None where no release is named."""
    if release is None:
        return None
    holding = [row for row in rows if row.span.holds(release)]
    return holding[-1] if holding else None


def hazards(asked: Subject, ships: Ships | None, driver: float | None) -> list[Hazard]:
    """Whether the wheel holds code for the GPU, and the driver runs its CUDA. ``driver`` (580.95) is known only
    where a person or a log gives it."""
    torch = next((row for row in software().torch if ships and row.version == ships.torch), None)
    if asked.capability is None:
        return []
    return [*_code(asked, torch), *_driver(asked, torch, driver)]


def _code(asked: Subject, torch: Torch | None) -> Iterator[Hazard]:
    """Images and other indexes carry other builds, so this is never certain."""
    capability = asked.capability
    if torch is None or capability is None:
        return
    if not any(matches(capability, pattern) for pattern in torch.architectures):
        yield Hazard(
            "torch-without-architecture",
            f"{asked.engine} installs torch {torch.version} for CUDA {torch.cuda}, whose wheel on the "
            "package index "
            f"holds no code for {asked.architecture}: “no kernel image is available for execution on the "
            "device”. "
            f"Use an image or index built for this GPU, or a release that ships one.",
            torch.source, certain=False, message="no kernel image is available for execution on the device",
        )  # fmt: skip


def _driver(asked: Subject, torch: Torch | None, driver: float | None) -> Iterator[Hazard]:
    capability = asked.capability
    if driver is None or capability is None or not 1 <= driver < 10_000:
        return
    number = int(driver)
    for row in software().gpu_driver:
        if number < row.driver and any(matches(capability, pattern) for pattern in row.architectures):
            yield Hazard(
                "driver-older-than-gpu",
                f"Driver {number} does not know {asked.architecture}: it takes {row.driver} or newer.",
                row.source,
                certain=False,
            )  # fmt: skip
            return
    yield from _toolkit(asked, torch, number)


def _toolkit(asked: Subject, torch: Torch | None, driver: int) -> Iterator[Hazard]:
    row = next((one for one in software().toolkit if torch and one.cuda == torch.cuda), None)
    if row is None:
        return
    head = f"{asked.engine} installs torch for CUDA {row.cuda}"
    if driver < row.least:
        consumer = asked.gpu is not None and "GeForce" in asked.gpu.name
        yield Hazard(
            "driver-too-old",
            f"{head}, which takes driver {row.least} or newer; this one is {driver}. Update the driver"
            + ("." if consumer else ", or use an image with CUDA's forward-compatibility package.")
            + " The CUDA version that nvidia-smi prints is the driver's limit, not what is installed.",
            row.source, certain=False, message="The NVIDIA driver on your system is too old",
        )  # fmt: skip
    elif driver < row.driver:
        yield Hazard(
            "driver-older-than-toolkit",
            f"{head}, which came with driver {row.driver}; {driver} runs it, but not code that is compiled "
            "at start "
            f"(“the provided PTX was compiled with an unsupported toolchain”).",
            row.source, certain=False, message="the provided PTX was compiled with an unsupported toolchain",
        )  # fmt: skip


class Wheel(Struct, frozen=True, forbid_unknown_fields=True):
    """A build of torch: the compute capabilities that it holds code for, and the newest PTX."""

    cuda: str
    architectures: list[str]
    source: str
    since: str | None = None
    until: str | None = None
    machine: str = "x86_64"
    ptx: str | None = None

    @property
    def span(self) -> Span:
        return Span(self.since, self.until)

    def runs(self, capability: tuple[int, int]) -> bool:
        """Code for X.y runs on X.z with z >= y; PTX is compiled on anything newer."""
        compiled = [tuple(map(int, one.split("."))) for one in self.architectures]
        if any(major == capability[0] and minor <= capability[1] for major, minor in compiled):
            return True
        return self.ptx is not None and capability >= tuple(map(int, self.ptx.split(".")))


class _Wheels(Struct, frozen=True, forbid_unknown_fields=True):
    wheel: list[Wheel]


def wheels() -> list[Wheel]:
    """Every known build of torch."""
    table: _Wheels = load("ullage.hardware.compat", "wheels.toml", _Wheels)
    return table.wheel


def wheel(version: str, cuda: str, machine: str = "x86_64") -> Wheel | None:
    """The build of torch ``version`` for CUDA ``cuda``; None where it is not known."""
    release = parse_release(version)
    if release is None:
        return None
    base = Version(release.base_version)
    return next(
        (row for row in wheels() if row.cuda == cuda and row.machine == machine and row.span.holds(base)), None
    )
