"""Record what SGLang's own code resolves for random launches: many configurations a release, by a fixed seed.

    python tests/oracle/record_sglang_defaults.py --oracle sglang_oracle.py --wheels DIR --models DIR \\
        --python VENV/bin/python [--transformers5 DIR] [--releases 0.5.9 ...] [--out tests/oracle/sglang/random]

The arguments are those of record_sglang.py. One process a release, which forks for every launch, so that none
sees what another changed. Only flags that the release's parser knows, with values that it takes, are drawn. The
same code gives the same files: options.jsonl (flags, by number), lists.jsonl (lists of sizes, by number) and
<release>.jsonl, a launch a line: MiB, capability, model, options, then the COLUMNS, or what the engine says.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import io
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

RELEASES = (
    "0.4.0", "0.4.6.post5", "0.4.9.post2", "0.5.2", "0.5.3", "0.5.5.post1", "0.5.6", "0.5.7", "0.5.8", "0.5.9",
    "0.5.10", "0.5.12", "0.5.14", "0.5.16", "0.5.18", "0.5.20", "0.5.22", "0.5.23",
)  # fmt: skip
LAUNCHES = 140
#: MiB from .. to: what nvidia-smi prints for eight classes of GPU
CLASSES = (
    (15360, 16384), (22528, 24576), (32000, 33792), (40960, 49152), (65536, 81920), (94208, 98304),
    (128000, 147456), (180000, 294912),
)  # fmt: skip
CAPABILITIES = ("8.0", "8.9", "9.0", "10.0", "12.0")
#: draft heads by target; "-" the target's own folder
HEADS = {
    "meta-llama--Llama-3.1-8B-Instruct": "yuhuili--EAGLE3-LLaMA3.1-Instruct-8B",
    "openai--gpt-oss-120b": "lmsys--EAGLE3-gpt-oss-120b-bf16",
    "openai--gpt-oss-20b": "lmsys--EAGLE3-gpt-oss-20b-bf16",
}
DEPTHS = ((3, 1, 4), (5, 4, 8), (2, 2, 6), (1, 1, 2), (7, 8, 32), (4, 1, 8))

#: what is kept of each answer, in this order; unset ones at the end of a line are left out
COLUMNS = (
    "mem_fraction_static", "chunked_prefill_size", "cuda_graph_max_bs", "cuda_graph_bs", "max_running_requests",
    "page_size", "attention_backend", "speculative_num_steps", "speculative_eagle_topk",
    "speculative_num_draft_tokens", "prefill_graphs", "disable_radix_cache",
)  # fmt: skip


def rarely(draw: random.Random, share: float) -> bool:
    return draw.random() < share


def layout(draw: random.Random) -> Iterator[list[str]]:
    tp = draw.choice((1, 1, 2, 4, 8, 8, 16))
    yield ["--tp-size", str(tp)]
    if rarely(draw, 0.1):
        yield ["--pp-size", str(draw.choice((2, 4)))]
    if tp > 1 and rarely(draw, 0.25):
        yield ["--dp-size", str(draw.choice([n for n in (2, 4, 8) if n <= tp]))]
        yield ["--enable-dp-attention"]
    if tp == 16:
        yield from (["--nnodes", "2"], ["--node-rank", "0"], ["--dist-init-addr", "h:1"])
    if rarely(draw, 0.1):
        yield ["--ep-size", str(tp)]


def sizes(draw: random.Random) -> Iterator[list[str]]:
    if rarely(draw, 0.2):
        yield ["--mem-fraction-static", str(draw.choice((0.55, 0.7, 0.8, 0.85, 0.9, 0.94)))]
    if rarely(draw, 0.3):
        yield ["--chunked-prefill-size", str(draw.choice((-1, 512, 2048, 4096, 6144, 16384, 32768)))]
    if rarely(draw, 0.25):
        yield ["--cuda-graph-max-bs", str(draw.choice((1, 7, 16, 64, 100, 200, 300, 512, 640)))]
    if rarely(draw, 0.08):
        yield ["--cuda-graph-bs", draw.choice(("1 2 4", "1 8 16 32 100", "4 512"))]
    if rarely(draw, 0.25):
        yield ["--max-running-requests", str(draw.choice((1, 12, 32, 64, 100, 256, 1000, 4096)))]
    if rarely(draw, 0.25):
        yield ["--page-size", str(draw.choice((1, 16, 32, 64, 128)))]
    if rarely(draw, 0.15):
        yield ["--context-length", str(draw.choice((2048, 4096, 8192, 32768)))]
    if rarely(draw, 0.1):
        yield ["--max-total-tokens", str(draw.choice((3000, 40000, 262144)))]
    if rarely(draw, 0.08):
        yield ["--max-prefill-tokens", str(draw.choice((4096, 8192, 32768)))]


def switches(draw: random.Random) -> Iterator[list[str]]:
    for flag, share in (
        ("--disable-cuda-graph", 0.1), ("--disable-cuda-graph-padding", 0.05), ("--enable-mixed-chunk", 0.08),
        ("--enable-piecewise-cuda-graph", 0.12), ("--disable-piecewise-cuda-graph", 0.08),
        ("--disable-radix-cache", 0.1), ("--disable-overlap-schedule", 0.05), ("--enable-torch-compile", 0.04),
        ("--enable-hierarchical-cache", 0.04), ("--enable-multimodal", 0.05), ("--disable-hybrid-swa-memory", 0.04),
    ):  # fmt: skip
        if rarely(draw, share):
            yield [flag]


def choices(draw: random.Random) -> Iterator[list[str]]:
    if rarely(draw, 0.2):
        backends = ("flashinfer", "triton", "fa3", "flashmla", "cutlass_mla", "trtllm_mla", "trtllm_mha")
        yield ["--attention-backend", draw.choice(backends)]
    if rarely(draw, 0.15):
        yield ["--kv-cache-dtype", draw.choice(("fp8_e5m2", "fp8_e4m3"))]
    if rarely(draw, 0.12):
        yield ["--disaggregation-mode", draw.choice(("prefill", "decode"))]
    if rarely(draw, 0.05):
        yield ["--moe-a2a-backend", "deepep"]


def drafts(draw: random.Random, model: str) -> Iterator[list[str]]:
    if not rarely(draw, 0.25):
        return
    algorithm = draw.choice(("EAGLE", "EAGLE", "EAGLE3", "EAGLE3", "NEXTN", "NGRAM", "STANDALONE"))
    yield ["--speculative-algorithm", algorithm]
    if algorithm not in ("NEXTN", "NGRAM"):
        yield ["--speculative-draft-model-path", "@" + HEADS.get(model, model)]
    if algorithm == "NGRAM" or rarely(draw, 0.4):
        return
    names = ("--speculative-num-steps", "--speculative-eagle-topk", "--speculative-num-draft-tokens")
    yield from ([name, str(n)] for name, n in zip(names, draw.choice(DEPTHS), strict=True))


def launch(draw: random.Random, models: list[str]) -> tuple[int, str, str, list[str]]:
    """(MiB, capability, model, options) of one launch."""
    low, high = draw.choice(CLASSES)
    gpu, model = draw.randint(low, high), draw.choice(models)
    drawn = [*layout(draw), *sizes(draw), *choices(draw), *switches(draw), *drafts(draw, model)]
    return gpu, draw.choice(CAPABILITIES), model, [" ".join(option) for option in drawn]


def known(parser: argparse.ArgumentParser, option: str) -> bool:
    """True if the release's parser has the flag and takes the value."""
    name, *values = option.split()
    action = parser._option_string_actions.get(name)
    if action is None:
        return False
    return action.choices is None or all(value in map(str, action.choices) for value in values)


