"""A launch command and the GPUs' name to a Plan: will it start, and where does every GiB go."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from ullage import engines
from ullage.core.deployment import Budget, Deployment, Interval, Verdict
from ullage.core.errors import CommandError, InputError
from ullage.core.finding import Hazard
from ullage.core.launch import Arg, Launch
from ullage.core.ledger import Entry, Ledger
from ullage.core.machine import Machine
from ullage.core.model import Model
from ullage.core.problem import Problem
from ullage.core.report import Caution, Plan
from ullage.core.run import Phase
from ullage.core.secrets import masked
from ullage.core.timing import Benchmark, Speed
from ullage.core.units import GIB, gib_text, tokens_text
from ullage.engines.base import Engine, Files, Refusal
from ullage.hardware import gpus
from ullage.planning import machines
from ullage.planning.cautions import cautions, ranks
from ullage.planning.checked import checked, readings
from ullage.planning.model import model_of
from ullage.planning.suggest import changes

#: fractions nearer to each other than this are one and the same to an estimate
NARROW = 0.005
#: faults of one fraction, not of the launch
OF_ONE_FRACTION = ("budget-below-weights", "graph-capture-oom")
_NOT_SAID = re.compile(r"(?:\d+\s*[x×]?\s*)?(?:not (?:stated|known|given)|unknown|n/a|none|\?)", re.IGNORECASE)
#: the cause of a launch whose flags the release does not take
FLAG = "flag-combination-unsupported"


class Asked(Struct, frozen=True):
    """What a person asks: a launch command as pasted, and what stands beside it. ``hub`` allows to ask the hub
    for a model that nothing on this machine knows; without ``fixes`` no changes are worked out. ``measured``
    speeds of this launch mend the time ledger."""

    command: str
    gpu: str | None = None
    version: str | None = None
    model_dir: str | None = None
    readings: Mapping[str, float] = {}
    contexts: Sequence[int] = ()
    files: Files | None = None
    hub: bool = False
    fixes: bool = True
    measured: Sequence[Benchmark] = ()


class Judged(Struct, frozen=True):
    """The verdict with its reason; ``missing`` names what a surer one needs."""

    verdict: Verdict
    why: str
    fails_at: Phase | None = None
    cause: str | None = None
    missing: tuple[str, ...] = ()


def plan(asked: Asked) -> Plan:
    """The plan of a launch command. Raises CommandError and InputError for what cannot be read at all."""
    engine = engine_of(asked.command)
    launch = checked(engine.parse(asked.command, asked.version, asked.files), engine.fraction)
    known = model_of(launch, asked.model_dir, hub=asked.hub)
    deployment = _deployment(launch, known.model, asked)
    problems = engine.problems(launch, asked.files)
    found = of_deployment(engine, deployment, asked.contexts, problems, helps=asked.fixes)
    if asked.measured and found.speed is not None:
        found = replace(found, speed=_speed(deployment, found.settings, found.budget, asked.measured))
    return replace(found, cautions=(Caution("hub", known.note), *found.cautions)) if known.note else found


def engine_of(command: str) -> Engine:
    engine = engines.of_text(command)
    if engine is None:
        raise CommandError(
            f"starts neither SGLang nor vLLM: {' '.join(command.split())[:60]}", where="launch command",
            hint='give it as it is run: "python -m sglang.launch_server ..." or "vllm serve MODEL ..."',
        )  # fmt: skip
    return engine


def deployment_of(launch: Launch, asked: Asked) -> Deployment:
    """Launch, model (plan/model), machine and readings."""
    return _deployment(launch, model_of(launch, asked.model_dir, hub=asked.hub).model, asked)


def _deployment(launch: Launch, model: Model | None, asked: Asked) -> Deployment:
    probed, found = machines.asked(asked.gpu, launch.env)
    deployment = Deployment(launch, model, found if probed else machine(asked.gpu), readings(asked.readings))
    return machines.fitted(deployment, ranks(deployment) // max(1, launch.integer("nnodes") or 1))


def machine(name: str | None) -> Machine | None:
    """The machine of --gpu. Raises InputError with the nearest names where it is not known."""
    if name is None:
        return None
    if _NOT_SAID.fullmatch(name.strip()):
        return None
    found = gpus.find(name)
    if found is None:
        near = ", ".join(gpus.suggest(name))
        raise InputError(
            f"names no GPU that is known: {name[:60]!r}", where="--gpu",
            hint=f"near: {near}" if near else 'a name ("8x H100") or its memory in GiB ("8x 94.08")',
        )  # fmt: skip
    if found.count == 0:
        raise InputError("no GPU at all", where=f"--gpu {name[:60]}")
    return found


def of_deployment(
    engine: Engine,
    deployment: Deployment,
    contexts: Sequence[int] = (),
    problems: Sequence[Problem] = (),
    *,
    helps: bool = True,
) -> Plan:
    """The plan of what is known; a pure function of its arguments. ``problems`` are those of the flags;
    ``helps``: with the changes that help."""
    budget = whole_cards(engine.budget(deployment), deployment)
    interval = wide_enough(engine.interval(None, deployment))
    hazards = engine.warnings(deployment)
    flags = [Refusal("args", FLAG, problem.text) for problem in problems if problem.stops and problem.certain]
    stops = [*engine.refusals(deployment), *too_few_gpus(deployment)]
    refusals = [*flags, *stops, *(stop for hazard in hazards if (stop := _stop(hazard)))]
    settings = engine.effective(deployment)
    judged = judge(budget, interval, refusals)
    length = settings.get("max_model_len") or settings.get("context_length")
    longest = length.value if length is not None and isinstance(length.value, int) else None
    launch = deployment.launch
    found = Plan(
        engine=engine.name, version=launch.version, version_source=launch.version_source,
        command=masked(launch.command or ""), verdict=judged.verdict, why=judged.why, fails_at=judged.fails_at,
        cause=judged.cause, model_id=launch.model, model=deployment.model, machine=deployment.machine,
        settings=settings, readings=deployment.readings, budget=budget, interval=interval,
        concurrency=concurrency(budget, contexts, longest) if judged.verdict != "fails" else {},
        missing=judged.missing, proven=bool(refusals) or proven(budget, longest),
    )  # fmt: skip
    verdict = "fails" if stops else budget.verdict
    if judged.verdict != "fails":
        found = replace(found, speed=_speed(deployment, settings, budget))
    fixes = changes(engine, deployment, budget, interval, verdict) if helps else ()
    return replace(found, fixes=fixes, cautions=(
        *machines.cautions(found.machine), *cautions(found, problems, refusals, hazards, longest),
    ))  # fmt: skip


def proven(budget: Budget, longest: int | None) -> bool:
    """True if the budget fails even at the better end of its bands; ``longest`` is a request's full length in
    tokens."""
    pool, tokens = budget.pool_bytes, budget.kv_tokens
    if budget.verdict != "fails" or pool is None:
        return False
    if pool.high <= 0 or pool.low == pool.high:
        return True
    full = budget.cause == "max-len-exceeds-kv" and tokens is not None and longest is not None
    return bool(full and tokens and longest and tokens.high < longest)


def _speed(
    deployment: Deployment, settings: Mapping[str, Arg], budget: Budget, measured: Sequence[Benchmark] = ()
) -> Speed | None:
    """The launch's decode speed; imported only where it can be told."""
    if deployment.model is None or deployment.machine is None or deployment.machine.gpu is None:
        return None
    from ullage.planning.speed import speed_of

    return speed_of(deployment, settings, budget.kv_tokens.value if budget.kv_tokens else None, measured)


