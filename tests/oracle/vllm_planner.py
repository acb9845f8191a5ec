"""Feeds the planner modules of one vLLM release with plain spec objects; prints one JSON line.

    PYTHON-WITH-TORCH tests/oracle/vllm_planner.py RELEASE DIR

Only ``v1/kv_cache_interface.py`` and the planner (``v1/core/kv_cache_utils.py``, from 0.33 also
``kv_cache_planning.py``) are the release's own; every other module of the package is a stand-in.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import json
import logging
import math
import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

REAL = {
    "vllm.v1.kv_cache_interface", "vllm.v1.core.kv_cache_utils", "vllm.v1.core.kv_cache_planning",
    "vllm.v1.kv_cache_layout", "vllm.v1.kv_cache_spec_registry", "vllm.v1.core.kv_cache_config_builder",
    "vllm.v1.hisparse.layout",
}  # fmt: skip
GIB = 1 << 30


def cdiv(a: int, b: int) -> int:
    return -(a // -b)


def round_up(a: int, b: int) -> int:
    return cdiv(a, b) * b


def dtype_size(dtype: Any) -> int:
    import torch

    return torch.empty((), dtype=dtype).element_size()


def format_gib(value: int) -> str:
    return f"{round(value / GIB, 2)}"


class MultipleOf:
    """Stands in for the kernel block granularity of an attention back end."""


KNOWN = {
    "MultipleOf": MultipleOf, "cdiv": cdiv, "round_up": round_up, "get_dtype_size": dtype_size, "format_gib": format_gib, "GiB_bytes": GIB,
    "prod": math.prod,
}  # fmt: skip
PRINTED: list[str] = []


class Log(logging.Logger):
    """Keeps what the planner would print."""

    def info_once(self, text: str, *args: Any, **kwargs: Any) -> None:
        PRINTED.append(text % args if args else text)

    def info(self, text: Any, *args: Any, **kwargs: Any) -> None:  # type: ignore[override]
        PRINTED.append(text % args if args else text)

    def warning_once(self, *args: Any, **kwargs: Any) -> None: ...
    def debug_once(self, *args: Any, **kwargs: Any) -> None: ...


class StandIn(ModuleType):
    """A module that has every name asked for."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in KNOWN:
            return KNOWN[name]
        if name == "init_logger":
            return Log
        if name == "GiB":
            return lambda value: value * GIB
        return MagicMock(name=name)


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, root: Path) -> None:
        self.root = root

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != "vllm" and not name.startswith("vllm."):
            return None
        file = self.root / (name.replace(".", "/") + ".py")
        if name in REAL and file.exists():
            return importlib.util.spec_from_file_location(name, file)
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: Any) -> ModuleType:
        return StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        return None


def config(interface: Any, ask: dict[str, Any]) -> Any:
    """A stand-in for VllmConfig with what the planner reads."""
    layout = MagicMock()
    if "vllm.v1.kv_cache_layout" in sys.modules:
        named = "BLNHC" if ask.get("packed") else "LBNHC"  # DeepSeek-V4 asks for the block outermost
        layout = sys.modules["vllm.v1.kv_cache_layout"].KVCacheLayout[named]  # type: ignore[attr-defined]
    model = SimpleNamespace(
        max_model_len=ask["length"], original_max_model_len=ask.get("original", ask["length"]),
        supports_kv_cache_grouping=False,
    )  # fmt: skip
    return SimpleNamespace(
        model_config=model,
        parallel_config=SimpleNamespace(
            decode_context_parallel_size=1, prefill_context_parallel_size=1, tensor_parallel_size=1,
            pipeline_parallel_size=1, dcp_kv_cache_interleave_size=1, cp_kv_cache_interleave_size=1,
        ),
        cache_config=SimpleNamespace(
            num_gpu_blocks_override=None, block_size=16, mamba_cache_mode="none", prefix_cache_retention_interval=None,
            get_resolved_kv_cache_layout=lambda: layout, kv_cache_layout="LBNHC", enable_prefix_caching=False,
            mamba_block_size=None, cache_dtype="auto", kv_cache_size_tokens=None, kv_cache_max_concurrency=None,
        ),
        scheduler_config=SimpleNamespace(
            max_num_batched_tokens=ask["batch"], disable_hybrid_kv_cache_manager=not ask.get("hybrid", True),
            max_num_seqs=256,
        ),
        max_in_flight_tokens=ask["batch"] * ask.get("flight", 1), max_concurrent_batches=ask.get("flight", 1),
        speculative_config=None, num_prefill_lookahead_tokens=0, kv_transfer_config=None,
        attention_config=SimpleNamespace(hisparse_config=None), num_speculative_tokens=0,
        device_config=SimpleNamespace(device_type="cuda"),
    )  # fmt: skip


