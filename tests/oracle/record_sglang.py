"""Record what SGLang's own code answers: resolved defaults and KV pool sizes, release by release.

    python tests/oracle/record_sglang.py --oracle sglang_oracle.py --wheels DIR --models DIR \\
        --python VENV/bin/python [--transformers5 DIR] [--releases 0.5.9 ...] [--out tests/oracle/sglang]

``--oracle`` is the script that imports a release's unmodified Python files on a machine without a GPU;
``--wheels`` holds one folder a release (``DIR/0.5.9/sglang/...``); ``--models`` holds one ``config.json`` a model,
named ``owner--name.json``; ``--python`` has torch (CPU) and transformers 4.5x, ``--transformers5`` is a folder
with transformers 5.x for 0.5.10 and later (5.3.0 for 0.5.10 and 0.5.11, whose own classes later ones
shadow). One process a release and GPU class; it forks for every question, so that no question sees what another
one changed. The answers are written sorted: the same code gives the same
file. Nothing here is imported by ullage.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import importlib.util
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

RELEASES = (
    "0.4.0", "0.4.5.post3", "0.4.6.post2", "0.4.6.post5", "0.4.7", "0.4.7.post1", "0.4.9.post2",
    "0.4.10.post2", "0.5.2", "0.5.3", "0.5.3.post3", "0.5.5.post1", "0.5.6", "0.5.7", "0.5.8", "0.5.9", "0.5.10",
    "0.5.11", "0.5.12", "0.5.13", "0.5.14", "0.5.15", "0.5.16", "0.5.17", "0.5.18", "0.5.19", "0.5.20", "0.5.22",
    "0.5.23",
)  # fmt: skip

#: name -> (MiB by nvidia-smi, compute capability, free GiB before the weights)
GPUS: dict[str, tuple[int, str, float]] = {
    "rtx-4090": (24564, "8.9", 23.12),
    "rtx-5090": (32607, "12.0", 31.08),
    "l40s": (46068, "8.9", 44.03),
    "h100": (81559, "9.0", 78.61),
    "rtx-pro-6000": (97887, "12.0", 94.08),
    "h200": (143771, "9.0", 138.29),
    "b200": (183359, "10.0", 177.55),
}

Question = tuple[str, str, str, float, int | None, int | None]
EAGLE = (
    "--speculative-algorithm {} --speculative-draft-model-path @{} --speculative-num-steps 3"
    " --speculative-eagle-topk 1 --speculative-num-draft-tokens 4"
)
NEXTN = EAGLE.replace("--speculative-draft-model-path @{} ", "").format("NEXTN")
LLAMA_HEAD = EAGLE.format("EAGLE3", "yuhuili--EAGLE3-LLaMA3.1-Instruct-8B")

#: GPU, model, flags, free GiB after the weights (share of the GPU where < 1), draft layers, layers of this PP stage
QUESTIONS: tuple[Question, ...] = (
    # one kind of attention: heads, heads below tp, dtypes, pages, caps
    ("rtx-4090", "meta-llama--Llama-3.1-8B-Instruct", "", 7.41, None, None),
    ("rtx-4090", "Qwen--Qwen2.5-7B-Instruct", "--tp 2", 14.93, None, None),
    ("rtx-4090", "Qwen--Qwen2.5-7B-Instruct", "--tp 4 --mem-fraction-static 0.7", 18.02, None, None),
    ("rtx-4090", "meta-llama--Llama-3.1-8B-Instruct", "--kv-cache-dtype fp8_e5m2", 7.41, None, None),
    ("rtx-4090", "meta-llama--Llama-3.1-8B-Instruct", "--mem-fraction-static 0.6", 7.41, None, None),
    ("rtx-5090", "meta-llama--Llama-3.1-8B-Instruct", "", 15.33, None, None),
    ("rtx-5090", "Qwen--Qwen3-30B-A3B", "--tp 4 --page-size 16", 15.9, None, None),
    ("rtx-5090", "Qwen--Qwen3-8B", "--chunked-prefill-size 1024 --max-running-requests 12", 14.77, None, None),
    ("l40s", "meta-llama--Llama-3.1-8B-Instruct", "--max-running-requests 64", 28.9, None, None),
    ("l40s", "Qwen--Qwen3-32B", "--tp 4", 27.31, None, None),
    ("l40s", "Qwen--Qwen3-VL-8B-Instruct", "--tp 2", 34.55, None, None),
    ("h100", "meta-llama--Llama-3.1-8B-Instruct", "", 63.25, None, None),
    ("h100", "meta-llama--Llama-3.1-8B-Instruct", "--disable-radix-cache --disable-cuda-graph", 63.25, None, None),
    ("h100", "meta-llama--Llama-3.1-8B-Instruct", "--max-total-tokens 40000", 63.25, None, None),
    ("h100", "meta-llama--Llama-3.1-8B-Instruct", "--cuda-graph-max-bs 100", 63.25, None, None),
    ("h100", "meta-llama--Llama-3.1-8B-Instruct", "--context-length 8192 --tp 2", 70.77, None, None),
    ("h100", "meta-llama--Llama-3.1-8B-Instruct", "--chunked-prefill-size -1", 63.25, None, None),
    ("h100", "meta-llama--Llama-3.1-70B-Instruct", "--tp 4", 44.68, None, None),
    ("h100", "meta-llama--Llama-3.1-70B-Instruct", "--tp 8 --kv-cache-dtype fp8_e4m3", 61.4, None, None),
    ("h100", "meta-llama--Llama-3.1-70B-Instruct", "--tp 16 --nnodes 2 --node-rank 0 --dist-init-addr h:1", 69.88, None, None),
    ("h100", "meta-llama--Llama-3.1-70B-Instruct", "--tp 2 --pp-size 2", 44.1, None, 40),
    ("h100", "Qwen--Qwen3-235B-A22B", "--tp 8 --page-size 64", 24.2, None, None),
    ("h100", "Qwen--Qwen2.5-72B-Instruct", "--tp 8 --mem-fraction-static 0.91", 60.04, None, None),
    ("h100", "mistralai--Mixtral-8x7B-v0.1", "--tp 2", 34.6, None, None),
    ("h200", "Qwen--Qwen3-30B-A3B", "--tp 4 --dp 4 --enable-dp-attention --mem-fraction-static 0.8", 121.9, None, None),
    ("h200", "Qwen--Qwen3-30B-A3B", "--tp 8 --dp 2 --enable-dp-attention", 129.03, None, None),
    ("h200", "meta-llama--Llama-3.1-70B-Instruct", "--tp 8", 120.77, None, None),
    ("h200", "zai-org--GLM-4.5", "--tp 8 --ep-size 8", 54.2, None, None),
    ("b200", "meta-llama--Llama-3.1-70B-Instruct", "--tp 4", 141.2, None, None),
    ("rtx-pro-6000", "Qwen--Qwen2.5-7B-Instruct", "--tp 4", 90.0, None, None),
    ("rtx-pro-6000", "Qwen--Qwen3-Coder-480B-A35B-Instruct", "--tp 8 --mem-fraction-static 0.9 --max-running-requests 32", 33.6, None, None),
    ("rtx-pro-6000", "MiniMaxAI--MiniMax-M2", "--tp 4 --enable-piecewise-cuda-graph", 39.4, None, None),
    ("rtx-pro-6000", "meta-llama--Llama-3.1-8B-Instruct", "--disaggregation-mode prefill", 77.9, None, None),
    ("h100", "meta-llama--Llama-3.1-8B-Instruct", "--disaggregation-mode decode", 63.25, None, None),
    # MLA and sparse MLA
    ("h200", "deepseek-ai--DeepSeek-V3", "--tp 8", 53.6, None, None),
    ("h200", "deepseek-ai--DeepSeek-V3", "--tp 8 --dp 8 --enable-dp-attention --mem-fraction-static 0.845", 31.87, None, None),
    ("h200", "deepseek-ai--DeepSeek-V3", "--tp 16 --nnodes 2 --node-rank 0 --dist-init-addr h:1 --mem-fraction-static 0.8", 94.2, None, None),
    ("h200", "deepseek-ai--DeepSeek-V3", "--tp 8 " + NEXTN, 51.2, 1, None),
    ("h200", "deepseek-ai--DeepSeek-V3", "--tp 8 --max-total-tokens 65536 --page-size 64", 53.6, None, None),
    ("h100", "deepseek-ai--DeepSeek-V2-Lite", "--trust-remote-code", 46.3, None, None),
    ("b200", "deepseek-ai--DeepSeek-V3", "--tp 8 --kv-cache-dtype fp8_e4m3", 92.1, None, None),
    ("rtx-pro-6000", "moonshotai--Kimi-K2.5", "--tp 8 --trust-remote-code --mem-fraction-static 0.88", 21.71, None, None),
    ("rtx-pro-6000", "moonshotai--Kimi-K2.5", "--tp 8 --trust-remote-code", 21.71, None, None),
    ("rtx-pro-6000", "moonshotai--Kimi-K2.5", "--tp 8 --trust-remote-code --mem-fraction-static 0.55", 21.78, None, None),
    ("rtx-pro-6000", "moonshotai--Kimi-K2-Instruct", "--tp 8 --trust-remote-code --mem-fraction-static 0.95 --cuda-graph-max-bs 128", 21.71, None, None),
    ("h200", "deepseek-ai--DeepSeek-V3.2", "--tp 8 --kv-cache-dtype fp8_e4m3", 50.0, None, None),
    ("h200", "deepseek-ai--DeepSeek-V3.2", "--tp 8", 50.0, None, None),
    ("h200", "deepseek-ai--DeepSeek-V3.2", "--tp 8 --dp 8 --enable-dp-attention", 41.0, None, None),
    ("h200", "deepseek-ai--DeepSeek-V3.2", "--tp 8 " + NEXTN, 47.0, 1, None),
    ("b200", "zai-org--GLM-5-FP8", "--tp 8", 81.5, None, None),
    ("h200", "zai-org--GLM-5-FP8", "--tp 8 --mem-fraction-static 0.85", 42.9, None, None),
    # sliding window beside full attention
    ("h100", "openai--gpt-oss-120b", "--tp 1", 16.3, None, None),
    ("h100", "openai--gpt-oss-120b", "--tp 4 --swa-full-tokens-ratio 0.5", 61.9, None, None),
    ("h100", "openai--gpt-oss-20b", "--tp 2 --disable-hybrid-swa-memory", 71.3, None, None),
    ("rtx-pro-6000", "openai--gpt-oss-120b", "--tp 2 --kv-cache-dtype fp8_e4m3", 61.5, None, None),
    ("b200", "openai--gpt-oss-120b", "--tp 8", 168.8, None, None),
    ("h100", "google--gemma-3-27b-it", "--tp 2", 51.7, None, None),
    ("l40s", "google--gemma-3-12b-it", "--tp 2", 31.6, None, None),
    ("h100", "google--gemma-2-27b-it", "--tp 4", 64.1, None, None),
    ("h100", "google--gemma-4-31B-it", "--tp 4", 62.5, None, None),
    ("h200", "meta-llama--Llama-4-Scout-17B-16E-Instruct", "--tp 8 --context-length 131072", 110.7, None, None),
    ("h200", "meta-llama--Llama-4-Scout-17B-16E-Instruct", "--tp 8 --context-length 131072 --hybrid-kvcache-ratio 0.5", 110.7, None, None),
    ("h200", "XiaomiMiMo--MiMo-V2-Flash", "--tp 4 --trust-remote-code --page-size 64 --mem-fraction-static 0.7", 58.0, None, None),
    # recurrent state beside full attention
    ("h200", "Qwen--Qwen3-Next-80B-A3B-Instruct", "--tp 4", 90.0, None, None),
    ("h200", "Qwen--Qwen3-Next-80B-A3B-Instruct", "--tp 4 --disable-radix-cache --max-running-requests 256", 90.0, None, None),
    ("h200", "Qwen--Qwen3-Next-80B-A3B-Instruct", "--tp 4 --max-mamba-cache-size 400", 90.0, None, None),
    ("h100", "Qwen--Qwen3-Next-80B-A3B-Instruct", "--tp 4 --mamba-full-memory-ratio 0.4", 38.6, None, None),
    ("h200", "Qwen--Qwen3-Next-80B-A3B-Instruct", "--tp 4 --max-running-requests 64 " + NEXTN, 86.0, 1, None),
    ("h200", "Qwen--Qwen3-Next-80B-A3B-Instruct", "--tp 4 --mamba-scheduler-strategy extra_buffer --page-size 64", 90.0, None, None),
    ("h100", "Qwen--Qwen3.5-35B-A3B", "--tp 2", 42.2, None, None),
    ("rtx-pro-6000", "Qwen--Qwen3.5-122B-A10B", "--tp 4 --mem-fraction-static 0.9", 32.8, None, None),
    ("rtx-4090", "Qwen--Qwen3.5-35B-A3B", "--tp 2 --mem-fraction-static 0.849", 10.2, None, None),
    ("h200", "Qwen--Qwen3.5-397B-A17B", "--tp 8 --max-running-requests 32", 40.1, None, None),
    ("h100", "ibm-granite--granite-4.0-h-small", "--tp 2", 45.9, None, None),
    ("h100", "nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "--tp 2 --trust-remote-code", 48.9, None, None),
    ("h100", "nvidia--Nemotron-H-56B-Base-8K", "--tp 4 --trust-remote-code", 50.3, None, None),
    # vision towers and drafts
    ("h100", "Qwen--Qwen3-VL-30B-A3B-Instruct", "--tp 2", 48.4, None, None),
    ("h100", "Qwen--Qwen2.5-VL-7B-Instruct", "", 62.5, None, None),
    ("h200", "Qwen--Qwen3-VL-235B-A22B-Instruct", "--tp 8", 78.5, None, None),
    ("h100", "mistralai--Mistral-Small-3.1-24B-Instruct-2503", "--tp 2", 55.8, None, None),
    ("h100", "meta-llama--Llama-3.1-8B-Instruct", LLAMA_HEAD, 62.4, 1, None),
    ("h100", "meta-llama--Llama-3.1-8B-Instruct", "--mem-fraction-static 0.8 --max-running-requests 16 " + LLAMA_HEAD, 62.4, 1, None),
    ("h100", "meta-llama--Llama-3.1-70B-Instruct", "--tp 4 --speculative-algorithm NGRAM", 44.68, None, None),
    ("h100", "openai--gpt-oss-120b", "--tp 2 " + EAGLE.format("EAGLE3", "lmsys--EAGLE3-gpt-oss-120b-bf16"), 45.8, 1, None),
)  # fmt: skip

#: settings kept of each answer, with the value that need not be written
KEPT: dict[str, Any] = {
    "mem_fraction_static": None, "chunked_prefill_size": None, "cuda_graph_max_bs": None, "cuda_graph_bs": None,
    "piecewise_cuda_graph_tokens": None, "max_running_requests": None, "page_size": 1, "attention_backend": None,
    "kv_cache_dtype": "auto", "speculative_num_steps": None, "speculative_eagle_topk": None,
    "speculative_num_draft_tokens": None, "swa_full_tokens_ratio": 0.8, "mamba_full_memory_ratio": None,
    "disable_hybrid_swa_memory": False, "disable_radix_cache": False, "disable_overlap_schedule": False,
    "mamba_ssm_dtype": None, "nsa_prefill_backend": None, "nsa_decode_backend": None, "dsa_prefill_backend": None,
    "dsa_decode_backend": None, "mamba_strategy": "no_buffer", "enable_piecewise_cuda_graph": False,
    "disable_piecewise_cuda_graph": False, "disable_cuda_graph": False, "cuda_graph_backend": None,
    "prefill_graph_backend": None, "prefill_graph_max_bs": None, "prefill_graph_bs": None,
}  # fmt: skip
POOL = ("max_total_num_tokens", "max_running_requests", "full_max_total_num_tokens", "swa_max_total_num_tokens")


def condensed(resolved: dict[str, Any]) -> dict[str, Any]:
    """The settings worth keeping; ``cuda_graph_config`` taken apart into the names it had before 0.5.14."""
    flat = dict(resolved)
    graphs = flat.pop("cuda_graph_config", None) or {}
    for phase, prefix in (("decode", "cuda_graph"), ("prefill", "prefill_graph")):
        for key in ("backend", "max_bs", "bs"):
            if graphs.get(phase, {}).get(key) is not None:
                flat[f"{prefix}_{key}"] = graphs[phase][key]
    return {k: flat[k] for k, usual in KEPT.items() if flat.get(k) is not None and flat[k] != usual}


def load_oracle(path: str) -> types.ModuleType:
    spec = importlib.util.spec_from_file_location("sglang_oracle", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def model_folder(models: Path, scratch: Path, name: str) -> str:
    """A folder with the model's config.json, without the keys that are not the hub's."""
    folder = scratch / name
    if not folder.exists():
        folder.mkdir(parents=True)
        config = json.loads((models / f"{name}.json").read_text())
        hub = {k: v for k, v in config.items() if not k.startswith("_")}
        (folder / "config.json").write_text(json.dumps(hub))
    return str(folder)


def resolve(oracle: Any, folder: str, argv: list[str]) -> tuple[Any, dict[str, Any]]:
    """The oracle's resolution. A model type that the installed transformers does not know (the hub serves code for
    it, which is never run here) is read as a plain configuration with the attributes of its config.json."""
    try:
        return oracle.resolve(folder, argv)
    except ValueError as error:
        if "does not recognize this architecture" not in str(error):
            raise
    transformers = importlib.import_module("transformers")
    name = json.loads((Path(folder) / "config.json").read_text())["model_type"]
    plain = type("PlainConfig", (transformers.PretrainedConfig,), {"model_type": name, "rope_scaling": None})
    transformers.AutoConfig.register(name, plain)
    return oracle.resolve(folder, argv)


def model_config(oracle: Any, args: Any) -> Any:
    """The model as the scheduler builds it from the resolved arguments (the arguments cache an earlier one)."""
    module = importlib.import_module("sglang.srt.configs.model_config")
    with contextlib.suppress(Exception):
        if not hasattr(args, "resolve_once"):
            return module.ModelConfig.from_server_args(args)
    return oracle.model_config_of(args)


def show_extra_buffer(args: Any, extra: bool) -> None:
    """Let the oracle's stand-in for the runtime namespaces (0.5.16 and later) answer what the release's own
    method answers; it would say False to every ``enable_...`` that is no plain argument."""
    if hasattr(args, "resolved_dict"):
        resolved = type(args).resolved_dict
        type(args).resolved_dict = lambda self: {**resolved(self), "enable_mamba_extra_buffer": extra}


def answer(oracle: Any, release: str, question: Question, models: Path, scratch: Path) -> dict[str, Any]:
    gpu, model, flags, avail, draft_layers, stage_layers = question
    argv = [model_folder(models, scratch, f[1:]) if f.startswith("@") else f for f in flags.split()]
    sys.argv = ["sglang", *argv]
    args, view = resolve(oracle, model_folder(models, scratch, model), argv)
    full = args.resolved_dict() if hasattr(args, "resolved_dict") else vars(args)
    strategy = full.get("mamba_radix_cache_strategy") or full.get("mamba_scheduler_strategy")
    view["mamba_strategy"] = strategy
    show_extra_buffer(args, str(strategy).startswith("extra_buffer") and not view.get("disable_radix_cache"))
    out: dict[str, Any] = {"resolved": condensed(view)}
    view["_draft_layers"] = draft_layers
    config = model_config(oracle, args)
    out["context_len"] = config.context_len
    if stage_layers is not None:
        config.num_hidden_layers = stage_layers
    if (full.get("attn_dp_size") or 1) > 1:  # 0.5.21 and later resolve the flag away
        view |= {"enable_dp_attention": True, "dp_size": full["attn_dp_size"]}
    tp, dp = view.get("tp_size", 1), view.get("dp_size", 1) if view.get("enable_dp_attention") else 1
    major = tuple(int(x) for x in release.split(".post")[0].split("."))
    sizer = oracle.size_new if major >= (0, 5, 16) else oracle.size_old
    try:
        kv = sizer(args, view, config, avail, GPUS[gpu][2], tp // dp, view.get("pp_size", 1))
        pool = kv.pop("pool_config", {})
        out["kv"] = kv | {k: pool[k] for k in POOL if pool.get(k) is not None}
    except Exception as error:  # a refusal is an answer too
        out["kv_error"] = f"{type(error).__name__}: {error}"[:160]
    return out


def forked(oracle: Any, release: str, question: Question, models: Path, scratch: Path) -> dict[str, Any]:
    """The answer worked out in a child process, so that nothing it changes reaches the next question."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        try:
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                found = answer(oracle, release, question, models, scratch)
        except BaseException as error:
            found = {"error": f"{type(error).__name__}: {error}"[:200]}
        with os.fdopen(writer, "w") as pipe:
            json.dump(found, pipe)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    os.waitpid(pid, 0)
    return json.loads(text) if text else {"error": "no answer"}


