"""What the log does not say but its figures imply, each with its band and how it follows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

from msgspec import Struct
from packaging.version import Version

from ullage.core.deployment import Deployment, Inferred
from ullage.core.launch import Arg
from ullage.core.run import Run
from ullage.core.tables import load
from ullage.core.units import GIB, Band
from ullage.core.versions import Span
from ullage.engines.vllm.options import since
from ullage.engines.vllm.pool import bytes_per_token, kv_stages
from ullage.engines.vllm.readings import printed, smallest
from ullage.engines.vllm.settings import Settings, settings
from ullage.engines.vllm.terms import Terms, named, terms

#: tensor parallel sizes that are tried against the bytes of a token
SIZES = (1, 2, 4, 8, 16, 32)
MAX_TEXTS = 50_000


class Mark(Struct, frozen=True, forbid_unknown_fields=True):
    """A form of a line, or the name of a process, and the releases that have it."""

    name: str
    pattern: str = ""
    process: str = ""
    since: str | None = None
    until: str | None = None


class _Marks(Struct, frozen=True, forbid_unknown_fields=True):
    mark: tuple[Mark, ...]


def infer(run: Run, deployment: Deployment) -> dict[str, Inferred]:
    """Fraction, total, weights, remainder of the profile, bytes per token, KV element, tensor parallel size,
    engine and release: each only where no line says it."""
    deployment = printed(deployment)
    s = settings(deployment)
    t = terms(deployment, s)
    found = [
        *utilization(deployment), *total(deployment), *weights(deployment, s), *profile_rest(deployment, t),
        *token(deployment, s), *element(deployment, s), *tensor_parallel(run, deployment, s), *engine(s, run),
        *release(run),
    ]  # fmt: skip
    return {one.name: one for one in found}


def _read(deployment: Deployment, name: str) -> Band | None:
    shown = smallest(deployment, name) if name == "kv_gib" else deployment.readings.get(name)
    return shown.value.band if shown else None


def _line(deployment: Deployment, *names: str) -> str:
    """The lines that figures are from."""
    shown = (deployment.readings.get(name) for name in names)
    return ", ".join(dict.fromkeys(reading.source for reading in shown if reading))


def _found(name: str, band: Band, how: str, lines: str) -> Inferred:
    return Inferred(name, band.value, band.low, band.high, f"{how} ({lines})")


def _exactly(value: float) -> Band:
    return Band(value, value, value)


def ratio(a: Band, b: Band) -> Band | None:
    """a / b with its limits; None where b may be zero."""
    if b.low <= 0:
        return None
    corners = [x / y for x in (a.low, a.high) for y in (b.low, b.high)]
    return Band(a.value / b.value, min(corners), max(corners))


def minus(a: Band, *others: Band) -> Band:
    return Band(
        a.value - sum(b.value for b in others),
        a.low - sum(b.high for b in others),
        a.high - sum(b.low for b in others),
    )


def utilization(deployment: Deployment) -> Iterator[Inferred]:
    """requested / total, else (weights + peak + non-torch + estimate + pool) / total."""
    arg = deployment.launch.args.get("gpu_memory_utilization")
    if arg is not None and arg.origin in ("given", "log"):
        return
    total, requested = _read(deployment, "total_gib"), _read(deployment, "requested_gib")
    basis = "requested / total"
    if requested is None:
        names = ("weights_gib", "peak_activation_gib", "non_torch_gib", "kv_gib")
        parts = [_read(deployment, name) for name in names]
        known = [part for part in parts if part is not None]
        if total is None or len(known) < len(names):
            return
        graphs = _read(deployment, "graph_estimate_gib") if settings(deployment).subtracts_graphs else None
        known += [graphs] if graphs is not None else []
        requested = Band(sum(p.value for p in known), sum(p.low for p in known), sum(p.high for p in known))
        basis = "(weights + activation peak + non-torch + graph estimate + pool) / total"
    share = ratio(requested, total) if total is not None else None
    if share is not None and total is not None:
        lines = _line(deployment, "total_gib", "requested_gib", "kv_gib")
        how = f"{basis} = {requested.value:.2f} / {total.value:.2f}"
        yield _found("gpu_memory_utilization", share, how, lines)


def total(deployment: Deployment) -> Iterator[Inferred]:
    """requested / U, else graph estimate / (U - U without graphs), as the engine's own line gives both."""
    if "total_gib" in deployment.readings:
        return
    share, requested = deployment.launch.number("gpu_memory_utilization"), _read(deployment, "requested_gib")
    if share and requested is not None:
        how = f"requested / share = {requested.value:.2f} / {share:g}"
        yield _found("total_gib", requested.scaled(1 / share), how, _line(deployment, "requested_gib"))
        return
    estimate = _read(deployment, "graph_estimate_gib")
    pair = [
        ("gpu_memory_utilization", "utilization_without_graphs"),
        ("utilization_with_graphs", "gpu_memory_utilization"),
    ]
    for more, less in pair:
        high, low = _read(deployment, more), _read(deployment, less)
        if estimate is None or high is None or low is None:
            continue
        step = 0.00005  # the engine rounds both to four decimals
        size = ratio(
            estimate,
            Band(high.value - low.value, high.value - low.value - 2 * step, high.value - low.value + 2 * step),
        )
        if size is not None:
            how = f"graph estimate / ({high.value:g} - {low.value:g})"
            yield _found("total_gib", size, how, _line(deployment, more, "graph_estimate_gib"))
            return


