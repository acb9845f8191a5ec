"""Checkpoints of headers alone, made here, give the public totals; and the founding case's 72.3 GiB a rank."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from ullage.core.units import GIB
from ullage.models.load import from_directory
from ullage.planning.plan import Asked, plan

BENCH = Path(__file__).parents[2] / "bench" / "headers.py"


@pytest.fixture(scope="module")
def headers() -> ModuleType:
    found = importlib.util.spec_from_file_location("headers", BENCH)
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules["headers"] = module
    found.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("model", "gb", "parameters"),
    [
        ("Qwen/Qwen3-32B", 65.524, 32_762_123_264),
        ("meta-llama/Llama-3.1-8B-Instruct", 16.061, 8_030_261_248),
        ("openai/gpt-oss-120b", 65.25, 116_829_156_672),
        ("deepseek-ai/DeepSeek-V3", 688.57, None),
    ],
)
def test_public_totals(
    model: str, gb: float, parameters: int | None, headers: ModuleType, tmp_path: Path
) -> None:
    """The sizes that reports on the downloaded files and the hub's own pages give."""
    written = headers.make(model, tmp_path)
    found = from_directory(tmp_path)
    assert found.checkpoint_bytes == written
    assert written / 1e9 == pytest.approx(gb, rel=2e-4)
    assert parameters is None or found.parameters == pytest.approx(parameters, rel=1e-6)


def test_the_founding_case_from_its_headers(headers: ModuleType, tmp_path: Path) -> None:
    """595.15 GB of files, 72.30 GiB on each of eight ranks, from the files as from the catalogue."""
    assert headers.make("moonshotai/Kimi-K2.5", tmp_path) == 595_148_192_736
    command = f"python -m sglang.launch_server --model-path {tmp_path} --tp 8 --trust-remote-code"
    found = plan(Asked(command, "8x RTX PRO 6000", "0.5.9"))
    assert found.model is not None and found.model.source == str(tmp_path / "config.json")
    assert found.budget.ledgers[0].of("weights") / GIB == pytest.approx(72.30, rel=0.01)
    named = command.replace(str(tmp_path), "moonshotai/Kimi-K2.5")
    beside = plan(Asked(named, "8x RTX PRO 6000", "0.5.9"))
    assert found.budget.ledgers[0].of("weights") == pytest.approx(
        beside.budget.ledgers[0].of("weights"), rel=1e-3
    )