def served(opt: argparse.Namespace, release: str, model: str) -> bool:
    """True if the release has code for the model's architecture: what it says of another one means nothing."""
    path = Path(opt.models) / f"{model}.json"
    names = json.loads(path.read_text()).get("architectures") or [""] if path.exists() else [""]
    return re.search(rf"\b{names[0]}\b", model_code(str(Path(opt.wheels) / release))) is not None


@functools.cache
def model_code(wheel: str) -> str:
    files = sorted((Path(wheel) / "sglang" / "srt" / "models").glob("*.py"))
    return "\n".join(file.read_text(errors="replace") for file in files)


def work(opt: argparse.Namespace) -> None:
    """One release and one GPU class: a line of JSON a question on stdout."""
    release, gpu = opt.work
    out = os.fdopen(os.dup(1), "w")
    # beside this file lie folders named like the engines: they must not be taken for packages
    sys.path[:] = [*opt.site, *(path for path in sys.path if Path(path or ".") != Path(__file__).parent)]
    oracle = load_oracle(opt.oracle)
    mib, capability, _ = GPUS[gpu]
    cap = tuple(int(x) for x in capability.split("."))
    scratch = Path(tempfile.mkdtemp(prefix="record-"))
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        oracle.install(release, str(Path(opt.wheels) / release), mib, 8, cap, "12.9", "NVIDIA GPU")
        importlib.import_module("torch").distributed.all_reduce = lambda *a, **k: None
        images = importlib.import_module("transformers.image_utils")
        images.VideoInput = getattr(images, "VideoInput", list)  # 0.4.4 imports a name that was moved later
        for name in ("srt.server_args", "srt.configs.model_config", "srt.model_executor.model_runner"):
            with contextlib.suppress(Exception):
                importlib.import_module(f"sglang.{name}")
    for question in QUESTIONS:
        if question[0] == gpu and served(opt, release, question[1]):
            found = forked(oracle, release, question, Path(opt.models), scratch)
            print(json.dumps({"question": question, **found}), file=out, flush=True)


