"""Lifts the functions that choose defaults out of one vLLM release and asks them; prints one JSON line.

    PYTHON tests/oracle/vllm_defaults.py RELEASE DIR

Only the two functions are the release's own code; what they read is pretended. Needs nothing installed.
"""

from __future__ import annotations

import ast
import itertools
import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

GPUS = (
    ("NVIDIA H100 80GB HBM3", 85_052_096_512, (9, 0)), ("NVIDIA A100-SXM4-80GB", 85_095_874_560, (8, 0)),
    ("NVIDIA L4", 23_803_985_920, (8, 9)),
    ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 101_971_001_344, (12, 0)),
    ("NVIDIA B200", 191_500_000_000, (10, 0)), ("NVIDIA H200", 150_000_000_000, (9, 0)),
    ("NVIDIA GeForce RTX 5090", 34_190_000_000, (12, 0)), ("NVIDIA GB10", 128_500_000_000, (12, 1)),
)  # fmt: skip
SEQS, SPEC, LIMITS, FAMILIES = (1, 8, 100, 128, 256, 1024), (0, 1, 3), (64, 500, 2048, 8192), (90, 100)


class Gpu:
    """Stands in for the platform object."""

    def __init__(self, name: str = "", total: int = 0, capability: tuple[int, int] = (9, 0)) -> None:
        self.name, self.total, self.capability = name, total, capability

    def get_device_total_memory(self) -> int:
        return self.total

    def get_device_name(self) -> str:
        return self.name

    def is_device_capability(self, capability: object) -> bool:
        return capability in (self.capability, self.capability[0] * 10 + self.capability[1])

    def is_device_capability_family(self, family: int) -> bool:
        return family == self.capability[0] * 10

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: False  # is_tpu, is_cpu, ...


class Usage:
    LLM_CLASS, OPENAI_API_SERVER = "offline", "server"


def lifted(root: Path, name: str, scope: dict[str, Any]) -> Any:
    """The function ``name`` of the release, compiled in ``scope``; None where there is none of that name."""
    for file in (*sorted((root / "vllm").glob("config*.py")), *sorted((root / "vllm/config").glob("*.py")),
                 root / "vllm/engine/arg_utils.py"):  # fmt: skip
        text = file.read_text() if file.exists() else ""
        if f"def {name}(" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef) and node.name == name:
                node.decorator_list, node.returns = [], None
                for arg in node.args.args:
                    arg.annotation = None
                exec(compile(ast.Module([node], []), str(file.name), "exec"), scope)
                return scope[name]
    return None


def modules(gpu: Gpu) -> None:
    """What the functions import when they run."""
    for name, content in (
        ("vllm", {}), ("vllm.platforms", {"current_platform": gpu}), ("vllm.usage", {}),
        ("vllm.usage.usage_lib", {"UsageContext": Usage}),
    ):  # fmt: skip
        module = ModuleType(name)
        module.__dict__.update(content)
        sys.modules[name] = module


def batch(root: Path) -> list[list[Any]]:
    rows = []
    for name, total, capability in GPUS:
        gpu = Gpu(name, total, capability)
        modules(gpu)
        scope = {"current_platform": gpu, "GiB_bytes": 1 << 30, "UsageContext": Usage, "logger": MagicMock()}
        function = lifted(root, "get_batch_defaults", scope)
        if function is None:
            return []
        tokens, seqs = function(None, 1)
        rows.append([name, total, list(capability), tokens["server"], seqs["server"]])
    return rows


def graphs(root: Path) -> list[list[Any]]:
    mode = SimpleNamespace(NONE="none", FULL_AND_PIECEWISE="both")
    rows = []
    for family in FAMILIES:
        modules(Gpu(capability=(family // 10, 0)))
        scope = {
            "CUDAGraphMode": mode, "logger": MagicMock(), "envs": SimpleNamespace(VLLM_USE_V1=True),
            "CompilationMode": MagicMock(), "CompilationLevel": MagicMock(),
        }  # fmt: skip
        function = lifted(root, "_set_cudagraph_sizes", scope)
        questions = itertools.product(SEQS, SPEC, LIMITS)
        rows += [[family, *question, asked(function, *question)] for question in questions]
    return rows


def asked(function: Any, seqs: int, spec: int, limit: int) -> list[int]:
    got: list[int] = []
    compilation = SimpleNamespace(
        cudagraph_mode="both", max_cudagraph_capture_size=None, cudagraph_capture_sizes=None,
        post_init_cudagraph_sizes=lambda: None, init_with_cudagraph_sizes=got.extend,
        pass_config=SimpleNamespace(enable_sequence_parallelism=False, enable_sp=False), mode=3, level=3,
    )  # fmt: skip
    speculative = SimpleNamespace(
        num_speculative_tokens=spec, uses_dynamic_speculative_decoding=lambda: False, method="eagle"
    )
    vllm_config = SimpleNamespace(
        model_config=SimpleNamespace(enforce_eager=False, is_hybrid=False), compilation_config=compilation,
        scheduler_config=SimpleNamespace(max_num_seqs=seqs, max_num_batched_tokens=limit, cuda_graph_sizes=[512]),
        speculative_config=speculative if spec else None, num_speculative_tokens=spec, performance_mode="balanced",
        uniform_decode_query_len=1 + spec, parallel_config=SimpleNamespace(tensor_parallel_size=1),
    )  # fmt: skip
    if function.__code__.co_filename == "__init__.py":
        # 0.10.0 to 0.11.0: scheduler_config.__post_init__ has set min(2 * S, 512) where nothing is given
        vllm_config.scheduler_config.cuda_graph_sizes = [min(seqs * 2, 512)]
    function(vllm_config)
    sizes = compilation.cudagraph_capture_sizes
    return sorted(sizes if sizes is not None else got)


def main() -> None:
    release, directory = sys.argv[1:]
    root = Path(directory)
    asked_rows = graphs(root)
    lists = [list(sizes) for sizes in sorted({tuple(row[-1]) for row in asked_rows})]
    rows = [[*row[:-1], lists.index(row[-1])] for row in asked_rows]
    row = {"release": release, "batch": batch(root), "lists": lists, "graphs": rows}
    print(json.dumps(row, separators=(",", ":")))


if __name__ == "__main__":
    main()
