"""The tools by name: what they do in a sentence or two, what they take and return, what they change."""

from __future__ import annotations

from typing import Any

from mcp_types import Tool, ToolAnnotations
from msgspec import Struct

from ullage.mcp import arguments as given
from ullage.mcp import schemas

INSTRUCTIONS = (
    "ullage tells whether an LLM server will start, why it crashed, where each GiB goes and which change"
    " mends it, by the engines' own arithmetic. Start with `why` for a log, `plan` for a launch command;"
    " each proposed change was planned again before it is shown. `text` is the answer in short, the structured"
    " result has every figure with its source. Files are read only below the server's roots."
)


class Kind(Struct, frozen=True):
    """A tool. ``launches``: it starts or ends processes, and exists only where that was allowed; ``large``: it
    may read large logs."""

    name: str
    title: str
    text: str
    arguments: type[Struct]
    returns: dict[str, Any]
    large: bool = False
    launches: bool = False
    destructive: bool = False


_ALL = (
    Kind("plan", "Will this launch start?",
         "Plan a launch command before it is run: will it start, where each GiB goes on each rank, how many KV"
         " tokens, which interval of the memory fraction starts, and changes that help, each checked.",
         given.Plan, schemas.PLAN_SCHEMA),
    Kind("why", "Why did it fail?",
         "Explain the log of a server run: what failed first and what merely followed, the true cause with its"
         " formula and evidence, what it is not, and checked changes. Add the log of a run that worked as"
         " `baseline` to learn which difference decides.",
         given.Why, schemas.WHY_SCHEMA, large=True),
    Kind("diff", "Two runs side by side",
         "Compare two runs by their logs: settings, environment, both memory ledgers, and which difference"
         " decides.", given.Diff, schemas.DIFF_SCHEMA, large=True),
    Kind("spec", "Does speculative decoding pay?",
         "Tell for a launch command at which batch sizes speculative decoding pays, and which acceptance length"
         " or all-reduce time would make it pay.", given.Spec, schemas.SPEC_SCHEMA, large=True),
    Kind("comm_plan", "What do the all-reduces cost?",
         "List the collectives of a forward pass of a launch command, their time on each backend, which of"
         " them these GPUs can use at all, and what to try first.", given.CommPlan, schemas.COMM_SCHEMA),
    Kind("check", "What is this machine?",
         "Look at this machine, or at saved outputs of another: GPUs, links, driver, software, and known bad"
         " combinations with what helps.", given.Check, schemas.CHECK_SCHEMA, large=True),
    Kind("runs", "Runs that were kept",
         "List the runs that `ullage run` kept, or show one whole: command, environment, plan, stages, outcome,"
         " diagnosis. A run's name also stands for its log in `why` and `diff`.",
         given.Runs, schemas.RUNS_SCHEMA),
    Kind("run", "Launch a server",
         "Launch one plain command with `ullage run`: it is planned first and not started where it will not"
         " start, stopped early where it is doomed, explained where it crashes, and ended with this server."
         " Returns its name for `run_status` and `run_stop`.",
         given.Launch, schemas.RUN_SCHEMA, launches=True),
    Kind("run_status", "How is a run?",
         "State of a run by its name: stages, outcome, diagnosis, the last lines of its log.",
         given.Status, schemas.RUN_SCHEMA, launches=True),
    Kind("run_stop", "Stop a run", "End a run that this server launched, with all its processes.",
         given.Stop, schemas.RUN_SCHEMA, launches=True, destructive=True),
)  # fmt: skip


def kinds(*, allow_run: bool) -> dict[str, Kind]:
    return {kind.name: kind for kind in _ALL if allow_run or not kind.launches}


def listed(kind: Kind, *, hub: bool) -> Tool:
    """The tool as clients see it. Those that launch or may ask the hub reach beyond this machine."""
    reads = not kind.launches or kind.name == "run_status"
    return Tool(
        name=kind.name, title=kind.title, description=kind.text, input_schema=given.schema(kind.arguments),
        output_schema=kind.returns,
        annotations=ToolAnnotations(
            title=kind.title, read_only_hint=reads, destructive_hint=kind.destructive,
            idempotent_hint=reads or kind.destructive, open_world_hint=hub or kind.name == "run",
        ),
    )  # fmt: skip
