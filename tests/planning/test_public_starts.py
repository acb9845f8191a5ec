"""Plans of the public launches, from the command and the GPU's name alone, against what their logs show.

Left out: launches whose command or model is a placeholder, and those that a patched build runs (a capped pool, experts
in host memory). The limits are those of PRODUCT.md or a little beside; they only ever get tighter.
"""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from statistics import mean, median
from typing import Any

import pytest

from ullage import engines
from ullage.core.errors import UllageError
from ullage.core.report import Plan
from ullage.core.units import GIB
from ullage.planning.plan import Asked, plan

CASES = Path(__file__).parents[1] / "cases"
REFUSALS = {
    "budget-below-weights", "weights-exceed-gpu", "max-len-exceeds-kv", "tp-not-divisible", "max-len-exceeds-model",
    "stuck-between-two-fractions", "mamba-blocks-below-max-num-seqs",
}  # fmt: skip


def plannable() -> Iterator[dict[str, Any]]:
    for path in sorted(CASES.glob("*/*.toml")):
        case = tomllib.loads(path.read_text())
        launch, expect = case["launch"], case["expect"]
        known = launch["command"].strip() and not launch.get("command_source") and case["hardware"].get("gpu")
        patched = case["observed"].get("kv_tokens") == 20480 or "--kt-" in launch["command"]
        if known and not patched and (expect["outcome"] == "started" or expect["cause"] in REFUSALS):
            yield case


def planned(case: dict[str, Any]) -> Plan | None:
    hardware, launch = case["hardware"], case["launch"]
    try:
        argv = shlex.split(launch["command"])
        command = shlex.join([f"{k}={v}" for k, v in launch.get("env", {}).items()] + argv)
        if engines.of_text(command) is None:
            return None
        return plan(
            Asked(command, f"{hardware.get('count', 1)}x {hardware['gpu']}", case["case"]["version"] or None)
        )
    except (UllageError, ValueError):
        return None


@pytest.fixture(scope="module")
def plans() -> list[tuple[dict[str, Any], Plan]]:
    found = [(case, planned(case)) for case in plannable()]
    return [
        (case, answer) for case, answer in found if answer is not None and answer.budget.pool_bytes is not None
    ]


def test_enough_cases_are_planned(plans: list[tuple[dict[str, Any], Plan]]) -> None:
    assert len(plans) >= 55


def test_verdicts(plans: list[tuple[dict[str, Any], Plan]]) -> None:
    starts = [answer.verdict == "starts" for case, answer in plans if case["expect"]["outcome"] == "started"]
    fails = [answer.verdict == "fails" for case, answer in plans if case["expect"]["outcome"] != "started"]
    assert mean(starts) >= 0.88, f"{len(starts)} launches that started"
    assert mean(fails) >= 0.75, f"{len(fails)} launches that did not"


def test_weights(plans: list[tuple[dict[str, Any], Plan]]) -> None:
    errors = []
    for case, answer in plans:
        shown = case["observed"].get("weights_gib")
        said = [ledger.of("weights") / GIB for ledger in answer.budget.ledgers]
        if shown and said:
            errors.append(min(abs(weight - shown) / shown for weight in said))
    assert median(errors) <= 0.01, f"{len(errors)} cases"
    assert sorted(errors)[int(0.8 * len(errors))] <= 0.03


def test_pools(plans: list[tuple[dict[str, Any], Plan]]) -> None:
    errors = []
    for case, answer in plans:
        shown = case["observed"]
        truth = shown.get("kv_gib") or shown.get("k_gib", 0) + shown.get("v_gib", 0)
        pool = answer.budget.kv_bytes or answer.budget.pool_bytes
        if case["expect"]["outcome"] == "started" and truth and pool is not None:
            errors.append(abs(pool.value / GIB - truth) / truth)
    assert median(errors) <= 0.03, f"{len(errors)} cases"
    assert sorted(errors)[int(0.8 * len(errors))] <= 0.20


def test_bands_hold_the_truth(plans: list[tuple[dict[str, Any], Plan]]) -> None:
    held, widths = [], []
    for case, answer in plans:
        truth, tokens = case["observed"].get("kv_tokens"), answer.budget.kv_tokens
        if case["expect"]["outcome"] == "started" and truth and tokens is not None:
            held.append(tokens.low <= truth <= tokens.high)
            widths.append((tokens.high - tokens.low) / truth)
    assert mean(held) >= 0.9, f"{len(held)} cases"
    assert median(widths) <= 0.35, "a band that holds everything says nothing"
