"""Environments that are told of and not looked into: lists of packages, container images, saved folders.

A list is what `pip freeze` or `pip list` prints; of an image `docker image inspect` tells labels and variables.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from ullage.core.errors import InputError
from ullage.hardware.environment import Installed, Package, matters, normalised
from ullage.hardware.outputs import Outputs, Saved, plain

_FREEZE = re.compile(
    r"(?:\[(?:pip3?|conda)\]\s+)?([A-Za-z0-9][\w.-]{0,80})(?:==|\s+)v?(\d[\w.!+]{0,60})(?:\s|$)"
)


def of_list(saved: Saved, source: str) -> Installed:
    """The packages of ``pip freeze``, ``pip list``, ``uv pip list`` or the lists of a collect_env report."""
    packages: dict[str, Package] = {}
    for number, line in enumerate(saved.text.splitlines(), 1):
        found = _FREEZE.match(line.strip()[:200])
        if found and matters().fullmatch(normalised(found[1])):
            packages.setdefault(normalised(found[1]), Package(found[1], found[2], f"{saved.label}:{number}"))
    python = re.search(
        r"^(?:#\s*)?Python(?: version)?\s*:?\s*(3\.\d{1,2}(?:\.\d{1,2})?)", saved.text, re.MULTILINE
    )
    return Installed(source, packages, python[1] if python else None)


def as_list(installed: Installed) -> str:
    """The packages as ``pip freeze`` writes them, for a saved folder."""
    head = f"# Python {installed.python}\n" if installed.python else ""
    return head + "".join(f"{p.name}=={p.version}\n" for _, p in sorted(installed.packages.items()))


def of_image(name: str, inspected: str) -> Installed:
    """The environment of a container image, by what ``docker image inspect`` prints of it: labels and
    variables name what was built in; what they do not name stays unknown. Raises InputError."""
    try:
        found = msgspec.json.decode(inspected.encode())
    except msgspec.DecodeError:
        said = plain(inspected.strip().splitlines()[-1] if inspected.strip() else "nothing")[:160]
        raise InputError(
            f"docker image inspect says: {said}",
            where=f"image {plain(name)[:100]}",
            hint="docker pull it first, or give --python",
        ) from None
    first = found[0] if isinstance(found, list) and found and isinstance(found[0], dict) else None
    if first is None:
        raise InputError(
            "is no image that docker knows", where=f"image {plain(name)[:100]}", hint="docker pull it first"
        )
    config = first.get("Config") if isinstance(first.get("Config"), dict) else {}
    assert isinstance(config, dict)
    variables = dict(_assignments(config.get("Env")))
    raw = config.get("Labels")
    labels = {str(k)[:100]: str(v)[:200] for k, v in raw.items()} if isinstance(raw, dict) else {}
    tags = [str(tag)[:200] for tag in first.get("RepoTags") or [] if isinstance(tag, str)] or [name]
    packages = dict(_of_variables(variables, labels)) | dict(_of_tags(tags))
    platform = plain(str(first.get("Architecture") or ""))[:20]
    return Installed(
        f"image {plain(name)[:100]}" + (f" ({platform})" if platform else ""),
        packages,
        None,
        variables,
        _cuda(variables, labels),
        ("by the image's tag, labels and variables: packages that these do not name are unknown",),
    )


def _assignments(found: object) -> Iterator[tuple[str, str]]:
    for item in found[:2000] if isinstance(found, list) else ():
        name, equals, value = str(item)[:2000].partition("=")
        if equals:
            yield name, value


_VARIABLES = {
    "NCCL_VERSION": "nvidia-nccl-cu12",
    "PYTORCH_VERSION": "torch",
    "TORCH_VERSION": "torch",
    "FLASHINFER_VERSION": "flashinfer-python",
    "VLLM_VERSION": "vllm",
    "SGLANG_VERSION": "sglang",
    "TRITON_VERSION": "triton",
    "TRANSFORMERS_VERSION": "transformers",
    "SGL_KERNEL_VERSION": "sglang-kernel",
}
_RELEASE = re.compile(r"v?(\d{1,3}\.\d{1,3}(?:\.\w{1,20})*)")


def _of_variables(variables: Mapping[str, str], labels: Mapping[str, str]) -> Iterator[tuple[str, Package]]:
    for name, package in _VARIABLES.items():
        found = _RELEASE.match(variables.get(name, ""))
        if found:
            yield package, Package(package, found[1], f"the image's {name}")
    title, version = (
        labels.get("org.opencontainers.image.title", ""),
        labels.get("org.opencontainers.image.version", ""),
    )
    found = _RELEASE.match(version)
    if found and normalised(title) in ("vllm", "sglang"):
        yield (
            normalised(title),
            Package(normalised(title), found[1], "the image's label org.opencontainers.image.version"),
        )


def _of_tags(tags: Iterable[str]) -> Iterator[tuple[str, Package]]:
    for tag in tags:
        repository, _, label = tag.rpartition(":")
        found = _RELEASE.match(label)
        for engine in ("vllm", "sglang"):
            if found and re.search(rf"(?:^|[/_-]){engine}(?:[/_-]|$)", repository):
                yield engine, Package(engine, found[1].partition("-")[0], f"the image's tag {plain(tag)[:80]}")


def _cuda(variables: Mapping[str, str], labels: Mapping[str, str]) -> str | None:
    said = variables.get("CUDA_VERSION") or labels.get("com.nvidia.cuda.version") or ""
    found = re.match(r"(\d{1,3}\.\d{1,2})", said)
    return found[1] if found else None


def of_outputs(found: Outputs) -> Installed | None:
    """The environment that a saved folder tells of; None where it tells nothing."""
    listed, collected = found.of("packages"), found.of("collected")
    parts = [of_list(saved, saved.label) for saved in (listed, collected) if saved.text]
    if not parts:
        return None
    packages = {name: package for part in reversed(parts) for name, package in part.packages.items()}
    return Installed(parts[0].source, packages, next((p.python for p in parts if p.python), None))
