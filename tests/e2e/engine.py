"""The real vLLM on the CPU (`make .venv-engine/.ready`), and what every test of it needs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: another installation's `vllm`, instead of .venv-engine's
OVERRIDE = "ULLAGE_TEST_VLLM"
#: one GiB of KV cache, no network, no statistics sent; two small OpenMP teams would fight for two cores
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1",
}  # fmt: skip
SERVE = ("--host", "127.0.0.1", "--max-num-seqs", "8", "--enforce-eager")
READY_S = 240.0


def vllm() -> Path:
    """The program; the test is skipped where it is not installed."""
    found = Path(os.environ.get(OVERRIDE) or ROOT / ".venv-engine" / "bin" / "vllm")
    if not found.exists():
        pytest.skip(f"no vLLM for the CPU: make .venv-engine/.ready, or set {OVERRIDE} to a vllm program")
    return found