def record(opt: argparse.Namespace, release: str) -> Iterator[dict[str, Any]]:
    newer = tuple(int(x) for x in release.split(".post")[0].split(".")) >= (0, 5, 10)
    for gpu in GPUS:
        command = [opt.python, __file__, "--oracle", opt.oracle, "--wheels", opt.wheels, "--models", opt.models]
        command += ["--site", opt.transformers5] if newer and opt.transformers5 else []
        env = {**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [*command, "--work", release, gpu], check=False, capture_output=True, text=True, env=env
        )
        if not done.stdout:
            print(f"{release} {gpu}: nothing; {done.stderr[-300:]}", file=sys.stderr)
        yield from (json.loads(line) for line in done.stdout.splitlines())


def write(opt: argparse.Namespace, release: str, rows: list[dict[str, Any]]) -> None:
    """answers/<release>.jsonl: one answer a line. Questions and lists of sizes are kept once, by number, in
    questions.jsonl and lists.jsonl."""
    out = Path(opt.out)
    (out / "answers").mkdir(parents=True, exist_ok=True)
    if all("error" in row for row in rows):
        return
    questions, lists = lines(out / "questions.jsonl"), lines(out / "lists.jsonl")
    kept = []
    for row in rows:
        if "error" in row:
            continue
        sizes = {k: f"#{number(lists, v)}" for k, v in row["resolved"].items() if isinstance(v, list)}
        question = number(questions, row.pop("question"))
        kept.append({"q": question, **row, "resolved": row["resolved"] | sizes})
    save(out / "answers" / f"{release}.jsonl", sorted(kept, key=lambda row: int(row["q"])))
    save(out / "questions.jsonl", questions)
    save(out / "lists.jsonl", lists)


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def save(path: Path, rows: list[Any]) -> None:
    path.write_text("".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows))


