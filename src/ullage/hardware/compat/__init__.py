"""What runs on which GPU in which release: dated rows with sources, and what they say of one launch.

    components.toml   kernels and backends that both engines use: collectives and their variables
    software.toml     CUDA toolkits with the driver they need, torch wheels with the architectures they hold
    engines/*/compat.toml, variables.toml   the same for one engine; asked behind that engine's door

A row is a component, architectures and releases, a result (works, fails, ignored, costs, unknown) and its
source; without a source it is not a row. Adding knowledge is adding a row: see the head of components.toml.
"""

from __future__ import annotations

from collections.abc import Mapping

from packaging.version import Version

from ullage.core.finding import Hazard
from ullage.core.launch import Launch, Value
from ullage.core.machine import Machine
from ullage.core.model import Model
from ullage.hardware.compat import nccl
from ullage.hardware.compat.rows import Component, Known, Row, Table, hazards, status, table
from ullage.hardware.compat.subject import Subject, subject

__all__ = [
    "Component", "Known", "Row", "Subject", "Table", "hazards", "status", "subject", "table", "warnings",
]  # fmt: skip


def warnings(
    launch: Launch,
    model: Model | None,
    machine: Machine | None,
    release: Version | None,
    worked_out: Mapping[str, Value] | None = None,
) -> list[Hazard]:
    """What holds for a launch whatever its engine: collectives, NCCL's variables, GPUs of different kinds.

    ``worked_out`` are settings that an engine derives from others, by names that begin with "@" (subject.py).
    """
    asked = subject(launch, model, machine, release, worked_out or {})
    return [*hazards(table("ullage.hardware.compat", "components.toml"), asked), *nccl.hazards(asked)]
