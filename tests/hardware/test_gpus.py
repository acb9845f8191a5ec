"""GPU names as people write them."""

from __future__ import annotations

import runpy
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ullage.core.tables import compiled
from ullage.core.units import GIB, MIB
from ullage.hardware.gpus import find, names, suggest

CASES = Path(__file__).resolve().parents[2].parent / "shared" / "cases"

NAMED = {
    "8x RTX PRO 6000": (8, "NVIDIA RTX PRO 6000 Blackwell Server Edition", 97887),
    "8 × NVIDIA RTX PRO 6000 Blackwell": (8, "NVIDIA RTX PRO 6000 Blackwell Server Edition", 97887),
    "NVIDIA RTX PRO 6000 Blackwell 96GB": (None, "NVIDIA RTX PRO 6000 Blackwell Server Edition", 97887),
    "RTX PRO 6000 Max-Q": (None, "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", 97887),
    "NVIDIA RTX PRO 4500 Blackwell Server Edition": (None, "NVIDIA RTX PRO 4500 Blackwell", 32623),
    "NVIDIA RTX 6000D (SM120)": (None, "NVIDIA RTX 6000D", 85651),
    "H100-80GB": (None, "NVIDIA H100 80GB HBM3", 81559),
    "h100_sxm": (None, "NVIDIA H100 80GB HBM3", 81559),
    "h100-80": (None, "NVIDIA H100 80GB HBM3", 81559),
    "h100-80gb:8": (8, "NVIDIA H100 80GB HBM3", 81559),
    "H100 x8": (8, "NVIDIA H100 80GB HBM3", 81559),
    "NVIDIA H100 80 GB HBM3": (None, "NVIDIA H100 80GB HBM3", 81559),
    "NVIDIA H100 80GB (CI machine, shared)": (None, "NVIDIA H100 80GB HBM3", 81559),
    "H100 PCIe": (None, "NVIDIA H100 PCIe", 81559),
    "NVIDIA H100 NVL": (None, "NVIDIA H100 NVL", 95830),
    "NVIDIA H20": (None, "NVIDIA H20", 97871),
    "NVIDIA H20 141GB": (None, "NVIDIA H20-3e", 143771),
    "NVIDIA H200 141GB": (None, "NVIDIA H200", 143771),
    "NVIDIA H200 with memory held back to imitate 80 GB cards": (None, "NVIDIA H200", 143771),
    "2x4090": (2, "NVIDIA GeForce RTX 4090", 24564),
    "4 x RTX4090": (4, "NVIDIA GeForce RTX 4090", 24564),
    "2 RTX 3090": (2, "NVIDIA GeForce RTX 3090", 24576),
    "NVIDIA GeForce RTX 3090 24 GB": (None, "NVIDIA GeForce RTX 3090", 24576),
    "NVIDIA GeForce RTX 4070 Ti SUPER": (None, "NVIDIA GeForce RTX 4070 Ti SUPER", 16376),
    "NVIDIA GeForce RTX 5060 Ti 16 GB": (None, "NVIDIA GeForce RTX 5060 Ti", 16311),
    "RTX 5090 D": (None, "NVIDIA GeForce RTX 5090 D", 32607),
    "NVIDIA A10": (None, "NVIDIA A10", 23028),
    "NVIDIA A10G": (None, "NVIDIA A10G", 23028),
    "NVIDIA A100 80 GB": (None, "NVIDIA A100-SXM4-80GB", 81920),
    "A100-40GB": (None, "NVIDIA A100-SXM4-40GB", 40960),
    "A100 PCIe": (None, "NVIDIA A100 80GB PCIe", 81920),
    "NVIDIA A800-SXM4-80GB": (None, "NVIDIA A800-SXM4-80GB", 81920),
    "NVIDIA A40-48Q (vGPU)": (None, "NVIDIA A40", 46068),
    "L4": (None, "NVIDIA L4", 23034),
    "NVIDIA L40": (None, "NVIDIA L40", 46068),
    "4x L40S": (4, "NVIDIA L40S", 46068),
    "NVIDIA L20": (None, "NVIDIA L20", 46068),
    "NVIDIA RTX A6000": (None, "NVIDIA RTX A6000", 49140),
    "NVIDIA B200": (None, "NVIDIA B200", 183359),
    "NVIDIA B300 class (sm103, 276.62 GiB)": (None, "NVIDIA B300 SXM6 AC", 275040),
    "Ascend 910B3 64GB": (None, "Ascend 910B3", 65536),
    "Hygon BW100 64GB (ROCm-compatible)": (None, "Hygon BW100", 65536),
    "Intel Arc Pro B70": (None, "Intel Arc Pro B70", 32768),
}
UNNAMED = [
    "", "8x", "not stated", "9090", "NVIDIA", "GPU",
    "NVIDIA GeForce RTX 5070 Ti + NVIDIA GeForce RTX 5090 D", "NVIDIA GeForce RTX 50 series (SM120)", "none (CPU back end)",
    "PCIe cards without full NVLink (4090, H20, A100 PCIe named)", "custom:0", "custom:99999", "Ampere class GPU",
    "RTX 4080 Laptop GPU", "RTX 4080 Ti",
]  # fmt: skip


