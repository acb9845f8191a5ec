"""Changes that fix or improve a launch, each planned again by the engine's own formula before it is shown."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import replace

from ullage.core.deployment import Budget, Deployment, Interval, Verdict
from ullage.core.finding import Change, Prediction
from ullage.engines.base import Candidate, Engine
from ullage.engines.runtime.changes import Scalar, changed, prediction
from ullage.models import load as models

MOST = 6
#: by how much a change must enlarge the pool of a launch that starts anyway
WORTH = 1.15
_MODEL = ("model_path", "model")
_SIZES = ("tp_size", "pp_size", "tensor_parallel_size", "pipeline_parallel_size")
#: endings of checkpoints that hold the same model in fewer bytes, the nearest to it first
_VARIANTS = ("-FP8", "-FP8-dynamic", "-AWQ", "-NVFP4", "-GPTQ-Int4", "-Int4")


class Tried(Struct, frozen=True):
    """A candidate planned again. ``cost`` counts what it takes away or needs beside the launch itself."""

    settings: dict[str, Scalar]
    why: str
    verdict: Verdict
    budget: Budget
    more_gpus: bool

    @property
    def tokens(self) -> float:
        return self.budget.kv_tokens.value if self.budget.kv_tokens is not None else 0.0

    @property
    def change(self) -> Change:
        flags = {f"--{name.replace('_', '-')}": value for name, value in self.settings.items()}
        said = prediction(self.budget)
        predicted = Prediction(self.verdict, said.kv_tokens, said.kv_bytes, said.note)
        return Change(flags, self.why, predicted, "likely" if self.verdict == "starts" else "possible")


def changes(
    engine: Engine, deployment: Deployment, base: Budget, interval: Interval | None, verdict: Verdict
) -> tuple[Change, ...]:
    """At most six changes, the best first: those that start where ``deployment`` does not, or that enlarge the
    pool of one that does. A change that needs no further GPU comes first."""
    tried = list(_tried(engine, deployment, base, interval, starts=verdict == "starts"))
    if verdict == "starts":
        least = WORTH * (base.kv_tokens.value if base.kv_tokens is not None else 0.0)
        kept = [one for one in tried if one.verdict == "starts" and one.tokens > least]
        return tuple(one.change for one in sorted(kept, key=lambda one: -one.tokens)[:MOST])
    kept = _worth([one for one in tried if one.verdict == "starts"], engine.fraction)
    kept = kept or [one for one in tried if one.verdict == "unsure" and verdict == "fails"]
    return tuple(one.change for one in sorted(kept, key=lambda one: one.more_gpus)[:MOST])


def _worth(kept: list[Tried], fraction: str) -> list[Tried]:
    """Where the fraction alone is enough, of what needs another fraction too only what gives clearly more."""
    plain = next((one.tokens for one in kept if list(one.settings) == [fraction]), None)
    if plain is None:
        return kept
    return [
        one for one in kept
        if len(one.settings) == 1 or fraction not in one.settings or one.tokens > WORTH * plain
    ]  # fmt: skip


def _tried(
    engine: Engine, deployment: Deployment, base: Budget, interval: Interval | None, *, starts: bool
) -> Iterator[Tried]:
    """Each candidate planned again. More GPUs than there are help only a launch that does not start; of several
    sizes of one kind the first that does is enough."""
    enough: set[str] = set()
    for candidate in _candidates(engine, deployment, interval):
        sizes = [name for name in candidate.settings if name in _SIZES]
        if enough.intersection(sizes) or (starts and sizes and _more_gpus(deployment, candidate.settings)):
            continue
        found = _try(engine, deployment, base, candidate)
        if found is None:
            continue
        if found.verdict == "starts":
            enough.update(sizes)
        yield found


def _candidates(engine: Engine, deployment: Deployment, interval: Interval | None) -> Iterator[Candidate]:
    yield from engine.candidates(deployment, interval)
    model = deployment.model
    if model is None or model.quantization:
        return
    flag = next((name for name in _MODEL if name in deployment.launch.args), None)
    for ending in _VARIANTS if flag else ():
        found = models.exact(f"{model.id}{ending}")
        if flag and found is not None and found.checkpoint_bytes:
            yield Candidate({flag: found.id}, "the same model in fewer bytes; check its quality for your use")
            return


def _try(engine: Engine, deployment: Deployment, base: Budget, candidate: Candidate) -> Tried | None:
    """The candidate alone; where it fails, with the fraction that is best after it."""
    settings = dict(candidate.settings)
    after = _with(deployment, base, settings)
    budget, verdict = _verdict(engine, after)
    if verdict == "fails" and engine.fraction not in settings:
        interval = engine.interval(None, after)
        best = interval.recommended if interval is not None else None
        if best is None:
            return None
        settings[engine.fraction] = best
        after = _with(deployment, base, settings)
        budget, verdict = _verdict(engine, after)
    return Tried(settings, candidate.why, verdict, budget, _more_gpus(deployment, settings))


def _verdict(engine: Engine, deployment: Deployment) -> tuple[Budget, Verdict]:
    budget = engine.budget(deployment)
    return budget, "fails" if engine.refusals(deployment) else budget.verdict


def _with(deployment: Deployment, base: Budget, settings: dict[str, Scalar]) -> Deployment:
    """The deployment after a change. Another layout or model makes every reading untrue, and none stays."""
    whole = any(name in settings for name in (*_MODEL, *_SIZES))
    known = replace(deployment, readings={}, by_rank={}) if whole else deployment
    after = changed(known, Budget() if whole or not deployment.readings else base, settings)
    name = next((str(settings[flag]) for flag in _MODEL if flag in settings), None)
    return replace(after, model=models.find(name)) if name else after


def _more_gpus(deployment: Deployment, settings: dict[str, Scalar]) -> bool:
    """True if the change needs more GPUs than the machine is said to have."""
    wider = [name for name in _SIZES if name in settings]
    if not wider:
        return False
    launch, machine = deployment.launch, deployment.machine
    ranks = 1
    for name in _SIZES:
        size = settings.get(name, launch.integer(name) or 1)
        ranks *= int(size) if isinstance(size, int) else 1
    return machine is None or machine.count is None or ranks > machine.count