def weights(deployment: Deployment, s: Settings) -> Iterator[Inferred]:
    """requested - pool - peak - non-torch - estimate, where no line gives the weights."""
    if "weights_gib" in deployment.readings or "consumed_gib" in deployment.readings:
        return
    t = terms(deployment, s)
    names = [
        "kv_gib",
        "peak_activation_gib",
        "non_torch_gib",
        *(["graph_estimate_gib"] if s.subtracts_graphs else []),
    ]
    parts = [_read(deployment, name) for name in names]
    known = [part for part in parts if part is not None]
    if t.requested is None or t.requested.certainty == "estimated" or len(known) < len(names):
        return
    rest = minus(t.requested.band.scaled(1 / GIB), *known)
    how = "share - pool - activation peak - non-torch"
    yield _found("weights_gib", rest, how, _line(deployment, *names))


def profile_rest(deployment: Deployment, t: Terms) -> Iterator[Inferred]:
    """What the profile took beside the weights, where only its result was printed."""
    rest = named(t.held, "activation peak and non-torch")
    if rest is None or rest.certainty != "exact":
        return
    band = rest.band.scaled(1 / GIB)
    lines = _line(deployment, "requested_gib", "weights_gib", "kv_gib")
    yield _found("peak_and_non_torch_gib", band, "share - weights - pool", lines)


def token(deployment: Deployment, s: Settings) -> Iterator[Inferred]:
    """Pool / tokens. Before 0.20.1 hybrids print tokens that are no capacity: then nothing follows."""
    pool, tokens = _read(deployment, "kv_gib"), _read(deployment, "kv_tokens")
    hybrid = deployment.model is not None and deployment.model.is_hybrid
    if (
        pool is None
        or tokens is None
        or tokens.value <= 0
        or pool.low <= 0
        or (hybrid and not since(s.release, "0.20.1"))
    ):
        return
    block = max(s.cache.block_size, 64) * s.cache.dcp
    size = pool.scaled(GIB)
    band = Band(size.value / tokens.value, size.low / (tokens.value + block), size.high / tokens.value)
    how = f"{pool.value:.2f} GiB / {tokens.value:,.0f} tokens"
    yield _found("bytes_per_token", band, how, _line(deployment, "kv_gib", "kv_tokens"))


def _shown_token(deployment: Deployment, s: Settings) -> Band | None:
    """Bytes per token as the figures of the log imply, whatever the model says."""
    found = next(iter(token(deployment, s)), None)
    return Band(found.value, found.low, found.high) if found else None


def _fits(deployment: Deployment, shown: Band, **args: str | int) -> bool:
    """True if the model with these settings has as many bytes per token as the log shows."""
    changed = deployment.with_args(**{name: Arg(value, "inferred") for name, value in args.items()})
    s = settings(changed.without("bytes_per_token"))
    if kv_stages(changed, s) is None:
        return False
    computed = bytes_per_token(changed.without("kv_gib", "kv_tokens", "bytes_per_token"), s)
    return (
        computed is not None and shown.low <= computed.value * 1.0005 and computed.value <= shown.high * 1.0005
    )