@pytest.mark.parametrize("text", NAMED)
def test_names(text: str) -> None:
    count, name, mib = NAMED[text]
    found = find(text)
    assert found is not None
    assert found.gpu is not None
    assert (found.count, found.gpu.name, found.gpu.total_bytes) == (count, name, mib * MIB)


@pytest.mark.parametrize("text", UNNAMED)
def test_no_name_is_no_machine(text: str) -> None:
    assert find(text) is None


@pytest.mark.parametrize(
    ("text", "count", "gib"),
    [
        ("custom:94.08", None, 94.08),
        ("94.08", None, 94.08),
        ("4x custom:94.08", 4, 94.08),
        ("80GB", None, 80),
        ("24 GiB", None, 24),
    ],
)
def test_a_plain_size(text: str, count: int | None, gib: float) -> None:
    found = find(text)
    assert found is not None
    assert found.gpu is not None
    assert (found.count, found.gpu.total_bytes, found.gpu.capability) == (count, round(gib * GIB), None)


def test_a_name_of_cards_with_different_memory_has_no_total() -> None:
    found = find("8x A100")
    assert found is not None
    assert found.gpu is not None
    assert (found.count, found.gpu.total_bytes, found.gpu.capability) == (8, None, (8, 0))
    assert "80GB or NVIDIA A100-SXM4-40GB" in found.gpu.name


def test_what_the_rows_say_beside_the_memory() -> None:
    pro, h100, spark, mi300 = (
        find(name) for name in ("RTX PRO 6000", "H100", "NVIDIA GB10 (DGX Spark)", "MI300X")
    )
    assert pro is not None and h100 is not None and spark is not None and mi300 is not None
    assert pro.gpu is not None and h100.gpu is not None and spark.gpu is not None and mi300.gpu is not None
    assert (pro.nvlink, pro.gpu.capability) == (False, (12, 0))
    assert pro.gpu.free_bytes is not None
    assert pro.gpu.free_bytes.low == 94.08 * GIB
    assert (h100.nvlink, h100.gpu.capability) == (True, (9, 0))
    assert h100.gpu.cuda_bytes is not None
    assert h100.gpu.cuda_bytes.low <= 79.19 * GIB <= h100.gpu.cuda_bytes.high
    assert (spark.gpu.unified_memory, spark.gpu.capability) == (True, (12, 1))
    assert (mi300.gpu.vendor, mi300.gpu.capability) == ("amd", None)


def test_every_row_is_found_by_its_own_name_and_is_consistent() -> None:
    for name in names():
        found = find(name)
        assert found is not None, name
        assert found.gpu is not None
        assert found.gpu.name == name
        cuda, free = found.gpu.cuda_bytes, found.gpu.free_bytes
        assert cuda is None or found.gpu.total_bytes is None or cuda.high <= found.gpu.total_bytes + 1
        assert cuda is None or free is None or free.high <= cuda.high


def test_suggestions() -> None:
    assert suggest("RTX PRO 600")[0].startswith("NVIDIA RTX PRO 6000 Blackwell")
    assert "NVIDIA H100 80GB HBM3" in suggest("8x H10O")
    assert suggest("") == []


@pytest.mark.skipif(not CASES.is_dir(), reason="needs the shared folder of cases")
def test_the_cases_name_gpus_that_are_known() -> None:
    vague = ("class", "card", "unknown", "not stated", "none", "part", "device", "GPU with", "series", " + ")
    for path in sorted(CASES.glob("*/*.toml")):
        name = tomllib.loads(path.read_text()).get("hardware", {}).get("gpu", "")
        assert not name or any(word in name for word in vague) or find(name), f"{path.name}: {name}"


