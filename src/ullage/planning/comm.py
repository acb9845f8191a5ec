"""A launch command and a machine to a CommPlan: which collectives each forward runs, what they cost on every
backend that this box can use, and what to try first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from ullage.comm import nccl
from ullage.comm.allreduce import Backend, Settings, Timed, memory_bytes, timed
from ullage.comm.backends import Standing, standings
from ullage.comm.collectives import Collective, Draft, Layout, Phase, collectives, num_all_reduces
from ullage.comm.layout import draft_of, layout_of
from ullage.comm.links import Links, links_of
from ullage.comm.measured import Measurement, Outlier, best, current, outliers
from ullage.core.deployment import Deployment
from ullage.core.errors import InputError
from ullage.core.launch import Arg, Launch
from ullage.core.machine import Machine
from ullage.core.model import Model
from ullage.core.units import Band
from ullage.engines.base import Engine
from ullage.hardware.nccl import USUAL_NVLINK, USUAL_PCIE, buffers_of, channels_of
from ullage.hardware.topology import Topology
from ullage.planning import plan as planning
from ullage.planning.cautions import ranks as num_ranks

#: the order in which a message is offered: what is particular first, NCCL last (sglang 0.5.9,
#: distributed/parallel_state.py; vllm 0.32.0, device_communicators/cuda_communicator.py)
ORDER = (
    "nccl_symm_mem", "quick", "pcie_ipc", "flashinfer_fused", "aiter", "custom_v2", "custom", "mscclpp",
    "torch_symm_mem", "nccl",
)  # fmt: skip
#: rows of one forward that are planned at most, and forwards of one answer
MOST_ROWS, MOST_FORWARDS = 1 << 24, 32
#: a prefill's chunk where nobody says (SGLang's and vLLM's usual chunk on such cards)
CHUNK = 8192
BATCHES = (1, 8, 32)
_EAGER = ("disable_cuda_graph", "enforce_eager")
#: gains below this share of the time are not worth a try
WORTH = 0.05


class Asked(Struct, frozen=True):
    """What a person asks: a launch as ``plan`` takes it, and how it runs. ``batches`` are requests in decode,
    ``phases`` "decode" and "prefill"; ``via`` what an NCCL log shows ("SHM", "P2P/IPC")."""

    plan: planning.Asked
    batches: tuple[int, ...] = BATCHES
    phases: tuple[Phase, ...] = ("decode", "prefill")
    prompt_tokens: int | None = None
    topology: Topology | None = None
    via: str | None = None
    measured: tuple[Measurement, ...] = ()


class Item(Struct, frozen=True):
    """One row: a collective, the backend that runs it now, one call's time, and all its calls'. ``measured``
    says where a measured time is from; "" where it is the model's."""

    collective: Collective
    backend: Backend
    call: Timed
    total: Band
    measured: str = ""


class Forward(Struct, frozen=True):
    """The collectives of one forward pass: ``batch`` requests (prefill: one), ``rows`` tokens."""

    phase: Phase
    verify: bool
    batch: int
    rows: int
    items: tuple[Item, ...]

    @property
    def total(self) -> Band:
        return _sum(item.total for item in self.items)

    @property
    def main(self) -> Item | None:
        """The row that takes most time."""
        return max(self.items, key=lambda item: item.total.value, default=None)


class Choice(Struct, frozen=True):
    """A backend for the main all-reduce: whether it can run here, its time, what it holds, what it would gain
    of a whole forward (positive: faster). ``runs`` marks the one that runs now."""

    standing: Standing
    call: Timed | None
    memory: Band | None
    gain_us: Band | None
    runs: bool = False


class Advice(Struct, frozen=True):
    """Something to try: a change to paste, why, and the gain of the first forward in us (None: not known)."""

    change: dict[str, str | bool]
    why: str
    gain_us: Band | None = None


class CommPlan(Struct, frozen=True):
    """The answer of ``comm plan``. ``main`` is the all-reduce that the choices are for; ``missing`` names what
    would be needed where there is no answer."""

    engine: str
    version: str | None
    model_id: str | None
    model: Model | None
    machine: Machine | None
    links: Links
    layout: Layout
    forwards: tuple[Forward, ...] = ()
    main: Collective | None = None
    choices: tuple[Choice, ...] = ()
    advice: tuple[Advice, ...] = ()
    nccl_memory: nccl.Memory | None = None
    at_init: bool = True
    outliers: tuple[Outlier, ...] = ()
    missing: tuple[str, ...] = ()
    num_measured: int = 0

    @property
    def num_all_reduces(self) -> int:
        """All-reduces inside the layers of one forward."""
        first = self.forwards[0].items if self.forwards else ()
        return num_all_reduces(tuple(item.collective for item in first))


