"""What each engine is known to refuse or to lose, asked through its door, and its silence on launches that started."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from ullage import engines
from ullage.core.deployment import Deployment, Reading
from ullage.core.finding import Hazard
from ullage.core.launch import Launch
from ullage.core.units import Measured
from ullage.engines.runtime import compat as shared
from ullage.hardware import gpus
from ullage.models import load as models

CASES = Path(__file__).parents[1] / "cases"
STARTED = [
    path
    for path in sorted(CASES.glob("*/*.toml"))
    if tomllib.loads(path.read_text()).get("expect", {}).get("outcome") == "started"
]
BOX = "8x RTX PRO 6000"
SERVE = "python -m sglang.launch_server --model-path "
KIMI = SERVE + "moonshotai/Kimi-K2.5 --tp 8 "
QWEN = SERVE + "Qwen/Qwen3-8B "


def deployment(name: str, command: str, version: str | None, gpu: str | None, **readings: float) -> Deployment:
    """As ``plan`` makes it: from the command, the GPU's name and what a person reads off."""
    launch = engines.get(name).parse(command, version)
    model = models.find(launch.model) if launch.model else None
    read = {key: Reading(key, Measured(value), "--reading") for key, value in readings.items()}
    return Deployment(launch, model, gpus.find(gpu) if gpu else None, read)


def hazards(
    name: str, command: str, version: str | None, gpu: str | None, **readings: float
) -> dict[str, Hazard]:
    found = engines.get(name).warnings(deployment(name, command, version, gpu, **readings))
    assert len({hazard.id for hazard in found}) == len(found)
    return {hazard.id: hazard for hazard in found}


@pytest.mark.parametrize(
    ("command", "version", "gpu", "stops"),
    [
        (KIMI + "--attention-backend fa3", "0.5.9", BOX, "fa3-unsupported"),
        (KIMI + "--attention-backend fa3", "0.5.9", "8x A100 80GB", "fa3-unsupported"),  # MLA on SM80
        (KIMI + "--attention-backend trtllm_mla", "0.5.9", "8x H100", "trtllm-mla-unsupported"),
        (KIMI + "--attention-backend trtllm_mla", "0.5.8", BOX, "trtllm-mla-unsupported"),
        (KIMI + "--enable-torch-symm-mem", "0.5.9", BOX, "torch-symmetric-memory-unsupported"),
        (KIMI + "--moe-a2a-backend flashinfer", "0.5.9", BOX, "flashinfer-a2a-runner"),
        (KIMI + "--page-size 64 --chunked-prefill-size 1000", "0.5.9", BOX, "chunk-not-whole-pages"),
        (KIMI + "--speculative-algorithm EAGLE3 --speculative-draft-model-path SpecForge/llama3-70B-eagle3", "0.5.9",
         BOX, "draft-of-another-target"),
        (QWEN + "--attention-backend trtllm_mha", "0.5.9", "RTX 5090", "trtllm-mha-unsupported"),
        (QWEN + "--attention-backend trtllm_mha --kv-cache-dtype fp8_e4m3", "0.5.23", "RTX 5090", "trtllm-mha-fp8-kv"),
        (QWEN, "0.5.9", "V100 32GB", "gpu-too-old"),
        (QWEN + "--quantization fp8", "0.5.9", "T4", "fp8-unsupported"),
        (QWEN + "--kv-cache-dtype nvfp4", "0.5.20", "H100", "kv-nvfp4-unsupported"),
        (QWEN + "--pp-size 2 --speculative-algorithm EAGLE", "0.5.9", "2x H100", "pipeline-with-speculation"),
        (QWEN + "--enable-two-batch-overlap", "0.5.9", "2x H100", "two-batch-overlap-unsupported"),
        (SERVE + "nvidia/Kimi-K2.5-NVFP4 --tp 8", "0.5.9", "8x H100", "nvfp4-unsupported"),
    ],
)  # fmt: skip
def test_sglang_refuses(command: str, version: str, gpu: str, stops: str) -> None:
    hazard = hazards("sglang", command, version, gpu)[stops]
    assert hazard.stops and hazard.certain and hazard.phase and hazard.cause and hazard.source


