"""What the profile takes: activations, graphs, what lies outside PyTorch, drafts; figures of public logs."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from packaging.version import Version

from ullage.core.deployment import Deployment
from ullage.core.launch import Arg, Launch, Value
from ullage.core.machine import Gpu, Machine
from ullage.core.model import Layer, LinearState, Model, Vision
from ullage.core.units import GIB, MIB, Band
from ullage.engines.vllm import memory
from ullage.engines.vllm.encoder import limit, profiled
from ullage.engines.vllm.graphs import estimate_bytes, estimated_graphs, graph_bytes
from ullage.engines.vllm.outside import non_torch, over_pcie
from ullage.engines.vllm.peak import activation_peak, indexer_bytes, linear_elements
from ullage.engines.vllm.settings import carved_out, settings
from ullage.engines.vllm.terms import difference
from ullage.engines.vllm.weights_terms import linked

FULL = Layer("full", kv_heads=4, head_dim=256, v_head_dim=256)
DELTA = Layer("linear", state=LinearState("gdn", 10_240, 4, 48, 128, 128, dtype="float32"))
DENSE = Model("dense", "config.json", num_layers=32, hidden_size=4096, num_heads=32, intermediate_size=14_336,
              vocab_size=128_256, layers=(FULL,) * 32, max_context=131_072)  # fmt: skip
HYBRID = Model(
    "hybrid", "config.json", model_type="qwen3_5", num_layers=64, hidden_size=5120, num_heads=24, intermediate_size=17_408,
    vocab_size=248_320, layers=((DELTA,) * 3 + (FULL,)) * 16, max_context=262_144, parameters=27_000_000_000,
    checkpoint_bytes=54_000_000_000,
)  # fmt: skip
H100 = Gpu("NVIDIA H100", 80 * GIB, (9, 0), cuda_bytes=Band(79.19 * GIB, 79.1 * GIB, 79.25 * GIB))
RTX = Gpu("NVIDIA RTX PRO 6000", 96 * GIB, (12, 0))
OLD = Gpu("NVIDIA GeForce RTX 3090", 24 * GIB, (8, 6))
APU = Gpu("AMD Radeon 8060S", 80 * GIB, vendor="amd", unified_memory=True)


def deployed(
    version: str | None = "0.20.1",
    model: Model = DENSE,
    gpu: Gpu = H100,
    env: dict[str, str] | None = None,
    **args: Value,
) -> Deployment:
    given = {name: Arg(value, "given") for name, value in args.items()}
    return Deployment(
        Launch("vllm", version, "log", args=given, env=env or {}, command="vllm serve"), model, Machine(gpu, 8)
    )


# --- graphs -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seqs", "spec", "counts"),
    [(1024, 0, (51, 51)), (256, 0, (51, 35)), (64, 0, (19, 11))],
)
def test_full_graphs_are_of_decode_batches_only(seqs: int, spec: int, counts: tuple[int, int]) -> None:
    """0.20 logs: PIECEWISE=51 (largest=512), FULL=35 (largest=256) at 256 sequences."""
    s = settings(deployed(max_num_seqs=seqs, max_num_batched_tokens=8192))
    assert s.num_graphs == counts


def test_a_largest_size_stands_in_place_of_the_default() -> None:
    """A public log of 0.20.2: PIECEWISE=35 (largest=256), FULL=11 (largest=64) with --max-cudagraph-capture-size
    256 at 64 sequences."""
    s = settings(deployed(max_num_seqs=64, max_num_batched_tokens=8192, max_cudagraph_capture_size=256))
    assert s.num_graphs == (35, 11)
    assert s.graph_sizes[-1] == 256


@pytest.mark.parametrize(
    ("layers", "seqs", "told"), [(32, 1024, 0.84), (80, 1024, 1.66), (46, 1024, 1.13), (64, 1, 0.09)]
)
def test_the_estimate_is_that_of_public_logs(layers: int, seqs: int, told: float) -> None:
    model = replace(DENSE, num_layers=layers, layers=(FULL,) * layers)
    s = settings(deployed(model=model, max_num_seqs=seqs, max_num_batched_tokens=8192))
    assert estimate_bytes(s, model) / GIB == pytest.approx(told, rel=0.2, abs=0.03)


def test_what_is_captured_lies_inside_its_band() -> None:
    s = settings(deployed(max_num_seqs=1024, max_num_batched_tokens=8192))
    band = graph_bytes(s, DENSE)
    assert band.low < 0.91 * GIB < band.high
    assert graph_bytes(replace(s, graph_sizes=()), DENSE) == Band(0, 0, 0)


def test_nvfp4_experts_set_up_their_work_space_in_the_rehearsal() -> None:
    model = replace(
        DENSE, num_experts=256, experts_per_token=8, moe_intermediate_size=512, quantization="modelopt nvfp4"
    )
    here = deployed(model=model, gpu=RTX, max_num_seqs=16)
    through = deployed(model=model, gpu=RTX, max_num_seqs=16, moe_backend="marlin")
    assert (
        estimated_graphs(settings(here), model).value
        > estimated_graphs(settings(through), model).value + 0.9 * GIB
    )


# --- outside PyTorch --------------------------------------------------------------------------------------


def test_communicators_by_release_and_link() -> None:
    def at(version: str, nvlink: bool | None, tp: int = 4) -> float:
        s = settings(deployed(version, max_model_len=8192, tensor_parallel_size=tp))
        return non_torch(s, nvlink).value / GIB

    assert at("0.19.0", True) == pytest.approx(2.1)  # 2.07 to 2.21 in public logs
    assert at("0.9.2", True) == pytest.approx(2.0)  # NCCL is inside the measured region
    assert at("0.12.0", True) == pytest.approx(0.6)
    assert at("0.19.0", None, tp=1) == pytest.approx(0.25)
    assert at("0.8.3", None, tp=1) == pytest.approx(0.58)  # and the CUDA context


def test_more_ranks_over_pcie_take_more() -> None:
    for ampere in (True, False):
        sizes = [over_pcie(tp, ampere=ampere) for tp in (2, 3, 4, 8, 16)]
        assert sizes == sorted(sizes)


def test_links_by_name() -> None:
    assert (
        linked(deployed(gpu=OLD, tensor_parallel_size=4), settings(deployed(gpu=OLD, tensor_parallel_size=4)))
        is False
    )
    assert (
        linked(deployed(gpu=H100, tensor_parallel_size=4), settings(deployed(gpu=H100, tensor_parallel_size=4)))
        is None
    )
    assert linked(deployed(gpu=OLD), settings(deployed(gpu=OLD))) is None


def test_unified_memory_counts_the_host() -> None:
    alone, shared = (settings(deployed(gpu=replace(RTX, unified_memory=u))) for u in (False, True))
    assert non_torch(shared).value > non_torch(alone).value + 2 * GIB


# --- activations ------------------------------------------------------------------------------------------


def test_a_delta_rule_layer_can_be_the_widest() -> None:
    """Kimi-Linear in 64000 tokens on two cards: some 6.6 GiB by a public log."""
    kda = Layer("linear", state=LinearState("kda", 12_288, 4, 32, 128, 128))
    model = Model("kda", "config.json", num_layers=27, hidden_size=2304, num_heads=32, intermediate_size=9216,
                  vocab_size=163_840, layers=((kda,) * 3 + (FULL,)) * 6, num_experts=256, experts_per_token=8,
                  moe_intermediate_size=1024)  # fmt: skip
    d = deployed("0.11.0", model, OLD, tensor_parallel_size=2, max_num_batched_tokens=64_000, max_num_seqs=8)
    band = activation_peak(d, settings(d))
    assert band is not None
    assert band.low < 6.6 * GIB < band.high
    assert linear_elements(model, 1) == 2 * linear_elements(model, 2)
    assert linear_elements(DENSE, 1) == 0


def test_sparse_attention_reserves_the_larger_of_its_two_work_spaces() -> None:
    sparse = Layer("mla", kv_lora_rank=512, rope_dim=64, index_dim=128)
    model = replace(DENSE, layers=(sparse,) * 32)

    def reserved(gpu: Gpu, dtype: str = "auto") -> float:
        d = deployed(
            model=model, gpu=gpu, kv_cache_dtype=dtype, max_model_len=200_000, max_num_batched_tokens=8192
        )
        return indexer_bytes(model, settings(d))

    plain, packed = reserved(RTX), reserved(RTX, "fp8")
    assert plain == 200_000 * 40 * 132 + 512 * MIB
    assert packed == (5 * 200_000 + 64 * 8192) * 576 * 2 + 512 * MIB
    assert reserved(OLD) == 0


def test_a_recurrent_mixer_of_mamba_2() -> None:
    """noonghunna/club-3090#708: some 9 GiB for 262144 tokens in one batch on 4 ranks."""
    state = LinearState("mamba2", 10_240, 4, 128, 64, 128, num_groups=8, inner_size=8192)
    model = replace(DENSE, layers=(Layer("linear", state=state), FULL) * 16)
    assert linear_elements(model, 4) * 2 * 262_144 == pytest.approx(9e9, rel=0.25)