def number(kept: list[Any], value: Any) -> int:
    """The place of ``value`` in ``kept``, where it is added if it is new."""
    if value not in kept:
        kept.append(value)
    return kept.index(value)


def write_configs(opt: argparse.Namespace) -> None:
    names = sorted({question[1] for question in QUESTIONS})
    files = {name: Path(opt.models) / f"{name}.json" for name in names}
    found = {name: json.loads(path.read_text()) for name, path in files.items() if path.exists()}
    hub = {name: {k: v for k, v in config.items() if not k.startswith("_")} for name, config in found.items()}
    save(Path(opt.out) / "gpus.jsonl", [[name, *row] for name, row in GPUS.items()])
    save(Path(opt.out) / "configs.jsonl", [{"id": k, "config": v} for k, v in hub.items()])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--oracle", required=True)
    parser.add_argument("--wheels", required=True)
    parser.add_argument("--models", required=True)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--transformers5", default="")
    parser.add_argument("--releases", nargs="*", default=RELEASES)
    parser.add_argument("--out", default=str(Path(__file__).parent / "sglang"))
    parser.add_argument("--site", action="append", default=[], help=argparse.SUPPRESS)
    parser.add_argument("--work", nargs=2, help=argparse.SUPPRESS)
    opt = parser.parse_args()
    if opt.work:
        work(opt)
        return
    for release in opt.releases:
        rows = list(record(opt, release))
        write(opt, release, rows)
        errors = [f"{r['question'][1]} {r['question'][2]}: {r['error']}" for r in rows if "error" in r]
        print(f"{release}: {len(rows) - len(errors)} answers, {len(errors)} not answered", flush=True)
        print("\n".join(f"  {line}" for line in errors), file=sys.stderr, flush=True)
    write_configs(opt)


if __name__ == "__main__":
    main()
