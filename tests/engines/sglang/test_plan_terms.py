"""What a plan counts between the weights and the pool and beside it: adapters, drafts, what is free at first."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from ullage import engines
from ullage.core.deployment import Budget, Deployment, Reading
from ullage.core.ledger import Entry
from ullage.core.machine import Device
from ullage.core.units import GIB, Measured
from ullage.engines.sglang.combinations import combinations
from ullage.engines.sglang.known import known
from ullage.engines.sglang.refusals import refusals
from ullage.engines.sglang.settings import of_launch
from ullage.engines.sglang.weights import weights
from ullage.hardware import gpus
from ullage.models.catalogue import find

SERVE = "python -m sglang.launch_server --model-path "
LLAMA = SERVE + "meta-llama/Llama-3.1-8B-Instruct "


def deployment(command: str, version: str, gpu: str, **readings: float) -> Deployment:
    launch = engines.get("sglang").parse(command, version)
    assert launch.model is not None
    read = {name: Reading(name, Measured(value), "--reading") for name, value in readings.items()}
    return Deployment(launch, find(launch.model), gpus.find(gpu), read)


def budget(command: str, version: str, gpu: str, **readings: float) -> Budget:
    return engines.get("sglang").budget(deployment(command, version, gpu, **readings))


def entries(found: Budget) -> dict[str, Entry]:
    return {entry.name: entry for entry in found.ledgers[0].entries}


@pytest.mark.parametrize(
    ("command", "version", "gpu", "free"),
    [
        (LLAMA, "0.5.8", "H100", 78.43),  # sgl-project/sglang, documentation notebooks
        (SERVE + "Qwen/Qwen3-30B-A3B --tp 4 --dp 4 --enable-dp-attention", "0.5.12", "4x H200", 138.34),
        (SERVE + "deepseek-ai/DeepSeek-V4-Flash-Base --tp 8", "0.5.12", "8x H20", 93.61),
        (SERVE + "moonshotai/Kimi-K2.5 --tp 8", "0.5.9", "8x RTX PRO 6000", 94.08),
        (SERVE + "Qwen/Qwen3-14B --tp 2", "0.5.12", "2x RTX 3090", 22.91),
        (SERVE + "Qwen/QwQ-32B --tp 2", "0.4.6.post2", "2x RTX A6000", 46.93),
    ],
)  # fmt: skip
def test_what_is_free_before_the_weights(command: str, version: str, gpu: str, free: float) -> None:
    total = known(deployment(command, version, gpu)).total
    assert total is not None
    assert total.value == pytest.approx(free * GIB, rel=0.008)
    assert total.low <= free * GIB <= total.high


def test_adapters_come_off_the_pool_before_it_is_sized() -> None:
    """Two slots of rank 256 on all projections are 2.5 GiB; the log of this start has them between load and pool."""
    read = {"free_before_weights_gib": 78.43, "free_after_weights_gib": 63.41}
    lora = "--enable-lora --max-loras-per-batch 2 --max-lora-rank 256 --lora-target-modules all "
    plain = budget(LLAMA, "0.5.8", "H100", **read)
    with_them = budget(LLAMA + lora, "0.5.8", "H100", **read)
    assert entries(with_them)["LoRA buffers"].bytes == 2_684_354_560
    assert plain.pool_bytes is not None and with_them.pool_bytes is not None
    assert plain.pool_bytes.value - with_them.pool_bytes.value == pytest.approx(2_684_354_560)
    ledger = with_them.ledgers[0]
    assert ledger.used_bytes + ledger.left_bytes == ledger.total_bytes


def test_adapters_of_unknown_rank_are_a_band() -> None:
    entry = entries(budget(LLAMA + "--lora-paths a=b", "0.5.8", "H100"))["LoRA buffers"]
    assert (entry.certainty, entry.low < entry.bytes < entry.high) == ("estimated", True)


EAGLE3 = (
    "--speculative-algorithm EAGLE3 --speculative-draft-model-path jamesliu1/sglang-EAGLE3-Llama-3.1-Instruct-8B "
    "--speculative-num-steps 5 --speculative-eagle-topk 8 --speculative-num-draft-tokens 32 --mem-fraction-static 0.6"
)  # fmt: skip


def test_a_draft_loads_after_the_pool_up_to_0_5_13_and_before_it_since() -> None:
    plain = budget(LLAMA + "--mem-fraction-static 0.6", "0.5.12", "H100")
    old, new = budget(LLAMA + EAGLE3, "0.5.12", "H100"), budget(LLAMA + EAGLE3, "0.5.14", "H100")
    assert plain.pool_bytes is not None and old.pool_bytes is not None and new.pool_bytes is not None
    assert old.pool_bytes.value == plain.pool_bytes.value
    draft = entries(new)["draft weights"].bytes
    assert plain.pool_bytes.value - new.pool_bytes.value == pytest.approx(draft, abs=2)
    assert entries(old)["weights"].bytes == entries(new)["weights"].bytes  # the target's alone
    # one layer of 8 heads x 128: 4096 bytes a token, as many as the target's pool
    assert old.kv_tokens is not None
    beside = entries(old)["draft KV, not budgeted"]
    assert beside.bytes == pytest.approx(4096 * old.kv_tokens.value, rel=0.001)
    assert "draft KV, not budgeted" not in entries(new)
    assert new.bytes_per_token is not None and new.bytes_per_token.value == 135_168


def test_a_plan_says_what_serving_takes() -> None:
    found = budget(SERVE + "moonshotai/Kimi-K2.5 --tp 8 --mem-fraction-static 0.88", "0.5.9", "8x RTX PRO 6000")
    serving = [entry for entry in found.ledgers[0].entries if entry.stage == "serving"]
    assert {entry.name for entry in serving} == {"prefill activations", "logits and sampling"}
    assert all(entry.certainty == "estimated" and entry.low < entry.high for entry in serving)
    assert found.ledgers[0].used_bytes + found.ledgers[0].left_bytes == found.ledgers[0].total_bytes


def test_fp4_scales_stay_wide_on_hopper_in_the_first_releases() -> None:
    """DeepSeek-V4-Pro at tp 8 takes 125.65 GiB on H200 with an image of that time: float32 scales of 32 weights."""
    command = SERVE + "deepseek-ai/DeepSeek-V4-Pro --tp 8 --mem-fraction-static 0.88"
    early, late = (weights(deployment(command, version, "8x H200")) for version in ("0.5.12", "0.5.23"))
    assert early is not None and late is not None
    assert early.value == pytest.approx(125.65 * GIB, rel=0.03)
    assert early.value - late.value > 15 * GIB
    launch = engines.get("sglang").parse(command, "image lmsysorg/sglang:deepseek-v4-hopper")
    assert launch.version == "0.5.12"
    assert (
        budget(command, "image lmsysorg/sglang:deepseek-v4-hopper", "8x H200").cause == "budget-below-weights"
    )


def test_gemma3_keeps_no_rotary_table_before_0_5_10() -> None:
    command = SERVE + "google/gemma-3-4b-it"
    early, late = (weights(deployment(command, version, "H200")) for version in ("0.4.4.post1", "0.5.10"))
    assert early is not None and late is not None
    assert early.value == pytest.approx(8.13 * GIB, rel=0.01)  # sgl-project/sglang#4826
    assert late.value > early.value + GIB
    tokens = budget(command, "0.4.4.post1", "H200").kv_tokens
    assert tokens is not None and tokens.value == pytest.approx(834_615, rel=0.005)


@pytest.mark.parametrize(
    ("flags", "version", "says"),
    [
        ("--tp 4 --nnodes 3", "0.5.9", "3 nodes"),
        ("--tp 4 --dp 3 --enable-dp-attention", "0.5.9", "dp_size 3"),
        ("--tp 4 --ep-size 3", "0.5.9", "ep_size 3"),
        ("--tp 8 --ep-size 4 --moe-runner-backend flashinfer_cutlass", "0.5.9", "flashinfer_cutlass"),
        ("--enable-lora", "0.5.9", "--max-lora-rank"),
        ("--lora-paths a=b --max-loaded-loras 2", "0.5.9", "--max-loaded-loras 2"),
        ("--swa-full-tokens-ratio 1.5", "0.5.9", "(0, 1]"),
        ("--enable-hierarchical-cache --disable-radix-cache", "0.5.9", "exclude"),
        ("--speculative-algorithm STANDALONE", "0.5.9", "--speculative-draft-model-path"),
        ("--speculative-algorithm EAGLE3", "0.5.9", "no draft layers"),
        ("--speculative-algorithm EAGLE3 --speculative-draft-model-path x --speculative-eagle-topk 2", "0.5.9",
         "--speculative-num-steps"),
        ("--served-model-name a:b", "0.5.9", "colon"),
        ("--moe-dense-tp-size 2", "0.5.9", "1 alone"),
        ("--moe-dense-tp-size 2", "0.5.14", None),
        ("--served-model-name a:b", "0.5.3", None),
        ("--tp 4 --nnodes 2", "0.5.9", None),
        ("--enable-lora", "0.4.6", None),
        ("--lora-paths a=b", "0.5.9", None),
    ],
)  # fmt: skip
def test_settings_that_exclude_each_other(flags: str, version: str, says: str | None) -> None:
    made = deployment(LLAMA + flags, version, "8x H100")
    found = [refusal.text for refusal in combinations(made, made.model, of_launch(made.launch))]
    assert len(found) == (says is not None)
    assert says is None or says in found[0]


def test_a_group_with_one_occupied_card_is_refused() -> None:
    made = deployment(LLAMA + "--tp 2", "0.5.9", "2x H100")
    assert made.machine is not None
    free = [78 * GIB, 60 * GIB]
    cards = tuple(Device(n, f"GPU-{n}", "NVIDIA H100", free_bytes=size) for n, size in enumerate(free))
    busy = replace(made, machine=replace(made.machine, devices=cards))
    assert [refusal.cause for refusal in refusals(busy)] == ["unbalanced-free-memory"]
    env = {"SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK": "0"}
    assert not refusals(replace(busy, launch=replace(busy.launch, env=env)))
    assert not refusals(made)


@pytest.mark.parametrize(
    ("command", "version", "hazard"),
    [
        (SERVE + "openai/gpt-oss-120b --attention-backend flashinfer", "0.5.9", "gpt-oss-backend-unsupported"),
        (SERVE + "openai/gpt-oss-120b --attention-backend triton", "0.5.9", None),
        (SERVE + "meta-llama/Llama-4-Scout-17B-16E-Instruct --attention-backend flashinfer", "0.5.9",
         "llama4-backend-unsupported"),
        (SERVE + "deepseek-ai/DeepSeek-V3.2-Exp --tp 8 --kv-cache-dtype fp8_e5m2", "0.5.9",
         "sparse-mla-kv-dtype-unsupported"),
        (SERVE + "deepseek-ai/DeepSeek-V4-Flash --tp 8 --speculative-algorithm NGRAM", "0.5.14",
         "deepseek-v4-draft-algorithm"),
        (SERVE + "deepseek-ai/DeepSeek-V4-Flash --tp 8 --speculative-algorithm EAGLE --speculative-num-steps 3 "
         "--speculative-eagle-topk 4 --speculative-num-draft-tokens 8", "0.5.14", "deepseek-v4-draft-tree"),
    ],
)  # fmt: skip
def test_backends_that_an_architecture_refuses(command: str, version: str, hazard: str | None) -> None:
    stops = [
        found.id
        for found in engines.get("sglang").warnings(deployment(command, version, "8x H200"))
        if found.stops
    ]
    assert stops[:1] == ([hazard] if hazard else [])