VIDEO = Model("vl", "config.json", model_type="qwen3_vl_moe", num_layers=94, hidden_size=4096, num_heads=64,
              vocab_size=151_936, layers=(FULL,) * 94, num_experts=128, experts_per_token=8, moe_intermediate_size=1536,
              max_context=262_144, vision=Vision(hidden_size=1152))  # fmt: skip


def test_the_dummy_video_of_qwen3_vl() -> None:
    """QwenLM/Qwen3-VL#1684, 0.11.0 on 8 A100 at 100000 tokens: 6 to 7 GiB of peak."""

    def peak(version: str, **args: Value) -> float:
        d = deployed(version, VIDEO, OLD, None, tensor_parallel_size=8, max_model_len=100_000, **args)
        band = activation_peak(d, settings(d))
        assert band is not None
        return band.value / GIB

    assert 5.5 <= peak("0.11.0") <= 7.5
    assert peak("0.16.0") < 5
    assert peak("0.11.0", limit_mm_per_prompt={"video": 0}) < 4
    assert peak("0.17.0", language_model_only=True) < peak("0.17.0")


def test_limits_of_items() -> None:
    launch = deployed(limit_mm_per_prompt='{"image": 2, "video": {"count": 0}}').launch
    assert (limit(launch, "image"), limit(launch, "video"), limit(launch, "audio")) == (2, 0, 1)
    assert not profiled(deployed(limit_mm_per_prompt={"image": 0, "video": 0}).launch)


