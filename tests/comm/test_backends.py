"""Which backends can run where: each row has a source, and the founding attempts are refused before they start."""

from __future__ import annotations

from typing import get_args

import pytest
from packaging.version import Version

from ullage.comm.backends import Row, Standing, check, standings, table
from ullage.comm.fits import Backend, fits
from ullage.comm.links import links_of
from ullage.core.errors import TableError
from ullage.hardware import gpus


def at(gpu: str, engine: str, version: str, ranks: int = 8, **facts: str) -> dict[str, Standing]:
    links = links_of(gpus.find(gpu), ranks, via=facts.get("via"))
    return {one.backend: one for one in standings(engine, Version(version), links, ranks)}


def test_every_row_has_a_source_and_every_backend_rows() -> None:
    infos, rows = table()
    assert {info.id for info in infos} == set(get_args(Backend)) == {row.backend for row in rows}
    assert all(len(row.source) > 10 for row in rows)
    assert all(fit.source for fit in (*fits().fabric, *fits().kernel, fits().host, fits().eager, fits().net))


@pytest.mark.parametrize(
    "row",
    [
        Row("nccl", "works", " "),
        Row("nccl", "fails", "read"),
        Row("nccl", "works", "read", architectures=["12"]),
    ],
)
def test_a_row_without_a_source_is_not_a_row(row: Row) -> None:
    with pytest.raises(TableError):
        check(row, {"nccl"})


def test_the_founding_attempts() -> None:
    """SGLang 0.5.9 on 8 RTX PRO 6000: fusion, custom all-reduce and symmetric memory, with the literal words."""
    found = at("8x RTX PRO 6000", "sglang", "0.5.9")
    assert (
        found["flashinfer_fused"].message == "No supported CUDA architectures found for major versions [9, 10]."
    )
    assert (found["torch_symm_mem"].result, found["torch_symm_mem"].message) == ("fails", "KeyError: 12")
    assert "not supported on more than two PCIe-only GPUs" in found["custom"].message
    assert not any(found[name].possible for name in ("custom", "custom_v2", "pcie_ipc", "flashinfer_fused"))
    assert found["nccl"].result == "works"


@pytest.mark.parametrize(
    ("engine", "version", "result"),
    [("sglang", "0.5.21", "ignored"), ("sglang", "0.5.22", "works"), ("vllm", "0.30.0", "ignored"),
     ("vllm", "0.31.0", "works")],
)  # fmt: skip
def test_pcie_ipc_by_release(engine: str, version: str, result: str) -> None:
    assert at("8x RTX PRO 6000", engine, version)["pcie_ipc"].result == result


def test_two_cards_with_p2p_may_use_the_custom_kernel_and_without_not() -> None:
    assert at("2x RTX PRO 6000", "vllm", "0.24.0", 2)["custom"].result == "works"
    assert at("2x RTX PRO 6000", "vllm", "0.24.0", 2, via="SHM")["custom"].result == "ignored"
    assert at("2x RTX 4090", "vllm", "0.24.0", 2)["custom"].result == "ignored"


def test_world_sizes() -> None:
    assert at("3x H100", "vllm", "0.24.0", 3)["custom"].result == "ignored"
    assert at("8x H100", "sglang", "0.5.9", 8)["mscclpp"].result == "works"
    assert at("4x H100", "sglang", "0.5.9", 4)["mscclpp"].result == "ignored"


def test_other_makers_kernels_are_named_as_such() -> None:
    nvidia, amd = at("8x H100", "vllm", "0.24.0"), at("8x MI300X", "vllm", "0.25.0")
    assert nvidia["quick"].foreign
    assert nvidia["aiter"].foreign
    assert (amd["quick"].result, amd["aiter"].result, amd["custom"].result) == ("works", "works", "works")
    assert amd["flashinfer_fused"].foreign


def test_limits_of_size() -> None:
    assert at("8x H100", "vllm", "0.24.0")["custom"].most_bytes == 256 * 1024
    assert at("8x H100", "vllm", "0.10.0")["custom"].most_bytes == 8 * 1024 * 1024
    assert at("8x H100", "sglang", "0.5.9")["custom"].most_bytes == 8 * 1024 * 1024


def test_what_is_on_by_itself() -> None:
    assert at("8x H100", "vllm", "0.29.0")["flashinfer_fused"].default
    assert not at("8x H100", "vllm", "0.28.0")["flashinfer_fused"].default
    assert at("8x H100", "vllm", "0.11.0")["torch_symm_mem"].default
    assert [at("8x B200", "sglang", v)["custom_v2"].default for v in ("0.5.11", "0.5.12")] == [False, True]
    assert at("8x B200", "sglang", "0.5.11")["custom_v2"].switch == {"$SGLANG_USE_JIT_ALL_REDUCE": "1"}
    assert at("8x B200", "sglang", "0.5.9")["custom_v2"].result == "ignored"
