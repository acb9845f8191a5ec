"""SGLang's causes on made-up launches: the texts are those of the engine's source, the figures are invented."""

from __future__ import annotations

import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest

from ullage.core.report import Diagnosis
from ullage.diagnose.why import Asked, why

MADE = Path(__file__).parents[1] / "cases_made"
CASES = sorted(path for path in MADE.glob("*.toml") if 'engine = "sglang"' in path.read_text())


def diagnose(path: Path) -> tuple[Diagnosis, dict[str, Any]]:
    case = tomllib.loads(path.read_text())
    command = [f"{k}={v}" for k, v in case["launch"]["env"].items()] + shlex.split(case["launch"]["command"])
    asked = Asked(shlex.join(command), "2x NVIDIA H100 80GB HBM3", case["case"]["version"])
    return why([str(path.with_suffix(".log"))], asked=asked), case["expect"]


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_the_cause_of_a_made_up_launch(path: Path) -> None:
    found, expect = diagnose(path)
    assert found.cause == expect["cause"], found.summary
    assert found.outcome == expect["outcome"]
    assert found.summary and (found.evidence or found.cause == "none")


def log(tmp_path: Path, text: str, command: str = "", version: str | None = "0.5.9") -> Diagnosis:
    path = tmp_path / "server.log"
    path.write_text(text)
    return why([str(path)], asked=Asked(command or None, None, version))


WEIGHTS = (
    "[2026-02-10 10:00:00 TP0] Load weight begin. avail mem=94.08 GB\n"
    "[2026-02-10 10:10:00 TP0] Load weight end. elapsed=600.0 s, type=KimiK25ForConditionalGeneration, "
    "dtype=torch.bfloat16, avail mem=21.78 GB, mem usage=72.30 GB.\n"
)
NO_ROOM = (
    "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. "
    "Current value: self.server_args.mem_fraction_static=0.55\n"
)


def test_budget_below_weights_says_the_formula_with_its_numbers(tmp_path: Path) -> None:
    found = log(tmp_path, WEIGHTS + NO_ROOM)
    assert found.cause == "budget-below-weights"
    assert found.certainty == "certain"
    assert "21.78 - 94.08 x (1 - 0.55) = -20.56 GiB" in found.explanation
    assert "No fraction below 0.769 can start" in found.explanation
    assert any(refuted.hypothesis == "NCCL buffers" for refuted in found.refuted)


def test_every_fraction_it_proposes_is_above_the_weights(tmp_path: Path) -> None:
    found = log(tmp_path, WEIGHTS + NO_ROOM)
    offered = [c.change["--mem-fraction-static"] for c in found.fixes if "--mem-fraction-static" in c.change]
    assert offered
    assert all(float(fraction) > 0.769 for fraction in offered)


def test_a_message_that_asks_for_less_than_is_in_force_is_another_fault(tmp_path: Path) -> None:
    text = (
        "ValueError: Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static=0.95. Raise "
        "--mem-fraction-static above 0.923 (minimum viable = 1 - available/pre = 0.9224).\n"
    )
    assert log(tmp_path, text, version="0.5.20").cause == "hybrid-state-floor-exceeds-budget"
    below = text.replace("=0.95.", "=0.88.")
    assert log(tmp_path, WEIGHTS + below, version="0.5.20").cause == "budget-below-weights"


