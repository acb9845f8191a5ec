"""SGLang's log, Lines -> Run: the rows of log.toml, and what one line alone does not tell (the draft worker,
sub-pools, the phase of a failure)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache

from msgspec import Struct
from msgspec.structs import replace

from ullage.core.run import Event, Failure, Figure, Line, Note, Phase, Ready, Run, Served, Settings, Trace
from ullage.core.tables import load
from ullage.core.units import Measured
from ullage.engines.sglang.printed import settings_in
from ullage.logs.grammar import Grammar, LogTable, chain
from ullage.logs.runs import RunBuilder

# model classes of draft workers, as "type=" of "Load weight end" names them
_DRAFT_TYPE = re.compile(r"type=\w*(?:NextN|Nextn|MTP|Mtp|Eagle|EAGLE|DFlash|Draft|Speculator|Medusa)\w*")
_LABEL = re.compile(r"^(?P<label>[\w ./-]*?)\s*KV Cache is allocated")
_CAPTURE = re.compile(r"(?i)captur\w* [\w /-]{0,40}graph failed|cuda graph failed:")
#: uvicorn, which the launcher starts when every scheduler is ready (entrypoints/http_server.py launch_server)
_HTTP_BIND = re.compile(r"^(?:ERROR:\s+)?\[Errno \d+\] error while attempting to bind on address")
#: a module that cannot be imported, before the server has printed anything of its start
_IMPORT = re.compile(r"^(?:ImportError|ModuleNotFoundError)\b", re.MULTILINE)
#: frames that tell a phase where the log has lost the outer frames and every stage line: code that only a step
#: of the service runs, and code that only the construction of the model runs (0.4.0-0.5.23)
_TAILS: tuple[tuple[Phase, re.Pattern[str]], ...] = (
    ("serving", re.compile(
        r":forward\w*$|layers/(?:logits_processor|sampler)\.py:|fused_moe\w*\.py:(?:\w*fused_experts\w*|invoke_\w+)$"
        r"|layers/attention/\S+:(?:init_forward_metadata\w*|_get_topk\w*|_forward\w*|_run_\w+)$"
        r"|constrained/\w+\.py:(?:accept_token|fill_vocab_mask|try_jump_forward|rollback)$"
        r"|managers/mm_utils\.py:|managers/schedule_batch\.py:|:get_(?:image|video|audio)_feature$"
        r"|managers/cache_controller\.py:(?:write|load|evict_\w+|start_\w+)$")),
    ("init", re.compile(r"pynccl_wrapper\.py:(?:NCCL_CHECK|ncclCommInitRank|ncclGetUniqueId)$")),
    ("args", re.compile(r"sglang/srt/(?!entrypoints/)\S+\.py:<module>$")),
    ("weights", re.compile(
        r"layers/quantization/\S+\.py:(?:__init__|get_quant_method|from_config|create_weights)$"
        r"|distributed/utils\.py:(?:divide|ensure_divisibility)$|srt/models/registry\.py:"
        r"|lora/lora_manager\.py:(?:__init__|init_\w+|load_lora_\w+|validate_\w+)$")),
)  # fmt: skip
#: what only a running step can end in: without any stage line, the server was serving
_OF_STEPS = ("collective-timeout", "watchdog")
MAX_LOOKED_UP = 32
#: settings that the scheduler's summary prints too; the summary wins where both are there
_FROM_SETTINGS = ("mem_fraction_static", "chunked_prefill_size", "max_running_requests")


@cache
def grammar() -> Grammar:
    """SGLang's rows in front, those of the runtime behind."""
    own = load("ullage.engines.sglang", "log.toml", LogTable)
    return Grammar(own, load("ullage.engines.runtime", "log.toml", LogTable))


def reader() -> RunBuilder:
    return SglangRuns(grammar(), "sglang")


class RaisedTable(Struct, frozen=True, forbid_unknown_fields=True):
    """raised.toml: phase -> what its code raises."""

    args: list[str]
    init: list[str]
    weights: list[str]


def phase_of_message(text: str) -> Phase | None:
    """The phase whose code raises a message like ``text``: the longest known phrase in it decides."""
    table = load("ullage.engines.sglang", "raised.toml", RaisedTable)
    best: tuple[int, Phase | None] = (0, None)
    phases: tuple[tuple[Phase, list[str]], ...] = (
        ("args", table.args), ("init", table.init), ("weights", table.weights),
    )  # fmt: skip
    for phase, phrases in phases:
        longest = max((len(phrase) for phrase in phrases if phrase in text), default=0)
        if longest > best[0]:
            best = (longest, phase)
    return best[1]


class _Ranks:
    """How often each rank has printed a kind of line in this run."""

    def __init__(self) -> None:
        self.counts: dict[tuple[str, str], int] = {}

    def add(self, what: str, rank: str) -> int:
        """How often it was printed before; counts this printing."""
        before = self.counts.get((what, rank), 0)
        if len(self.counts) < 65_536:
            self.counts[what, rank] = before + 1
        return before

    def seen(self, what: str, rank: str) -> int:
        return self.counts.get((what, rank), 0)


