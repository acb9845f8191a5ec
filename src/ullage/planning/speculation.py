"""``ullage spec``: does speculation pay, at which batch sizes, and what would make it pay."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise

from msgspec import Struct
from msgspec.structs import replace

from ullage.core.deployment import Budget, Deployment
from ullage.core.errors import InputError
from ullage.core.launch import Arg, Launch
from ullage.core.timing import Benchmark
from ullage.core.units import Band
from ullage.engines.base import Engine
from ullage.planning.checked import checked
from ullage.planning.drafting import Drafting, Wish, drafting_of
from ullage.planning.payoff import at_batch, best_depth, depths, layers_call, paying
from ullage.planning.plan import Asked, deployment_of, engine_of
from ullage.planning.speed import (
    USUAL_CONTEXT,
    Measured,
    Subject,
    mended,
    running,
    subject_of,
    unexplained,
    usual_acceptance,
)
from ullage.spec.acceptance import Acceptance, Width
from ullage.spec.report import AtBatch, Memory, Payoff, Usual
from ullage.spec.step import Call

#: batch sizes that are asked where nobody says
BATCHES = (1, 8, 32)
#: the largest batch that is tried
MOST_BATCH = 1024
#: an all-reduce that takes so many times the usual is worth a word
OUTLIER = 2.0
#: changes of memory below this are rounding
LEAST_BYTES = 32 << 20


#: the acceptance that a person gives, by launch and width; None: nothing was given
Given = Callable[[Launch, Width], "Acceptance | None"]


class Question(Struct, frozen=True):
    """What is asked of a deployment. ``acceptance`` is None where nobody knows it; ``all_reduce`` holds
    measured times by bytes, or one for the verify pass (key None)."""

    deployment: Deployment
    engine: Engine
    wish: Wish = Wish()
    acceptance: Acceptance | None = None
    batches: tuple[int, ...] = ()
    context: int | None = None
    all_reduce: Mapping[int | None, float] = {}
    measured: tuple[Benchmark, ...] = ()


def answer(
    asked: Asked, wish: Wish, given: Given, batches: tuple[int, ...] = (), context: int | None = None,
    all_reduce: Mapping[int | None, float] | None = None, measured: tuple[Benchmark, ...] = (),
) -> Payoff:  # fmt: skip
    """The answer for a launch command. ``given`` makes the acceptance once launch and width are known. Raises
    CommandError and InputError for what cannot be read."""
    engine = engine_of(asked.command)
    launch = checked(engine.parse(asked.command, asked.version, asked.files), engine.fraction)
    deployment = deployment_of(launch, asked)
    question = Question(deployment, engine, wish, None, batches, context, all_reduce or {}, measured)
    drafts = drafting(question, engine.effective(deployment))
    return payoff(replace(question, acceptance=given(launch, drafts.width)))


def drafting(question: Question, settings: Mapping[str, Arg]) -> Drafting:
    """How the launch speculates. Raises InputError where neither it nor the options say."""
    found = drafting_of(question.deployment, settings, question.wish)
    if found is None:
        raise InputError(
            "the launch does not speculate", where="launch command",
            hint="add its flags for speculation, or --method eagle3 --depth 3 (and --draft-model ID)",
        )  # fmt: skip
    return found


def payoff(question: Question) -> Payoff:
    """The answer. Raises InputError where model or GPU are not known, or nothing speculates."""
    settings = question.engine.effective(question.deployment)
    drafts = drafting(question, settings)
    plain = subject_of(question.deployment, settings, drafts)
    if plain is None:
        raise InputError(_missing(question.deployment), where="spec")
    context, acceptance = _context(question, settings), question.acceptance or usual_acceptance(drafts.width)
    batches = question.batches or tuple(n for n in BATCHES if n <= running(settings))
    table = _measured(question.all_reduce, layers_call(plain, batches[0], context, drafts.width))
    subject = subject_of(question.deployment, settings, drafts, table) or plain
    subject = mended(subject, question.measured, context, drafts.width)
    found = tuple(at_batch(subject, n, context, drafts.width, acceptance) for n in batches)
    memory, tokens = _memory(question)
    most = largest(question, settings, context)
    usual = _usual(replace(plain, factors=subject.factors), context, acceptance, found[0])
    deployment, width = question.deployment, drafts.width
    experts = subject.work.experts
    return Payoff(
        engine=deployment.launch.engine, version=deployment.launch.version,
        model=deployment.model.id if deployment.model else deployment.launch.model or "",
        gpu=_gpus(deployment), method=drafts.method, width=width, context=context, acceptance=acceptance,
        cap=width.steps + 1, batches=_with_usual(found, usual),
        depths=depths(subject, batches[0], context, width, acceptance),
        best={n: best_depth(subject, n, context, width, acceptance) for n in batches} if width.is_chain else {},
        paying=paying(subject, context, width, acceptance, most), tried_to=most, memory=memory, tokens=tokens,
        usual=usual, measured=tuple(item.text for item in question.measured),
        assumed=tuple(_assumed(question, drafts, acceptance)), notes=(
            *unexplained(subject, question.measured, context, width), *_notes(question, settings, drafts),
        ),
        experts=(experts.num, experts.per_token) if experts else None,
    )  # fmt: skip


def largest(question: Question, settings: Mapping[str, Arg], context: int) -> int:
    """The most requests of this context that run at once: what the settings and the KV pool hold."""
    pool = question.engine.budget(question.deployment).kv_tokens
    held = int(pool.value) // context if pool is not None and pool.value > 0 else MOST_BATCH
    return max(1, min(MOST_BATCH, running(settings), held))


def _missing(deployment: Deployment) -> str:
    if deployment.model is None:
        return "the model is not known: pass --model-dir with its config.json"
    gpu = deployment.machine.gpu if deployment.machine else None
    if gpu is None:
        return 'no GPU is named: pass --gpu "8x H100"'
    return f"the speed of {gpu.name[:60]} or the tensors of {deployment.model.id[:60]} are not known"


def _gpus(deployment: Deployment) -> str:
    machine = deployment.machine
    if machine is None or machine.gpu is None:
        return ""
    return f"{machine.count} x {machine.gpu.name}" if machine.count else machine.gpu.name


def _context(question: Question, settings: Mapping[str, Arg]) -> int:
    longest = settings.get("max_model_len") or settings.get("context_length")
    limit = longest.value if longest is not None and isinstance(longest.value, int) else USUAL_CONTEXT
    return max(1, question.context or min(USUAL_CONTEXT, limit))


# --- measurements -------------------------------------------------------------------------------------------


def _measured(given: Mapping[int | None, float], first: Call | None) -> Measured | None:
    """Measured times by size. One without a size is that of the verify pass ``first``: larger and smaller ones
    are as many times it as the fits say; it says nothing of a step without drafts."""
    if not given:
        return None
    sizes = sorted((size, us) for size, us in given.items() if size is not None)

    def at(num_bytes: int, verify: bool, model_us: float) -> Band | None:
        if None in given and verify:
            us = given[None] * (model_us / first.us.value if first and first.us.value > 0 else 1.0)
        elif sizes:
            us = between(sizes, num_bytes)
        else:
            return None
        return Band(us, us, us)

    return at


def between(sizes: Sequence[tuple[int, float]], num_bytes: int) -> float:
    """Microseconds of a message between two measured sizes, on the straight line; below them as the smallest,
    above in proportion to the largest."""
    if num_bytes <= sizes[0][0]:
        return sizes[0][1]
    for (small, first), (large, second) in pairwise(sizes):
        if num_bytes <= large:
            return first + (second - first) * (num_bytes - small) / (large - small)
    size, us = sizes[-1]
    return us * num_bytes / size


# --- what stands beside -------------------------------------------------------------------------------------


def _usual(plain: Subject, context: int, acceptance: Acceptance, first: AtBatch) -> Usual | None:
    """The first batch with the all-reduces that hosts of this kind show, where those that were given are far
    slower."""
    width = plain.drafting.width if plain.drafting else acceptance.width
    again = at_batch(plain, first.batch, context, width, acceptance)
    usual, given = again.all_reduces, first.all_reduces
    if usual is None or given is None or given.us.value < OUTLIER * usual.us.value:
        return None
    return Usual(usual.us, again.speedup, again.with_drafts)


def _with_usual(found: tuple[AtBatch, ...], usual: Usual | None) -> tuple[AtBatch, ...]:
    """The usual time of an all-reduce beside the given one of the first batch."""
    first = found[0]
    if usual is None or first.all_reduces is None:
        return found
    return (replace(first, all_reduces=replace(first.all_reduces, usual_us=usual.us)), *found[1:])


def _memory(question: Question) -> tuple[tuple[Memory, ...], tuple[int | None, int | None]]:
    """What speculation takes of a rank, by the engine's own budget with and without it; nothing where the
    launch itself does not speculate."""
    plain = without_drafts(question.deployment)
    if plain is None:
        return (), (None, None)
    before, after = question.engine.budget(plain), question.engine.budget(question.deployment)
    return tuple(_added(before, after)), (_tokens(before), _tokens(after))


def without_drafts(deployment: Deployment) -> Deployment | None:
    """The deployment without its speculation; None where it has none."""
    launch = deployment.launch
    kept = {
        name: arg
        for name, arg in launch.args.items()
        if not name.startswith(("speculative", "num_speculative"))
    }
    if len(kept) == len(launch.args):
        return None
    readings = {name: item for name, item in deployment.readings.items() if not name.startswith("draft_")}
    return replace(deployment, launch=replace(launch, args=kept), readings=readings)


def _tokens(budget: Budget) -> int | None:
    return (
        round(budget.kv_tokens.value) if budget.kv_tokens is not None and budget.kv_tokens.value > 0 else None
    )


def _added(before: Budget, after: Budget) -> Iterator[Memory]:
    """Entries of the fullest rank that differ by more than rounding."""
    known = {(e.stage, e.name): e for ledger in before.ledgers[:1] for e in ledger.entries}
    for ledger in after.ledgers[:1]:
        for entry in ledger.entries:
            old = known.pop((entry.stage, entry.name), None)
            change = entry.bytes - (old.bytes if old else 0)
            if abs(change) >= LEAST_BYTES:
                low, high = (entry.low - old.low, entry.high - old.high) if old else (entry.low, entry.high)
                yield Memory(entry.name, change, min(low, high, change), max(low, high, change), entry.source)
    for old in known.values():
        yield Memory(old.name, -old.bytes, -old.high, -old.low, old.source)


def _assumed(question: Question, drafts: Drafting, acceptance: Acceptance) -> Iterator[str]:
    if question.acceptance is None:
        told = "pass --accept-length, --log or --metrics"
        yield f"{acceptance.length:.2f} tokens a round: {acceptance.source}; {told}"
    if not drafts.depth_told:
        yield f"{drafts.width.steps} drafts a round; pass --depth"
    if question.context is None:
        yield "2,048 tokens of context a request; pass --context"
    if drafts.guessed:
        yield "the draft's shape is a guess (25 x hidden^2 parameters); pass --draft-model"
    if not question.measured:
        yield "no measured speed; --measured batch=1,tok_s=.. narrows every band"


def _notes(question: Question, settings: Mapping[str, Arg], drafts: Drafting) -> Iterator[str]:
    """What differs with speculation beside the drafts: warnings of a comparison."""
    plain = without_drafts(question.deployment)
    if plain is not None:
        base = question.engine.effective(plain)
        for name in ("max_running_requests", "max_num_seqs", "cuda_graph_max_bs", "cuda_graph_bs"):
            old, new = base.get(name), settings.get(name)
            if (old.value if old else None) != (new.value if new else None) and name != "cuda_graph_bs":
                yield (
                    f"{name} is {new.value if new else 'not bounded'} with speculation and"
                    f" {old.value if old else 'not bounded'} without: pin it before comparing"
                )
    if not drafts.width.is_chain:
        yield "a tree of drafts: other depths and widths cannot be told from its acceptance"
