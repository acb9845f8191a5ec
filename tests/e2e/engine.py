"""The real vLLM on the CPU (`make .venv-engine/.ready`), and what every test of it needs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
VENV = ROOT / ".venv-engine"
#: another installation's `vllm`, instead of .venv-engine's
OVERRIDE = "ULLAGE_TEST_VLLM"
#: one GiB of KV cache, no network, no statistics sent; two small OpenMP teams would fight for two cores
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1",
}  # fmt: skip
SERVE = ("--host", "127.0.0.1", "--max-num-seqs", "8", "--enforce-eager")
READY_S = 240.0


def vllm() -> Path:
    """The program; the test is skipped where it is not installed, or not to the end."""
    given = os.environ.get(OVERRIDE)
    found = Path(given) if given else VENV / "bin" / "vllm"
    if not found.exists() or not (given or (VENV / ".ready").exists()):
        pytest.skip(f"no vLLM for the CPU: make .venv-engine/.ready, or set {OVERRIDE} to a vllm program")
    return found


def python() -> Path:
    """The Python beside it, which has torch."""
    return vllm().with_name("python")
