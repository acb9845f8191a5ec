"""The published figures of published.toml, and what ullage predicts for them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from statistics import median

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ullage.core.deployment import Deployment
from ullage.core.launch import Arg, Launch
from ullage.core.units import Band
from ullage.models.load import find
from ullage.planning import plan as planning
from ullage.planning.drafting import Drafting, Wish, drafting_of
from ullage.planning.speed import Subject, subject_of
from ullage.spec.acceptance import Acceptance, of_length, of_positions


class Published(Struct, frozen=True, forbid_unknown_fields=True):
    """One measured speed-up."""

    row: int
    fit: bool
    model: str
    engine: str
    gpu: str
    method: str
    depth: int
    batch: int
    context: int
    source: str
    count: int = 1
    version: str | None = None
    draft: str | None = None
    topk: int = 1
    rows: int | None = None
    task: str = ""
    length: float | None = None
    positions: tuple[float, ...] = ()
    baseline: float | None = None
    speculative: float | None = None
    speedup: float | None = None
    flags: str = ""
    link: str | None = None
    note: str = ""

    @property
    def measured(self) -> float:
        return self.speedup if self.speedup is not None else (self.speculative or 0.0) / (self.baseline or 1.0)

    @property
    def where(self) -> str:
        return f"row {self.row} batch {self.batch} {self.task}".strip()


class _Table(Struct, frozen=True, forbid_unknown_fields=True):
    point: tuple[Published, ...]


class Predicted(Struct, frozen=True):
    point: Published
    speedup: Band
    baseline_ms: Band

    @property
    def error(self) -> float:
        """Relative error of the speed-up."""
        return self.speedup.value / self.point.measured - 1

    @property
    def baseline_error(self) -> float | None:
        each = self.point.baseline
        return self.baseline_ms.value / (1e3 * self.point.batch / each) - 1 if each else None


def points() -> tuple[Published, ...]:
    path = Path(__file__).with_name("published.toml")
    return msgspec.toml.decode(path.read_bytes(), type=_Table).point


def predict(p: Published) -> Predicted:
    subject, drafting = asked(p)
    width = drafting.width
    length = acceptance(p, drafting).at(width)
    step = subject.ledger(p.batch, p.context).band_us.scaled(1e-3)
    return Predicted(p, subject.speedup(p.batch, p.context, width, Band(length, length, length)), step)


def acceptance(p: Published, drafting: Drafting) -> Acceptance:
    if p.positions:
        return of_positions(p.positions, drafting.width, "published")
    return of_length(p.length or 1.0, drafting.width, "published")


def asked(p: Published) -> tuple[Subject, Drafting]:
    deployment, settings = deployed(p)
    wish = Wish(p.method, p.draft, p.depth, p.topk, p.rows)
    drafting = drafting_of(deployment, settings, wish)
    assert drafting is not None
    found = subject_of(deployment, settings, drafting)
    assert found is not None, p.model
    return found, drafting


def deployed(p: Published) -> tuple[Deployment, dict[str, Arg]]:
    if p.engine == "transformers":
        args = {"pp_size": Arg(p.count, "given")}
        launch = Launch(p.engine, model=p.model, args=args)
        return Deployment(launch, find(p.model), planning.machine(f"{p.count}x {p.gpu}")), {}
    command = _command(p)
    engine = planning.engine_of(command)
    launch = engine.parse(command, p.version)
    deployment = planning.deployment_of(launch, planning.Asked(command, f"{p.count}x {p.gpu}", p.version))
    if p.link and deployment.machine is not None:
        deployment = replace(deployment, machine=replace(deployment.machine, worst_link=p.link))
    return deployment, engine.effective(deployment)


def _command(p: Published) -> str:
    if p.engine == "vllm":
        config = json.dumps({"method": p.method, "num_speculative_tokens": p.depth})
        return f"vllm serve {p.model} -tp {p.count} --speculative-config '{config}' {p.flags}"
    return (
        f"python -m sglang.launch_server --model-path {p.model} --tp {p.count} --speculative-algorithm {p.method}"
        f" --speculative-num-steps {p.depth} --speculative-eagle-topk 1"
        f" --speculative-num-draft-tokens {p.depth + 1} {p.flags}"
    )


def row_errors(found: Iterable[Predicted]) -> dict[int, float]:
    """Row -> median of its points' absolute errors."""
    by_row: dict[int, list[float]] = {}
    for item in found:
        by_row.setdefault(item.point.row, []).append(abs(item.error))
    return {row: median(errors) for row, errors in by_row.items()}


class BatchRow(Struct, frozen=True, forbid_unknown_fields=True):
    """Speed-ups of one launch by batch size, without an acceptance."""

    row: int
    fit: bool
    method: str
    gpu: str
    engine: str
    version: str
    depth: int
    batches: tuple[int, ...]
    speedups: tuple[float, ...]


class _Batches(Struct, frozen=True, forbid_unknown_fields=True):
    row: tuple[BatchRow, ...]


def batch_rows() -> tuple[BatchRow, ...]:
    path = Path(__file__).with_name("published_batches.toml")
    return msgspec.toml.decode(path.read_bytes(), type=_Batches).row


def by_batch(row: BatchRow) -> tuple[float, tuple[float, ...]]:
    """(tokens a round that the first batch implies, the speed-ups that follow for all)."""
    point = Published(
        row.row, row.fit, "meta-llama/Llama-3.1-8B-Instruct", row.engine, row.gpu, "EAGLE3", row.depth,
        row.batches[0], 512, "arXiv 2503.01840", 1, row.version, "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B",
    )  # fmt: skip
    found, drafting = asked(point)

    def ratio(batch: int) -> float:
        sure = Band(1.0, 1.0, 1.0)
        return found.speedup(batch, point.context, drafting.width, sure).value

    length = row.speedups[0] / ratio(row.batches[0])
    return length, tuple(length * ratio(batch) for batch in row.batches)


def mean_error(row: BatchRow) -> float:
    """Mean relative error over the batches behind the first."""
    _, gains = by_batch(row)
    errors = [abs(gain / public - 1) for gain, public in zip(gains[1:], row.speedups[1:], strict=True)]
    return sum(errors) / len(errors)
