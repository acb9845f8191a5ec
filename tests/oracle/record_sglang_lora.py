"""Record the bytes of SGLang's LoRA buffers on one rank: the release's own LoRAMemoryPool, built on the meta device.

    PYTHON tests/oracle/record_sglang_lora.py --oracle sglang_oracle.py --wheels DIR [--site DIR] --release 0.5.9 \\
        >> tests/oracle/sglang/lora.jsonl

One release a run, since it imports the release's unmodified files. Nothing here is imported by ullage.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import inspect
import io
import json
import sys
import types
from pathlib import Path
from typing import Any

LLAMA = {
    "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 14336,
    "num_hidden_layers": 32, "vocab_size": 128256,
}  # fmt: skip
QWEN_MOE = {
    "hidden_size": 2048, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "intermediate_size": 6144,
    "num_hidden_layers": 48, "vocab_size": 151936, "num_experts": 128, "moe_intermediate_size": 768,
}  # fmt: skip
SHAPES = {"meta-llama/Llama-3.1-8B-Instruct": LLAMA, "Qwen/Qwen3-30B-A3B": QWEN_MOE}
ALL = ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"]
#: model, tp, slots, rank, target modules
QUESTIONS = (
    ("meta-llama/Llama-3.1-8B-Instruct", 1, 2, 256, ALL), ("meta-llama/Llama-3.1-8B-Instruct", 4, 8, 16, ALL),
    ("meta-llama/Llama-3.1-8B-Instruct", 2, 4, 64, ALL[:2]), ("meta-llama/Llama-3.1-8B-Instruct", 16, 8, 32, ALL),
    ("Qwen/Qwen3-30B-A3B", 1, 8, 16, ALL), ("Qwen/Qwen3-30B-A3B", 4, 2, 8, ALL), ("Qwen/Qwen3-30B-A3B", 4, 2, 8, ALL[:1]),
)  # fmt: skip


RAW = {"qkv_proj": ["q_proj", "k_proj", "v_proj"], "gate_up_proj": ["gate_proj", "up_proj"]}


def old_names(module: Any, modules: list[str]) -> tuple[set[str], set[str]] | None:
    """The names of the A and B buffers, as releases before 0.5.1 want them."""
    normal = getattr(module, "get_normalized_lora_weight_names", None)
    if normal is None:
        return None
    pairs = [normal(raw) for name in modules for raw in RAW.get(name, [name])]
    return set().union(*(pair[0] for pair in pairs)), set().union(*(pair[1] for pair in pairs))


def pool_bytes(module: Any, question: tuple[str, int, int, int, list[str]]) -> int:
    """Bytes of every buffer that the pool allocates."""
    import torch

    name, tp, slots, rank, modules = question
    config = types.SimpleNamespace(**SHAPES[name])
    config.get_text_config = lambda: config

    class Base(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.empty(1, device="meta"))
            self.config = config

    parallel = types.SimpleNamespace(
        tp_size=tp,
        tp_rank=0,
        attn_tp_size=tp,
        attn_tp_rank=0,
        moe_ep_size=1,
        moe_ep_rank=0,
        moe_tp_size=tp,
        moe_tp_rank=0,
    )
    if hasattr(module, "get_parallel"):
        module.get_parallel = lambda: parallel
    for context, size in (("_get_moe_ep_context", (1, 0)), ("_get_moe_tp_context", (tp, 0))):
        if hasattr(module, context):
            setattr(module, context, lambda size=size: size)
    module.is_pin_memory_available = lambda: False
    pool_class = module.LoRAMemoryPool
    if hasattr(pool_class, "_has_moe_module"):
        pool_class._has_moe_module = staticmethod(lambda base: hasattr(base.config, "num_experts"))
    known: dict[str, Any] = {
        "base_hf_config": config, "max_loras_per_batch": slots, "dtype": torch.bfloat16, "tp_size": tp, "tp_rank": 0,
        "max_lora_rank": rank, "target_modules": set(modules), "base_model": Base(), "eviction_policy": "lru",
        "lora_weight_names": old_names(module, modules), "attn_tp_size": tp, "attn_tp_rank": 0,
        "lora_added_tokens_size": 0, "lora_modules": [], "experts_shared_outer_loras": False,
    }  # fmt: skip
    wanted = inspect.signature(pool_class.__init__).parameters
    pool = pool_class(**{key: value for key, value in known.items() if key in wanted})
    tensors = [t for buffer in (pool.A_buffer, pool.B_buffer) for group in buffer.values() for t in group]
    return sum(t.numel() * t.element_size() for t in tensors)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("oracle", "wheels", "release"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--site", default="")
    opt = parser.parse_args()
    sys.path[:] = [
        *([opt.site] if opt.site else []),
        *(p for p in sys.path if Path(p or ".").resolve() != Path(__file__).parent.resolve()),
    ]
    spec = importlib.util.spec_from_file_location("sglang_oracle", opt.oracle)
    assert spec is not None and spec.loader is not None
    oracle = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(oracle)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        oracle.install(
            opt.release, str(Path(opt.wheels) / opt.release), 81559, 8, (9, 0), "12.9", "NVIDIA H100"
        )
        for first in (
            "srt.server_args",
            "srt.model_executor.model_runner",
        ):  # in this order no import is circular
            with contextlib.suppress(Exception):
                importlib.import_module(f"sglang.{first}")
        module = importlib.import_module("sglang.srt.lora.mem_pool")
    for question in QUESTIONS:
        try:
            row = {"release": opt.release, "question": question, "bytes": pool_bytes(module, question)}
        except Exception as error:
            print(f"{opt.release} {question}: {type(error).__name__}: {error}", file=sys.stderr)
            continue
        print(json.dumps(row, separators=(",", ":")))


if __name__ == "__main__":
    main()
