"""Every case is one test: what a real launch's log must be read as. A new case is two files and no code.

``known.toml`` lists the cases that ullage does not get right, each with the reason; such a test must fail, so
that the list stays true.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from ullage.core.report import Diagnosis
from ullage.diagnose.why import Asked, why

HERE = Path(__file__).parent
FOLDERS = (HERE, HERE.parent / "cases_made")
CASES = sorted(p for folder in FOLDERS for p in folder.rglob("*.toml") if p.with_suffix(".log").exists())
KNOWN: dict[str, dict[str, str]] = tomllib.loads((HERE / "known.toml").read_text())
IDS = {row["id"] for row in tomllib.loads((HERE / "CAUSES.toml").read_text())["cause"]}
#: figures that the JSON promises by these names
FIGURES = frozenset(
    "free_before_weights_gib free_after_weights_gib weights_gib free_after_kv_pool_gib k_gib v_gib kv_gib "
    "kv_tokens mem_fraction_static gpu_memory_utilization total_gib free_at_start_gib requested_gib "
    "peak_activation_gib non_torch_gib graphs_gib graph_estimate_gib free_before_graphs_gib "
    "free_after_graphs_gib free_at_ready_gib max_concurrency max_concurrency_len gpu_blocks context_len "
    "chunked_prefill_size max_running_requests needed_kv_gib est_max_len swa_tokens".split()
)


def _half_step(value: float) -> float:
    decimals = len(repr(value).partition(".")[2]) if isinstance(value, float) else 0
    return 0.5 * 10.0**-decimals + 1e-9 if decimals else 0.5


def diagnose(path: Path) -> tuple[dict[str, dict[str, object]], Diagnosis]:
    case = tomllib.loads(path.read_text())
    hardware, launch = case.get("hardware", {}), case.get("launch", {})
    env = " ".join(f"{k}='{v}'" for k, v in launch.get("env", {}).items())
    command = f"{env} {launch.get('command', '')}".strip() if launch.get("command") else None
    gpu = f"{hardware.get('count', 1)}x {hardware['gpu']}" if hardware.get("gpu") else None
    asked = Asked(command=command, gpu=gpu, version=case["case"].get("version") or None)
    return case, why([str(path.with_suffix(".log"))], asked=asked)


@pytest.mark.parametrize("path", CASES, ids=lambda p: p.stem)
def test_case(path: Path, request: pytest.FixtureRequest) -> None:
    known = KNOWN.get(path.stem, {})
    if known:
        request.applymarker(pytest.mark.xfail(reason=known["reason"], strict=True))
    case, found = diagnose(path)
    expect = case["expect"]
    wrong = []
    if expect["outcome"] != found.outcome:
        wrong.append(f"outcome {expect['outcome']}, said {found.outcome}")
    if expect["outcome"] != "started" and expect["phase"] != found.phase:
        wrong.append(f"phase {expect['phase']}, said {found.phase}")
    if expect.get("confidence") != "guess" and expect["cause"] not in ("unknown", found.cause or "none"):
        wrong.append(f"cause {expect['cause']}, said {found.cause}")
    for name, value in case.get("observed", {}).items():
        if name not in FIGURES or isinstance(value, bool) or not isinstance(value, int | float):
            continue
        reading = found.observed.get(name)
        if reading is None or abs(reading.value.value - value) > _half_step(value):
            wrong.append(f"{name} {value}, said {reading.value if reading else None}")
    assert not wrong, "; ".join(wrong)


def test_known_cases_exist() -> None:
    assert set(KNOWN) <= {path.stem for path in CASES}


def test_every_expected_cause_is_in_the_list() -> None:
    expected = {tomllib.loads(path.read_text())["expect"]["cause"] for path in CASES}
    assert expected <= IDS
