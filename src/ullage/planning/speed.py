"""The time ledger of a deployment: where each microsecond of a decode step or of a round of speculation
goes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from ullage.comm.collectives import Layout
from ullage.comm.layout import layout_of
from ullage.core.deployment import Deployment
from ullage.core.launch import Arg
from ullage.core.timing import Benchmark, Speed, SpeedPoint, TimeEntry, TimeLedger
from ullage.core.units import Band
from ullage.planning.work import work_of
from ullage.spec.acceptance import Acceptance, Width, of_length
from ullage.spec.constants import constants, peak_of, runtime_of
from ullage.spec.factors import NORMAL, Factors, Point, calibrated, ledger, ratio
from ullage.spec.profit import expected_length, positions_of
from ullage.spec.step import Calls, Costs, Graphs, Round, entries
from ullage.spec.work import Work

if TYPE_CHECKING:
    from ullage.planning.drafting import Drafting

#: tokens of a request where nobody says: prompt and answer of a chat
USUAL_CONTEXT = 2048
#: batch sizes that a plan shows beside one request
SHOWN = (8, 64)
#: a measured step that the mended ledger misses by more is worth a word
EXPLAINED = 0.1

#: what one all-reduce takes, where it was measured, by its bytes, whether it is of a verify pass, and what the
#: model says; None: take the model's
Measured = Callable[[int, bool, float], Band | None]


class Subject(Struct, frozen=True):
    """All that the time of a deployment's steps is made from."""

    work: Work
    costs: Costs
    replicas: int = 1
    drafting: Drafting | None = None
    factors: Factors = Factors()

    def entries(self, batch: int, context: int, width: Width | None = None) -> tuple[TimeEntry, ...]:
        """The entries of one step, or with ``width`` of one round, before any measurement mends them."""
        return entries(self.work, self.round(batch, context, width), self.costs)

    def round(self, batch: int, context: int, width: Width | None = None) -> Round:
        """``batch`` requests over all replicas: one replica's share of them."""
        share = -(-batch // max(1, self.replicas))
        return Round(share, context, width, self.drafting.work if width and self.drafting else None)

    def speedup(self, batch: int, context: int, width: Width, length: Band) -> Band:
        """How many times faster each request is with rounds of ``width`` that give ``length`` tokens."""
        before, after = self.entries(batch, context), self.entries(batch, context, width)
        row = self.costs.constant["verify_band"]
        return ratio(length, before, after, self.factors, Band(row.value, row.low, row.high))

    def ledger(self, batch: int, context: int, width: Width | None = None) -> TimeLedger:
        asked = self.round(batch, context, width)
        found = entries(self.work, asked, self.costs)
        return ledger("verify" if width else "decode", batch, context, asked.rows, found, self.factors)


def subject_of(
    deployment: Deployment, settings: Mapping[str, Arg], drafting: Drafting | None = None,
    measured: Measured | None = None,
) -> Subject | None:  # fmt: skip
    """What the steps of ``deployment`` are made of; None where the model's tensors or the GPU's speed are not
    known. ``settings`` are the engine's resolved ones."""
    gpu = deployment.machine.gpu if deployment.machine else None
    peak = peak_of(gpu.name) if gpu else None
    work = work_of(deployment) if peak is not None else None
    if peak is None or work is None:
        return None
    layout = layout_of(deployment.launch, deployment.model, settings)
    calls = _calls(deployment, layout, drafting, measured)
    costs = Costs(peak, runtime_of(deployment.launch.engine), constants(), calls, graphs_of(settings))
    return Subject(work, costs, layout.dp, drafting)


def _calls(
    deployment: Deployment, layout: Layout, drafting: Drafting | None, measured: Measured | None
) -> Calls:
    """The collectives of a pass; comm's fits are only loaded where there is more than one rank."""
    if layout.tp * layout.pp * layout.expert_ranks <= 1:
        return lambda rows, requests, width: ()
    from ullage.planning.calls import calls_of

    return calls_of(deployment, layout, drafting, measured)


def graphs_of(settings: Mapping[str, Arg]) -> Graphs:
    """What is captured: sizes in rows (cudagraph_capture_sizes) or in requests (cuda_graph_bs); nothing where
    the engine runs eagerly."""
    rows, requests = _largest(settings, "cudagraph_capture_sizes"), _largest(settings, "cuda_graph_bs")
    eager = settings.get("enforce_eager")
    if eager is not None and eager.value is True:
        return Graphs(rows=0)
    if rows is None and requests is None:
        return Graphs(requests=0) if "cuda_graph_max_bs" not in settings and eager is None else Graphs()
    return Graphs(rows, requests)


def _largest(settings: Mapping[str, Arg], name: str) -> int | None:
    arg = settings.get(name)
    sizes = [size for size in arg.value if isinstance(size, int)] if arg and isinstance(arg.value, list) else []
    return max(sizes, default=None)


# --- what a plan shows --------------------------------------------------------------------------------------


def speed_of(
    deployment: Deployment, settings: Mapping[str, Arg], tokens: float | None = None,
    measured: Sequence[Benchmark] = (),
) -> Speed | None:  # fmt: skip
    """Tokens per second of a launch at some batch sizes; None where model or GPU are not known well enough.
    ``tokens`` is the size of the KV pool: no batch is shown that it cannot hold; ``measured`` speeds mend the
    rest."""
    drafting = _drafting(deployment, settings)
    subject = subject_of(deployment, settings, drafting)
    if subject is None:
        return None
    acceptance = usual_acceptance(drafting.width) if drafting else None
    width = drafting.width if drafting else None
    longest = settings.get("max_model_len") or settings.get("context_length")
    limit = longest.value if longest is not None and isinstance(longest.value, int) else USUAL_CONTEXT
    context = max(1, min(USUAL_CONTEXT, limit))
    subject = mended(subject, measured, context, width)
    assumed = [f"{context:,} tokens a request"]
    if drafting and acceptance:
        assumed.append(f"{acceptance.length:.2f} tokens a round: {acceptance.source}")
        assumed += ["the draft's shape is a guess"] if drafting.guessed else []
        assumed += [] if drafting.depth_told else [f"{drafting.width.steps} drafts a round"]
    batches = [1, *(n for n in SHOWN if n <= running(settings) and (tokens is None or n * context <= tokens))]
    steps = [subject.ledger(n, context, width) for n in batches]
    return Speed(
        tuple(point(step, width, acceptance) for step in steps),
        steps[0],
        tuple(assumed),
        subject.factors.points,
    )


def mended(subject: Subject, measured: Sequence[Benchmark], context: int, width: Width | None) -> Subject:
    """The subject with the factors that measured speeds imply."""
    if not measured:
        return subject
    row, points = subject.costs.constant["measured_band"], []
    for item in measured:
        asked = width if item.length is not None else None
        found = subject.entries(item.batch, item.context or context, asked)
        points.append(Point(found, item.step_us, (row.high - row.low) / 2 / NORMAL, item.text))
    return replace(subject, factors=calibrated(points))


def unexplained(
    subject: Subject, measured: Sequence[Benchmark], context: int, width: Width | None
) -> list[str]:
    """A sentence for each measured speed that the ledger does not come to even when mended: this box has
    something that it does not hold, or two measurements contradict each other."""
    found = []
    for item in measured:
        asked = width if item.length is not None else None
        us = subject.ledger(item.batch, item.context or context, asked).total_us
        if abs(us / item.step_us - 1) > EXPLAINED:
            found.append(
                f"{item.text}: {item.step_us / 1e3:.1f} ms were measured, the ledger explains {us / 1e3:.1f}:"
                " something here is not in it (a slow path between the GPUs, no CUDA graphs), or two"
                " measurements contradict each other"
            )
    return found


def _drafting(deployment: Deployment, settings: Mapping[str, Arg]) -> Drafting | None:
    """How the launch speculates; the module that knows is loaded where some setting speaks of it."""
    names = (*settings, *deployment.launch.args)
    if not any(name.startswith(("speculative", "num_speculative")) for name in names):
        return None
    from ullage.planning.drafting import drafting_of

    return drafting_of(deployment, settings)


def running(settings: Mapping[str, Arg]) -> int:
    """The most requests that run at once, as far as the settings bound them."""
    found = [settings[name].value for name in ("max_running_requests", "max_num_seqs") if name in settings]
    return min([value for value in found if isinstance(value, int) and value > 0], default=1 << 20)


def point(step: TimeLedger, width: Width | None, acceptance: Acceptance | None) -> SpeedPoint:
    """Tokens per second of a step's requests, for each and together."""
    us, length, low, high = step.band_us, 1.0, 1.0, 1.0
    if width is not None and acceptance is not None:
        length, (low, high) = acceptance.at(width), acceptance.limits(width)
    each = Band(length / us.value * 1e6, low / us.high * 1e6, high / us.low * 1e6)
    return SpeedPoint(step.batch, step.context, each, each.scaled(step.batch), length)


def usual_acceptance(width: Width) -> Acceptance:
    """What drafts give on chat where nobody measured: the conditional acceptance of public logs."""
    row = constants()["usual_match" if width.free else "usual_alpha"]
    value, low, high = (expected_length(positions_of(a, width.steps)) for a in (row.value, row.low, row.high))
    return of_length(value, width, f"usual for chat ({row.source})", (low, high))
