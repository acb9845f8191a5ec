"""The reports that people paste into issues: torch's and vLLM's ``collect_env``, SGLang's ``check_env``.

What they tell of GPUs, driver and links takes the place of outputs that were not saved.
"""

from __future__ import annotations

import re

from ullage.core.machine import Device
from ullage.hardware.outputs import Outputs, Saved, plain
from ullage.hardware.smi import MOST_DEVICES, Described, capability_of

_ONE = re.compile(
    r"^\s*(?:GPU models and configuration\s*:\s*)?GPU ((?:\d{1,3},){0,63}\d{1,3}): "
    r"(\S.{1,120}?)(?: \(UUID.*)?\s*$"
)
_CAPABILITY = re.compile(r"^\s*GPU ((?:\d{1,3},){0,63}\d{1,3}) Compute Capability: (\d{1,2}\.\d)")
_DRIVER = re.compile(r"^\s*(?:Nvidia driver version|CUDA Driver Version)\s*:\s*(\d[\d.]{2,20})", re.MULTILINE)
_PACKAGES = {
    "PyTorch version": "torch",
    "PyTorch": "torch",
    "vLLM Version": "vllm",
    "sglang": "sglang",
    "sgl_kernel": "sgl-kernel",
    "flashinfer_python": "flashinfer-python",
    "flashinfer": "flashinfer-python",
    "triton": "triton",
    "transformers": "transformers",
}
_PAIR = re.compile(r"^\s*([A-Za-z_]\w*(?: [Vv]ersion)?)\s*:\s*(\d[\w.+!]{1,60})")


def described(text: str) -> Described:
    """The GPUs that a report names; None of something else. Never raises."""
    names: dict[int, str] = {}
    capabilities: dict[int, tuple[int, int] | None] = {}
    for line in text.splitlines()[:20_000]:
        if found := _CAPABILITY.match(line):
            capabilities |= {number: capability_of(found[2]) for number in _numbers(found[1])}
        elif found := _ONE.match(line):
            for number in _numbers(found[1]):
                names.setdefault(number, plain(found[2]))
    driver = _DRIVER.search(text)
    devices = tuple(
        Device(number, name, capability=capabilities.get(number)) for number, name in sorted(names.items())
    )
    return Described(devices[:MOST_DEVICES], driver[1] if driver else None)


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def spread(found: Outputs) -> Outputs:
    """The outputs with what a report among them holds of others: the topology, and the named releases as a
    list of packages. What was saved by itself stays."""
    report = found.of("collected")
    if not report.text:
        return found
    texts = dict(found.texts)
    matrix = re.search(r"^\s*(?:GPU|NVIDIA) Topology\s*:", report.text, re.MULTILINE)
    if matrix and "topology" not in texts:
        # blank lines in front keep the numbers of the lines
        before = report.text[: matrix.end()].count("\n")
        texts["topology"] = Saved(report.label, "\n" * before + report.text[matrix.end() :])
    if listed := _listed(report):
        texts["collected"] = Saved(report.label, listed)
    return Outputs(texts, found.source, found.left_out)


def _listed(report: Saved) -> str:
    """The report with its "PyTorch version: 2.8.0" lines as "torch==2.8.0", so that they are read as packages;
    the lines keep their numbers."""
    lines = []
    for line in report.text.splitlines():
        found = _PAIR.match(line)
        name = _PACKAGES.get(found[1]) if found else None
        lines.append(f"{name}=={found[2]}" if found and name else line)
    return "\n".join(lines)
