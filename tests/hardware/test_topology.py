"""`nvidia-smi topo -m`: the layouts of servers, desktops and old drivers."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ullage.core.errors import InputError
from ullage.hardware.topology import parse

RECORD = (
    Path(__file__).resolve().parents[2].parent / "shared/logs/machines/pcie-8x-rtx-pro-6000/nvidia_topo.log"
)


def table(links: list[list[str]], nics: int = 0, tail: str = "0-55\t0\t\tN/A") -> str:
    names = [f"GPU{n}" for n in range(len(links))] + [f"NIC{n}" for n in range(nics)]
    rows = ["\t\x1b[4m" + "\t".join([*names, "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"]) + "\x1b[0m"]
    for number, row in enumerate(links):
        cells = [f" {link} " if link == "X" else link for link in row] + [
            "PIX" if n == number else "SYS" for n in range(nics)
        ]
        rows.append("\t".join([f"GPU{number}", *cells, tail]))
    for number in range(nics):
        cells = ["PIX" if n == number else "SYS" for n in range(len(links))] + [
            " X " if n == number else "NODE" for n in range(nics)
        ]
        rows.append("\t".join([f"NIC{number}", *cells, "", ""]))
    return "\n".join(
        [
            *rows,
            "",
            "Legend:",
            "",
            "  X    = Self",
            "  NV#  = Connection traversing a bonded set of # NVLinks",
            "",
            "NIC Legend:",
            "",
            "  NIC0: mlx5_0",
        ]
    )


def full(size: int, link: str) -> list[list[str]]:
    return [["X" if a == b else link for b in range(size)] for a in range(size)]


@pytest.mark.skipif(not RECORD.exists(), reason="the record of the real machine is not here")
def test_the_real_host_of_eight_cards_on_pcie() -> None:
    found = parse(RECORD.read_text())
    assert len(found.gpus) == 8
    assert found.worst_link == "SYS" and not found.nvlink_mesh
    assert found.numa == (0, 0, 0, 0, 1, 1, 1, 1)
    assert found.cpus[7] == "64-127,192-238"
    assert found.of((0, 1)).worst_link == "PIX"
    assert found.of((2, 3, 0)).links == (("X", "PIX", "NODE"), ("PIX", "X", "NODE"), ("NODE", "NODE", "X"))
    assert any("NCCL_P2P_LEVEL=SYS" in hint for hint in found.p2p_hints)


def test_eight_cards_on_nvswitch_with_network_cards() -> None:
    found = parse(table(full(8, "NV18"), nics=10))
    assert found.nvlink_mesh and found.worst_link == "NV18" and not found.p2p_hints
    assert len(found.nics) == 10
    assert found.nic_links[3][3] == "PIX" and found.nic_links[3][4] == "SYS"


def test_two_consumer_cards() -> None:
    found = parse(table(full(2, "PHB"), tail="0-31\t0"))
    assert found.worst_link == "PHB" and not found.nvlink_mesh
    assert "no NVLink: copies go over PCIe" in found.p2p_hints


def test_bridged_pairs_are_no_mesh() -> None:
    links = [
        ["X", "NV4", "SYS", "SYS"],
        ["NV4", "X", "SYS", "SYS"],
        ["SYS", "SYS", "X", "NV4"],
        ["SYS", "SYS", "NV4", "X"],
    ]
    found = parse(table(links))
    assert not found.nvlink_mesh and found.worst_link == "SYS"
    assert "NVLink joins some pairs only" in found.p2p_hints
    assert found.of((0, 1)).nvlink_mesh


def test_fewer_lanes_are_the_worse_link() -> None:
    assert parse(table([["X", "NV1", "NV2"], ["NV1", "X", "NV2"], ["NV2", "NV2", "X"]])).worst_link == "NV1"


def test_one_card_has_no_link() -> None:
    found = parse("        GPU0    CPU Affinity    NUMA Affinity\nGPU0     X      0-15            N/A\n")
    assert (
        found.worst_link is None and not found.nvlink_mesh and found.numa == (None,) and found.cpus == ("0-15",)
    )


def test_an_old_driver_names_the_network_card_and_soc() -> None:
    text = "GPU0 GPU1 mlx5_0 CPU Affinity\nGPU0 X SOC PIX 0-9\nGPU1 SOC X SOC 10-19\nmlx5_0 PIX SOC X\n"
    found = parse(text)
    assert found.worst_link == "SYS" and found.nics == ("mlx5_0",) and found.cpus == ("0-9", "10-19")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Failed to initialize NVML: N/A",
        "GPU0 GPU1 CPU Affinity\nGPU0 X PIX 0-9\n",
        "GPU0 GPU1 CPU Affinity\nGPU0 X PIX 0-9\nGPU1 PIX",
        "GPU0 GPU0 CPU Affinity\nGPU0 X X",
        "GPU0 GPU1\nGPU0 X what\nGPU1 what X",
        " ".join(f"GPU{n}" for n in range(999)),
    ],
)
def test_anything_else_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(InputError) as error:
        parse(text)
    assert "\n" not in error.value.line


@given(st.text(alphabet="GPU01 XNVSYPI\t\n\x1b[4m,-9", max_size=200))
def test_no_text_breaks_it(text: str) -> None:
    try:
        found = parse(text)
    except InputError:
        return
    assert len(found.links) == len(found.gpus) == len(found.numa)
