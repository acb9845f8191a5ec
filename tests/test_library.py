"""``import ullage``: the functions that notebooks and other programs call."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import ullage

FOUNDING = Path(__file__).parents[1] / "examples" / "founding"


def test_a_plan_of_words_and_of_text_is_the_same() -> None:
    words = ["vllm", "serve", "Qwen/Qwen3-8B", "--max-model-len", "8192"]
    one = ullage.plan(words, gpu="1x H100", engine_version="0.11.0")
    assert one.verdict == "starts"
    assert one == ullage.plan(" ".join(words), gpu="1x H100", engine_version="0.11.0")
    assert json.loads(ullage.as_json(one))["schema"] == "ullage.plan/1"


def test_why_and_diff_take_paths() -> None:
    failed, worked = FOUNDING / "fewer-channels.log", FOUNDING / "baseline.log"
    alone = ullage.why(failed)
    assert (alone.outcome, alone.cause) == ("crashed", "budget-below-weights")
    both = ullage.diff(worked, str(failed))
    assert both.compare is not None
    assert [d.setting for d in both.compare.differences if d.decisive] == ["mem_fraction_static"]
    assert json.loads(ullage.as_json(both))["cause"] == "budget-below-weights"


def test_what_cannot_be_read_is_an_error_of_ours(tmp_path: Path) -> None:
    with pytest.raises(ullage.UllageError):
        ullage.plan("ls -l")
    with pytest.raises(ullage.UllageError):
        ullage.why(tmp_path / "absent.log")


def test_the_bare_import_loads_nothing() -> None:
    code = "import sys, ullage; print(sorted(m for m in sys.modules if m.startswith('ullage')))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "['ullage']"
    with pytest.raises(AttributeError):
        _ = ullage.absent  # type: ignore[attr-defined]