def test_a_share_beyond_an_idle_card_is_refused() -> None:
    full = memory.budget(deployed("0.19.0", gpu_memory_utilization=0.999, max_model_len=8192))
    assert (full.verdict, full.cause) == ("fails", "free-memory-below-request")
    assert memory.budget(deployed("0.19.0", gpu_memory_utilization=0.98, max_model_len=8192)).cause is None


def test_errors_add_as_squares() -> None:
    band = difference(Band(10, 9, 11), [Band(2, 1, 6), Band(1, 0.5, 4)])
    assert band.value == 7
    assert band.low == pytest.approx(7 - (1 + 16 + 9) ** 0.5)
    assert band.high == pytest.approx(7 + (1 + 1 + 0.25) ** 0.5)


# --- defaults, states, drafts, host -----------------------------------------------------------------------


def test_the_batch_of_an_apu_goes_by_its_carve_out() -> None:
    """A public log of a part with 80 GiB: 2.4 GiB of peak and graphs together, as 256 sequences give."""
    s = settings(deployed("0.28.0", HYBRID, APU))
    assert (s.max_num_batched_tokens, s.max_num_seqs) == (2048, 256)
    assert settings(deployed("0.23.0", HYBRID, APU)).max_num_seqs == 1024
    assert not carved_out(replace(APU, name="AMD Instinct MI300X", unified_memory=False), Version("0.28.0"))


@pytest.mark.parametrize("version", ["0.17.0", "0.19.0", "0.20.0", "0.28.0"])
def test_fewer_states_than_sequences_stop_the_capture(version: str) -> None:
    """vllm-project/recipes#551: 0.17.0, 0.18.0 and 0.19.0 fail like 0.22 with 856 states and 1024 sequences."""
    many = memory.budget(deployed(version, HYBRID, max_model_len=131_072, max_num_seqs=1024))
    few = memory.budget(deployed(version, HYBRID, max_model_len=131_072, max_num_seqs=8))
    assert many.cause == "mamba-blocks-below-max-num-seqs"
    assert few.verdict == "starts"


def test_a_head_that_nothing_is_known_of_is_counted_by_the_targets_width() -> None:
    head: Value = {"method": "dflash", "model": "someone/their-own-head", "num_speculative_tokens": 5}
    with_head = settings(deployed(model=HYBRID, speculative_config=head))
    without = settings(deployed(model=HYBRID))
    assert len(with_head.draft) == 5
    assert without.draft == ()


def test_the_hosts_memory_is_named() -> None:
    budget = memory.budget(deployed("0.28.0", kv_offloading_size=20, cpu_offload_gb=4, tensor_parallel_size=2))
    text = " ".join(budget.warnings)
    assert "--kv-offloading-size: 20 GiB" in text
    assert "--cpu-offload-gb: 8 GiB" in text
    assert "host" not in " ".join(memory.budget(deployed("0.28.0")).warnings)