def test_a_healthy_start_has_no_cause(tmp_path: Path) -> None:
    text = (
        WEIGHTS + "[2026-02-10 10:10:01 TP0] KV Cache is allocated. #tokens: 159221, KV size: 10.42 GB\n"
        "[2026-02-10 10:10:01 TP0] Memory pool end. avail mem=9.10 GB\n"
        "[2026-02-10 10:11:00] The server is fired up and ready to roll!\n"
    )
    found = log(tmp_path, text)
    assert found.outcome == "started"
    assert found.cause == "none"


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("RuntimeError: No supported CUDA architectures found for major versions [9, 10].", "kernel-missing-for-arch"),
        ("RuntimeError: CUDA error: invalid device ordinal", "not-enough-gpus"),
        ("OSError: [Errno 12] Cannot allocate memory", "host-memory-limit"),
        ("AssertionError: tp_size must be divisible by number of nodes", "tp-not-divisible"),
        ("AssertionError: nhead=8 not supported", "attention-backend-unsupported-shape"),
        ("RuntimeError: Ninja is required to load C++ extensions", "jit-toolchain-missing"),
        ("AttributeError: 'CustomAllReduceV2' object has no attribute 'obj'", "custom-allreduce-v2-no-nvlink"),
        ("ValueError: Unsupported kv_cache_dtype: fp6.", "kv-dtype-unsupported-by-backend"),
        ("RuntimeError: CUDA error: uncorrectable ECC error encountered", "gpu-hardware-fault"),
    ],
)  # fmt: skip
def test_a_text_of_the_source_decides(tmp_path: Path, line: str, cause: str) -> None:
    head = "[2026-02-10 10:10:05 TP0] Scheduler hit an exception: Traceback (most recent call last):\n"
    frame = '  File "site-packages/sglang/srt/managers/scheduler.py", line 2000, in run_scheduler_process\n'
    assert log(tmp_path, WEIGHTS + head + frame + line + "\n").cause == cause


LATE_RANKS = (
    "ValueError: TP rank 0 could finish the model loading, but there are other ranks that didn't finish loading. "
    "It is likely due to unexpected failures (e.g., OOM) or a slow node.\n"
)
SERVES = "[2025-06-01 00:00:00] The server is fired up and ready to roll!\n"


def test_ranks_that_did_not_finish_loading_point_to_a_slow_one_only_without_another_root(
    tmp_path: Path,
) -> None:
    found = log(tmp_path, LATE_RANKS)
    assert (found.cause, found.certainty, found.phase) == (
        "slow-load-skews-ranks-nccl-timeout",
        "possible",
        "weights",
    )
    died = (
        "[2025-06-01 00:00:00 TP1] Scheduler hit an exception: Traceback (most recent call last):\n"
        '  File "/x/sglang/srt/model_loader/loader.py", line 1, in load_model\n    load()\n'
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB. GPU 1 has a total capacity of "
        "23.64 GiB of which 1.00 MiB is free.\n\n"
    )
    assert log(tmp_path, died + LATE_RANKS).cause == "weights-exceed-gpu"


@pytest.mark.parametrize(("allowed", "cause"), [(40954, "none"), (59862, "max-len-exceeds-kv")])
def test_a_limit_of_the_size_of_a_context_is_not_the_pool_s(tmp_path: Path, allowed: int, cause: str) -> None:
    refused = f"Input length (160062 tokens) exceeds the maximum allowed length ({allowed} tokens)."
    assert log(tmp_path, SERVES + f"[2025-06-01 00:00:09] {refused}\n").cause == cause


@pytest.mark.parametrize(
    ("message", "cause"),
    [
        ("ValueError: Tokens not accepted: 200002", "engine-bug"),
        ("RuntimeError: [unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation", None),
    ],
)
def test_an_unexplained_exception_in_a_step_is_possibly_a_defect(
    tmp_path: Path, message: str, cause: str | None
) -> None:
    text = (
        "[2025-06-01 00:00:09 TP0] Scheduler hit an exception: Traceback (most recent call last):\n"
        f'  File "/x/sglang/srt/managers/scheduler.py", line 1, in event_loop_overlap\n    step()\n{message}\n'
    )
    found = log(tmp_path, SERVES + text)
    assert found.cause == cause
    assert found.certainty == ("possible" if cause else None)


def test_a_dtype_that_the_quantisation_does_not_take_is_a_setting(tmp_path: Path) -> None:
    message = "torch.bfloat16 is not supported for quantization method gptq. Supported dtypes: [torch.float16]"
    found = log(tmp_path, f"ValueError: {message}\n")
    assert (found.cause, found.phase) == ("flag-combination-unsupported", "weights")
