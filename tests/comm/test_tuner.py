"""NCCL's own model: the worked figures of its tables, its choices, its filters."""

from __future__ import annotations

import pytest
from packaging.version import Version

from ullage.comm.tuner import Algorithm, Group, Link, Protocol, choose, enabled, latency_us
from ullage.core.units import KIB, MIB


def group(ranks: int, link: Link, **changes: object) -> Group:
    return Group(ranks, link, (9, 0), 24.0 if link == "pci" else 370.0, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ranks", "link", "algorithm", "protocol", "us"),
    [(8, "pci", "Ring", "LL", 20.6), (8, "pci", "Ring", "LL128", 49.0), (8, "pci", "Ring", "Simple", 88.2),
     (8, "pci", "Tree", "LL", 20.8), (8, "nvlink", "Ring", "LL", 15.0), (8, "nvlink", "Ring", "LL128", 40.6),
     (8, "nvlink", "Ring", "Simple", 56.0), (8, "nvlink", "Tree", "LL", 15.2), (2, "pci", "Ring", "LL", 8.6),
     (4, "pci", "Ring", "LL", 12.6), (2, "nvlink", "Ring", "LL", 7.8), (4, "nvlink", "Ring", "LL", 10.2)],
)  # fmt: skip
def test_latencies(ranks: int, link: Link, algorithm: Algorithm, protocol: Protocol, us: float) -> None:
    assert latency_us("all_reduce", group(ranks, link), algorithm, protocol) == pytest.approx(us)


def test_tree_simple_became_cheaper_in_2_23() -> None:
    old, new = (
        latency_us("all_reduce", group(8, "pci", release=Version(v)), "Tree", "Simple")
        for v in ("2.22.3", "2.23.4")
    )
    assert old - new == pytest.approx(2 * 7 * 24)


def test_small_messages_go_by_ll_and_large_ones_by_simple() -> None:
    pci = group(8, "pci")
    assert choose("all_reduce", 42 * KIB, pci).protocol == "LL"
    assert choose("all_reduce", MIB, pci).protocol == "Simple"


def test_ll128_is_off_on_pcie_until_it_is_named() -> None:
    assert choose("all_reduce", 512 * KIB, group(8, "pci", protocols="LL128")).protocol == "LL128"
    assert choose("all_reduce", 512 * KIB, group(8, "pci", protocols="^LL")).protocol == "Simple"


def test_nvls_where_multicast_works() -> None:
    large = 64 * MIB
    assert choose("all_reduce", large, group(8, "nvlink", nvls=True)).algorithm == "NVLS"
    assert choose("all_reduce", large, group(8, "nvlink")).algorithm != "NVLS"


def test_filters() -> None:
    names = ("Tree", "Ring", "NVLS")
    assert enabled("allreduce:tree", "allreduce", names) == {"Tree": True, "Ring": False, "NVLS": False}
    assert enabled("allreduce:tree", "allgather", names) == dict.fromkeys(names, True)
    assert enabled("ring;allreduce:^nvls", "allreduce", names) == {"Tree": True, "Ring": True, "NVLS": False}
    assert choose("all_reduce", KIB, group(8, "pci", algorithms="Tree")).algorithm == "Tree"


def test_a_filter_that_leaves_nothing_is_no_crash() -> None:
    assert choose("all_reduce", KIB, group(8, "pci", algorithms="nonsense")).algorithm == "Ring"
