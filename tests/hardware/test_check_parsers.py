"""The readers of saved outputs never raise, whatever stands there, and read the forms that people have."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ullage.hardware import card, collected, p2p, pcie, smi
from ullage.hardware.check import facts, findings
from ullage.hardware.host import UNLIMITED, host
from ullage.hardware.listed import of_list
from ullage.hardware.outputs import Outputs, Saved, catalogue, decoded, named, plain

MACHINES = Path(__file__).parents[1] / "machines"
REPORT = (MACHINES / "nvswitch-8x-h100" / "nvidia-smi-q.txt").read_text()
LSPCI = (MACHINES / "pcie-2x-rtx-5090" / "lspci-vvv.txt").read_text()
MATRIX = (MACHINES / "nvswitch-8x-h100" / "nvidia-smi-topo-p2p-r.txt").read_text()
BOX = (MACHINES / "consumer-1x-rtx-4090" / "nvidia-smi.txt").read_text()

XML = """<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log>
  <driver_version>570.124.06</driver_version>
  <cuda_version>12.8</cuda_version>
  <gpu id="00000000:19:00.0">
    <product_name>NVIDIA H100 80GB HBM3</product_name>
    <persistence_mode>Enabled</persistence_mode>
    <mig_mode><current_mig>Disabled</current_mig></mig_mode>
    <uuid>GPU-1</uuid>
    <pci><pci_gpu_link_info>
      <pcie_gen><max_link_gen>5</max_link_gen><current_link_gen>1</current_link_gen></pcie_gen>
      <link_widths><max_link_width>16x</max_link_width><current_link_width>8x</current_link_width></link_widths>
    </pci_gpu_link_info></pci>
    <performance_state>P0</performance_state>
    <clocks_event_reasons>
      <clocks_event_reason_hw_thermal_slowdown>Active</clocks_event_reason_hw_thermal_slowdown>
      <clocks_event_reason_gpu_idle>Not Active</clocks_event_reason_gpu_idle>
    </clocks_event_reasons>
    <fb_memory_usage><total>81559 MiB</total><reserved>561 MiB</reserved><used>0 MiB</used><free>80998 MiB</free>
    </fb_memory_usage>
    <ecc_mode><current_ecc>Enabled</current_ecc></ecc_mode>
  </gpu>