@given(
    st.text(max_size=60)
    | st.from_regex(r"[0-9]{0,3}[ x×]{0,2}(RTX|H|A|NVIDIA|custom:)[ -]?[0-9.]{0,5}", fullmatch=True)
)
def test_any_text(text: str) -> None:
    find(text)
    suggest(text)


@pytest.mark.parametrize(
    ("text", "count", "total", "free"),
    [
        ("24 GB card with 23.53 GiB (name not printed)", None, 23.53, None),
        ("2x sm90 part with 16.0 GiB (a slice of a Hopper card)", 2, 16.0, None),
        ("96 GB class (94.13 GiB before load, derived)", None, 96, 94.13),
        ("unknown (16 GB class, 15.24 GiB free before load)", None, 16, 15.24),
    ],
)
def test_a_card_without_a_name_goes_by_its_memory(
    text: str, count: int | None, total: float, free: float | None
) -> None:
    found = find(text)
    assert found is not None and found.gpu is not None and found.gpu.total_bytes is not None
    assert found.count == count
    assert found.gpu.total_bytes / GIB == pytest.approx(total)
    assert found.gpu.free_bytes is not None and found.gpu.cuda_bytes is not None
    assert found.gpu.free_bytes.value < found.gpu.cuda_bytes.value <= found.gpu.total_bytes
    if free is not None:
        assert found.gpu.free_bytes.value / GIB == pytest.approx(free)


def test_compiled_tables_are_up_to_date() -> None:
    """A stale twin is never wrong, only slow: the table itself is read then."""
    root = Path(__file__).parents[2]
    tool = runpy.run_path(str(root / "tools" / "compile_tables.py"))
    for name in tool["TABLES"]:
        path = tool["ROOT"] / name
        assert path.with_suffix(".json").read_bytes() == compiled(path.read_bytes()), (
            f"{name}: run tools/compile_tables.py"
        )
    assert (tool["ROOT"] / "models" / "catalogue.json").read_bytes() == tool["catalogue"](), (
        "run tools/compile_tables.py"
    )


@pytest.mark.parametrize(
    ("text", "name", "gib"),
    [
        ("RTX 4090 48GB", "NVIDIA GeForce RTX 4090", 48),
        ("RTX 2080 Ti 22GB", "NVIDIA GeForce RTX 2080 Ti", 22),
        ("Jetson AGX Orin 64GB", "Orin (nvgpu)", 64),
        ("Hygon BW100 64GB", "Hygon BW100", 64),
        ("Acme X9 276.62 GiB", "Acme X9 276.62 GiB", 276.62),
        ("ZW810 96GB", "ZW810 96GB", 96),
    ],
)
def test_a_name_with_another_memory_plans_with_that(text: str, name: str, gib: float) -> None:
    """A card with doubled memory, a board of several sizes, and a product that no row names."""
    found = find(f"2x {text}")
    assert found is not None and found.gpu is not None and found.count == 2
    assert found.gpu.name == name and found.gpu.total_bytes == pytest.approx(gib * GIB, rel=1e-6)


def test_a_slip_of_the_pen_is_no_unknown_card() -> None:
    assert find("RTX 509O 32GB") is None


def test_a_total_as_cuda_reports_it_is_more_exact_than_the_row() -> None:
    found = find("NVIDIA GB10 (DGX Spark, 121.69 GiB unified)")
    assert found is not None and found.gpu is not None and found.gpu.cuda_bytes is not None
    assert found.gpu.cuda_bytes.value == pytest.approx(121.69 * GIB)
    assert found.gpu.cuda_bytes.high - found.gpu.cuda_bytes.low <= 0.03 * GIB


@pytest.mark.parametrize("text", ["NVIDIA GeForce RTX 3090 24 GB", "RTX 3090", "4x RTX 3090 (23.07 GiB free)"])
def test_a_nameplate_or_free_memory_is_no_total(text: str) -> None:
    found, plain = find(text), find("RTX 3090")
    assert found is not None and plain is not None and found.gpu is not None and plain.gpu is not None
    assert found.gpu.cuda_bytes == plain.gpu.cuda_bytes