def element(deployment: Deployment, s: Settings) -> Iterator[Inferred]:
    """Bytes of one KV element, 2 or 1, where the launch does not set the dtype and only one of them fits."""
    arg = deployment.launch.args.get("kv_cache_dtype")
    shown = _shown_token(deployment, s)
    if (arg is not None and arg.origin != "default") or shown is None or deployment.model is None:
        return
    fitting = [
        size for name, size in (("bfloat16", 2), ("fp8", 1)) if _fits(deployment, shown, kv_cache_dtype=name)
    ]
    if len(fitting) == 1:
        how = f"{shown.value:,.0f} bytes a token fit no other size of element"
        yield _found("kv_element_bytes", _exactly(fitting[0]), how, _line(deployment, "kv_gib", "kv_tokens"))


def tensor_parallel(run: Run, deployment: Deployment, s: Settings) -> Iterator[Inferred]:
    """The number of ranks that print, else the one size at which the model has the bytes per token shown."""
    arg = deployment.launch.args.get("tensor_parallel_size")
    if arg is not None and arg.origin in ("given", "log"):
        return
    seen = {event.rank.tp for event in run.events if event.rank.tp is not None}
    world = [note.fields.get("world_size", "") for note in run.notes_named("rank-assigned")]
    if len(seen) > 1:
        size = float(max(seen) + 1)
        most = size if size in SIZES else 4096.0  # other ranks may not be in these lines
        yield Inferred("tensor_parallel_size", size, size, most, f"ranks TP0 to TP{max(seen)} print")
        return
    shown = _shown_token(deployment, s)
    if shown is None or (world and all(text == "1" for text in world)):
        return
    fitting = [size for size in SIZES if _fits(deployment, shown, tensor_parallel_size=size)]
    if fitting and not any(
        layer.kind == "mla" for layer in (deployment.model.layers if deployment.model else ())
    ):
        low, high = float(fitting[0]), float(fitting[-1])
        how = f"only so the model has {shown.value:,.0f} bytes a token on a rank"
        lines = _line(deployment, "kv_gib", "kv_tokens")
        yield _found("tensor_parallel_size", Band(low, low, high), how, lines)


def engine(s: Settings, run: Run) -> Iterator[Inferred]:
    """V0 or V1, where no line names it."""
    named_by_line = any("V1 LLM engine" in event.text or "V0 LLM engine" in event.text for event in run.events)
    if not named_by_line and run.events:
        core = 0.0 if s.core == "V0" else 1.0
        yield Inferred("engine_core", core, core, core, f"{s.core}: by release and by the forms of the lines")


@cache
def marks() -> tuple[tuple[re.Pattern[str], Mark], ...]:
    table = load("ullage.engines.vllm", "releases.toml", _Marks)
    return tuple((re.compile(mark.pattern or mark.process), mark) for mark in table.mark)


def span(run: Run) -> tuple[Span, list[str]]:
    """The releases that print every form seen, and the names of the forms that bound them."""
    texts = [event.text for event in run.events[:MAX_TEXTS]]
    processes = {event.rank.process for event in run.events[:MAX_TEXTS]}
    seen = [
        mark for pattern, mark in marks()
        if any(pattern.search(text) for text in (processes if mark.process else texts))
    ]  # fmt: skip
    low = max((mark for mark in seen if mark.since), key=lambda mark: Version(mark.since or "0"), default=None)
    high = min((mark for mark in seen if mark.until), key=lambda mark: Version(mark.until or "0"), default=None)
    bounds = Span(low.since if low else None, high.until if high else None)
    return bounds, [mark.name for mark in (low, high) if mark is not None]


def release(run: Run) -> Iterator[Inferred]:
    """The minor release (18 for 0.18.x) by the forms of lines, where the log does not name it."""
    if run.version_source == "log":
        return
    bounds, names = span(run)
    if not names or (bounds.since and bounds.until and Version(bounds.since) >= Version(bounds.until)):
        return
    low = float(Version(bounds.since or "0.6.0").minor)
    high = float(Version(bounds.until).minor) if bounds.until else 33.0
    shown = f"{bounds.since or 'any'} up to {'before ' + bounds.until if bounds.until else 'the newest'}"
    yield Inferred("release_minor", high if bounds.until is None else max(low, high - 1), low, high,
                   f"releases {shown} print such lines: {', '.join(names)}")  # fmt: skip
