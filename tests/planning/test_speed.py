"""The speed of a plan: where model and GPU are known, and nowhere else."""

from __future__ import annotations

import json

import pytest

from ullage.core.report import Plan
from ullage.core.timing import Benchmark
from ullage.planning.plan import Asked, plan
from ullage.render import plan_json
from ullage.render.plan_text import lines


def planned(command: str, gpu: str | None = "H100", version: str | None = "0.11.0") -> Plan:
    return plan(Asked(command, gpu, version))


def test_a_plan_shows_tokens_per_second_with_a_band() -> None:
    found = planned("vllm serve meta-llama/Llama-3.1-8B-Instruct --max-model-len 8192")
    assert found.speed is not None
    first = found.speed.points[0]
    assert (first.batch, first.context) == (1, 2048)
    # public: 158 tok/s on this GPU (arXiv 2503.01840, SGLang)
    assert first.per_user.low < 158 < first.per_user.high
    assert first.per_user.high < 2 * first.per_user.low
    totals = [point.total.value for point in found.speed.points]
    assert totals == sorted(totals)


def test_its_ledger_adds_up_and_every_entry_has_a_source() -> None:
    found = planned("vllm serve Qwen/Qwen3-30B-A3B -tp 2", "2x H100").speed
    assert found is not None
    assert found.ledger.total_us == pytest.approx(sum(e.microseconds for e in found.ledger.entries))
    assert found.ledger.named("collectives") > 0
    assert all(e.source and e.low <= e.microseconds <= e.high for e in found.ledger.entries)


def test_no_batch_is_shown_that_the_pool_or_the_launch_cannot_hold() -> None:
    found = planned("vllm serve Qwen/Qwen3-8B --max-model-len 4096 --max-num-seqs 4").speed
    assert found is not None and [p.batch for p in found.points] == [1]


@pytest.mark.parametrize("gpu", [None, "Intel Arc Pro B60"])
def test_without_a_gpu_that_is_known_there_is_none(gpu: str | None) -> None:
    assert planned("vllm serve Qwen/Qwen3-8B", gpu).speed is None


def test_an_unknown_model_has_none() -> None:
    assert planned("vllm serve nobody/has-this-one").speed is None


def test_a_launch_that_fails_has_none() -> None:
    found = planned("vllm serve meta-llama/Llama-3.1-70B-Instruct")
    assert found.verdict == "fails" and found.speed is None


def test_a_launch_with_drafts_says_which_acceptance_it_takes() -> None:
    config = '{"method": "eagle3", "model": "SpecForge/qwen3-8b-eagle3", "num_speculative_tokens": 3}'
    found = planned(f"vllm serve Qwen/Qwen3-8B --max-model-len 8192 --speculative-config '{config}'").speed
    plain = planned("vllm serve Qwen/Qwen3-8B --max-model-len 8192").speed
    assert found is not None and plain is not None
    assert found.ledger.kind == "verify" and found.ledger.rows == 4
    assert any("tokens a round" in text for text in found.assumed)
    assert found.points[0].per_user.value > plain.points[0].per_user.value


def test_eager_is_slower() -> None:
    command = "vllm serve Qwen/Qwen3-1.7B --max-model-len 4096"
    eager, captured = (planned(f"{command} {flag}").speed for flag in ("--enforce-eager", ""))
    assert eager is not None and captured is not None
    assert eager.ledger.total_us > 2 * captured.ledger.total_us


def test_more_gpus_read_less_each() -> None:
    one, four = (
        planned(f"vllm serve Qwen/Qwen3-32B --max-model-len 4096 -tp {n}", f"{n}x H100").speed for n in (1, 4)
    )
    assert one is not None and four is not None
    assert four.ledger.named("weights") == pytest.approx(one.ledger.named("weights") / 4, rel=0.02)


def test_json_and_text_show_it() -> None:
    found = planned("vllm serve Qwen/Qwen3-8B --max-model-len 8192")
    shown = json.loads(plan_json.plan(found))
    assert shown["schema"] == "ullage.plan/1"
    assert set(shown["speed"]) == {"points", "ledger", "assumed", "measured"}
    assert set(shown["speed"]["points"][0]) == {
        "batch",
        "context",
        "tok_s_per_user",
        "tok_s",
        "acceptance_length",
    }
    text = [line if isinstance(line, str) else line[0] for line in lines(found)]
    assert "SPEED" in text and any("tok/s each" in line for line in text)
    nothing = json.loads(plan_json.plan(planned("vllm serve Qwen/Qwen3-8B", None)))
    assert nothing["speed"] is None


def test_a_measured_speed_mends_the_others() -> None:
    command = (
        "python -m sglang.launch_server --model-path moonshotai/Kimi-K2.5 --tp 8 --mem-fraction-static 0.88"
        " --cuda-graph-max-bs 128"
    )
    benchmark = Benchmark(1, 1e6 / 89.5, "batch=1,tok_s=89.5")
    plain = plan(Asked(command, "8x RTX PRO 6000", "0.5.9")).speed
    mended = plan(Asked(command, "8x RTX PRO 6000", "0.5.9", measured=(benchmark,))).speed
    assert plain is not None and mended is not None
    assert mended.measured == ("batch=1,tok_s=89.5",)
    assert mended.points[0].per_user.value == pytest.approx(89.5, rel=0.02)
    assert mended.points[0].per_user.high / mended.points[0].per_user.low < 1.1
    before, after = plain.points[1].per_user, mended.points[1].per_user
    assert after.high / after.low < before.high / before.low
