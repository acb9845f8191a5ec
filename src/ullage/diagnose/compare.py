"""Two runs side by side: what differs, which difference decides, and which are too small to matter."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from msgspec.structs import replace

from ullage.core.deployment import Budget, Deployment, Inferred, Reading
from ullage.core.finding import Case
from ullage.core.launch import Arg, Launch, Value
from ullage.core.report import Comparison, Difference
from ullage.engines.base import Engine
from ullage.engines.runtime.changes import INPUTS, changed

#: Settings that name a run but change nothing in it.
_NAMES = frozenset({
    "host", "port", "nccl_port", "dist_init_addr", "log_level", "log_level_http", "log_requests", "random_seed",
    "seed", "api_key", "served_model_name", "watchdog_timeout", "download_dir", "show_time_cost", "model_tag",
    "uvicorn_access_log_exclude_prefixes", "trust_remote_code",
    "file_storage_path", "crash_dump_folder", "warmups", "admin_api_key",
})  # fmt: skip


class Sided(Protocol):
    """A run that was examined."""

    @property
    def engine(self) -> Engine: ...
    @property
    def case(self) -> Case: ...
    @property
    def inferred(self) -> dict[str, Inferred]: ...
    @property
    def observed(self) -> dict[str, Reading]: ...


def runs(baseline: Sided, this: Sided, baseline_file: str) -> Comparison:
    """What differs from ``baseline``, each difference re-evaluated alone by the engine's formula."""
    engine = this.engine
    mine, theirs = _known(this), _known(baseline)
    found = [
        *_versions(baseline.case.deployment.launch, this.case.deployment.launch),
        *_settings(engine, this, theirs, mine),
        *(readings := list(_readings(engine, baseline, this))),
        *_environment(baseline.case.deployment.launch.env, this.case.deployment.launch.env, readings),
    ]
    ordered = sorted(found, key=lambda d: (not d.decisive, -abs(d.effect_bytes or 0)))
    return Comparison(
        tuple(ordered), baseline_file, baseline.observed, baseline.inferred, baseline.case.budget,
        tuple(_confounded(engine, this, theirs, ordered)),
    )  # fmt: skip


def _known(side: Sided) -> dict[str, Arg]:
    """Settings as given, logged or inferred; defaults that nobody printed are left out."""
    args = {name: arg for name, arg in side.case.deployment.launch.args.items() if arg.origin != "default"}
    for name, inferred in side.inferred.items():
        if name not in args or args[name].value is None:
            args[name] = Arg(inferred.value, "inferred", f"{inferred.low:.4f} to {inferred.high:.4f}")
    return args


def _given(side: Sided) -> dict[str, Arg]:
    """Settings that the run's own command or log gives by hand, as far as they bear on anything."""
    args = side.case.deployment.launch.args
    return {name: arg for name, arg in args.items() if arg.origin == "given" and name not in _NAMES}


def _versions(baseline: Launch, this: Launch) -> Iterator[Difference]:
    if baseline.version and this.version and baseline.version != this.version:
        yield Difference(
            "version", baseline.version, this.version, note="another release: other rules may hold"
        )


def _settings(
    engine: Engine, this: Sided, theirs: Mapping[str, Arg], mine: Mapping[str, Arg]
) -> Iterator[Difference]:
    for name in sorted(theirs.keys() | mine.keys()):
        baseline, own = theirs.get(name), mine.get(name)
        if name in _NAMES or _same(baseline, own, this):
            continue
        if baseline is None or own is None:
            continue  # one log does not print it: no difference is known
        effect, decisive = _effect_of_setting(engine, this, name, baseline.value)
        yield Difference(name, _text(baseline), _text(own), effect, decisive, value=_typed(baseline))


def _typed(arg: Arg) -> Value:
    """The value as one would type it: an inferred fraction with three digits."""
    return round(arg.value, 3) if arg.origin == "inferred" and isinstance(arg.value, float) else arg.value


def _same(baseline: Arg | None, own: Arg | None, this: Sided) -> bool:
    if baseline is None or own is None:
        return baseline is own
    if baseline.value == own.value:
        return True
    if isinstance(baseline.value, int | float) and isinstance(own.value, int | float):
        inferred = "inferred" in (baseline.origin, own.origin)
        return inferred and abs(baseline.value - own.value) <= 0.002 * max(1.0, abs(own.value))
    return str(baseline.value) == str(own.value)


def _effect_of_setting(engine: Engine, this: Sided, name: str, value: Value) -> tuple[int | None, bool]:
    """Bytes that the pool of this run would gain with the baseline's value; whether that alone starts it."""
    if not isinstance(value, str | int | float | bool):
        return None, False
    base = this.case.budget
    if base.pool_bytes is None:
        return None, False
    after = engine.budget(changed(this.case.deployment, base, {name: value}))
    return _effect(base, after)


