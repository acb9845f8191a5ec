"""A launch command and a GPU's name -> Plan."""

from __future__ import annotations

from pathlib import Path

import pytest

from ullage import engines
from ullage.core.deployment import Interval
from ullage.core.errors import CommandError, InputError
from ullage.core.report import Plan
from ullage.planning.plan import Asked, deployment_of, engine_of, plan, wide_enough

EIGHT = "8x RTX PRO 6000"
KIMI = "python -m sglang.launch_server --model-path moonshotai/Kimi-K2.5 --tp 8 --trust-remote-code"


def planned(command: str, gpu: str | None = "H100", version: str | None = None, **readings: float) -> Plan:
    return plan(Asked(command, gpu, version, readings=readings))


# --- the founding launch


def test_founding_launch_at_055_is_refused() -> None:
    found = planned(f"{KIMI} --mem-fraction-static 0.55 --cuda-graph-max-bs 128", EIGHT, "0.5.9")
    assert (found.verdict, found.fails_at, found.cause) == ("fails", "kv_pool", "budget-below-weights")
    assert found.budget.pool_bytes is not None
    assert found.budget.pool_bytes.value / 2**30 == pytest.approx(-20.6, abs=0.6)
    assert found.interval is not None and found.interval.low == pytest.approx(0.769, abs=0.006)
    best = found.fixes[0]
    assert list(best.change) == ["--mem-fraction-static"]
    assert best.predicted is not None and best.predicted.verdict == "starts"


@pytest.mark.parametrize(
    ("version", "tokens", "graphs"),
    [("0.5.9", 159_221, "--cuda-graph-max-bs 128"), ("0.5.23", 157_729, "--cuda-graph-max-bs-decode 128")],
)
def test_founding_launch_at_088_holds_159_thousand_tokens(version: str, tokens: int, graphs: str) -> None:
    found = planned(f"{KIMI} --mem-fraction-static 0.88 {graphs}", EIGHT, version)
    assert found.verdict == "starts"
    assert found.budget.kv_tokens is not None
    assert found.budget.kv_tokens.low <= tokens <= found.budget.kv_tokens.high
    assert found.budget.kv_tokens.value == pytest.approx(tokens, rel=0.04)