def whole_cards(budget: Budget, deployment: Deployment) -> Budget:
    """The budget with ledgers of the whole GPU: what CUDA's context and the process groups take before the
    engine looks stands first, where the engine's own ledger begins behind it."""
    gpu = deployment.machine.gpu if deployment.machine else None
    total = round(gpu.cuda_bytes.value) if gpu and gpu.cuda_bytes else gpu.total_bytes if gpu else None
    held = machines.held(deployment.machine)
    ledgers = tuple(_whole(item, total, held, ranks(deployment)) for item in budget.ledgers)
    return replace(budget, ledgers=ledgers)


def _whole(item: Ledger, total: int | None, held: Entry | None, num_ranks: int) -> Ledger:
    rank = item.rank or (f"each of {num_ranks}" if num_ranks > 1 else "")
    taken = (total or 0) - item.total_bytes
    if held and total and taken <= NARROW * total and held.bytes <= item.left_bytes:
        return replace(item, rank=rank, entries=(held, *item.entries))
    if taken <= 0 or any(entry.stage == "init" for entry in item.entries):
        return replace(item, rank=rank)
    own = taken - (held.bytes if held else 0)
    others = (held,) if held and own > 0 else ()
    own = own if others else taken
    context = Entry("init", "CUDA context, NCCL and the like", own, own // 2, 2 * own, "estimated",
                    "the GPU's memory less what is free on an idle one")  # fmt: skip
    return Ledger(rank, item.total_bytes + taken, (*others, context, *item.entries))


