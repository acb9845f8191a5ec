"""DeepSeek-V4's cache against public logs, and against what its layout must always keep."""

from __future__ import annotations

import pytest
from packaging.version import Version

from ullage.core.model import Layer, Model
from ullage.core.units import GIB
from ullage.engines.vllm.kv_packed import least_padding
from ullage.engines.vllm.kv_plan import KvPlan, plan
from ullage.engines.vllm.kv_specs import Cache, stages

FOUR = Layer("compressed", kv_heads=1, head_dim=512, rope_dim=64, window=128, index_dim=128, compress_ratio=4)
MANY = Layer("compressed", kv_heads=1, head_dim=512, rope_dim=64, window=128, compress_ratio=128)
WINDOW = Layer("compressed", kv_heads=1, head_dim=512, rope_dim=64, window=128)
#: 43 layers: two of windows alone, 21 of ratio 4 with an indexer, 20 of ratio 128
FLASH = Model(
    "V4-Flash", "config.json", num_layers=43, layers=(WINDOW, WINDOW, *(FOUR, MANY) * 20, FOUR), num_heads=64
)


def planned(
    release: str, gib: float, length: int, batch: int, flight: int = 2, pp: int = 1, dtype: str = "fp8"
) -> KvPlan:
    cache = Cache(tp=2, pp=pp, block_size=256, dtype=dtype, max_num_batched_tokens=batch, in_flight=flight)
    version = Version(release)
    return plan(stages(FLASH, cache, version), [int(gib * GIB)], length, cache, version)


def test_the_need_of_one_request_as_the_engine_printed_it() -> None:
    """vllm-project/vllm#44376, 0.22 on two GH200: 6.66 GiB for 30000 tokens, 13528 fit into 5.44 GiB."""
    found = planned("0.22.0", 5.44, 30_000, 16_384)
    assert not found.fits
    assert found.needed / GIB == pytest.approx(6.66, abs=0.005)
    assert found.fitted == pytest.approx(13_528, rel=2e-3)  # the pool is printed to two decimals


def test_the_size_as_the_engine_printed_it() -> None:
    """vllm-project/vllm#51041, 0.26 on two H20: 150 K tokens in 7.7 GiB at 121344."""
    found = planned("0.26.0", 7.7, 121_344, 8_192)
    assert found.tokens == pytest.approx(150_000, rel=0.01)
    assert found.fits


def test_pages_are_filled_up_for_the_kernels() -> None:
    found = planned("0.29.0", 8, 8_192, 2_048)
    sizes = {size for group in found.layout for size in group.pages}
    assert sizes == {37_440, 8_640, 1_728, 32_832}
    assert all(size % 576 == 0 for size in sizes)


@pytest.mark.parametrize("release", ["0.20.1", "0.23.0", "0.27.1", "0.33.0"])
def test_two_stages_hold_about_twice_as_much(release: str) -> None:
    one, two = planned(release, 8, 65_536, 2_048), planned(release, 8, 65_536, 2_048, pp=2)
    assert 1.7 <= two.blocks / one.blocks <= 2.2


def test_16_bit_takes_about_twice_the_room_of_fp8() -> None:
    plain, packed = planned("0.29.0", 8, 65_536, 2_048, dtype="bfloat16"), planned("0.29.0", 8, 65_536, 2_048)
    assert 1.5 <= packed.blocks / plain.blocks <= 2.1


def test_padding() -> None:
    assert least_padding([21, 43, 21, 20], 21) == 22
    assert least_padding([4, 8], 4) == 4