class _Case(Struct, frozen=True):
    """What the steps below share."""

    launch: Launch
    model: Model
    layout: Layout
    links: Links
    standings: Sequence[Standing]
    settings: Settings
    measured: Sequence[Measurement]
    draft: Draft | None
    gpu: str

    @property
    def environment(self) -> dict[str, str]:
        return {k: v for k, v in self.launch.env.items() if k.startswith("NCCL_")}


def comm_plan(asked: Asked) -> CommPlan:
    """The collectives of a launch command. Raises CommandError and InputError for what cannot be read."""
    engine = planning.engine_of(asked.plan.command)
    launch = engine.parse(asked.plan.command, asked.plan.version, asked.plan.files)
    return of_deployment(engine, planning.deployment_of(launch, asked.plan), asked)


class Needs(Struct, frozen=True):
    """What ``comm bench`` is to measure for a launch: its all-reduces' sizes, ranks and NCCL variables."""

    sizes: tuple[int, ...]
    ranks: int
    environment: dict[str, str]


def needs(command: str) -> Needs:
    """The all-reduces of a launch's decode steps. Raises InputError where the model is unknown, or has none."""
    asked = planning.Asked(command)
    engine = planning.engine_of(command)
    launch = engine.parse(command, None)
    found = of_deployment(engine, planning.deployment_of(launch, asked), Asked(asked, phases=("decode",)))
    sizes = {
        item.collective.bytes for forward in found.forwards for item in forward.items
        if item.collective.kind == "all_reduce"
    }  # fmt: skip
    if not sizes:
        raise InputError(
            "has no all-reduce that is known", where="launch command",
            hint=found.missing[0] if found.missing else "it runs on one GPU",
        )  # fmt: skip
    environment = {name: value for name, value in launch.env.items() if name.startswith("NCCL_")}
    return Needs(tuple(sorted(sizes)), found.layout.tp, environment)


def of_deployment(engine: Engine, deployment: Deployment, asked: Asked) -> CommPlan:
    """The same of what is known; a function of its arguments."""
    launch, model = deployment.launch, deployment.model
    resolved = _settings(engine, deployment)
    layout = layout_of(launch, model, resolved)
    links = _links(deployment, layout, asked)
    gpu = deployment.machine.gpu.name if deployment.machine and deployment.machine.gpu else ""
    found = CommPlan(
        launch.engine, launch.version, launch.model, model, deployment.machine, links, layout,
        missing=_missing(deployment), num_measured=len(asked.measured),
    )  # fmt: skip
    if model is None or not model.hidden_size:
        return found
    case = _Case(
        launch, model, layout, links, standings(launch.engine, launch.release, links, layout.tp),
        Settings(environment=dict(launch.env), eager=any(launch.flag(name) for name in _EAGER)),
        asked.measured, draft_of(launch, model, resolved=resolved), gpu,
    )  # fmt: skip
    return _answer(found, case, asked)


def _answer(found: CommPlan, case: _Case, asked: Asked) -> CommPlan:
    forwards = tuple(_forwards(case, asked))
    first = forwards[0] if forwards else None
    main = _main(first)
    choices = _choices(case, main) if main else ()
    return replace(
        found, forwards=forwards, main=main.collective if main else None, choices=choices,
        advice=tuple(_advice(case, main, choices)) if main else (), nccl_memory=_memory(case),
        at_init=nccl.at_init(None, nccl.environment_of(case.launch)),
        outliers=tuple(outliers(asked.measured, case.links)) if case.gpu else (),
    )  # fmt: skip


def _settings(engine: Engine, deployment: Deployment) -> Mapping[str, Arg]:
    return engine.effective(deployment)


def _missing(deployment: Deployment) -> tuple[str, ...]:
    missing = []
    if deployment.model is None or not deployment.model.hidden_size:
        missing.append("the model's shape: pass --model-dir with its config.json")
    if deployment.machine is None or deployment.machine.gpu is None:
        missing.append('the GPUs: pass --gpu "8x H100"')
    return tuple(missing)


