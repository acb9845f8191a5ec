"""The changes of a diagnosis made ready to show: once each, known to this release, planned where a rule can."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from ullage.core.deployment import Budget, Deployment
from ullage.core.errors import CommandError
from ullage.core.finding import Change
from ullage.engines.base import Engine
from ullage.engines.runtime.changes import Scalar, check

#: settings, beside the fraction, that the pool depends on
_OF_POOL = frozenset({"max_total_tokens", "tp_size", "tensor_parallel_size", "max_model_len"})
#: flags of the container, not of the engine
_CONTAINER = frozenset({"--ipc", "--shm-size", "--gpus"})
#: readings by which the weights, or what they leave, are known
_WEIGHED = frozenset({"weights_gib", "consumed_gib", "free_after_weights_gib", "kv_gib"})
#: variables that only the other engine reads
_OTHERS = {"vllm": "SGLANG_", "sglang": "VLLM_"}


def ready(
    engine: Engine, deployment: Deployment, budget: Budget, changes: Iterable[Change]
) -> tuple[Change, ...]:
    """``changes`` without repetitions, and without flags that the release lacks unless no other is left."""
    once = [change for change in _once(changes) if not _in_force(deployment, change)]
    known = [change for change in once if _known(engine, deployment, change)]
    planned = [_planned(engine, deployment, budget, change) for change in known or once]
    shown = bool(_WEIGHED & deployment.readings.keys())
    if not shown:  # a refusal that rests on an estimate of the weights proves nothing
        planned = [replace(c, predicted=None) if _fails(c) else c for c in planned]
    return tuple([c for c in planned if not _fails(c)] or planned)


def _fails(change: Change) -> bool:
    return change.predicted is not None and change.predicted.verdict == "fails"


def _once(changes: Iterable[Change]) -> Iterator[Change]:
    seen: set[str] = set()
    for change in changes:
        key = repr(sorted(change.change.items())) if change.change else change.why
        if key not in seen:
            seen.add(key)
            yield change


def _in_force(deployment: Deployment, change: Change) -> bool:
    """True if the launch states every setting and variable of the change already."""
    launch = deployment.launch

    def now(name: str) -> object:
        if not name.startswith("--"):
            return launch.env.get(name)
        arg = launch.args.get(name.lstrip("-").replace("-", "_"))
        return arg.value if arg is not None and arg.origin == "given" else None

    return bool(change.change) and all(
        value not in ("", False) and now(name) in (value, str(value)) for name, value in change.change.items()
    )


def _known(engine: Engine, deployment: Deployment, change: Change) -> bool:
    """False if the release (the newest, where it is not known) lacks a flag of the change."""
    flags = {name: value for name, value in change.change.items() if name.startswith("--")}
    if any(name.startswith(_OTHERS.get(engine.name, "\0")) for name in change.change):
        return False
    if not flags or flags.keys() & _CONTAINER:
        return True
    words = [
        word for name, value in flags.items() for word in ([name] if value is True else [name, str(value)])
    ]
    try:
        launch = engine.parse(f"{engine.name} serve model {shlex.join(words)}", deployment.launch.version)
    except CommandError:
        return True  # a placeholder for the value: the flag itself is not in doubt
    return not launch.unknown


def _planned(engine: Engine, deployment: Deployment, budget: Budget, change: Change) -> Change:
    """The change with what the engine's rule says of it, where it has none yet and the pool depends on it."""
    settings: dict[str, Scalar] = {
        name.lstrip("-").replace("-", "_"): value
        for name, value in change.change.items()
        if name.startswith("--")
    }
    covered = settings.keys() & (_OF_POOL | {engine.fraction})
    if change.predicted is not None or not covered or len(settings) < len(change.change):
        return change
    if budget.pool_bytes is None or any("<" in str(value) for value in settings.values()):
        return change
    return replace(change, predicted=check(engine, deployment, settings, change.why).predicted)
