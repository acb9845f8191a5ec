"""``ullage spec``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from ullage.cli.help import foot
from ullage.diagnose.spoken import Given, batches, benchmarks, call_times

if TYPE_CHECKING:
    from ullage.spec.report import Verdict

EXAMPLES = foot(
    """\
ullage spec --gpu "8x RTX PRO 6000" --engine-version 0.5.9 \\
    --accept-length 2.04-2.28 --allreduce-us 246 \\
    --measured batch=1,tok_s=89.5 -- python -m sglang.launch_server \\
    --model-path moonshotai/Kimi-K2.5 --tp 8 \\
    --speculative-algorithm EAGLE3 --speculative-num-steps 2 \\
    --speculative-eagle-topk 1 --speculative-num-draft-tokens 3
ullage spec --gpu H100 --accept 0.65,0.39,0.24 --method eagle3 --depth 3 \\
    "vllm serve Qwen/Qwen3-8B"
ullage spec --gpu "8x H200" --log server.log \\
    -- vllm serve deepseek-ai/DeepSeek-V3 -tp 8 --speculative-config \\
    '{"method": "mtp", "num_speculative_tokens": 3}\'""",
    {0: "it pays at the first batch size", 1: "it does not", 3: "too near to tell"},
    "spec.md",
)
CODES: dict[Verdict, int] = {"pays": 0, "loses": 1, "cannot": 1, "unsure": 3}


@click.command("spec", epilog=EXAMPLES, context_settings={"allow_interspersed_args": False})
@click.argument("launch", nargs=-1, type=click.UNPROCESSED, metavar="[--] LAUNCH COMMAND")
@click.option(
    "--gpu", metavar="NAME", help='The GPUs: "8x RTX PRO 6000"; "here" or "ssh:HOST" asks the machine.'
)
@click.option("--engine-version", metavar="V", help="Release of the engine: it decides what rates mean.")
@click.option("--model-dir", metavar="DIR", help="Folder with the model's config.json.")
@click.option(
    "--accept", metavar="A1,A2,..", help="Acceptance per position, as vLLM prints it (unconditional)."
)
@click.option("--accept-length", metavar="L[@K]",
              help="Tokens a round, bonus included; 2.04-2.28: a range; @K: at K drafts.")  # fmt: skip
@click.option("--accept-rate", metavar="R", help="Acceptance rate, in the meaning of the engine's release.")
@click.option("--accept-of", type=click.Choice(["log", "request"]), default="log", show_default=True,
              help="Whose rate it is: the log's and the metrics', or one answer's meta_info.")  # fmt: skip
@click.option("--log", "logs", multiple=True, metavar="FILE", help="Read the acceptance from a server's log.")
@click.option("--metrics", multiple=True, metavar="FILE",
              help="Read it from /metrics; given twice: what came between the two.")  # fmt: skip
@click.option("--method", metavar="NAME", help="eagle3, mtp, ngram, ..: where the launch does not speculate.")
@click.option("--draft-model", metavar="ID", help="The draft's model.")
@click.option("--depth", type=click.IntRange(1, 64), metavar="K", help="Draft steps a round.")
@click.option("--topk", type=click.IntRange(1, 64), metavar="N", help="Branches a step; 1 is a chain.")
@click.option("--draft-tokens", type=click.IntRange(2, 1024), metavar="N",
              help="Rows verified a request, the root included.")  # fmt: skip
@click.option("--batch", multiple=True, metavar="N,N", help="Requests at once; several are several answers.")
@click.option("--context", type=click.IntRange(1, 1 << 24), metavar="N", help="Tokens of context a request.")
@click.option("--allreduce-us", multiple=True, metavar="US | BYTES=US",
              help="A measured all-reduce: of the verify pass, or by size (14KiB=30,42KiB=246).")  # fmt: skip
@click.option("--measured", multiple=True, metavar="batch=N,tok_s=X",
              help="A benchmark: tok_s of all requests, or step_ms; accept=L: with drafts.")  # fmt: skip
@click.option("--file", "file", metavar="FILE", help='Read the command from a file ("-" is stdin).')
@click.option("--no-hub", is_flag=True, help="Do not ask the hub for a model that is not known here.")
@click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")
def command(
    launch: tuple[str, ...],
    gpu: str | None,
    engine_version: str | None,
    model_dir: str | None,
    accept: str | None,
    accept_length: str | None,
    accept_rate: str | None,
    accept_of: str,
    logs: tuple[str, ...],
    metrics: tuple[str, ...],
    method: str | None,
    draft_model: str | None,
    depth: int | None,
    topk: int | None,
    draft_tokens: int | None,
    batch: tuple[str, ...],
    context: int | None,
    allreduce_us: tuple[str, ...],
    measured: tuple[str, ...],
    file: str | None,
    no_hub: bool,
    as_json: bool,
) -> int:
    """Does speculation pay for this LAUNCH COMMAND, at which batch sizes, and what would make it pay?

    Acceptance comes from --accept, --accept-length, --accept-rate, --log or --metrics; without any of them the
    usual one of chat is taken, and said so.
    """
    from ullage.cli.quick import read, text_of
    from ullage.planning.drafting import Wish
    from ullage.planning.plan import Asked
    from ullage.planning.speculation import answer

    given = Given(accept, accept_length, accept_rate, accept_of, logs, metrics, read)
    found = answer(
        Asked(text_of(launch, file), gpu, engine_version, model_dir, files=read, hub=not no_hub),
        Wish(method, draft_model, depth, topk, draft_tokens), given.acceptance,
        batches(batch), context, call_times(allreduce_us), benchmarks(measured),
    )  # fmt: skip
    if as_json:
        from ullage.render import spec_json

        sys.stdout.buffer.write(spec_json.spec(found))
    else:
        from ullage.render import spec_text

        spec_text.spec(found)
    sys.stdout.flush()
    return CODES[found.batches[0].verdict]
