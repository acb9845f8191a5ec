"""What each tool takes: descriptions, examples and limits are part of the schema that clients see."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

Short = Annotated[str, Meta(max_length=200)]
Text = Annotated[str, Meta(max_length=65536)]
Path = Annotated[str, Meta(max_length=4096)]
Name = Annotated[str, Meta(max_length=100, examples=["last", "Qwen3-32B-1129-200003"])]
Command = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=65536,
        description="The launch command as it is typed: variables in front, docker run, line continuations and"
        " a --config file below the roots are understood.",
        examples=[
            "python -m sglang.launch_server --model-path Qwen/Qwen3-32B --tp 2 --mem-fraction-static 0.85",
            "vllm serve Qwen/Qwen3-32B --max-model-len 32k -tp 2",
        ],
    ),
]
Gpu = Annotated[
    Short | None,
    Meta(
        description='The GPUs by name and count, or their memory in GiB; "here" asks this machine, which is'
        " also the default where it has any.",
        examples=["8x RTX PRO 6000", "H100", "2x 94.08", "here"],
    ),
]
Version = Annotated[
    Short | None,
    Meta(
        description="Release of the engine; its own rules are used. Without it the newest known.",
        examples=["0.5.9"],
    ),
]
ModelDir = Annotated[
    Path | None,
    Meta(description="Folder with the model's config.json (below a root), where its id is not enough."),
]
Readings = Annotated[
    dict[
        Annotated[str, Meta(max_length=80, pattern="^[A-Za-z_][A-Za-z0-9_]*$")],
        Annotated[float, Meta(gt=-1e15, lt=1e15)],
    ],
    Meta(
        max_length=64,
        description="Figures that are known; they beat a rule. GiB, tokens, by the name's ending.",
        examples=[{"free_after_weights_gib": 21.71}],
    ),
]
Log = Annotated[
    Path,
    Meta(
        min_length=1,
        description="A log below a root (plain, gzip or zstd), or the name of a run that was kept.",
        examples=["server.log", "last"],
    ),
]
Tokens = Annotated[int, Meta(ge=1, le=1 << 40)]
Batch = Annotated[
    list[Annotated[int, Meta(ge=1, le=1 << 20)]],
    Meta(
        max_length=32,
        description="Requests in decode at once; several are several answers.",
        examples=[[1, 8, 32]],
    ),
]


class _Arguments(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class _Asked(_Arguments, frozen=True, kw_only=True):
    gpu: Gpu = None
    engine_version: Version = None
    model_dir: ModelDir = None


class Plan(_Asked, frozen=True, kw_only=True):
    command: Command
    readings: Readings = {}
    contexts: Annotated[
        list[Tokens],
        Meta(
            max_length=16,
            description="Lengths of a request in tokens, for the concurrency.",
            examples=[[8192]],
        ),
    ] = []


class _Logs(_Asked, frozen=True, kw_only=True):
    command: Annotated[
        Text | None,
        Meta(
            description="The launch command, where the log does not show it.",
        ),
    ] = None
    readings: Readings = {}


class Why(_Logs, frozen=True, kw_only=True):
    logs: Annotated[
        list[Log],
        Meta(
            min_length=1,
            max_length=64,
            description="The log of the run; several files of one run (one per node or"
            " rank) are read together.",
            examples=[["crashed.log"]],
        ),
    ]
    baseline: Annotated[
        list[Log],
        Meta(
            max_length=64,
            description="The log of a run that worked, to compare with.",
            examples=[["worked.log"]],
        ),
    ] = []
    run: Annotated[
        Annotated[int, Meta(ge=-10000, le=10000)] | None,
        Meta(
            description="Which start of a log with several: 1 the first, -1 the last.",
        ),
    ] = None


class Diff(_Logs, frozen=True, kw_only=True):
    a: Annotated[Log, Meta(description="The run to compare with: a log below a root, or a run's name.")]
    b: Annotated[Log, Meta(description="The run to explain: a log below a root, or a run's name.")]


Rate = Annotated[float, Meta(ge=0, le=1)]
Length = Annotated[float, Meta(ge=1, le=100)]


class Spec(_Asked, frozen=True, kw_only=True):
    command: Command
    accept: Annotated[
        list[Rate],
        Meta(
            max_length=64,
            description="Acceptance per position, unconditional, as vLLM prints it.",
            examples=[[0.65, 0.39, 0.24]],
        ),
    ] = []
    accept_length: Annotated[
        list[Length],
        Meta(
            max_length=2,
            description="Tokens a round with the bonus token: the mean, or the low and high end.",
            examples=[[2.3], [2.04, 2.28]],
        ),
    ] = []
    logs: Annotated[
        list[Log],
        Meta(
            max_length=8,
            description="Read the acceptance from a server's log.",
        ),
    ] = []
    method: Annotated[
        Short | None,
        Meta(
            description="How to speculate, where the launch does not say.",
            examples=["eagle3", "mtp", "ngram"],
        ),
    ] = None
    draft_model: Annotated[Short | None, Meta(description="Id of the draft model.")] = None
    depth: Annotated[Annotated[int, Meta(ge=1, le=64)] | None, Meta(description="Draft steps a round.")] = None
    topk: Annotated[
        Annotated[int, Meta(ge=1, le=64)] | None, Meta(description="Branches a step; 1 is a chain.")
    ] = None
    draft_tokens: Annotated[
        Annotated[int, Meta(ge=2, le=1024)] | None,
        Meta(
            description="Rows verified a request, the root included.",
        ),
    ] = None
    batch: Batch = []
    context: Annotated[
        Annotated[int, Meta(ge=1, le=1 << 24)] | None, Meta(description="Tokens of context a request.")
    ] = None
    allreduce_us: Annotated[
        Annotated[float, Meta(ge=0.1, le=1e7)] | None,
        Meta(
            description="A measured all-reduce of the verify pass, in microseconds.",
            examples=[246],
        ),
    ] = None
    measured: Annotated[
        list[Short],
        Meta(
            max_length=4,
            description="Benchmarks: tok_s of all requests (or step_ms) at a batch size; accept=L with drafts.",
            examples=[["batch=1,tok_s=89.5"]],
        ),
    ] = []


class CommPlan(_Asked, frozen=True, kw_only=True):
    command: Command
    batch: Batch = []
    phases: Annotated[
        list[Literal["decode", "prefill"]],
        Meta(
            max_length=2,
            description="Both by default.",
        ),
    ] = []
    tokens: Annotated[
        Annotated[int, Meta(ge=1, le=1 << 40)] | None, Meta(description="Tokens of a prefill's chunk.")
    ] = None
    topology: Annotated[
        Path | None,
        Meta(
            description="File below a root with what `nvidia-smi topo -m` printed.",
            examples=["topo.txt"],
        ),
    ] = None
    via: Annotated[
        Annotated[str, Meta(max_length=60, pattern="^([Ss][Hh][Mm]|[Pp]2[Pp]|[Nn][Ee][Tt])")] | None,
        Meta(
            description="The transport that the NCCL log shows.",
            examples=["SHM", "P2P/IPC", "NET/IB"],
        ),
    ] = None
    measured: Annotated[
        list[Path],
        Meta(
            max_length=32,
            description="Files below a root: output of `ullage comm bench --json` or of nccl-tests.",
        ),
    ] = []


class Check(_Arguments, frozen=True, kw_only=True):
    folder: Annotated[
        Path | None,
        Meta(
            description="Folder below a root with saved outputs (nvidia-smi -q, topo -m, ...); without it this"
            " machine is asked.",
            examples=["report"],
        ),
    ] = None
    engine: Annotated[Short | None, Meta(description="The engine that must be there.")] = None


class Runs(_Arguments, frozen=True, kw_only=True):
    name: Annotated[
        Name | None,
        Meta(
            description='A run to show whole; "last" is the newest. Without it runs are listed, newest first.',
        ),
    ] = None
    limit: Annotated[int, Meta(ge=1, le=200, description="How many are listed.")] = 20


class Launch(_Asked, frozen=True, kw_only=True):
    command: Command
    name: Annotated[
        Annotated[str, Meta(pattern="^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")] | None,
        Meta(
            description="Name of the run; made of the time otherwise.",
        ),
    ] = None
    readings: Readings = {}
    keep_going: Annotated[
        bool,
        Meta(
            description="Launch even what the plan says will not start, and go on with what is doomed.",
        ),
    ] = False
    wait_s: Annotated[
        float,
        Meta(
            ge=0,
            le=120,
            description="Seconds to wait for it to be ready or to end, before this answers.",
        ),
    ] = 5


class Status(_Arguments, frozen=True, kw_only=True):
    name: Name
    wait_s: Annotated[
        float,
        Meta(
            ge=0,
            le=120,
            description="Seconds to wait for it to be ready or to end, before this answers.",
        ),
    ] = 0
    lines: Annotated[int, Meta(ge=0, le=200, description="How many of the log's last lines to add.")] = 20


class Stop(_Arguments, frozen=True, kw_only=True):
    name: Name


def schema(kind: type[Struct]) -> dict[str, Any]:
    """The JSON Schema of a tool's arguments: one object, no references."""
    (_,), components = msgspec.json.schema_components([kind])
    found: dict[str, Any] = dict(components[kind.__name__])
    found.pop("title", None)
    return found
