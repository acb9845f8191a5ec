"""``ullage sweep``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import click

from ullage.cli.help import foot
from ullage.core.errors import InputError

EXAMPLES = foot(
    """\
ullage sweep --gpu "8x H100" --over tp=1,2,4,8 \\
    --over mem-fraction-static=0.6:0.95:0.01 --pareto kv_tokens,-num_gpus \\
    -- python -m sglang.launch_server --model-path Qwen/Qwen3-32B
ullage sweep --gpu H100 --over max-model-len=8k:128k:8k \\
    --over max-num-seqs=1:512:x2 \\
    --where 'verdict == "starts" and requests >= 8' \\
    "vllm serve Qwen/Qwen3-8B"
ullage sweep --over gpu="8x H100,8x H200" --random 1000000 \\
    --over mem-fraction-static=0.5:0.95:0.0001 --parquet all.parquet \\
    -- python -m sglang.launch_server --model-path Qwen/Qwen3-32B""",
    {0: "some configuration will start", 1: "none will", 3: "none surely"},
    "sweep.md",
)


@click.command("sweep", epilog=EXAMPLES, context_settings={"allow_interspersed_args": False})
@click.argument("launch", nargs=-1, type=click.UNPROCESSED, metavar="[--] LAUNCH COMMAND")
@click.option("--over", multiple=True, required=True, metavar="NAME=VALUES",
              help="A setting to vary: values, or from:to:step. Also gpu, engine-version, model.")  # fmt: skip
@click.option("--random", type=click.IntRange(1), metavar="N", help="Draw N configurations instead of all.")
@click.option("--seed", type=click.IntRange(0, 1 << 62), default=0, metavar="S", help="Seed of --random.")
@click.option(
    "--where", multiple=True, metavar="EXPR", help="Keep rows for which this holds (see docs/sweep.md)."
)
@click.option("--pareto", multiple=True, metavar="COLUMN,COLUMN",
              help="Only rows that none beats in all of these; -COLUMN: the smaller the better.")  # fmt: skip
@click.option(
    "--sort", multiple=True, metavar="COLUMN,COLUMN", help="Order of the rows; -COLUMN: largest first."
)
@click.option(
    "--limit", type=click.IntRange(1, 1_000_000), metavar="N", help="At most so many rows (screen: 20)."
)
@click.option("--gpu", metavar="NAME", help='The GPUs, e.g. "8x RTX PRO 6000", or their GiB, "8x 94.08".')
@click.option("--engine-version", metavar="V", help="Release of the engine, e.g. 0.5.9.")
@click.option("--model-dir", metavar="DIR", help="Folder with the model's config.json.")
@click.option("--reading", multiple=True, metavar="NAME=VALUE",
              help="A figure you know (free_after_weights_gib=21.71): it beats a rule.")  # fmt: skip
@click.option("--file", "file", metavar="FILE", help='Read the command from a file ("-" is stdin).')
@click.option("--csv", "csv_file", metavar="FILE", help="Write the rows to a new CSV file.")
@click.option("--parquet", "parquet_file", metavar="FILE", help="Write the rows to a new Parquet file.")
@click.option("--json", "as_json", is_flag=True, help="Print the rows as JSON.")
def command(
    launch: tuple[str, ...],
    over: tuple[str, ...],
    random: int | None,
    seed: int,
    where: tuple[str, ...],
    pareto: tuple[str, ...],
    sort: tuple[str, ...],
    limit: int | None,
    gpu: str | None,
    engine_version: str | None,
    model_dir: str | None,
    reading: tuple[str, ...],
    file: str | None,
    csv_file: str | None,
    parquet_file: str | None,
    as_json: bool,
) -> int:
    """Plan a whole space of settings of this LAUNCH COMMAND at once: what starts, and what gives most.

    Each row is what "ullage plan" says of the command with these settings.
    """
    _need_numpy()
    from ullage.cli.quick import read, text_of
    from ullage.cli.readings import readings
    from ullage.planning.plan import Asked
    from ullage.render import sweep_text
    from ullage.sweep.axes import axis
    from ullage.sweep.order import keys
    from ullage.sweep.sweep import Wanted, sweep
    from ullage.sweep.where import Where
    from ullage.sweep.write import to_file

    if csv_file and parquet_file:
        raise InputError("one file at a time", where="--csv and --parquet")
    asked = Asked(text_of(launch, file), gpu, engine_version, model_dir, readings(reading), files=read)
    with ExitStack() as stack:
        path = csv_file or parquet_file
        wanted = Wanted(
            tuple(axis(text) for text in over), random, seed, tuple(Where(text) for text in where),
            keys(pareto, "--pareto"), keys(sort, "--sort"), limit,
            writer=stack.enter_context(to_file(path, parquet=bool(parquet_file))) if path else None,
        )  # fmt: skip
        found = sweep(asked, wanted, stack.enter_context(_progress(wanted.random)))
    if as_json:
        sys.stdout.buffer.write(sweep_text.json(found))
    elif path:
        click.echo(sweep_text.summary(found), err=True)
    else:
        click.echo(sweep_text.text(found), nl=False)
    verdicts = found.verdicts
    return 0 if verdicts.get("starts") else 3 if verdicts.get("unsure") else 1


def _need_numpy() -> None:
    try:
        import numpy  # noqa: F401
    except ModuleNotFoundError as error:
        raise InputError("needs numpy", where="sweep", hint="pip install 'ullage[sweep]'") from error


@contextmanager
def _progress(rows: int | None) -> Iterator[Callable[[int, int], None] | None]:
    """A bar on stderr; None where stderr is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    with click.progressbar(length=rows or 1, label="planning", file=sys.stderr) as bar:

        def show(done: int, total: int) -> None:
            bar.length = total
            bar.update(max(0, done - bar.pos))

        yield show
