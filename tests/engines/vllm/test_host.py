"""The CPU build: its pool is told, so the rules of a card do not apply."""

from __future__ import annotations

from ullage.core.deployment import Deployment, Reading
from ullage.core.launch import Arg, Launch
from ullage.core.units import Measured
from ullage.engines.vllm import ENGINE


def deployment(**figures: str) -> Deployment:
    readings = {name: Reading(name, Measured.parse(value), "x.log:1") for name, value in figures.items()}
    launch = Launch("vllm", "0.32.0", "log", args={"device_config": Arg("cpu", "log")})
    return Deployment(launch, readings=readings)


def test_the_pool_is_what_was_told() -> None:
    budget = ENGINE.budget(deployment(kv_gib="1.0", kv_tokens="524,288", total_gib="10.59"))
    assert budget.verdict == "starts"
    assert budget.bytes_per_token is not None
    assert round(budget.bytes_per_token.value) == 2048
    assert [entry.name for entry in budget.ledgers[0].entries] == ["KV pool"]


def test_one_request_must_fit() -> None:
    budget = ENGINE.budget(deployment(kv_gib="0.0", needed_kv_gib="0.01"))
    assert (budget.verdict, budget.fails_at, budget.cause) == ("fails", "kv_pool", "max-len-exceeds-kv")


def test_no_share_to_choose() -> None:
    made = deployment(kv_gib="1.0", total_gib="10.59")
    assert ENGINE.interval(None, made) is None