def drawn(
    recorder: Any, opt: argparse.Namespace, release: str, parser: argparse.ArgumentParser
) -> Iterator[Any]:
    draw = random.Random(f"ullage {release}")
    configs = Path(__file__).parent / "sglang" / "configs.jsonl"
    names = [json.loads(line)["id"] for line in configs.read_text().splitlines()]
    models = [name for name in names if recorder.served(opt, release, name)]
    for _ in range(LAUNCHES):
        gpu, capability, model, options = launch(draw, models)
        yield gpu, capability, model, [option for option in options if known(parser, option)]


def on_gpu(mib: int, capability: str) -> None:
    """Another GPU for this (forked) process: what torch and nvidia-smi say, and what was cached of it."""
    torch = importlib.import_module("torch")
    cap = tuple(int(part) for part in capability.split("."))
    smi = Path(os.environ["PATH"].split(os.pathsep)[0]) / "nvidia-smi"
    smi.write_text("#!/bin/sh\n" + f"echo {mib}\n" * 8)
    properties = torch.cuda.get_device_properties()
    properties.total_memory, properties.major, properties.minor = mib << 20, *cap
    torch.cuda.get_device_capability = lambda *a, **k: cap
    torch.cuda.mem_get_info = lambda *a, **k: (mib << 20, mib << 20)
    for name, module in list(sys.modules.items()):
        if name.startswith("sglang.srt"):
            for value in list(vars(module).values()):
                with contextlib.suppress(Exception):
                    value.cache_clear()


def row(view: dict[str, Any]) -> list[Any]:
    """The COLUMNS of a resolved view (record_sglang.condensed)."""
    off = view.get("disable_piecewise_cuda_graph") or view.get("prefill_graph_backend") == "disabled"
    graphs = view.get("piecewise_cuda_graph_tokens") or view.get("prefill_graph_bs")
    found = {**view, "prefill_graphs": False if off else graphs}
    values = [found.get(name) for name in COLUMNS]
    while values and values[-1] is None:
        values.pop()
    return values