</nvidia_smi_log>
"""


def spoiled(text: str) -> st.SearchStrategy[str]:
    """``text`` cut, with parts of it taken out, doubled or replaced."""
    part = st.text(alphabet=st.characters(codec="utf-8"), max_size=40)
    place = st.integers(0, len(text))
    return st.builds(lambda a, b, s: text[: min(a, b)] + s + text[max(a, b) :], place, place, part)


ANY = st.one_of(st.text(max_size=400), *(spoiled(text) for text in (REPORT[:6000], LSPCI, MATRIX, BOX, XML)))


@settings(deadline=None)
@given(ANY)
def test_no_text_makes_a_reader_raise(text: str) -> None:
    card.cards(text)
    card.head(text)
    card.described(text)
    pcie.parse(text)
    p2p.parse(text)
    smi.boxed(text)
    collected.described(text)
    of_list(Saved("x", text), "x")
    assert len(plain(text)) <= 4000


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(sorted(catalogue())), ANY, max_size=6))
def test_no_outputs_make_the_rules_raise(texts: dict[str, str]) -> None:
    outputs = Outputs(
        {name: Saved(f"{name}.txt", text) for name, text in texts.items() if name != "rocm"}, "made up"
    )
    for finding in findings(facts(outputs)):
        assert finding.source and finding.remedy
        assert "\x1b" not in finding.text + "".join(evidence.text for evidence in finding.evidence)


def test_xml_says_the_same_as_text() -> None:
    found = card.described(XML)
    (device,) = found.devices
    assert (found.driver, found.cuda, device.name) == ("570.124.06", "12.8", "NVIDIA H100 80GB HBM3")
    assert (device.pcie_width, device.pcie_width_max, device.pcie_generation) == (8, 16, 5)
    assert (device.ecc, device.mig, device.persistence, device.bus_id) == (
        True,
        False,
        True,
        "00000000:19:00.0",
    )
    assert device.free_bytes == 80998 << 20
    (one,) = card.cards(XML)
    assert [name for name, _ in one.active()] == ["hw thermal slowdown"]
    assert one.said["pci/gpu link info/link width/current"].line == 13


def test_xml_with_entities_is_read_as_nothing() -> None:
    bomb = '<?xml version="1.0"?><!DOCTYPE x [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]><nvidia_smi_log>&b;</nvidia_smi_log>'
    assert card.cards(bomb) == ()
    assert card.cards("<nvidia_smi_log>" + "<a>" * 100_000) == ()


def test_the_box_of_nvidia_smi() -> None:
    found = smi.boxed(BOX)
    (device,) = found.devices
    assert (found.driver, found.cuda, device.name) == ("535.183.01", "12.2", "NVIDIA GeForce RTX 4090")
    assert (device.used_bytes, device.total_bytes, device.persistence) == (1312 << 20, 24564 << 20, False)
    assert [(p.pid, p.used_bytes) for p in device.processes][2] == (8841, 640 << 20)


def test_an_old_and_a_cut_box() -> None:
    old = (
        "| NVIDIA-SMI 470.129.06   Driver Version: 470.129.06   CUDA Version: 11.4     |\n"
        "|   0  Tesla V100-SXM2...  Off  | 00000000:15:00.0 Off |                    0 |\n"
        "| N/A   34C    P0    56W / 300W |   1035MiB / 32510MiB |      0%      Default |\n"
    )
    (device,) = smi.boxed(old).devices
    assert (device.name, device.total_bytes) == ("Tesla V100-SXM2...", 32510 << 20)
    assert smi.boxed(old[:100]).devices == ()


def test_lspci_with_and_without_capabilities() -> None:
    found = pcie.parse(LSPCI)
    assert [device.address for device in found if device.gpu] == ["41:00.0", "61:00.0"]
    assert [(device.acs, device.bridge) for device in found[2:]] == [(True, True), (True, True)]
    assert (found[0].speed_max, found[0].speed, found[0].width) == (32.0, 2.5, 16)
    (denied,) = pcie.parse("00:01.0 PCI bridge: Intel Corporation x\n\tCapabilities: <access denied>\n")
    assert denied.denied and denied.acs is None
    off = (
        LSPCI.replace("SrcValid+", "SrcValid-")
        .replace("ReqRedir+", "ReqRedir-")
        .replace("CmpltRedir+", "CmpltRedir-")
    )
    assert [device.acs for device in pcie.parse(off)[2:]] == [False, False]


def test_the_matrix_of_direct_copies() -> None:
    pairs = p2p.parse(MATRIX)
    assert len(pairs) == 28 and p2p.refused(pairs) == ()
    mixed = p2p.parse(" \tGPU0\tGPU1\tGPU2\n GPU0\tX\tOK\tCNS\n GPU1\tOK\tX\tGNS\n GPU2\tCNS\tGNS\tX\n")
    assert [(pair.one, pair.other, pair.says) for pair in p2p.refused(mixed)] == [(0, 2, "CNS"), (1, 2, "GNS")]


@pytest.mark.parametrize(
    ("name", "text", "field", "value"),
    [
        ("shm", "Filesystem 1024-blocks Used Available Capacity Mounted on\nshm 65536 0 65536 0% /dev/shm\n", "shm", 64 << 20),
        ("shm", "Filesystem Size Used Avail Use% Mounted on\ntmpfs 756G 12K 756G 1% /dev/shm\n", "shm", 756 << 30),
        ("limits", "Max locked memory         unlimited            unlimited            bytes\n", "memlock", UNLIMITED),
        ("limits", "max locked memory       (kbytes, -l) 65536\n", "memlock", 64 << 20),
        ("limits", "open files                      (-n) 1024\n", "nofile", 1024),
        ("limits", "Max open files            1024                 524288               files\n", "nofile_hard", 524288),
        ("cgroup", "68719476736\ncat: /sys/fs/cgroup/memory/x: No such file or directory\n", "cgroup", 64 << 30),
        ("cgroup", "max\n", "cgroup", None),
        ("cgroup", "9223372036854771712\n", "cgroup", None),
        ("numa", "available: 2 nodes (0-1)\n", "numa_nodes", 2),
    ],
)  # fmt: skip
def test_sizes_of_the_host(name: str, text: str, field: str, value: int | None) -> None:
    found = getattr(host(Outputs({name: Saved("x", text)}, "")), field)
    assert (found.value if found is not None else None) == value


@pytest.mark.parametrize(
    ("texts", "state"),
    [
        ({"cmdline": "ro quiet amd_iommu=off iommu=off"}, "off"),
        ({"cmdline": "ro iommu=pt"}, "passthrough"),
        ({"cmdline": "ro intel_iommu=on"}, "translated"),
        ({"cmdline": "ro quiet", "iommu": "dmar0\ndmar1\n"}, "translated"),
        ({"cmdline": "ro iommu=pt", "iommu": "ivhd0\n"}, "passthrough"),
        ({"iommu_type": "identity\n", "cmdline": "ro intel_iommu=on"}, "passthrough"),
        ({"iommu_type": "DMA-FQ\n"}, "translated"),
        # the kernel names its default where there is no IOMMU too
        ({"dmesg": "iommu: Default domain type: Translated\n"}, None),
        ({"dmesg": "DMAR: IOMMU enabled\niommu: Default domain type: Passthrough\n"}, "passthrough"),
        ({"cmdline": "ro quiet"}, None),
    ],
)  # fmt: skip
def test_what_the_kernel_does_with_the_iommu(texts: dict[str, str], state: str | None) -> None:
    assert host(Outputs({name: Saved(name, text) for name, text in texts.items()}, "")).iommu == state


def test_reports_that_people_paste() -> None:
    sglang = (
        "Python: 3.12.11 (main)\nGPU 0,1: NVIDIA H20\nGPU 0,1 Compute Capability: 9.0\nCUDA Driver Version: 550.127.08\n"
        "PyTorch: 2.8.0+cu129\nsglang: 0.5.3.post3\nsgl_kernel: 0.3.15\nflashinfer_python: 0.4.0\ntriton: 3.4.0\n"
        "NVIDIA Topology: \n\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV18\t0-47\nGPU1\tNV18\t X \t0-47\n"
    )
    known = facts(Outputs({"collected": Saved("check-env.txt", sglang)}, "made up"))
    assert known.machine is not None and known.machine.count == 2 and known.capability == (9, 0)
    assert known.driver == "550.127.08" and known.links is not None and known.links.nvlink_mesh
    assert known.installed is not None
    told = {name: package.version for name, package in known.installed.packages.items()}
    assert told["torch"] == "2.8.0+cu129" and told["sglang"] == "0.5.3.post3" and told["sgl-kernel"] == "0.3.15"
    assert known.installed.packages["torch"].where == "check-env.txt:5"


def test_files_are_known_by_the_names_that_people_give() -> None:
    for file, name in (
        ("nvidia_smi_full.log", "report"), ("nvidia_topo.log", "topology"), ("cmdline.log", "cmdline"), ("numa.log", "numa"),
        ("pip_freeze.txt", "packages"), ("Collect_Env.txt", "collected"), ("nvidia-smi.txt", "smi"),
    ):  # fmt: skip
        row = named(file)
        assert row is not None and row.name == name, file
    assert named("notes.txt") is None
    stems = [stem for row in catalogue().values() for stem in row.stems]
    assert len(stems) == len(set(stems))


def test_text_of_windows_shells() -> None:
    assert decoded("GPU 0".encode("utf-16"), "x") == "GPU 0"
    assert decoded(b"\xef\xbb\xbfGPU 0", "x") == "GPU 0"
