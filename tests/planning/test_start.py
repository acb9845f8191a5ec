"""What a plain ``ullage plan`` loads: its start is most of its time."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

COMMAND = [
    "plan",
    "--gpu",
    "H100",
    "--engine-version",
    "0.19.0",
    "--no-hub",
    "--",
    "vllm",
    "serve",
    "Qwen/Qwen3-32B",
]


@pytest.fixture(scope="module")
def loaded() -> set[str]:
    """The modules that the command imports."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "ullage", *COMMAND], capture_output=True, text=True, check=False,
        env={**os.environ, "HF_HUB_OFFLINE": "1"}, timeout=60,
    )  # fmt: skip
    assert "WHERE THE MEMORY GOES" in done.stdout
    rows = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    return {row.rpartition("|")[2].strip() for row in rows}


@pytest.mark.parametrize("name", ["inspect", "ast", "dataclasses", "click", "asyncio", "ssl", "numpy"])
def test_a_plain_plan_does_not_load(loaded: set[str], name: str) -> None:
    assert name not in loaded


def test_one_gpu_needs_no_collectives(loaded: set[str]) -> None:
    assert not {"ullage.comm.tuner", "ullage.comm.fits", "ullage.engines.sglang.budget"} & loaded


def test_few_modules_of_ullage(loaded: set[str]) -> None:
    """Each costs a tenth of a millisecond or more; raise it only with a measurement (bench/plan.py)."""
    assert sum(name.startswith("ullage") for name in loaded) <= 115
