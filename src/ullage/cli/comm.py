"""``ullage comm plan|bench|import``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from ullage.cli.help import foot
from ullage.cli.quick import MOST_TOKENS, read, text_of

if TYPE_CHECKING:
    from ullage.comm.measured import Measurement
    from ullage.core.machine import Machine
    from ullage.hardware.topology import Topology

PLAN = foot(
    """\
ullage comm plan --gpu "8x L40S" -- python -m sglang.launch_server \\
    --model-path Qwen/Qwen3-32B --tp 8
ullage comm plan --gpu "8x H100" --batch 1 --batch 64 \\
    -- vllm serve deepseek-ai/DeepSeek-V3 -tp 8
ullage comm plan --topology topo.txt --measured all_reduce.txt \\
    --gpu "4x L40S" -- vllm serve Qwen/Qwen3-32B -tp 4""",
    {0: "answered", 3: "cannot tell; what is missing is named"},
    "comm.md",
)
BENCH = foot(
    """\
ullage comm bench --python /opt/engine/bin/python
ullage comm bench --set NCCL_P2P_LEVEL=,SYS --set NCCL_PROTO=,LL,Simple \\
    --sizes 14K,42K
ullage comm bench -- python -m sglang.launch_server \\
    --model-path Qwen/Qwen3-32B --tp 8
ullage comm bench --backend gloo --ranks 2    no GPU: tries the path only""",
    {0: "measured", 1: "a setting failed, or a sum came out wrong"},
    "comm.md",
)
IMPORT = foot(
    """\
ullage comm import all_reduce.txt
all_reduce_perf -b 4K -e 1M -f 2 -g 8 -d bfloat16 -w 20 -n 200 -G 20 \\
    | ullage comm import -""",
    {0: "read, and kept"},
    "comm.md",
)
GROUP = foot(
    """\
