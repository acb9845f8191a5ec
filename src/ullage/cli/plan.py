"""``ullage plan``, as click knows it; quick.py does the work."""

from __future__ import annotations

import click

from ullage.cli import quick
from ullage.cli.help import foot
from ullage.cli.output import output_options

EXAMPLES = foot(
    """\
ullage plan --gpu "8x RTX PRO 6000" -- python -m sglang.launch_server \\
    --model-path moonshotai/Kimi-K2.5 --tp 8 --mem-fraction-static 0.55
ullage plan --gpu H100 "vllm serve Qwen/Qwen3-32B --max-model-len 32k"
ullage plan --gpu "2x L40S" --file compose.yaml --json
ullage plan --gpu ssh:gpu07 --html plan.html -- vllm serve Qwen/Qwen3-8B""",
    {0: "it will start", 1: "it will not start", 3: "cannot tell; what is missing is named"},
    "plan.md",
)


@click.command("plan", epilog=EXAMPLES, context_settings={"allow_interspersed_args": False})
@click.argument("launch", nargs=-1, type=click.UNPROCESSED, metavar="[--] LAUNCH COMMAND")
@click.option("--gpu", metavar="NAME",
              help='The GPUs: "8x RTX PRO 6000", or their GiB, "8x 94.08"; "here" (the default where there are '
                   'any) or "ssh:HOST" asks the machine.')  # fmt: skip
@click.option("--engine-version", metavar="V", help="Release of the engine, e.g. 0.5.9.")
@click.option("--model-dir", metavar="DIR", help="Folder with the model's config.json.")
@click.option("--reading", multiple=True, metavar="NAME=VALUE",
              help="A figure you know (free_after_weights_gib=21.71): it beats a rule.")  # fmt: skip
@click.option("--context", multiple=True, type=click.IntRange(1, quick.MOST_TOKENS), metavar="N",
              help="Length of a request, in tokens, for the concurrency.")  # fmt: skip
@click.option("--measured", multiple=True, metavar="batch=N,tok_s=X",
              help="A benchmark of this launch: it mends the speed of every other batch size.")  # fmt: skip
@click.option("--file", "file", metavar="FILE", help='Read the command from a file ("-" is stdin).')
@click.option("--no-hub", is_flag=True, help="Do not ask the hub for a model that is not known here.")
@click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")
@output_options
def command(
    launch: tuple[str, ...],
    gpu: str | None,
    engine_version: str | None,
    model_dir: str | None,
    reading: tuple[str, ...],
    context: tuple[int, ...],
    measured: tuple[str, ...],
    file: str | None,
    no_hub: bool,
    as_json: bool,
    html: str | None,
    markdown: bool,
    unmasked: bool,
) -> int:
    """Will this LAUNCH COMMAND start, where does every GiB go, and which change gives more?

    The command comes as its words behind "--", as one quoted text, or from --file or stdin.
    """
    return quick.plan(
        quick.Options(
            launch,
            gpu,
            engine_version,
            model_dir,
            reading,
            context,
            file,
            as_json,
            no_hub,
            html,
            markdown,
            unmasked,
            measured,
        )
    )