class SglangRuns(RunBuilder):
    """Reads SGLang's lines. The draft worker prints the same lines as the target, later: what a rank prints for
    the second time is the draft's, unless the arguments say that there is none."""

    def begin_run(self) -> None:
        self.ranks = _Ranks()
        self.settings: dict[str, object] = {}
        self.swa: tuple[int, int] | None = None
        self.ready = self.decoding = self.launcher_warms_up = False
        self.looked_up = 0
        self.request_failed: tuple[str, int] | None = None
        self.marked: tuple[tuple[str, int], bool] | None = None

    # figures

    def refine(self, event: Event, line: Line) -> Iterable[Event]:
        if isinstance(event, Note) and event.name == "server-args-values":
            self.settings = settings_in(line.text)
            yield self._settings(event)
        elif isinstance(event, Figure):
            yield self._figure(event, line)
        else:
            self._follow(event, line)
            yield event

    def _settings(self, note: Note) -> Settings:
        return Settings(
            values=self.settings, resolved=True,
            source=note.source, rank=note.rank, time=note.time, text=note.text,
        )  # fmt: skip

    def _follow(self, event: Event, line: Line) -> None:
        if isinstance(event, Ready):
            self.ready = True
        elif isinstance(event, Served) and (event.tokens_per_s is not None or "HTTP" in line.text):
            self.decoding = True
        elif event.phase == "warmup" and not line.rank.label:
            self.launcher_warms_up = True

    def _figure(self, figure: Figure, line: Line) -> Figure:
        figure = self._sub_pool(figure, line)
        if figure.name == "kv_tokens" and "memory calculation:" in line.text:
            figure = replace(figure, name="dsv4_full_tokens")
        return replace(figure, draft=True) if self._of_draft(line) else figure

    def _sub_pool(self, figure: Figure, line: Line) -> Figure:
        """Sizes of a sliding-window sub-pool get "swa_" in front; the full sub-pool keeps the plain names."""
        text = line.text
        if "swa_layer_tokens=" in text or "swa size:" in text:
            sizes = re.search(r"full_layer_tokens=(\d+), swa_layer_tokens=(\d+)", text)
            self.swa = (int(sizes[1]), int(sizes[2])) if sizes else self.swa
            return figure
        if "KV Cache is allocated" not in text:
            return figure
        label = _LABEL.match(text)
        prefix = self._pool_prefix(label["label"] if label else "", text)
        name = "swa_tokens" if (prefix, figure.name) == ("swa_", "kv_tokens") else f"{prefix}{figure.name}"
        return replace(figure, name=name)

    def _pool_prefix(self, label: str, text: str) -> str:
        """ "swa_" for the sliding-window sub-pool, "sub_" for another labelled pool, "" for the main one."""
        if re.search(r"(?i)\b(?:swa|sliding)", label):
            return "swa_"
        if label and not re.search(r"(?i)\b(?:full|main|draft)\b", label):
            return "sub_"
        tokens = re.search(r"#tokens: (\d+)", text)
        if self.swa is None or tokens is None or self.swa[0] == self.swa[1]:
            return ""
        full, swa = (abs(int(tokens[1]) - size) for size in self.swa)
        return "swa_" if swa < full else ""

    # the draft worker

    def _of_draft(self, line: Line) -> bool:
        """True if the draft worker prints this line. Asked once a line, whatever its number of figures."""
        place = (line.source.file, line.source.line)
        if self.marked is None or self.marked[0] != place:
            self.marked = (place, self._draft(line))
        return self.marked[1]

    def _draft(self, line: Line) -> bool:
        text, rank = line.text, line.rank.label
        if "Load weight begin" in text:
            return self._again("begin", rank)
        if "Load weight end" in text:
            return self._weights_of_draft(text, rank)
        if "KV Cache is allocated" in text or "Mamba Cache is allocated" in text or "KVPool mem usage" in text:
            return self._pool_of_draft(text, rank)
        if "Memory pool end" in text:
            draft = self._pool_of_draft(text, rank)
            self.ranks.add("pool", rank)
            return draft
        if "raph begin" in text or "raph end" in text:
            return self._graph_of_draft(text, rank)
        return "draft KV cache" in text

    def _again(self, what: str, rank: str) -> bool:
        return self.ranks.add(what, rank) > 0 and self._may_have_draft(rank)

    def _may_have_draft(self, rank: str) -> bool:
        """False where the arguments say that nothing is drafted, or where the log has lost its ranks, so that a
        second line is another rank's."""
        if "speculative_algorithm" in self.settings and self.settings["speculative_algorithm"] is None:
            return False
        sizes = [self.settings.get(name) for name in ("tp_size", "pp_size", "dp_size")]
        return bool(rank) or not any(isinstance(size, int) and size > 1 for size in sizes)

    def _weights_of_draft(self, text: str, rank: str) -> bool:
        again = self.ranks.add("weights", rank) > 0
        draft = bool(_DRAFT_TYPE.search(text)) or (again and self._may_have_draft(rank))
        if draft:
            self.ranks.add("draft weights", rank)
        return draft

    def _pool_of_draft(self, text: str, rank: str) -> bool:
        """The target's pool is the first of a rank, except where a log of 0.5.12 or older (without dtype in
        the line) begins between the two."""
        if self.ranks.seen("pool", rank):
            return self._may_have_draft(rank)
        old = "#tokens" in text and "dtype:" not in text
        return old and self.ranks.seen("draft weights", rank) > 0

    def _graph_of_draft(self, text: str, rank: str) -> bool:
        if re.search(r"\bdraft\b", text):
            return True
        if re.search(r"Capture (?:cuda|npu|xpu|cpu) graph ", text) is None:
            return False
        return self._again("graph begin" if "begin" in text else "graph end", rank)

    # failures

    def open_phase(self, line: Line) -> Phase | None:
        """The launcher's stages hold for every rank; a server that decodes serves."""
        if self.ready or (self.decoding and self._before("weights")):
            return "serving"
        if self.launcher_warms_up:
            return "serving" if self.decoding else "warmup"
        return super().open_phase(line) or ("serving" if self.served_first else None)

    def _before(self, phase: Phase) -> bool:
        """True if no stage from ``phase`` on was seen: the log begins after the start."""
        return not any(opened in ("weights", "kv_pool", "graph_capture") for opened in self.open.values())

    def refine_failure(self, failure: Failure, line: Line) -> Failure | Note:
        if failure.kind == "optional-part-missing" or self._of_request(failure, line):
            return _noted(failure)
        texts = [line.text, *(trace.text for trace in chain(line.trace))]
        if any(_CAPTURE.search(text) for text in texts):
            return replace(failure, at="graph_capture")
        if "warmup error" in line.text or (self.launcher_warms_up and _HTTP_BIND.search(line.text)):
            return replace(failure, at="warmup")
        at = failure.at
        starting = any(phase != "serving" for phase in self.open.values())
        if at == "serving" and not self.ready and not self.decoding and starting:
            at = "warmup"
        untold = at is None or (not self.open and self.grammar.phase(line.trace) is None)
        if untold:
            at = "serving" if failure.kind in _OF_STEPS else _told_by_tail(line.trace) or at
        if at is None and not failure.cascade and self.looked_up < MAX_LOOKED_UP:
            self.looked_up += 1
            at = phase_of_message("\n".join(texts))
        if at is None and any(_IMPORT.search(text) for text in texts):
            at = "args"
        return replace(failure, at=at)

    def _of_request(self, failure: Failure, line: Line) -> bool:
        """True for the traceback that uvicorn prints when one request failed: the server goes on."""
        file, number = line.source.file, line.source.line
        if failure.kind == "request-error":
            self.request_failed = (file, number)
            return True
        frames = [frame.file for part in chain(line.trace) for frame in part.frames]
        below = self.request_failed in ((file, number - 1), (file, number - 2)) and not line.rank.label
        return (below and bool(frames)) or any("uvicorn/protocols/" in name for name in frames)

    # what a whole run tells

    def _run(self) -> Run:
        run = super()._run()
        figures = {figure.name for figure in run.all(Figure) if not figure.draft}
        added = [figure for figure in (*_from_settings(run), *_promoted(run)) if figure.name not in figures]
        return replace(run, events=(*run.events, *added)) if added else run