def spec(interface: Any, row: dict[str, Any]) -> Any:
    import inspect

    import torch

    kind, block = row["kind"], row["block"]
    if kind in ("latent", "window"):
        return latent(interface, row)
    common = {
        "block_size": block, "num_kv_heads": row.get("heads", 1), "head_size": row.get("size", 128),
        "dtype": torch.bfloat16, "use_mla": False,
    }  # fmt: skip
    classes = {
        "full": ("FullAttentionSpec", {}), "sliding": ("SlidingWindowSpec", {"sliding_window": row.get("window")}),
        "chunked": ("ChunkedLocalAttentionSpec", {"attention_chunk_size": row.get("window")}),
        "mamba": ("MambaSpec", {"shapes": ((row.get("state", 1),),), "dtypes": (torch.float32,)}),
    }  # fmt: skip
    name, more = classes[kind]
    cls = getattr(interface, name)
    known = inspect.signature(cls).parameters
    values = {**common, **more}
    if kind == "mamba":
        values |= {"block_size": row["block"], "page_size_padded": row.get("padded"), "dtype": torch.float32}
    return cls(**{key: value for key, value in values.items() if key in known})


def latent(interface: Any, row: dict[str, Any]) -> Any:
    """A page of ``row["bytes"]`` bytes of DeepSeek-V4, filled up to 576 by the spec itself."""
    import inspect

    import torch

    cls = interface.SlidingWindowMLASpec if row["kind"] == "window" else interface.MLAAttentionSpec
    known = inspect.signature(cls).parameters
    values = {
        "block_size": row["block"], "num_kv_heads": 1, "head_size": row["size"], "alignment": 576, "sliding_window": row.get("window"),
        "dtype": torch.float32 if row.get("state") else torch.uint8, "compress_ratio": row.get("ratio", 1), "tokens_per_state": row.get("ratio", 1),
        "tensor_parallel_size": 1, "max_tp_shards": 1,
    }  # fmt: skip
    return cls(**{key: value for key, value in values.items() if key in known})


LLAMA = [{"kind": "full", "block": 16, "heads": 8}] * 32
GEMMA = ([{"kind": "sliding", "block": 16, "heads": 8, "size": 256, "window": 1024}] * 5
         + [{"kind": "full", "block": 16, "heads": 8, "size": 256}]) * 8  # fmt: skip
OSS = [{"kind": "sliding", "block": 16, "heads": 4, "size": 64, "window": 128},
       {"kind": "full", "block": 16, "heads": 4, "size": 64}] * 12  # fmt: skip
OSS_DRAFT = [*OSS, {"kind": "full", "block": 16, "heads": 4, "size": 64}]
UNEVEN = [{"kind": "full", "block": 16, "heads": 8}] * 7 + [
    {"kind": "sliding", "block": 16, "heads": 8, "window": 512}
] * 10
TWO_SIZES = [{"kind": "full", "block": 16, "heads": 8}] * 20 + [{"kind": "full", "block": 16, "heads": 4}] * 2
HALF_PAGE = [{"kind": "full", "block": 16, "heads": 8}] * 6 + [
    {"kind": "sliding", "block": 16, "heads": 4, "window": 512}
] * 12
SCOUT = (
    [{"kind": "chunked", "block": 16, "heads": 8, "window": 8192}] * 3
    + [{"kind": "full", "block": 16, "heads": 8}]
) * 12
HYBRID = [{"kind": "mamba", "block": 32768, "state": 265_000, "padded": 528 * 2048}] * 36 + [
    {"kind": "full", "block": 528, "heads": 4, "size": 128}] * 4  # fmt: skip
WINDOW = {"kind": "window", "block": 64, "size": 584, "window": 128}
FOUR = [WINDOW, {"kind": "latent", "block": 256, "size": 584, "ratio": 4},
        {"kind": "window", "block": 4, "size": 2048, "state": True, "window": 8},
        {"kind": "latent", "block": 256, "size": 132, "ratio": 4},
        {"kind": "window", "block": 4, "size": 512, "state": True, "window": 8}]  # fmt: skip
MANY = [WINDOW, {"kind": "latent", "block": 256, "size": 584, "ratio": 128},
        {"kind": "window", "block": 8, "size": 1024, "state": True, "window": 128}]  # fmt: skip
V4 = [WINDOW] * 2 + (FOUR + MANY) * 20 + FOUR
V4_DEEP = (MANY + FOUR) * 30 + [WINDOW]
MODELS = {
    "deepseek_v4": V4, "deepseek_v4_deep": V4_DEEP, "llama": LLAMA, "gemma": GEMMA, "oss": OSS, "oss_draft": OSS_DRAFT, "uneven": UNEVEN, "two_sizes": TWO_SIZES,
    "half_page": HALF_PAGE, "scout": SCOUT, "hybrid": HYBRID,
}  # fmt: skip
ASKS: list[dict[str, Any]] = [
    {"length": 8192, "batch": 8192, "budget": 20_000_000_000},
    {"length": 32768, "batch": 2048, "budget": 20_000_000_000},
    {"length": 32768, "batch": 8192, "budget": 3_000_000_000, "flight": 2},
    {"length": 32768, "batch": 2048, "budget": 200_000_000},
    {"length": 32768, "batch": 2048, "budget": 1_000_000_000},
    {"length": 32768, "batch": 2048, "budget": 20_000_000_000, "hybrid": False},
    {"length": 32768, "original": -1, "batch": 2048, "budget": 700_000_000},
    {"length": 8192, "batch": 8192, "budget": 0},
]