def test_founding_launch_with_its_own_figures_is_exact_to_the_printed_step() -> None:
    found = planned(
        f"{KIMI} --mem-fraction-static 0.88 --cuda-graph-max-bs 128", EIGHT, "0.5.9",
        free_before_weights_gib=94.08, free_after_weights_gib=21.71,
    )  # fmt: skip
    tokens = found.budget.kv_tokens
    assert tokens is not None
    assert tokens.value == int((21.71 - 94.08 * (1 - 0.88)) * 2**30 // 70_272)
    assert tokens.high - tokens.low < 500, "two printed decimals of GiB are a few hundred tokens"


def test_no_fraction_starts_but_is_of_no_use_in_059() -> None:
    found = planned(KIMI, EIGHT, "0.5.9")
    assert found.verdict == "starts"
    assert found.settings["mem_fraction_static"].value == pytest.approx(0.7715, abs=5e-5)
    assert found.settings["mem_fraction_static"].origin == "inferred"
    assert "pool-too-small" in {caution.id for caution in found.cautions}
    assert any("--mem-fraction-static" in change.change for change in found.fixes)


def test_no_fraction_is_refused_in_0523() -> None:
    found = planned(KIMI, EIGHT, "0.5.23")
    assert (found.verdict, found.cause) == ("fails", "budget-below-weights")


def test_stuck_between_two_fractions_opens_with_a_second_gpu() -> None:
    """As sgl-project/sglang#4330: 0.84 leaves no pool, and above it draft and graphs have no room."""
    command = (
        "python3 -m sglang.launch_server --model-path Meta-Llama-3-70B-Instruct-AWQ --mem-fraction-static 0.84"
        " --speculative-algorithm EAGLE --speculative-draft-model-path lmsys/sglang-EAGLE-LLaMA3-Instruct-70B"
    )
    found = planned(command, "L40S", "0.4.3.post2")
    assert found.interval is not None and found.interval.empty
    assert (found.verdict, found.cause) == ("fails", "stuck-between-two-fractions")
    wider = next(change for change in found.fixes if change.change.get("--tp-size") == 2)
    assert wider.predicted is not None and wider.predicted.verdict == "starts"


# --- what is refused whatever memory there is


@pytest.mark.parametrize(
    ("command", "version", "gpu", "cause"),
    [
        ("vllm serve microsoft/phi-2 --max-model-len 8192", "0.19.0", "H100", "max-len-exceeds-model"),
        ("vllm serve Qwen/Qwen3-8B --tensor-parallel-size 3", "0.19.0", "3x H100", "tp-not-divisible"),
        (
            "vllm serve Qwen/Qwen3-235B-A22B-FP8 --tensor-parallel-size 8",
            "0.19.0",
            "8x H200",
            "tp-not-divisible",
        ),
        ("vllm serve Qwen/Qwen3-8B --tensor-parallel-size 4", "0.19.0", "2x H100", "not-enough-gpus"),
        ("vllm serve Qwen/Qwen3-8B --max-modle-len 8192", "0.19.0", "H100", "flag-combination-unsupported"),
        (f"{KIMI} --context-length 999999", "0.5.9", EIGHT, "max-len-exceeds-model"),
    ],
)
def test_refused_outright(command: str, version: str, gpu: str, cause: str) -> None:
    found = planned(command, gpu, version)
    assert (found.verdict, found.cause) == ("fails", cause)


def test_experts_whole_on_their_ranks_need_not_divide() -> None:
    command = "vllm serve Qwen/Qwen3-235B-A22B-FP8 --tensor-parallel-size 8 --enable-expert-parallel"
    assert planned(command, "8x H200", "0.19.0").verdict == "starts"


def test_a_longer_context_is_only_a_warning_where_the_variable_allows_it() -> None:
    command = "VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 vllm serve microsoft/phi-2 --max-model-len 8192"
    assert planned(command, "H100", "0.19.0").verdict == "starts"


# --- vLLM


def test_weights_larger_than_the_card() -> None:
    found = planned("vllm serve Qwen/Qwen3-235B-A22B", "H100", "0.19.0")
    assert (found.verdict, found.fails_at, found.cause) == ("fails", "weights", "weights-exceed-gpu")


def test_a_request_of_the_full_length_must_fit() -> None:
    found = planned("vllm serve Qwen/Qwen3-14B --max-model-len 40960", "RTX 5090", "0.19.0")
    assert found.cause == "budget-below-weights", "weights and peak are more than the share of 0.9"
    found = planned("vllm serve Qwen/Qwen3-8B --max-model-len 40960", "RTX 4090", "0.19.0")
    assert (found.verdict, found.cause) == ("fails", "max-len-exceeds-kv")
    lengths = [c.change["--max-model-len"] for c in found.fixes if "--max-model-len" in c.change]
    assert lengths and all(isinstance(n, int) and n < 40960 and n % 1024 == 0 for n in lengths)


def test_the_pool_of_a_known_start() -> None:
    """A public log: 58.11 GiB, 476,016 tokens."""
    found = planned("vllm serve meta-llama/Llama-3.1-8B-Instruct --max-model-len 8192 --gpu-memory-utilization 0.95",
                    "H100", "0.19.0")  # fmt: skip
    assert found.budget.pool_bytes is not None and found.budget.kv_tokens is not None
    assert found.budget.pool_bytes.value / 2**30 == pytest.approx(58.11, rel=0.01)
    assert found.budget.kv_tokens.low <= 476_016 <= found.budget.kv_tokens.high


def test_concurrency_at_given_lengths() -> None:
    command = "vllm serve meta-llama/Llama-3.1-8B-Instruct --max-model-len 8192"
    found = plan(Asked(command, "H100", "0.19.0", contexts=(1000, 8192)))
    assert found.budget.kv_tokens is not None
    assert found.concurrency == {
        length: round(found.budget.kv_tokens.value / length, 2) for length in (1000, 8192)
    }


# --- what is not known is named


def test_an_unknown_model_is_planned_as_far_as_it_goes() -> None:
    found = planned("vllm serve nobody/knows-this --max-num-seqs 64", "H100", "0.19.0")
    assert found.verdict == "unsure"
    assert any("model" in name for name in found.missing)
    assert "model-unknown" in {caution.id for caution in found.cautions}
    assert found.settings["max_num_seqs"].value == 64


def test_no_gpu_no_release() -> None:
    found = planned("vllm serve Qwen/Qwen3-8B", None)
    assert found.verdict == "unsure"
    assert {"gpu-unknown", "release-unknown"} <= {caution.id for caution in found.cautions}


def test_without_a_release_the_newest_rules_speak_and_it_says_so() -> None:
    found, newest = planned(KIMI, EIGHT, None), planned(KIMI, EIGHT, "0.5.23")
    assert found.settings["mem_fraction_static"].value == newest.settings["mem_fraction_static"].value
    assert found.verdict == newest.verdict
    assert "release-unknown" in {caution.id for caution in found.cautions}


@pytest.mark.parametrize("gpu", ["not stated", "8x unknown", "?"])
def test_a_gpu_that_is_said_not_to_be_known(gpu: str) -> None:
    assert planned("vllm serve Qwen/Qwen3-8B", gpu).machine is None


# --- bad input is one line


@pytest.mark.parametrize(
    ("command", "gpu", "words"),
    [
        ("bash -c ls", "H100", "neither SGLang nor vLLM"),
        ("vllm serve Qwen/Qwen3-8B", "H1000", "near: NVIDIA H100"),
        ("vllm serve Qwen/Qwen3-8B", "0x H100", "no GPU at all"),
        ("vllm serve m --max-model-len -5", "H100", "--max-model-len: -5"),
        ("vllm serve m --gpu-memory-utilization 1e300", "H100", "no share of the memory"),
        ("vllm serve m --tensor-parallel-size 0", "H100", "--tensor-parallel-size: 0"),
        ("vllm serve m --max-num-seqs 99999999999999999999", "H100", "out of range"),
        (f"{KIMI} --mem-fraction-static 7", "H100", "no share"),
    ],
)
def test_bad_input(command: str, gpu: str, words: str) -> None:
    with pytest.raises((CommandError, InputError)) as caught:
        planned(command, gpu)
    assert words in caught.value.line
    assert "\n" not in caught.value.line


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("free_after_weight_gib", 21.0, "near: free_after_weights_gib"),
        ("free_after_weights_gib", -3.0, "less than nothing"),
    ],
)
def test_a_reading_that_cannot_be(name: str, value: float, words: str) -> None:
    with pytest.raises(InputError) as caught:
        planned(KIMI, EIGHT, "0.5.9", **{name: value})
    assert words in caught.value.line


