"""A first campaign file for a launch command, with comments that say what everything is for."""

from __future__ import annotations

import json
from collections.abc import Sequence

from ullage.lab.campaign import approach
from ullage.lab.campaign.approach import Command
from ullage.lab.campaign.file import schema
from ullage.planning.plan import engine_of

SCHEMA_FILE = "campaign.schema.json"


def text(launch: str, gpu: str | None = None, version: str | None = None) -> str:
    """The file. Raises CommandError for what is no launch of a known engine."""
    command = approach.read(launch)
    engine = engine_of(launch)
    lines = [*_head(command, gpu, version), *_approaches(engine.name), *_rest(engine.name)]
    return "\n".join(lines) + "\n"


def _quoted(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)


def _head(command: Command, gpu: str | None, version: str | None) -> Sequence[str]:
    return [
        f"# yaml-language-server: $schema=./{SCHEMA_FILE}",
        "# A campaign: a baseline, approaches that each change one thing, verdicts with their uncertainty.",
        "#   ullage campaign run --dry-run FILE   plans everything and starts nothing",
        "#   ullage campaign run FILE             then resume, status, report, export",
        "",
        "# The launch command, as it is run. Variables may stand in front.",
        "launch: >-",
        f"  {command.text}",
        "",
        "# For the plan: the GPUs (default: those of this machine) and the engine's release.",
        f"{'' if gpu else '# '}gpu: {_quoted(gpu or '8x H100')}",
        f"{'' if version else '# '}engine_version: {_quoted(version or '0.5.9')}",
        "",
        "# What everything is compared with: settings on top of the launch. It runs first and must start.",
        "baseline:",
        "  reason: the settings in use today",
        "  flags: {}",
        "  env: {}",
        "",
        "# What to try: each changes one thing and says why it should help. A flag with null is taken out.",
        "# also: [SETTING] declares what may come along by default; else it is marked confounded.",
        "# image: and build: change the container's image, or run a command before the launch.",
    ]


#: one approach that most servers can try, by engine
_EXAMPLES = {
    "sglang": (
        "shorter-chunks",
        "shorter prefill chunks let decode steps in between",
        "chunked-prefill-size: 4096",
    ),
    "vllm": (
        "shorter-batches",
        "shorter prefill batches let decode steps in between",
        "max-num-batched-tokens: 4096",
    ),
}


def _approaches(engine: str) -> Sequence[str]:
    name, reason, flags = _EXAMPLES[engine]
    return [
        "approaches:",
        f"  - name: {name}",
        f"    reason: {reason}",
        f"    flags: {{{flags}}}",
        "  - name: nccl-over-pcie",
        "    reason: direct copies between GPUs of different PCIe roots, where there is no NVLink",
        "    env: {NCCL_P2P_LEVEL: SYS}",
        "",
        "# Or a space instead of approaches:",
        "# space:",
        "#   sampler: tpe            # nsga2 for several goals, grid for every point",
        "#   trials: 20",
        "#   flags:",
        f"#     {flags.partition(':')[0]}: [2048, 4096, 8192]",
        "",
    ]


def _rest(engine: str) -> Sequence[str]:
    return [
        "# The load: vllm (vllm bench serve), sglang (sglang.bench_serving), guidellm, or kind: command with",
        "# command: .. {url} .. and metrics: {NAME: {json: PATH} or {regex: PATTERN}}.",
        "benchmark:",
        f"  kind: {engine}",
        "  args: {num-prompts: 200, random-input-len: 1024, random-output-len: 256, max-concurrency: 32}",
        "  warmup: 1                # runs that are thrown away",
        "",
        "# The first goal decides the verdict; the others are judged beside it.",
        "goals: [output_throughput, median_ttft_ms]",
        "repeats: 5                 # of the benchmark, for each server",
        "confidence: 0.95",
        "least_effect: 0.01         # a smaller relative change is no difference",
        "",
        "limits: {start: 30m, benchmark: 15m, stop: 30s}    # campaign: 8h ends it; resume goes on",
        "",
        "# local (side_by_side: 2, gpus: [0, 1, 2, 3]), ssh (hosts: [a, b]), ray (address: auto), slurm",
        "where: {kind: local}",
        "",
        "# SQLite beside this file; or a PostgreSQL: postgresql://USER@HOST/DATABASE",
        "# storage: sqlite:///campaign.db",
    ]


def editor_schema() -> bytes:
    """The schema that the first line of the file names."""
    return schema()
