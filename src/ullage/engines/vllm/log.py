"""Lines of a vLLM server to Runs: ``log.toml`` applied, restarts, stops, settings. Phases: ``phases.py``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from msgspec.structs import replace
from packaging.version import Version

from ullage.core.run import (
    PHASES,
    Event,
    Failure,
    Line,
    Note,
    Phase,
    Ready,
    Run,
    Served,
    Settings,
    Stage,
    Stopped,
)
from ullage.core.versions import Span
from ullage.engines.vllm.phases import (
    MAX_FRAMES,
    OOM,
    QUIET,
    grammar,
    later,
    placed,
    places,
    quoted,
    trace_of,
    without,
)
from ullage.engines.vllm.printed import keywords, mapping
from ullage.logs.grammar import LineRow, chain
from ullage.logs.runs import RunBuilder

_ENGINE_INIT = re.compile(r"v1/engine/core\.py:__init__$|engine/(?:llm|async_llm)_engine\.py:__init__$")
_ALL_STAGES = re.compile(r":_?initialize_kv_caches$")
_FRAME = re.compile(r'File "(?P<file>[^"]+)"(?:, line \d+)?, in (?P<function>[\w<>]+)')
#: process names and files in front of a line that no other engine prints
_PROCESS = re.compile(
    r"(?:EngineCore|VllmWorker|Worker|A[Pp][Ii]Server|DPCoordinator|RayWorkerWrapper)(?:[_ -]|$)"
)
_WHERE = re.compile(
    r"(?:^|/)(?:core|core_client|async_llm|multiproc_executor|multiproc_worker_utils|ray_executor|executor_base|"
    r"gpu_worker|cpu_worker|worker_base|gpu_model_runner|kv_cache_utils|shm_broadcast|arg_utils)\.py(?::|$)"
)
#: rows that a process prints once a start
_PROGRESS = frozenset({"weights-begin", "weights-loaded", "kv-available"})
#: the last release before one that dropped a line: a log with that line is no newer
_LAST_BEFORE = {"0.9.0": "0.8.5.post1", "0.11.0": "0.10.2"}
#: names that the engine line prints, and the argument each one is
ARGUMENT_NAMES = {
    "max_seq_len": "max_model_len", "chunked_prefill_enabled": "enable_chunked_prefill", "model_tag": "model",
    "num_spec_tokens": "num_speculative_tokens",
}  # fmt: skip


class VllmRuns(RunBuilder):
    """Reads a vLLM log. One start may have many engines (DPn), workers and API servers."""

    def __init__(self) -> None:
        super().__init__(grammar(), "vllm")

    def begin_run(self) -> None:
        self.failed: dict[str, Phase | None] = {}
        self.stopping = False
        self.ready = False
        self.loose: dict[str, list[str]] = {}
        self.releases = Span()
        self.seen: set[str] = set()
        self.marked = False

    def feed(self, line: Line) -> None:
        """As the base; frames that lost their traceback's head, or a line's number, are kept for the failure
        that follows them."""
        if line.trace is None and 'File "' in line.text and (found := _FRAME.search(line.text)):
            kept = self.loose.setdefault(line.rank.label, [])
            if len(kept) < MAX_FRAMES:
                kept.append(f"{found['file']}:{found['function']}")
        super().feed(line)
        if not self.marked and (_PROCESS.match(line.rank.process) or _WHERE.search(line.where or "")):
            self.marked = True
            self._keep(_mark(line))

    def _begins(self, row: LineRow | None, line: Line) -> bool:
        """As the base; but a collector's heading ("OOM-killed") belongs to the log under it."""
        heading = all(isinstance(e, Failure) and e.kind == "memory-limit" for _, e in self.events)
        return not heading and super()._begins(row, line)

    def _take(self, row: LineRow | None, event: Event, line: Line) -> None:
        if row is not None and (row.since or row.until) and row.name not in self.seen:
            self.seen.add(row.name)
            self.releases = _narrowed(self.releases, row)
        if row is not None and row.name in _PROGRESS and self._starts_over(row, line):
            self._close()
            self.num_lines = 1
        super()._take(row, event, line)

    def _starts_over(self, row: LineRow, line: Line) -> bool:
        """True where a process that failed does again what it had done before it failed: a restart whose first
        lines are missing."""
        at = self.failed.get(line.rank.label)
        return at is not None and row.stage is not None and PHASES.index(row.stage) <= PHASES.index(at)

    def refine(self, event: Event, line: Line) -> Iterable[Event]:
        if isinstance(event, Ready | Served) or (isinstance(event, Stage) and event.name == "answered"):
            self.ready = True
        if isinstance(event, Stopped):
            # uvicorn shuts down after a failure too: then nobody asked for it
            if self.failed:
                return ()
            self.stopping = True
        if isinstance(event, Note) and event.name.startswith("settings-") and (settings := _settings(event)):
            return (settings,)
        return (event,)

    def refine_failure(self, failure: Failure, line: Line) -> Failure | Note:
        if self.ready and _only_a_request(failure, line):
            return _request_failed(failure)
        if failure.cascade or failure.hang:
            if failure.at == "serving":
                self._advance(line.rank.label, "serving")
            return failure
        if self.stopping:
            return replace(failure, cascade=True)
        failure = replace(failure, at=self._at(failure))
        self.failed[line.rank.label] = failure.at
        return failure

    def _at(self, failure: Failure) -> Phase | None:
        """The phase of a failure: a server that answers is serving, whatever its frames are called."""
        if self.ready:
            return "serving"
        reached = self._reached(failure.rank.dp)
        if failure.at == "warmup" and failure.kind != "sampler-warmup-oom" and reached == "graph_capture":
            inner = self.grammar.phase(without(failure.trace, "compile_or_warm_up_model"))
            return inner or "graph_capture"
        if failure.kind == "sampler-warmup-oom" and failure.at != "profile":
            return "warmup"
        return failure.at

    def open_phase(self, line: Line) -> Phase | None:
        """The furthest stage that a process of the line's engine has opened: vLLM logs most stages once, from
        one rank, or from the engine process. Frames that span several stages set a limit below."""
        reached = self._reached(line.rank.dp)
        frames = places(line.trace) or self.loose.get(line.rank.label, [])
        if line.level not in QUIET and (told := self.grammar.phase(trace_of(frames))):
            return told
        if any(_ALL_STAGES.search(frame) for frame in frames):
            return later(reached, "profile")
        if any(_ENGINE_INIT.search(frame) for frame in frames) and (reached is None or reached == "args"):
            return "weights" if OOM.search(_message(line)) else "init"
        return reached

    def _opened(self, row: LineRow | None, line: Line) -> Phase | None:
        """As the base, but unknown stays unknown until the whole run is read (``_placed``), and a lower bound
        later than the weights, which fits engines that run no kernel before, is not used."""
        opened = self.open_phase(line)
        if opened is None or row is None or row.least not in ("init", "weights"):
            return opened
        return later(opened, row.least)

    def _reached(self, dp: int | None) -> Phase | None:
        mine = [phase for label, phase in self.open.items() if dp is None or _group(label) in (None, dp)]
        return max(mine or self.open.values(), key=PHASES.index, default=None)

    def _run(self) -> Run:
        run = super()._run()
        run = replace(run, events=quoted(placed(run.events, self._reached(None))))
        release = _LAST_BEFORE.get(self.releases.until or "")
        if run.version is None and release and self.releases.holds(Version(release)):
            return replace(run, version=release, version_source="inferred")
        return run


