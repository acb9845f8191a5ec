"""The plan of an experiment before anything is started: will it start, what is it compared with the
baseline."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ullage.core.errors import CommandError, InputError, UllageError
from ullage.core.report import Plan
from ullage.core.secrets import HIDDEN, is_secret
from ullage.core.units import Band
from ullage.lab.campaign import approach, confound
from ullage.lab.campaign.approach import Command
from ullage.lab.campaign.confound import Resolved
from ullage.lab.campaign.experiment import Confounder, Preflight
from ullage.lab.campaign.file import Benchmark, Campaign, Change
from ullage.planning import plan as planning

_MOST_BYTES = 1 << 20
_MOST_WARNINGS = 12


class Looked(Struct, frozen=True):
    """An experiment's launch, looked at: ``resolved`` is None where it cannot even be read."""

    command: Command
    preflight: Preflight
    resolved: Resolved | None = None
    confounded: tuple[Confounder, ...] = ()
    split: tuple[dict[str, Any], ...] = ()


def base_command(campaign: Campaign) -> Command:
    """The launch with the baseline's settings on it."""
    return approach.changed(approach.read(campaign.launch), campaign.baseline)


def look(campaign: Campaign, command: Command, gpu: str | None = None) -> Looked:
    """The plan of ``command``. A command that cannot be read is refused, not raised."""
    try:
        plan = planning.plan(planning.Asked(
            command.text, gpu or campaign.gpu, campaign.engine_version, campaign.model_dir,
            campaign.readings, (), _file,
        ))  # fmt: skip
        launch = planning.engine_of(command.text).parse(command.text, campaign.engine_version, _file)
    except (CommandError, InputError) as error:
        if error.where == "--gpu":
            raise
        return Looked(command, Preflight("fails", error.line, "args"))
    settings = {name: arg.value for name, arg in plan.settings.items()}
    return Looked(command, _preflight(plan, settings, campaign.benchmark), Resolved(launch, settings, command))


def _file(name: str) -> str:
    """The text of a file that the launch names (--config)."""
    try:
        with Path(name).open("rb") as stream:
            raw = stream.read(_MOST_BYTES + 1)
        return raw[:_MOST_BYTES].decode("utf-8")
    except (OSError, ValueError) as error:
        raise InputError(
            f"cannot be read: {getattr(error, 'strerror', None) or 'not text'}", where=name[:200]
        ) from None


def _preflight(plan: Plan, settings: dict[str, Any], benchmark: Benchmark) -> Preflight:
    """What is kept of the plan. Only a failure that is proven refuses a launch; a likely one is tried."""
    tokens = plan.budget.kv_tokens
    verdict = plan.verdict if plan.proven or plan.verdict != "fails" else "unsure"
    why = plan.why if verdict == plan.verdict else f"it may not start: {plan.why}"
    return Preflight(
        verdict, why, plan.cause, round(tokens.value) if tokens else None, settings,
        tuple(f"{c.id}: {c.text}"[:300] for c in plan.cautions[:_MOST_WARNINGS]), predicted(plan, benchmark),
        tuple(_fix(change.change, change.why) for change in plan.fixes[:3]) if plan.verdict == "fails" else (),
    )  # fmt: skip


def _fix(change: dict[str, Any], why: str) -> str:
    return f"{' '.join(f'{name} {value}' for name, value in change.items())}: {why}"[:300].removeprefix(": ")


def predicted(plan: Plan, benchmark: Benchmark) -> dict[str, Band]:
    """What the time ledger expects of the benchmark's metrics, where it says how many requests run at once:
    decode alone, so prefill and queues come on top of it."""
    together = _together(benchmark)
    if plan.speed is None or together is None:
        return {}
    points = sorted(plan.speed.points, key=lambda point: point.batch)
    below = [point for point in points if point.batch <= together]
    above = [point for point in points if point.batch >= together]
    if not below or not above:
        return {}
    low, high = below[-1], above[0]
    share = (together - low.batch) / (high.batch - low.batch) if high.batch > low.batch else 0.0
    total = _between(low.total, high.total, share)
    each = total.scaled(1 / together)
    if each.low <= 0:
        return {"output_throughput": total}
    tpot = Band(1000 / each.value, 1000 / each.high, 1000 / each.low)
    return {"output_throughput": total, "mean_tpot_ms": tpot, "median_tpot_ms": tpot}


def _together(benchmark: Benchmark) -> int | None:
    """Requests at once, as the engines' own benchmarks are told."""
    for name, value in benchmark.args.items():
        if name.lstrip("-").replace("_", "-") == "max-concurrency" and isinstance(value, int) and value > 0:
            return value
    return None


def _between(a: Band, b: Band, share: float) -> Band:
    """The band between two others."""

    def mix(x: float, y: float) -> float:
        return x + (y - x) * share

    return Band(mix(a.value, b.value), mix(a.low, b.low), mix(a.high, b.high))


def against(campaign: Campaign, name: str, reason: str, change: Change, base: Resolved, this: Looked,
            gpu: str | None = None) -> Looked:  # fmt: skip
    """``this`` with what it changes beyond its declaration, and approaches that tell the parts apart, each of
    them planned."""
    if this.resolved is None:
        return this
    found = confound.confounders(change, base, this.resolved)
    if not found:
        return this
    proposals = [
        checked for each in confound.split(name, reason, change, found)
        if (checked := _checked(campaign, each, base, gpu)) is not None
    ]  # fmt: skip
    return replace(this, confounded=found, split=tuple(proposals))


def _checked(
    campaign: Campaign, proposal: dict[str, Any], base: Resolved, gpu: str | None
) -> dict[str, Any] | None:
    """The proposal with the plan's verdict; None where it would not start or is confounded itself."""
    change = Change(flags=proposal["flags"], env=proposal.get("env", {}))
    try:
        seen = look(campaign, approach.changed(base.command, change), gpu)
    except UllageError:
        return None
    if seen.preflight.verdict == "fails" or seen.resolved is None:
        return None
    if confound.confounders(change, base, seen.resolved):
        return None
    return {**proposal, **_shown(proposal), "plan": seen.preflight.verdict}


def _shown(proposal: dict[str, Any]) -> dict[str, Any]:
    """Its flags and variables for the record: secrets hidden."""
    parts = {part: proposal[part] for part in ("flags", "env") if proposal.get(part)}
    return {part: {name: _plain(name, value) for name, value in found.items()} for part, found in parts.items()}


def _plain(name: str, value: Any) -> Any:
    return HIDDEN if is_secret(name.lstrip("-").replace("-", "_")) else value


def pasteable(proposal: dict[str, Any]) -> str:
    """An approach as YAML, ready to paste into the file."""
    keys = {name: proposal[name] for name in ("name", "reason", "flags", "env") if proposal.get(name)}
    lines = []
    for i, (key, value) in enumerate(keys.items()):
        text = msgspec.json.encode(value).decode()
        lines.append(f"{'- ' if i == 0 else '  '}{key}: {text}")
    return "\n".join(lines)


def ranks_of(command: Command) -> int:
    """GPUs that the launch asks for."""
    from ullage.core.deployment import Deployment
    from ullage.planning.cautions import ranks

    engine = planning.engine_of(command.text)
    return ranks(Deployment(engine.parse(command.text, None)))


def text(words: tuple[str, ...]) -> str:
    return shlex.join(words)
