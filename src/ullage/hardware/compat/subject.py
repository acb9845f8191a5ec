"""What the rows are asked about: one launch of a model on a machine, with what the engine derives from it."""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec import Struct
from packaging.version import Version

from ullage.core.launch import Launch, Value
from ullage.core.machine import Gpu, Machine
from ullage.core.model import Model

_ARCHITECTURE = re.compile(r"(>=|<=|<|>)?(\d+)\.(\d+|x)|\*")


class Subject(Struct, frozen=True):
    """``worked_out`` holds, by names that begin with "@", what is not a setting but follows from several:

    @attention   "mla", "dsa" (sparse MLA) or "gqa"; absent where the model is not known
    @weights     how the weights are stored: "nvfp4", "mxfp4", "fp8 block", "fp8", "awq", "gptq", ...
    @dtype       the activations' type ("bfloat16", "float16", "float32")
    @group       ranks in one tensor-parallel group; @speculative, @moe: True where it holds
    """

    launch: Launch
    model: Model | None
    gpu: Gpu | None
    count: int | None
    nvlink: bool | None
    release: Version | None
    worked_out: Mapping[str, Value]

    def value(self, name: str) -> Value:
        """A setting, "$VARIABLE" of the environment, or "@name" worked out; None where it is not given."""
        if name.startswith("@"):
            return self.worked_out.get(name)
        if name.startswith("$"):
            return self.launch.env.get(name[1:])
        arg = self.launch.args.get(name)
        return arg.value if arg is not None and arg.origin != "default" else None

    @property
    def group(self) -> int | None:
        value = self.worked_out.get("@group")
        return value if isinstance(value, int) else None

    @property
    def capability(self) -> tuple[int, int] | None:
        return self.gpu.capability if self.gpu is not None and self.gpu.vendor == "nvidia" else None

    @property
    def engine(self) -> str:
        """The engine as people write it, with its release where that is known."""
        name = {"sglang": "SGLang", "vllm": "vLLM"}.get(self.launch.engine, self.launch.engine)
        return f"{name} {self.release}" if self.release else f"{name} (newest release known)"

    @property
    def architecture(self) -> str:
        return f"SM{self.capability[0]}{self.capability[1]}" if self.capability else "this GPU"


def between_releases(release: Version) -> bool:
    """True for a build of a branch, a fork or a candidate: it may hold what the release of its number lacks."""
    return release.is_prerelease or release.local is not None


def subject(
    launch: Launch,
    model: Model | None,
    machine: Machine | None,
    release: Version | None,
    worked_out: Mapping[str, Value],
) -> Subject:
    found = machine or Machine()
    return Subject(launch, model, found.gpu, found.count, found.nvlink, release, worked_out)


def is_pattern(text: str) -> bool:
    """True for what ``matches`` understands."""
    return _ARCHITECTURE.fullmatch(text) is not None


def matches(capability: tuple[int, int], pattern: str) -> bool:
    """True if a compute capability lies in ``pattern``: "12.x", "12.1", ">=10.0", "<8.0", "*".

    >>> matches((12, 1), "12.x"), matches((8, 9), ">=8.9"), matches((10, 3), "<10.0")
    (True, True, False)
    """
    found = _ARCHITECTURE.fullmatch(pattern)
    if found is None or pattern == "*":
        return found is not None
    major = int(found[2])
    if found[3] == "x":
        return capability[0] == major
    limit = (major, int(found[3]))
    return {
        None: capability == limit, ">=": capability >= limit, "<=": capability <= limit,
        ">": capability > limit, "<": capability < limit,
    }[found[1]]  # fmt: skip