def _mark(line: Line) -> Note:
    """A line whose head alone shows whose log it is."""
    return Note(name="vllm-process", source=line.source, rank=line.rank, time=line.time, text=line.text[:200])


def _message(line: Line) -> str:
    return "\n".join([line.text, *(trace.text for trace in chain(line.trace))])


def _group(label: str) -> int | None:
    """The data-parallel engine of a rank label ("DP1 TP0"); None where it names none."""
    found = re.match(r"DP(\d+)\b", label)
    return int(found[1]) if found else None


def _narrowed(span: Span, row: LineRow) -> Span:
    """The releases that print all rows seen so far."""
    since = max(span.since or "0", row.since or "0", key=Version)
    until = min((text for text in (span.until, row.until) if text), key=Version, default=None)
    return Span(since if since != "0" else None, until)


def _request_failed(failure: Failure) -> Note:
    return Note(
        name="request-failed", fields={"message": failure.message}, stage="serving",
        source=failure.source, rank=failure.rank, time=failure.time, text=failure.text,
    )  # fmt: skip


def _only_a_request(failure: Failure, line: Line) -> bool:
    """True for an exception of the API server while it serves: it answers one request with an error, or the
    client has gone. A dead engine has rows of its own."""
    cancelled = failure.kind == "interrupted" and "CancelledError" in failure.message
    if failure.kind in grammar().rows and not cancelled:
        return False
    own = [place for place in places(failure.trace) if "vllm/" in place]
    outside = bool(own) and all("vllm/entrypoints/" in place or "vllm/renderers/" in place for place in own)
    return line.rank.process.lower().startswith("apiserver") or outside


def _settings(note: Note) -> Settings | None:
    """The arguments that a line prints, by the names of the command line."""
    if "dict" in note.fields:
        values: Mapping[str, object] = mapping(note.fields["dict"])
    else:
        values = keywords(note.fields.get("arguments", ""))
    if note.fields.get("core"):
        values = {**values, "core": note.fields["core"]}
    named = {
        ARGUMENT_NAMES.get(name, name): _plain(value) for name, value in values.items() if value is not None
    }
    if not named:
        return None
    return Settings(
        values=named, resolved="dict" not in note.fields,
        source=note.source, rank=note.rank, time=note.time, text=note.text,
    )  # fmt: skip


def _plain(value: object) -> object:
    """``torch.bfloat16`` as "bfloat16"; other values as they are."""
    return value.removeprefix("torch.") if isinstance(value, str) else value