def plan(interface: Any, planner: Any, specs: dict[str, Any], ask: dict[str, Any]) -> dict[str, Any]:
    vllm_config = config(interface, ask)
    PRINTED.clear()
    try:
        if hasattr(planner, "get_kv_cache_configs"):
            more = ()
            if hasattr(planner, "get_global_kv_cache_groups"):
                pretend_builder(planner)
                more = (planner.get_global_kv_cache_groups(vllm_config, [dict(specs)]),)
            configs = planner.get_kv_cache_configs(vllm_config, [dict(specs)], [ask["budget"]], *more)
        else:
            configs = [planner.get_kv_cache_config(vllm_config, dict(specs), ask["budget"])]
        chosen = configs[0]
        if hasattr(planner, "get_kv_cache_capacity"):
            tokens, concurrency = planner.get_kv_cache_capacity(vllm_config, chosen)
        else:
            tokens = int(number("KV cache size: ([0-9,]+)") or 0)
            concurrency = number(r"per request: ([0-9.]+)x")
            if hasattr(planner, "get_max_concurrency_for_kv_cache_config"):
                concurrency = planner.get_max_concurrency_for_kv_cache_config(vllm_config, chosen)
        return {
            "blocks": chosen.num_blocks, "tokens": tokens, "concurrency": concurrency,
            "fitted_length": vllm_config.model_config.max_model_len,
            "groups": [len(group.layer_names) for group in chosen.kv_cache_groups],
        }  # fmt: skip
    except (ValueError, NotImplementedError) as error:
        return {"error": " ".join(f"{type(error).__name__}: {error}".split("Try increasing")[0].split())}


def pretend_builder(planner: Any) -> None:
    """0.33: the platform names a builder; the default one lives in the planner itself."""
    module = sys.modules["vllm.v1.core.kv_cache_config_builder"]
    module.get_kv_cache_config_builder = lambda _: planner.DefaultKVCacheConfigBuilder()  # type: ignore[attr-defined]


def number(pattern: str) -> float | None:
    found = [re.search(pattern, text) for text in PRINTED]
    hits = [float(match[1].replace(",", "")) for match in found if match]
    return hits[-1] if hits else None


def main() -> None:
    release, directory = sys.argv[1:]
    sys.meta_path.insert(0, Finder(Path(directory)))
    import importlib

    interface: Any = importlib.import_module("vllm.v1.kv_cache_interface")
    planner: Any = importlib.import_module("vllm.v1.core.kv_cache_utils")
    if not hasattr(planner, "get_kv_cache_configs") and not hasattr(planner, "get_kv_cache_config"):
        capacity = planner.get_kv_cache_capacity
        planner = importlib.import_module("vllm.v1.core.kv_cache_planning")
        planner.get_kv_cache_capacity = capacity
    register(interface)
    answers = []
    for name, rows in MODELS.items():
        try:
            specs = {f"layers.{i}": spec(interface, row) for i, row in enumerate(rows)}
        except AttributeError:
            continue  # the release has no such kind of layer
        packed = {"packed": True} if name.startswith("deepseek_v4") else {}
        asks = [ask for ask in ASKS if ask.get("hybrid", True)] if packed else ASKS
        answers.extend(
            {"model": name, **ask, **plan(interface, planner, specs, {**ask, **packed})} for ask in asks
        )
    print(json.dumps({"release": release, "answers": answers}, separators=(",", ":")))


def register(interface: Any) -> None:
    """From 0.25 on the engine registers its kinds of spec before planning."""
    registry = sys.modules.get("vllm.v1.kv_cache_spec_registry")
    if registry is None or isinstance(registry, StandIn):
        return
    for name, base in (
        ("FullAttentionSpec", "FullAttentionSpec"), ("SlidingWindowSpec", "SlidingWindowSpec"),
        ("ChunkedLocalAttentionSpec", "ChunkedLocalAttentionSpec"), ("MambaSpec", "MambaSpec"),
        ("UniformTypeKVCacheSpecs", "UniformTypeKVCacheSpecs"),
    ):  # fmt: skip
        cls = getattr(interface, name, None)
        if cls is not None:
            registry.KVCacheSpecRegistry.register(cls, MagicMock(), getattr(interface, base))


if __name__ == "__main__":
    main()