def wide_enough(interval: Interval | None) -> Interval | None:
    """The interval, empty where it is narrower than the estimates of what stands beside the pool can tell."""
    if interval is None or interval.low is None or interval.high is None:
        return interval
    if 0 < interval.high - interval.low < NARROW:
        return replace(interval, high=interval.low, recommended=None)
    return interval


def too_few_gpus(deployment: Deployment) -> list[Refusal]:
    """A launch of more ranks than --gpu and --nnodes name."""
    count = deployment.machine.count if deployment.machine else None
    needed, nodes = ranks(deployment), max(1, deployment.launch.integer("nnodes") or 1)
    if count is None or needed <= count * nodes:
        return []
    probed = deployment.machine.source if deployment.machine else ""
    seen = f"{probed}: name other GPUs with --gpu" if probed else "named"
    return [
        Refusal("init", "not-enough-gpus", f"the launch needs {needed} GPUs, and {count * nodes} are {seen}")
    ]


def _stop(hazard: Hazard) -> Refusal | None:
    """A hazard that surely stops the launch, as a refusal."""
    if not hazard.stops or not hazard.certain or hazard.cause is None:
        return None
    return Refusal(hazard.phase or "init", hazard.cause, hazard.text)


def judge(budget: Budget, interval: Interval | None, refusals: Sequence[Refusal]) -> Judged:
    """The verdict: what is refused outright first, then the engine's formula."""
    if refusals:
        first = refusals[0]
        return Judged("fails", first.text, first.phase, first.cause)
    if budget.verdict == "fails":
        cause = budget.cause
        if interval is not None and interval.empty and cause in OF_ONE_FRACTION:
            cause = interval.empty_cause or cause
        return Judged("fails", _why_it_fails(budget), budget.fails_at, cause)
    if budget.verdict == "starts":
        return Judged("starts", "", missing=())
    if budget.pool_bytes is None:
        return Judged("unsure", f"not known: {', '.join(budget.missing) or 'what the pool depends on'}",
                      missing=budget.missing or ("the KV pool's size",))  # fmt: skip
    pool, missing = budget.pool_bytes, budget.missing
    size = f"the pool is {pool.low / GIB:.1f} to {pool.high / GIB:.1f} GiB by what is known"
    if missing:
        return Judged("unsure", f"{size}, but not known: {', '.join(missing)}", missing=missing)
    nearer = "a figure of any log, such as --reading free_after_weights_gib=.."
    return Judged("unsure", f"{size}: too near the limit", missing=(nearer,))


def _why_it_fails(budget: Budget) -> str:
    words = {
        "weights-exceed-gpu": "the weights alone are larger than the GPU",
        "budget-below-weights": "nothing is left for the KV cache",
        "max-len-exceeds-kv": "one request of the full length does not fit into the KV cache",
        "mamba-blocks-below-max-num-seqs": "there are fewer states than sequences that may run",
        "graph-capture-oom": "what must fit beside the KV pool does not",
        "hybrid-state-floor-exceeds-budget": "nothing is left beside the recurrent state",
        "free-memory-below-request": "less memory is free than the share asks for",
    }
    text = words.get(budget.cause or "", "it does not fit")
    pool = budget.pool_bytes
    if budget.fails_at == "weights" and pool is None and budget.formula:
        return f"loading the weights takes more than the GPU has at once: {budget.formula}"
    if pool is not None and pool.value < 0:
        return f"{text}: {gib_text(-pool.value)} are missing"
    if pool is not None and budget.kv_tokens is not None and budget.kv_tokens.value > 0:
        return f"{text}: the pool is {gib_text(pool.value)}, {tokens_text(budget.kv_tokens.value)} tokens"
    return text


def concurrency(budget: Budget, contexts: Sequence[int], longest: int | None) -> dict[int, float]:
    """Requests of each length that the pool holds at once; without lengths some usual ones."""
    tokens = budget.kv_tokens
    lengths = list(contexts) or sorted(
        {n for n in (4096, 32768, longest) if n and (not longest or n <= longest)}
    )
    if tokens is None:
        return {}
    return {length: round(max(0.0, tokens.value) / length, 2) for length in lengths if length > 0}