def _effect(before: Budget, after: Budget) -> tuple[int | None, bool]:
    if before.pool_bytes is None or after.pool_bytes is None:
        return None, False
    effect = round(after.pool_bytes.value - before.pool_bytes.value)
    return effect or None, before.verdict == "fails" and after.verdict == "starts"


def _environment(
    baseline: Mapping[str, str], this: Mapping[str, str], readings: Sequence[Difference]
) -> Iterator[Difference]:
    """Variables. What one of NCCL's takes is no term of its own: it shows in the free memory, and no more."""
    free = next((d for d in readings if d.setting == "free_after_weights_gib"), None)
    for name in sorted(baseline.keys() | this.keys()):
        if baseline.get(name) == this.get(name):
            continue
        shown = free if name.startswith("NCCL_") else None
        note = "is part of the difference in free memory" if shown else ""
        yield Difference(
            name, baseline.get(name, "not set" if baseline else "not shown"), this.get(name, "not set"),
            shown.effect_bytes if shown else None, shown.decisive if shown else False, note,
        )  # fmt: skip


def _readings(engine: Engine, baseline: Sided, this: Sided) -> Iterator[Difference]:
    """Figures that the engine's arithmetic starts from: each put in place of this run's own, one at a time."""
    mine, theirs = this.case.deployment.readings, baseline.case.deployment.readings
    for name in sorted(mine.keys() & theirs.keys()):
        if name not in INPUTS or not name.endswith("_gib"):
            continue
        if name == "weights_gib" and {"free_before_weights_gib", "free_after_weights_gib"} <= mine.keys():
            continue  # the difference of the two, rounded once more
        own, other = mine[name].value, theirs[name].value
        if abs(own.value - other.value) <= (own.step + other.step) / 2:
            continue
        effect, decisive = _effect_of_reading(engine, this, name, theirs[name])
        yield Difference(
            name,
            f"{other} GiB",
            f"{own} GiB",
            effect,
            decisive,
            "",
        )


def _effect_of_reading(
    engine: Engine, this: Sided, name: str, reading: Reading
) -> tuple[int | None, bool]:  # fmt: skip
    base = this.case.budget
    if base.pool_bytes is None:
        return None, False
    deployment = changed(this.case.deployment, base, {})
    before = engine.budget(deployment)
    after = engine.budget(replace(deployment, readings={**deployment.readings, name: reading}))
    return _effect(before, after)


def _confounded(
    engine: Engine, this: Sided, theirs: Mapping[str, Arg], found: list[Difference]
) -> Iterator[str]:
    """Differences that changed together, so that the logs alone cannot tell them apart."""
    given = _given(this)
    unknown = sorted(name for name in given.keys() - theirs.keys() if not _alias(name, given))
    if unknown:
        yield f"the baseline's log does not show: {', '.join(unknown)}"
    open_ones = [d.setting for d in found if not d.decisive and d.effect_bytes is None and not d.note]
    deciding = [d.setting for d in found if d.decisive]
    if this.case.budget.verdict == "fails" and deciding:
        if len(deciding) > 1:
            yield f"each of {', '.join(deciding)} would have been enough alone"
        return
    if this.case.budget.verdict == "fails" and not deciding:
        together = {d.setting: theirs[d.setting].value for d in found if d.setting in theirs}
        known = {k: v for k, v in together.items() if isinstance(v, str | int | float | bool)}
        if len(known) > 1 and _starts(engine, this.case.deployment, this.case.budget, known):
            yield f"no single difference decides; {', '.join(sorted(known))} together do"
            return
    if len(open_ones) > 1:
        yield f"changed together, and no formula tells them apart: {', '.join(open_ones)}"


def _alias(name: str, given: Mapping[str, Arg]) -> bool:
    """True for the longer of two names of one setting ("cuda_graph_max_bs_decode" of "cuda_graph_max_bs")."""
    return any(name != other and name.startswith(other) and given[name] == arg for other, arg in given.items())


def _starts(
    engine: Engine, deployment: Deployment, base: Budget, settings: Mapping[str, str | int | float | bool]
) -> bool:
    return engine.budget(changed(deployment, base, settings)).verdict == "starts"


def _text(arg: Arg) -> str:
    if arg.origin != "inferred":
        return str(arg.value)
    shown = f"{arg.value:.3f}" if isinstance(arg.value, float) else str(arg.value)
    return f"{shown} (inferred, {arg.source})" if isinstance(arg.value, float) else f"{shown} (inferred)"