ullage comm plan --gpu "8x L40S" -- vllm serve Qwen/Qwen3-32B -tp 8
ullage comm bench --python /opt/engine/bin/python
ullage comm import all_reduce.txt""",
    {0: "answered, or measured", 1: "a measurement failed", 3: "cannot tell; what is missing is named"},
    "comm.md",
)


@click.group("comm", epilog=GROUP)
def command() -> None:
    """What the collectives of a forward pass cost here, on each backend; measured, or from nccl-tests."""


@command.command(
    "plan",
    epilog=PLAN,
    short_help="what they cost here, on each backend",
    context_settings={"allow_interspersed_args": False},
)
@click.argument("launch", nargs=-1, type=click.UNPROCESSED, metavar="[--] LAUNCH COMMAND")
@click.option("--gpu", metavar="NAME", help='The GPUs: "8x RTX PRO 6000", "here", or "ssh:HOST".')
@click.option("--engine-version", metavar="V", help="Release of the engine, e.g. 0.5.9.")
@click.option("--model-dir", metavar="DIR", help="Folder with the model's config.json.")
@click.option(
    "--batch", multiple=True, type=click.IntRange(1, 1 << 20), metavar="N", help="Requests in decode."
)
@click.option("--phase", multiple=True, type=click.Choice(["decode", "prefill"]), help="Both by default.")
@click.option("--tokens", type=click.IntRange(1, MOST_TOKENS), metavar="N", help="Tokens of a prefill's chunk.")
@click.option("--topology", metavar="FILE", help="What `nvidia-smi topo -m` printed.")
@click.option("--via", metavar="TEXT", help='What the NCCL log shows: "SHM", "P2P/IPC".')
@click.option("--measured", multiple=True, metavar="FILE",
              help="Measurements of comm bench, or nccl-tests output: they replace the model.")  # fmt: skip
@click.option("--no-store", is_flag=True, help="Leave out the measurements that are kept.")
@click.option("--file", "file", metavar="FILE", help='Read the command from a file ("-" is stdin).')
@click.option("--no-hub", is_flag=True, help="Do not ask the hub for a model that is not known here.")
@click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")
def plan(
    launch: tuple[str, ...],
    gpu: str | None,
    engine_version: str | None,
    model_dir: str | None,
    batch: tuple[int, ...],
    phase: tuple[str, ...],
    tokens: int | None,
    topology: str | None,
    via: str | None,
    measured: tuple[str, ...],
    no_store: bool,
    file: str | None,
    no_hub: bool,
    as_json: bool,
) -> int:
    """Which collectives does a forward of this LAUNCH COMMAND run, and what do they cost on each backend?"""
    from ullage.comm import store
    from ullage.planning.comm import BATCHES, Asked, comm_plan
    from ullage.planning.plan import Asked as Launch

    found = [one for path in measured for one in store.read(path)]
    asked = Launch(text_of(launch, file), gpu, engine_version, model_dir, files=read, hub=not no_hub)
    answer = comm_plan(Asked(
        asked, batch or BATCHES, tuple(p for p in ("decode", "prefill") if not phase or p in phase), tokens,
        _topology(topology), _via(via), tuple(found) + (() if no_store else store.kept()),
    ))  # fmt: skip
    if as_json:
        from ullage.render import comm_json

        sys.stdout.buffer.write(comm_json.plan(answer))
    else:
        from ullage.render import comm_text

        comm_text.plan(answer)
    return 3 if answer.missing else 0


def _via(text: str | None) -> str | None:
    from ullage.core.errors import InputError

    if text is None or text.upper().startswith(("SHM", "P2P", "NET")):
        return text
    raise InputError(f"is no transport of NCCL: {text[:40]!r}", where="--via", hint="SHM, P2P/IPC or NET/IB")


def _topology(path: str | None) -> Topology | None:
    from ullage.hardware import topology

    return topology.parse(read(path, "matrix of GPUs"), path) if path else None


@command.command(
    "bench", epilog=BENCH, short_help="measure them here", context_settings={"allow_interspersed_args": False}
)
@click.argument("launch", nargs=-1, type=click.UNPROCESSED, metavar="[--] [LAUNCH COMMAND]")
@click.option("--python", metavar="PATH", help="The Python that runs the engine (it must have torch).")
@click.option("--backend", type=click.Choice(["auto", "nccl", "gloo"]), default="auto", show_default=True,
              help="Of torch.distributed; auto: nccl where there are GPUs.")  # fmt: skip
@click.option("--ranks", type=click.IntRange(2, 64), metavar="N", help="Processes; all GPUs by default.")
@click.option("--sizes", metavar="LIST", help="Message sizes, e.g. 14K,42K,1M; 4K to 1M by default.")
@click.option("--kind", multiple=True, type=click.Choice(["all_reduce", "all_gather", "reduce_scatter"]),
              help="What to measure; all_reduce by default.")  # fmt: skip
@click.option(
    "--set",
    "given",
    multiple=True,
    metavar="NAME=A,B",
    help="An NCCL variable and its values (an empty one leaves it out); all combinations are run.",
)
@click.option("--calls", type=click.IntRange(1, 10_000), default=20, show_default=True, help="In each timing.")
@click.option(
    "--repeats", type=click.IntRange(1, 10_000), default=20, show_default=True, help="Timings a size."
)
@click.option(
    "--timeout", type=click.FloatRange(1, 3600), default=120, show_default=True, help="Seconds a setting."
)
@click.option("--no-store", is_flag=True, help="Do not keep the result.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def bench(
    launch: tuple[str, ...],
    python: str | None,
    backend: str,
    ranks: int | None,
    sizes: str | None,
    kind: tuple[str, ...],
    given: tuple[str, ...],
    calls: int,
    repeats: int,
    timeout: float,
    no_store: bool,
    as_json: bool,
) -> int:
    """Measure collectives here, through torch.distributed, for a matrix of NCCL settings.

    A LAUNCH COMMAND gives its own sizes, ranks and NCCL variables. Without it 4 KiB to 1 MiB are measured.
    Each setting runs in fresh processes, eager and inside a CUDA graph. Without GPUs gloo tests the path.
    """
    from msgspec import convert

    from ullage.comm import bench as comm_bench
    from ullage.planning.comm import needs

    path = python or comm_bench.default_python()
    here, count = comm_bench.here(path)
    wanted = here if backend == "auto" else backend
    own = needs(text_of(launch, None)) if launch else None
    usual = comm_bench.USUAL if wanted == "nccl" else ({},)
    asked = convert({
        "python": path, "backend": wanted,
        "ranks": ranks or (own.ranks if own else 0) or (count if wanted == "nccl" and count > 1 else 2),
        "sizes": comm_bench.sizes_of(sizes) if sizes else own.sizes if own else comm_bench.SIZES,
        "kinds": kind or ("all_reduce",), "environment": own.environment if own else {},
        "settings": comm_bench.matrix(given) if given else usual, "calls": calls, "repeats": repeats,
        "timeout_s": timeout,
    }, comm_bench.Asked)  # fmt: skip
    found = comm_bench.run(asked, lambda text: click.echo(text, err=True))
    _show(found, as_json, None if no_store else f"bench-{wanted}-{asked.ranks}")
    return 1 if any(one.failed or any(p.wrong for p in one.points) for one in found) else 0


@command.command("import", epilog=IMPORT, short_help="read the output of nccl-tests")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--no-store", is_flag=True, help="Only show what was read.")
@click.option("--json", "as_json", is_flag=True, help="Print what was read as JSON.")
def import_(files: tuple[str, ...], no_store: bool, as_json: bool) -> int:
    """Read the output of nccl-tests (text, or the JSON of -J), and keep it for `comm plan`."""
    from ullage.comm import nccl_tests, store

    found = [
        one for path in files
        for one in (nccl_tests.read(store.stdin_text(), "stdin") if path == "-" else store.read(path))
    ]  # fmt: skip
    _show(tuple(found), as_json, None if no_store else "nccl-tests")
    return 0


def _show(found: tuple[Measurement, ...], as_json: bool, name: str | None) -> None:
    """Keep the measurements, and print them with what is out of line among them."""
    from ullage.comm import store
    from ullage.comm.measured import outliers_of_measured

    kept = str(store.keep(found, name)) if name and any(one.points for one in found) else ""
    slow = outliers_of_measured(found, _machine)
    if as_json:
        from ullage.render import comm_json

        sys.stdout.buffer.write(comm_json.measurements(found, slow))
    else:
        from ullage.render import comm_text

        comm_text.measurements(found, slow, kept)


def _machine(gpu: str) -> Machine | None:
    from ullage.hardware import gpus

    return gpus.find(gpu)
