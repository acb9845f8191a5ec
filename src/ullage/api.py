"""What ``import ullage`` gives: plan, why, diff. They return the structs that every face shows."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from os import PathLike, fspath
from typing import Any

from ullage.core.report import Diagnosis, Plan

Path = str | PathLike[str]


def plan(
    command: str | Sequence[str],
    *,
    gpu: str | None = None,
    engine_version: str | None = None,
    model_dir: Path | None = None,
    readings: Mapping[str, float] | None = None,
    contexts: Sequence[int] = (),
    hub: bool = False,
) -> Plan:
    """Will this launch command start, and where does every GiB go.

    ``command`` is the launch as it is pasted, or its words. ``gpu`` names the GPUs ("8x H100"); without it the
    GPUs of this machine are asked, where there are any. ``readings`` are figures that are known and beat a rule
    (GiB, tokens, by the ending of the name). ``contexts`` are request lengths in tokens for the concurrency.
    ``hub`` allows to ask the model hub for config.json and headers of a model that nothing here knows.
    Raises ullage.UllageError for what cannot be read.
    """
    from ullage.planning import plan as planning

    text = command if isinstance(command, str) else shlex.join(command)
    folder = None if model_dir is None else fspath(model_dir)
    return planning.plan(
        planning.Asked(text, gpu, engine_version, folder, dict(readings or {}), tuple(contexts), hub=hub)
    )


def why(
    *logs: Path,
    baseline: Path | Iterable[Path] = (),
    command: str | None = None,
    gpu: str | None = None,
    engine_version: str | None = None,
    model_dir: Path | None = None,
    readings: Mapping[str, float] | None = None,
    run: int | None = None,
) -> Diagnosis:
    """Why the run in ``logs`` (one file, or one a node or rank) ended as it did, and what mends it.

    ``baseline`` is the log of a run that worked; ``run`` picks the Nth start of a log with several.
    The rest says what a short log does not. Raises ullage.UllageError for what cannot be read.
    """
    from ullage.diagnose import why as diagnose

    folder = None if model_dir is None else fspath(model_dir)
    asked = diagnose.Asked(command, gpu, engine_version, folder, dict(readings or {}), run)
    other = [baseline] if isinstance(baseline, str | PathLike) else list(baseline)
    return diagnose.why([fspath(p) for p in logs], baseline=[fspath(p) for p in other], asked=asked)


def diff(a: Path, b: Path, **asked: Any) -> Diagnosis:
    """Two runs side by side: ``compare`` of the answer holds what differs and which difference decides.

    ``a`` is the run to compare with, ``b`` the one to explain; keyword arguments are those of ``why``.
    """
    return why(b, baseline=a, **asked)


def as_json(found: Plan | Diagnosis) -> bytes:
    """The answer as ``--json`` prints it: schema ullage.plan/1 or ullage.why/1."""
    if isinstance(found, Plan):
        from ullage.render import plan_json

        return plan_json.plan(found)
    from ullage.render import json

    return json.why(found)