def answered(recorder: Any, oracle: Any, question: Any, models: Path, scratch: Path) -> list[Any] | str:
    mib, capability, model, options = question
    on_gpu(mib, capability)
    folder = recorder.model_folder
    words = " ".join(options).split()
    argv = [folder(models, scratch, word[1:]) if word.startswith("@") else word for word in words]
    sys.argv = ["sglang", *argv]
    try:
        return row(recorder.condensed(recorder.resolve(oracle, folder(models, scratch, model), argv)[1]))
    except BaseException as error:
        return f"{type(error).__name__}: {error}".replace(str(scratch), "")[:110]


def forked(work: Any) -> Any:
    """What ``work()`` returns, worked out in a child process."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            found = work()
        with os.fdopen(writer, "w") as pipe:
            json.dump(found, pipe)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    os.waitpid(pid, 0)
    return json.loads(text) if text else "no answer"


def neighbour() -> Any:
    """record_sglang, which lies beside this file."""
    spec = importlib.util.spec_from_file_location("record_sglang", Path(__file__).parent / "record_sglang.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def work(opt: argparse.Namespace, recorder: Any) -> None:
    """One release: a line of JSON a launch on stdout."""
    release, out = opt.work, os.fdopen(os.dup(1), "w")
    sys.path[:] = [*opt.site, *(path for path in sys.path if Path(path or ".") != Path(__file__).parent)]
    oracle, scratch, models = recorder.load_oracle(opt.oracle), Path(tempfile.mkdtemp()), Path(opt.models)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        oracle.install(release, str(Path(opt.wheels) / release), 81559, 8, (9, 0), "12.9", "NVIDIA GPU")
        images = importlib.import_module("transformers.image_utils")
        vars(images).setdefault("VideoInput", list)  # 0.4.4 imports a name that was moved later
        arguments = importlib.import_module("sglang.srt.server_args")
        with contextlib.suppress(Exception):
            importlib.import_module("sglang.srt.configs.model_config")
        parser = argparse.ArgumentParser()
        arguments.ServerArgs.add_cli_args(parser)
        questions = list(drawn(recorder, opt, release, parser))
        # the first launch imports what all of them need
        answered(recorder, oracle, (81559, "9.0", questions[0][2], []), models, scratch)
    for question in questions:
        found = forked(lambda question=question: answered(recorder, oracle, question, models, scratch))
        print(json.dumps([question, found]), file=out, flush=True)


def record(opt: argparse.Namespace, release: str) -> list[Any]:
    newer = tuple(int(x) for x in release.split(".post")[0].split(".")) >= (0, 5, 10)
    command = [opt.python, __file__, "--oracle", opt.oracle, "--wheels", opt.wheels, "--models", opt.models]
    command += ["--site", opt.transformers5] if newer and opt.transformers5 else []
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*command, "--work", release], check=False, capture_output=True, text=True, env=env)
    if not done.stdout:
        print(f"{release}: nothing; {done.stderr[-600:]}", file=sys.stderr)
    return [json.loads(line) for line in done.stdout.splitlines()]


def write(recorder: Any, out: Path, release: str, rows: list[Any]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    options, lists = recorder.lines(out / "options.jsonl"), recorder.lines(out / "lists.jsonl")
    kept = []
    for (mib, capability, model, drawn), found in rows:
        numbers = [recorder.number(options, option) for option in drawn]
        if isinstance(found, list):
            found = [f"#{recorder.number(lists, v)}" if isinstance(v, list) else v for v in found]
        kept.append([mib, capability, model, numbers, *([found] if isinstance(found, str) else found)])
    recorder.save(out / f"{release}.jsonl", kept)
    recorder.save(out / "options.jsonl", options)
    recorder.save(out / "lists.jsonl", lists)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--oracle", required=True)
    parser.add_argument("--wheels", required=True)
    parser.add_argument("--models", required=True)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--transformers5", default="")
    parser.add_argument("--releases", nargs="*", default=RELEASES)
    parser.add_argument("--out", default=str(Path(__file__).parent / "sglang" / "random"))
    parser.add_argument("--site", action="append", default=[], help=argparse.SUPPRESS)
    parser.add_argument("--work", help=argparse.SUPPRESS)
    opt, recorder = parser.parse_args(), neighbour()
    if opt.work:
        work(opt, recorder)
        return
    with ThreadPoolExecutor(2) as pool:
        recorded = pool.map(lambda release: record(opt, release), opt.releases)
        for release, rows in zip(opt.releases, recorded, strict=True):
            if rows:
                write(recorder, Path(opt.out), release, rows)
            refused = sum(isinstance(found, str) for _, found in rows)
            print(f"{release}: {len(rows) - refused} resolved, {refused} refused", flush=True)


if __name__ == "__main__":
    main()