def _noted(failure: Failure) -> Note:
    """What reads like a failure, but stops nothing."""
    known = failure.kind == "optional-part-missing"
    return Note(
        name="optional-part-missing" if known else "request-error", fields={"message": failure.message},
        source=failure.source, rank=failure.rank, time=failure.time, text=failure.text,
    )  # fmt: skip


def _told_by_tail(trace: Trace | None) -> Phase | None:
    """The phase that the inner frames of a traceback tell where nothing else does: a model's forward pass
    without any stage line is one of the service."""
    places = [f"{frame.file}:{frame.function}" for part in chain(trace) for frame in part.frames]
    found = (phase for phase, pattern in _TAILS if any(pattern.search(place) for place in places))
    return next(found, None)


def _from_settings(run: Run) -> Iterable[Figure]:
    settings = run.first(Settings)
    if settings is None:
        return
    for name in _FROM_SETTINGS:
        value = settings.values.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            yield _derived(name, value, settings, "args")


def _derived(name: str, value: float, event: Event, stage: Phase) -> Figure:
    return Figure(
        name=name, value=Measured(float(value)), stage=stage,
        source=event.source, rank=event.rank, time=event.time, text=event.text,
    )  # fmt: skip


def _promoted(run: Run) -> Iterable[Figure]:
    """Tokens of a DeepSeek-V4 pool where no other line names them."""
    for name, plain in (("dsv4_full_tokens", "kv_tokens"), ("dsv4_swa_tokens", "swa_tokens")):
        figure = run.figure(name)
        if figure is not None:
            yield replace(figure, name=plain)