@pytest.mark.parametrize(
    ("command", "version", "gpu", "stops"),
    [
        ("vllm serve Qwen/Qwen3-8B --attention-backend FLASHMLA", "0.19.0", "RTX 4090", "vllm-flashmla-unsupported"),
        ("vllm serve Qwen/Qwen3-8B --attention-backend flash_attn --kv-cache-dtype fp8", "0.19.0", "RTX 4090",
         "flash-attn-fp8-kv"),
        ("VLLM_ATTENTION_BACKEND=CUTLASS_MLA vllm serve deepseek-ai/DeepSeek-V3 -tp 8", "0.12.0", "8x H200",
         "vllm-cutlass-mla-unsupported"),
        ("vllm serve deepseek-ai/DeepSeek-V3 -tp 8 --kv-cache-dtype fp8", "0.16.0", BOX, "mla-fp8-kv-unsupported"),
        ("vllm serve Qwen/Qwen3-8B --dtype bfloat16", "0.19.0", "T4", "bfloat16-below-sm80"),
        ("vllm serve Qwen/Qwen3-8B", "0.8.5", "T4", "bfloat16-below-sm80"),
        ("vllm serve Qwen/Qwen3-8B --max-num-batched-tokens 64 --max-num-seqs 128", "0.19.0", "H100",
         "batch-tokens-below-seqs"),
        ("vllm serve Qwen/Qwen3-8B --max-num-batched-tokens 2048 --max-model-len 8192 --no-enable-chunked-prefill",
         "0.19.0", "H100", "batch-tokens-below-length"),
        ("vllm serve Qwen/Qwen3-8B -tp 4 --decode-context-parallel-size 2", "0.19.0", "4x H100",
         "context-parallel-needs-replicas"),
        ("vllm serve openai/gpt-oss-20b", "0.19.0", "T4", "vllm-mxfp4-unsupported"),
    ],
)  # fmt: skip
def test_vllm_refuses(command: str, version: str, gpu: str, stops: str) -> None:
    hazard = hazards("vllm", command, version, gpu)[stops]
    assert hazard.stops and hazard.certain and hazard.phase and hazard.cause and hazard.source


@pytest.mark.parametrize(
    ("name", "command", "version", "gpu", "told"),
    [
        ("sglang", KIMI + "--enable-flashinfer-allreduce-fusion", "0.5.9", BOX, "all-reduce-fusion-ignored"),
        ("sglang", KIMI, "0.5.9", BOX, "nccl-host-bridge-p2p"),
        ("sglang", QWEN + "--speculative-algorithm EAGLE", "0.5.9", "H100", "speculation-changes-defaults"),
        ("sglang", "SGLANG_ENABLE_SPEC_V2=1 " + QWEN, "0.5.23", "H100", "variable-not-read"),
        ("sglang", "SGLANG_ENABLE_SPECV2=1 " + QWEN, "0.5.9", "H100", "variable-unknown"),
        ("sglang", QWEN + "--tp 16", "0.5.9", "16x H100", "kv-heads-replicated"),
        ("sglang", SERVE + "openai/gpt-oss-120b", "0.5.9", "RTX PRO 6000", "mxfp4-on-workstation-blackwell"),
        ("sglang", SERVE + "meta-llama/Llama-3.1-70B --speculative-algorithm EAGLE "
         "--speculative-draft-model-path someone/sglang-EAGLE-Llama-3.1-Instruct-8B", "0.4.5", "2x H100",
         "draft-named-for-another-target"),
        ("sglang", KIMI + "--enable-symm-mem", "0.5.9", "8x H200", "symm-mem-preallocation"),
        ("vllm", "VLLM_ATTENTION_BACKEND=FLASHINFER vllm serve Qwen/Qwen3-8B", "0.19.0", "H100", "variable-not-read"),
        ("vllm", "vllm serve Qwen/Qwen3-8B", "0.9.0", "RTX 5090", "torch-without-architecture"),
        ("vllm", "vllm serve deepseek-ai/DeepSeek-V3.2 -tp 8", "0.16.0", BOX, "sparse-mla-unsupported"),
        ("vllm", "VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 vllm serve Qwen/Qwen3-8B --max-model-len 999999", "0.19.0", "H100",
         "context-beyond-model"),
    ],
)  # fmt: skip
def test_what_is_worth_a_word_stops_nothing(name: str, command: str, version: str, gpu: str, told: str) -> None:
    assert not hazards(name, command, version, gpu)[told].stops