def test_a_config_of_the_wrong_kind(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('["not", "an", "object"]')
    with pytest.raises(InputError, match=r"config\.json"):
        plan(Asked("vllm serve x", "H100", None, str(tmp_path)))


def test_a_corrupt_header(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2}')
    (tmp_path / "model.safetensors").write_bytes((1 << 60).to_bytes(8, "little") + b"{}")
    with pytest.raises(InputError, match=r"model\.safetensors"):
        plan(Asked("vllm serve x", "H100", None, str(tmp_path)))


# --- laws


COMMANDS = [
    (f"{KIMI} --mem-fraction-static 0.55", EIGHT, "0.5.9"),
    (f"{KIMI} --mem-fraction-static 0.55", EIGHT, "0.5.23"),
    ("vllm serve Qwen/Qwen3-32B --max-model-len 32k", "RTX PRO 6000", "0.19.0"),
    ("vllm serve Qwen/Qwen3-32B --max-model-len 40960", "L40S", "0.19.0"),
    ("python -m sglang.launch_server --model-path Qwen/Qwen3-14B", "RTX 5090", "0.5.9"),
]


@pytest.mark.parametrize(("command", "gpu", "version"), COMMANDS)
def test_each_offered_change_is_what_planning_it_says(command: str, gpu: str, version: str) -> None:
    found = planned(command, gpu, version)
    assert len(found.fixes) <= 6
    for change in found.fixes:
        flags = " ".join(f"{k} {v}" if v is not True else k for k, v in change.change.items())
        model = change.change.get("--model")
        text = command.replace(found.model_id or "", str(model)) if model else f"{command} {flags}"
        count = 16 if any("-size" in flag for flag in change.change) else 8
        again = planned(text, f"{count}x {gpu.removeprefix('8x ')}", version)
        assert change.predicted is not None
        assert again.verdict == change.predicted.verdict, flags
        assert again.budget.kv_tokens is not None
        assert int(again.budget.kv_tokens.value) == change.predicted.kv_tokens, flags


@pytest.mark.parametrize(("command", "gpu", "version"), COMMANDS)
def test_entries_and_left_are_the_total(command: str, gpu: str, version: str) -> None:
    for ledger in planned(command, gpu, version).budget.ledgers:
        assert ledger.used_bytes + ledger.left_bytes == ledger.total_bytes
        assert all(entry.low <= entry.bytes <= entry.high for entry in ledger.entries)


def test_a_larger_share_never_shrinks_the_pool() -> None:
    pools = [
        planned(f"{KIMI} --mem-fraction-static {f}", EIGHT, "0.5.9").budget.pool_bytes
        for f in (0.5, 0.6, 0.7, 0.8, 0.9)
    ]
    values = [pool.value for pool in pools if pool is not None]
    assert len(values) == 5 and values == sorted(values)


def test_an_interval_narrower_than_the_estimates_is_empty() -> None:
    narrow = wide_enough(Interval("--x", 0.850, 0.853, 0.852))
    assert narrow is not None and narrow.empty and narrow.recommended is None
    assert wide_enough(Interval("--x", 0.85, 0.86, 0.855)) == Interval("--x", 0.85, 0.86, 0.855)


def test_pasted_words_and_quoted_text_are_the_same() -> None:
    one = engines.get("vllm").parse("vllm serve Qwen/Qwen3-8B --max-model-len=8192", "0.19.0")
    two = engines.get("vllm").parse("vllm serve Qwen/Qwen3-8B --max-model-len 8192", "0.19.0")
    asked = Asked("", "H100")
    assert engine_of("vllm serve m").name == "vllm"
    budget = engines.get("vllm").budget
    assert budget(deployment_of(one, asked)).kv_tokens == budget(deployment_of(two, asked)).kv_tokens
