"""Settings: the arguments of a launch that SGLang's memory arithmetic reads, each with the engine's type.

Only what is given, or printed by the log, is known here; defaults.py fills the rest by the release's own rules.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

from msgspec import Struct
from msgspec.structs import replace
from packaging.version import Version

from ullage.core.launch import Launch
from ullage.core.versions import Span

#: bytes of one element, for the spellings of ``--kv-cache-dtype`` and of ``torch_dtype``
DTYPE_BYTES = {
    "fp8_e5m2": 1, "fp8_e4m3": 1, "fp8": 1, "float8_e4m3fn": 1, "float8_e5m2": 1, "mxfp8": 1, "int8": 1,
    "fp4_e2m1": 1, "nvfp4": 1, "mxfp4": 1,  # two 4-bit elements in each byte: cells.py halves it
    "bf16": 2, "bfloat16": 2, "half": 2, "float16": 2, "fp16": 2, "float": 4, "float32": 4,
}  # fmt: skip
FP4 = ("fp4_e2m1", "nvfp4", "mxfp4")
#: algorithms with a draft model whose layers keep KV of their own
EAGLE_FAMILY = ("EAGLE", "EAGLE3", "NEXTN", "FROZEN_KV_MTP")
#: drafts of several layers that make a block of tokens at once
BLOCK_FAMILY = ("DFLASH", "DSPARK")


@lru_cache(4096)
def at_least(release: Version | None, since: str) -> bool:
    """True from ``since`` on; an unknown release is taken as the newest."""
    return Span(since).holds(release)


class Settings(Struct, frozen=True):
    """What the arithmetic reads. None: not given and not yet resolved. Sizes are in tokens or counts."""

    release: Version | None = None
    tp: int = 1
    pp: int = 1
    dp: int = 1
    cp: int = 1
    dp_attention: bool = False
    mem_fraction_static: float | None = None
    chunked_prefill_size: int | None = None
    max_prefill_tokens: int = 16384
    cuda_graph_max_bs: int | None = None
    cuda_graph_bs: tuple[int, ...] = ()
    decode_graphs: bool = True
    prefill_graphs: bool = False
    prefill_graph_sizes: tuple[int, ...] = ()
    graph_padding: bool = True
    page_size: int | None = None
    kv_cache_dtype: str = "auto"
    dtype: str = "auto"
    context_length: int | None = None
    max_total_tokens: int | None = None
    max_running_requests: int | None = None
    attention_backend: str | None = None
    prefill_attention_backend: str | None = None
    decode_attention_backend: str | None = None
    dsa_prefill_backend: str | None = None
    dsa_decode_backend: str | None = None
    speculative_algorithm: str | None = None
    num_steps: int | None = None
    topk: int | None = None
    draft_tokens: int | None = None
    draft_layers: int | None = None
    draft_cell: float | None = None
    swa_full_tokens_ratio: float = 0.8
    hybrid_swa_off: bool = False
    hybrid_kvcache_ratio: float | None = None
    mamba_full_memory_ratio: float | None = None
    max_mamba_cache_size: int | None = None
    mamba_ssm_dtype: str | None = None
    mamba_strategy: str = "auto"
    radix_off: bool = False
    overlap_off: bool = False
    disaggregation_mode: str = "null"
    moe_a2a_backend: str = "none"
    piecewise_on: bool = False
    piecewise_off: bool = False
    piecewise_blocked: bool = False
    torch_compile: bool = False
    lora: bool = False
    language_only: bool = False
    enable_multimodal: bool | None = None
    deterministic: bool = False
    symm_mem: bool = False
    hicache: bool = False
    hicache_ratio: float = 2.0
    hicache_size: float = 0.0
    large_hopper: bool = False
    decode_radix: bool = False
    chunk_settled: bool = False
    env: dict[str, str] = {}

    @property
    def attn_dp(self) -> int:
        """Data-parallel groups inside the tensor-parallel group; 1 without ``--enable-dp-attention``."""
        return self.dp if self.dp_attention else 1

    @property
    def attn_tp(self) -> int:
        """Ranks that share the heads of one attention layer.

        tp / (dp x cp) under DP attention; tp in 0.4.0..0.4.1.post6, which did not divide (dp_attention).
        """
        if self.dp_attention and not at_least(self.release, "0.4.1.post7"):
            return max(1, self.tp)
        return max(1, self.tp // max(1, self.attn_dp * self.cp))

    @property
    def speculative(self) -> bool:
        return self.speculative_algorithm is not None

    @property
    def eagle(self) -> bool:
        return self.speculative_algorithm in EAGLE_FAMILY

    @property
    def page(self) -> int:
        return max(1, self.page_size or 1)

    @property
    def tokens_per_request(self) -> int:
        """Rows that one request adds to a captured decode graph: the verify width, or 1."""
        return max(1, self.draft_tokens or 1) if self.speculative else 1


def extra_buffer(s: Settings) -> bool:
    """Whether running requests keep tracking slots: on request (0.5.7..), by default from 0.5.14 on where the
    scheduler overlaps or the cache is paged."""
    if s.radix_off or not at_least(s.release, "0.5.7"):
        return False
    if s.mamba_strategy == "auto":
        return at_least(s.release, "0.5.14") and (not s.overlap_off or s.page > 1)
    return s.mamba_strategy.startswith("extra_buffer")


#: settings whose names differ from release to release, newest spelling first
_SPELLINGS = {
    "dsa_prefill_backend": ("dsa_prefill_backend", "nsa_prefill_backend", "nsa_prefill"),
    "mamba_strategy": ("mamba_radix_cache_strategy", "mamba_scheduler_strategy"),
    "dsa_decode_backend": ("dsa_decode_backend", "nsa_decode_backend", "nsa_decode"),
}
_RENAMED = {
    "tp": ("tp_size", "tensor_parallel_size", "tp"),
    "pp": ("pp_size", "pipeline_parallel_size", "pp"),
    "dp": ("dp_size", "data_parallel_size", "dp"),
    "cp": ("attn_cp_size", "attention_context_parallel_size"),
    "num_steps": ("speculative_num_steps",),
    "topk": ("speculative_eagle_topk",),
    "draft_tokens": ("speculative_num_draft_tokens",),
    "cuda_graph_max_bs": ("cuda_graph_max_bs_decode", "cuda_graph_max_bs"),
}


def of_launch(launch: Launch) -> Settings:
    """The settings that ``launch`` states. Values of an odd type are taken as unknown; defaults that others
    filled in are left to the rules, which know what they depend on."""
    stated = {name: arg for name, arg in launch.args.items() if arg.origin != "default"}
    launch = replace(launch, args=stated)
    found: dict[str, Any] = {"release": launch.release, "env": launch.env}
    found.update(_numbers(launch))
    found.update(_texts(launch))
    found.update(_switches(launch))
    found.update(_graphs(launch))
    return Settings(**found)


#: no size that a launch states comes near it; larger ones are typing errors, and would only cost time
LARGEST = 1 << 40
MOST_RANKS = 4096


def _numbers(launch: Launch) -> dict[str, Any]:
    names = {name: (name,) for name in (
        "max_prefill_tokens", "page_size", "context_length", "max_total_tokens", "max_running_requests",
        "max_mamba_cache_size",
    )} | _RENAMED  # fmt: skip
    whole = {key: _first(_count(launch.get(name)) for name in spelled) for key, spelled in names.items()}
    for key in ("tp", "pp", "dp", "cp"):
        whole[key] = min(whole[key] or 1, MOST_RANKS)
    chunk = launch.get("chunked_prefill_size")
    # what a log prints is divided already
    whole["chunk_settled"] = "chunked_prefill_size" in launch.args and not _typed(
        launch, "chunked_prefill_size"
    )
    whole["chunked_prefill_size"] = -1 if chunk == -1 else _count(chunk)
    shares = {name: _share(launch.get(name)) for name in (
        "mem_fraction_static", "swa_full_tokens_ratio", "hybrid_kvcache_ratio", "mamba_full_memory_ratio",
        "hicache_ratio", "hicache_size",
    )}  # fmt: skip
    return {key: value for key, value in (whole | shares).items() if value is not None}


def _typed(launch: Launch, name: str) -> bool:
    return launch.args[name].origin == "given"


def _count(value: object) -> int | None:
    """``value`` as a count from 1 on; None where it is none."""
    if isinstance(value, float) and math.isfinite(value) and value.is_integer():
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= LARGEST else None


def _share(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1e6:
        return None
    return float(value)


def _texts(launch: Launch) -> dict[str, Any]:
    names = {name: (name,) for name in (
        "kv_cache_dtype", "dtype", "attention_backend", "prefill_attention_backend", "decode_attention_backend",
        "mamba_ssm_dtype", "disaggregation_mode", "moe_a2a_backend",
    )} | _SPELLINGS  # fmt: skip
    found: dict[str, Any] = {
        key: _first(launch.text(name) for name in spelled) for key, spelled in names.items()
    }
    algorithm = launch.text("speculative_algorithm")
    if algorithm and algorithm.upper() not in ("NONE", ""):
        found["speculative_algorithm"] = algorithm.upper()
    if launch.flag("enable_deepep_moe"):
        found["moe_a2a_backend"] = "deepep"
    return {key: value for key, value in found.items() if value is not None}


def _switches(launch: Launch) -> dict[str, Any]:
    names = {
        "dp_attention": "enable_dp_attention", "radix_off": "disable_radix_cache",
        "overlap_off": "disable_overlap_schedule", "hybrid_swa_off": "disable_hybrid_swa_memory",
        "piecewise_on": "enable_piecewise_cuda_graph", "piecewise_off": "disable_piecewise_cuda_graph",
        "torch_compile": "enable_torch_compile", "language_only": "language_only",
        "deterministic": "enable_deterministic_inference", "symm_mem": "enable_symm_mem",
        "hicache": "enable_hierarchical_cache",
    }  # fmt: skip
    found: dict[str, Any] = {key: True for key, name in names.items() if launch.flag(name)}
    found["language_only"] = launch.flag("language_only") or launch.flag("language_model_only")
    found["piecewise_blocked"] = any(launch.get(name) for name in (
        "enable_lora", "lora_paths", "enable_eplb", "enable_deterministic_inference", "enable_symm_mem",
        "cpu_offload_gb", "enable_hierarchical_cache", "dllm_algorithm", "debug_cuda_graph",
    ))  # fmt: skip
    found["decode_radix"] = launch.flag("disaggregation_decode_enable_radix_cache")
    found["lora"] = bool(launch.get("enable_lora") or launch.get("lora_paths"))
    if isinstance(launch.get("enable_multimodal"), bool):
        found["enable_multimodal"] = launch.flag("enable_multimodal")
    return found


def _graphs(launch: Launch) -> dict[str, Any]:
    """Graph sizes: ``cuda_graph_bs`` and its like, or the ``cuda_graph_config`` that logs print (0.5.14..)."""
    found: dict[str, Any] = {}
    if launch.flag("disable_cuda_graph"):
        found["decode_graphs"] = False
    if launch.flag("disable_cuda_graph_padding"):
        found["graph_padding"] = False
    config = launch.get("cuda_graph_config")
    phases = config if isinstance(config, dict) else {}
    decode, prefill = phases.get("decode"), phases.get("prefill")
    if isinstance(decode, dict):
        found |= {"decode_graphs": False} if decode.get("backend") == "disabled" else {}
        found |= {"cuda_graph_max_bs": size} if (size := _count(decode.get("max_bs"))) else {}
    if isinstance(prefill, dict) and prefill.get("backend") == "disabled":
        found["piecewise_off"] = True
    if launch.flag("disable_prefill_cuda_graph") or launch.text("cuda_graph_backend_prefill") == "disabled":
        found["piecewise_off"] = True
    found |= {"cuda_graph_bs": sizes} if (sizes := _sizes(launch.get("cuda_graph_bs"))) else {}
    return found


def _sizes(value: object) -> tuple[int, ...]:
    found = (_count(item) for item in value[:MOST_RANKS]) if isinstance(value, list) else ()
    return tuple(sorted(size for size in found if size is not None))


def _first(values: Any) -> Any:
    return next((value for value in values if value is not None), None)