@pytest.mark.parametrize(
    ("name", "command", "version", "gpu"),
    [
        ("sglang", QWEN, "0.5.9", "H100"),
        ("sglang", QWEN + "--tp 8", "0.5.23", "8x H200"),
        ("sglang", QWEN + "--attention-backend fa3 --kv-cache-dtype fp8_e4m3", "0.5.9", "H100"),
        ("sglang", QWEN, None, None),
        ("sglang", QWEN, "0.5.9", "RTX 5090"),
        ("sglang", SERVE + "deepseek-ai/DeepSeek-V3 --tp 8", "0.5.9", "8x H200"),
        ("vllm", "vllm serve Qwen/Qwen3-8B", "0.19.0", "A100 80GB"),
        ("vllm", "vllm serve Qwen/Qwen3-8B --kv-cache-dtype fp8", "0.19.0", "RTX 4090"),
        ("vllm", "vllm serve deepseek-ai/DeepSeek-V3 -tp 8 --kv-cache-dtype fp8", "0.19.0", "8x H200"),
        ("vllm", "vllm serve Qwen/Qwen3-8B", None, None),
    ],
)
def test_a_usual_launch_is_left_in_peace(name: str, command: str, version: str | None, gpu: str | None) -> None:
    assert hazards(name, command, version, gpu) == {}


def test_a_lowered_fraction_is_named_only_where_it_is_the_fault() -> None:
    read = {"free_before_weights_gib": 94.08, "free_after_weights_gib": 21.78}
    assert "fraction-lowered" in hazards("sglang", KIMI + "--mem-fraction-static 0.55", "0.5.9", BOX, **read)
    read["free_after_weights_gib"] = 80.0
    assert "fraction-lowered" not in hazards(
        "sglang", KIMI + "--mem-fraction-static 0.55", "0.5.9", BOX, **read
    )


def test_the_driver_is_asked_only_where_it_is_known() -> None:
    assert "driver-too-old" in hazards("sglang", QWEN, "0.5.11", "H100", driver=570.26)
    assert hazards("sglang", QWEN, "0.5.11", "H100", driver=580.95) == {}


@pytest.mark.parametrize("path", STARTED, ids=lambda path: path.stem)
def test_what_started_is_never_said_to_stop(path: Path) -> None:
    """From the command, the GPU's name and the release alone, as ``plan`` would be asked."""
    case = tomllib.loads(path.read_text())
    launch, hardware = case.get("launch", {}), case.get("hardware", {})
    if not launch.get("command"):
        pytest.skip("no command is known")
    env = " ".join(f"{key}='{value}'" for key, value in launch.get("env", {}).items())
    gpu = f"{hardware.get('count', 1)}x {hardware['gpu']}" if hardware.get("gpu") else None
    found = hazards(
        case["case"]["engine"], f"{env} {launch['command']}".strip(), case["case"].get("version") or None, gpu
    )
    assert [hazard.id for hazard in found.values() if hazard.stops] == []
    assert len(found) <= 2, list(found)


@pytest.mark.parametrize("name", ["sglang", "vllm"])
def test_hostile_input_raises_nothing(name: str) -> None:
    engine = engines.get(name)
    env = {
        "NCCL_BUFFSIZE": "1e9",
        "VLLM_" + "A" * 10_000: "",
        "SGLANG_X": "\x00",
        "NCCL_P2P_LEVEL": "9" * 10_000,
    }
    launch = Launch(
        name, version="99.99", model="x" * 5000, env=env | {f"SGLANG_{i}": "1" for i in range(3000)}
    )
    assert all(len(hazard.text) < 1000 for hazard in engine.warnings(Deployment(launch)))


@pytest.mark.parametrize("name", ["sglang", "vllm"])
def test_the_tables_of_a_release(name: str) -> None:
    from ullage.core.tables import load
    from ullage.hardware.compat import software

    rows = shared.ships(f"ullage.engines.{name}")
    assert {row.torch for row in rows} <= {row.version for row in software.software().torch}
    table = load(f"ullage.engines.{name}", "variables.toml", shared.VariableTable)
    assert len(table.variable) > 300 and table.source