def _links(deployment: Deployment, layout: Layout, asked: Asked) -> Links:
    count = num_ranks(deployment)
    local = max(1, -(-max(layout.tp, layout.expert_ranks, count) // layout.nodes))
    topology = asked.topology
    if topology is not None and len(topology.gpus) > local:
        topology = topology.of(tuple(range(local)))
    return links_of(
        deployment.machine, local, topology=topology, nodes=layout.nodes, environment=deployment.launch.env,
        via=asked.via,
    )  # fmt: skip


# --- forwards ---


def _forwards(case: _Case, asked: Asked) -> Iterator[Forward]:
    if "decode" in asked.phases:
        for batch in asked.batches[:MOST_FORWARDS]:
            width = case.draft.verify_tokens if case.draft else 1
            yield _forward(case, "decode", batch, min(MOST_ROWS, batch * width))
    if "prefill" in asked.phases:
        yield _forward(case, "prefill", 1, min(MOST_ROWS, asked.prompt_tokens or _chunk(case.launch)))


def _chunk(launch: Launch) -> int:
    given = launch.integer("chunked_prefill_size") or launch.integer("max_num_batched_tokens")
    return given if given and given > 0 else CHUNK


def _forward(case: _Case, phase: Phase, batch: int, rows: int) -> Forward:
    found = collectives(case.model, case.layout, phase, rows, draft=case.draft, num_requests=batch)
    eager = replace(case.settings, eager=case.settings.eager or phase == "prefill")
    items = tuple(_item(case, one, eager) for one in found)
    return Forward(phase, phase == "decode" and case.draft is not None, batch, rows, items)


def _item(case: _Case, one: Collective, settings: Settings) -> Item:
    runs = running(case.standings, case.launch, one)
    call = timed(one, case.links, runs.backend, settings)
    measured = current(case.measured, one, case.environment, gpu=case.gpu) if runs.backend == "nccl" else None
    if measured is not None:
        source = f"measured ({measured[0].mode}, {measured[0].settings_text})"
        call = Timed(measured[1], source, measured[0].source)
        return Item(one, runs.backend, call, call.band.scaled(one.count), source)
    return Item(one, runs.backend, call, call.band.scaled(one.count))


def running(found: Sequence[Standing], launch: Launch, one: Collective) -> Standing:
    """The backend that takes a collective in this launch: the first that is on, can run and takes the size."""
    by_id = {standing.backend: standing for standing in found}
    for name in ORDER:
        standing = next((s for s in found if s.backend == name), None)
        if standing is None or standing.result != "works":
            continue
        fits = standing.most_bytes is None or one.bytes <= standing.most_bytes
        if name == "nccl" or (one.kind == "all_reduce" and fits and is_on(standing, launch)):
            return standing
    return by_id["nccl"]


def is_on(standing: Standing, launch: Launch) -> bool:
    """Whether the launch switches a backend on, or does not switch off what is on by itself."""
    if standing.backend in ("custom", "custom_v2") and launch.flag("disable_custom_all_reduce"):
        return False
    for name, value in standing.switch.items():
        given = launch.env.get(name[1:]) if name.startswith("$") else launch.get(_setting(name))
        if given is not None:
            return given == value or str(given).lower() in ("1", "true", "auto", str(value).lower())
    return standing.default


def _setting(flag: str) -> str:
    return flag.lstrip("-").replace("-", "_")


# --- backends ---


def _main(first: Forward | None) -> Item | None:
    """The all-reduce of the first forward that takes most time."""
    reduces = [item for item in first.items if item.collective.kind == "all_reduce"] if first else []
    target = [item for item in reduces if item.collective.stage == "target"] or reduces
    return max(target, key=lambda item: item.total.value, default=None)


def _choices(case: _Case, main: Item) -> tuple[Choice, ...]:
    return tuple(_choice(case, main, standing) for standing in case.standings)


def _choice(case: _Case, main: Item, standing: Standing) -> Choice:
    runs = standing.backend == main.backend
    one = main.collective
    fits = standing.most_bytes is None or one.bytes <= standing.most_bytes
    if not standing.possible or not fits:
        return Choice(standing, None, None, None, runs)
    call = main.call if runs else timed(one, case.links, standing.backend, case.settings)
    if not call.source:
        return Choice(standing, None, _backend_memory(case, standing), None, runs)
    gain = None if runs else _gain(main.call.band, call.band, one.count)
    memory = _backend_memory(case, standing)
    return Choice(standing, call, memory, gain, runs)


def _backend_memory(case: _Case, standing: Standing) -> Band | None:
    if standing.backend == "nccl":
        return _memory(case).total
    size = memory_bytes(standing.backend, case.layout.tp)
    return Band(size, size, size) if size is not None else None


def _gain(now: Band, then: Band, count: int) -> Band:
    """Microseconds of a forward that a change saves; both bands at once move less than either alone."""
    value = now.value - then.value
    spread = max(now.high - now.value, then.value - then.low), max(now.value - now.low, then.high - then.value)
    return Band(value * count, (value - spread[1]) * count, (value + spread[0]) * count)


def _memory(case: _Case) -> nccl.Memory:
    env, links = nccl.environment_of(case.launch), case.links
    given = env.get("NCCL_MIN_NCHANNELS") or env.get("NCCL_MAX_NCHANNELS")
    usual = USUAL_NVLINK if links.nvlink else USUAL_PCIE
    channels = channels_of(env, usual) if given else None
    capability = links.capability or (0, 0)
    nvls = links.multicast and env.get("NCCL_NVLS_ENABLE") != "0"
    return nccl.memory(nccl.Communicator(
        case.layout.tp, channels, "shm" if links.fabric == "host" else "p2p",
        buffers_of(env, capability if links.nvlink else None),
        nvls_channels=nccl.nvls_channels(capability, None, nodes=links.nodes) if nvls else 0,
        nvls_buffer_bytes=nccl.nvls_buffer_bytes(None, env),
    ))  # fmt: skip


# --- what to try ---


def _advice(case: _Case, main: Item, choices: Sequence[Choice]) -> list[Advice]:
    found = [
        *_measured_better(case, main), *_out_of_host_memory(case, main), *_graphs(case, main),
        *_other_backends(main, choices),
    ]  # fmt: skip
    return sorted(found, key=lambda one: -(one.gain_us.value if one.gain_us else 0))


def _measured_better(case: _Case, main: Item) -> Iterator[Advice]:
    """Settings that were measured to be faster than what runs now."""
    found = best(case.measured, main.collective, gpu=case.gpu)
    if found is None or found[0].environment == case.environment:
        return
    one, band = found
    gain = _gain(main.call.band, band, main.collective.count)
    if gain.value > WORTH * main.total.value:
        yield Advice(dict(one.environment), f"measured here: {one.settings_text}, {one.mode}", gain)


def _out_of_host_memory(case: _Case, main: Item) -> Iterator[Advice]:
    """P2P where the path may lead through host memory."""
    links, one = case.links, main.collective
    if links.nvlink or links.vendor != "nvidia" or main.measured or main.backend != "nccl" or one.ranks <= 2:
        return
    if "GeForce" in links.gpu or links.p2p or case.launch.env.get("NCCL_P2P_LEVEL"):
        return
    host = timed(one, replace(links, fabric="host"), "nccl", case.settings).band
    direct = timed(one, replace(links, fabric="pcie", p2p=True), "nccl", case.settings).band
    why = (
        f"NCCL uses no P2P across a CPU's host bridge by itself: where its log shows `via SHM`, one call takes"
        f" some {host.value:.0f} µs ({host.low:.0f}-{host.high:.0f}) instead of"
        f" {direct.value:.0f} ({direct.low:.0f}-{direct.high:.0f})"
    )
    sure = links.fabric == "host"
    off = case.launch.env.get("NCCL_P2P_DISABLE") == "1"
    why += "; NCCL_P2P_DISABLE=1 must go" if off else "" if sure else "; run once with NCCL_DEBUG=INFO and look"
    yield Advice({"$NCCL_P2P_LEVEL": "SYS"}, why, _gain(host, direct, one.count) if sure else Band(
        0.0, 0.0, max(0.0, (host.value - direct.value) * one.count)
    ))  # fmt: skip


def _graphs(case: _Case, main: Item) -> Iterator[Advice]:
    off = next((name for name in _EAGER if case.launch.flag(name)), None)
    if off is None:
        return
    inside = timed(main.collective, case.links, main.backend, replace(case.settings, eager=False)).band
    flag = f"--{off.replace('_', '-')}"
    gain = _gain(main.call.band, inside, main.collective.count)
    yield Advice({flag: False}, f"each call outside a CUDA graph pays its launch: drop {flag}", gain)


def _other_backends(main: Item, choices: Sequence[Choice]) -> Iterator[Advice]:
    for choice in choices:
        standing, gain = choice.standing, choice.gain_us
        if choice.runs or gain is None or standing.result != "works" or not standing.switch:
            continue
        if gain.value > WORTH * main.total.value:
            why = f"{standing.name} can run here"
            yield Advice(dict(standing.switch), why + (f" ({standing.text})" if standing.text else ""), gain)


def _sum(bands: Iterator[Band]) -> Band:
    """Bands added as if all erred the same way: the calls of a forward share their host."""
    value = low = high = 0.0
    for band in bands:
        value, low, high = value + band.value, low + band.low, high + band.high
    return Band(value, low, high)
