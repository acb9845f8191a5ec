"""Each rule of `check`: what makes it speak, what keeps it silent; and the rows behind them."""

from __future__ import annotations

import tomllib
from itertools import combinations
from pathlib import Path

import pytest
from packaging.version import Version
from tests.hardware.test_topology import full, table

from ullage.core.errors import TableError
from ullage.core.tables import load
from ullage.hardware.check import SEVERITIES, CheckFinding, facts, findings
from ullage.hardware.check import pairs as rows
from ullage.hardware.check.finding import say, texts
from ullage.hardware.compat.software import software, wheel, wheels
from ullage.hardware.environment import Installed, Package, parts
from ullage.hardware.outputs import Outputs, Saved

SRC = Path(__file__).parents[2] / "src" / "ullage" / "hardware"


def row(index: int = 0, name: str = "NVIDIA L40S", total: int = 46068, used: int = 0, driver: str = "570.95",
        capability: str = "8.9", mig: str = "Disabled", persistence: str = "Enabled", generation: int = 4, width: int = 16,
        most: int = 16) -> str:  # fmt: skip
    return (
        f"{index}, GPU-{index}, {name}, {total}, 400, {used}, {total - 400 - used}, {driver}, {capability}, {mig}, Enabled,"
        f" {persistence}, 00000000:{index + 1:02X}:00.0, {generation}, {width}, {most}\n"
    )


def packages(**versions: str) -> Installed:
    told = {name.replace("_", "-"): version for name, version in versions.items()}
    return Installed(
        "made up", {name: Package(name, version, "packages.txt:1") for name, version in told.items()}
    )


def found(installed: Installed | None = None, /, **saved: str) -> dict[str, CheckFinding]:
    outputs = Outputs({name: Saved(f"{name}.txt", text) for name, text in saved.items()}, "made up")
    return {finding.id: finding for finding in findings(facts(outputs, installed))}


def report(*fields: str) -> str:
    """A report of one GPU with these lines ("Remapped Rows/Pending: Yes")."""
    lines = [
        "Driver Version : 570.95",
        "CUDA Version : 12.8",
        "GPU 00000000:01:00.0",
        "    Product Name : NVIDIA L40S",
    ]
    for field in fields:
        path, value = field.split(": ")
        for depth, word in enumerate(path.split("/"), 1):
            last = depth == len(path.split("/"))
            lines.append("    " * depth + word + (f" : {value}" if last else ""))
    return "\n".join(lines) + "\n"


# --- GPUs -------------------------------------------------------------------------------------------------


def test_a_healthy_machine_has_no_findings() -> None:
    assert found(gpus=row(0) + row(1), topology=table(full(2, "PIX")), p2p_read=" \tGPU0\tGPU1\n GPU0\tX\tOK\n GPU1\tOK\tX\n",
                 shm="shm 67108864 0 67108864 0% /dev/shm\n") == {}  # fmt: skip


@pytest.mark.parametrize(
    ("field", "name", "severity"),
    [
        ("GPU Recovery Action: Reset", "gpu-needs-reset", "stops"),
        ("Remapped Rows/Pending: Yes", "gpu-rows-to-remap", "slows"),
        ("Retired Pages/Pending Page Blacklist: Yes", "gpu-rows-to-remap", "slows"),
        ("Remapped Rows/Remapping Failure Occurred: Yes", "gpu-memory-worn", "stops"),
        ("ECC Errors/Volatile/DRAM Uncorrectable: 3", "gpu-ecc-errors", "slows"),
        ("Compute Mode: Exclusive_Process", "compute-mode", "worth knowing"),
        ("Compute Mode: Prohibited", "compute-prohibited", "stops"),
        ("Clocks Event Reasons/HW Thermal Slowdown: Active", "clocks-lowered", "slows"),
        ("Clocks Throttle Reasons/SW Thermal Slowdown: Active", "clocks-lowered", "slows"),
        ("Clocks Event Reasons Counters/HW Power Braking: 5000000 us", "clocks-were-lowered", "worth knowing"),
        ("Fabric/State: In Progress", "fabric-not-ready", "stops"),
    ],
)  # fmt: skip
def test_what_a_report_says_of_one_gpu(field: str, name: str, severity: str) -> None:
    told = found(report=report(field))
    assert list(told) == [name] and told[name].severity == severity
    assert told[name].evidence[0].text.startswith(field.split(": ")[0].rpartition("/")[2])


@pytest.mark.parametrize(
    "field",
    ["Clocks Event Reasons/Idle: Active", "Clocks Event Reasons/SW Power Cap: Active", "Remapped Rows/Pending: No",
     "Compute Mode: Default", "Fabric/State: N/A", "Fabric/State: Completed", "GPU Recovery Action: None",
     "ECC Errors/Volatile/DRAM Uncorrectable: 0", "Clocks Event Reasons Counters/HW Power Braking: 200 us"],
)  # fmt: skip
def test_what_is_no_fault(field: str) -> None:
    assert found(report=report(field)) == {}


def test_a_low_power_limit() -> None:
    lines = (
        "GPU Power Readings/Current Power Limit: 250.00 W",
        "GPU Power Readings/Default Power Limit: 350.00 W",
    )
    assert "71%" in found(report=report(*lines))["power-limit-low"].text
    assert found(report=report(lines[0].replace("250", "340"), lines[1])) == {}


def test_a_link_counts_under_load_only() -> None:
    link = "PCI/GPU Link Info/PCIe Generation/"
    slow = (f"{link}Max: 4", f"{link}Current: 1", "Performance State: P0", "Utilization/GPU: 80 %")
    assert list(found(report=report(*slow))) == ["pcie-generation-now"]
    assert found(report=report(*slow[:2], "Performance State: P8", "Utilization/GPU: 0 %")) == {}
    slot = (f"{link}Device Max: 5", f"{link}Host Max: 3")
    assert found(report=report(*slot))["pcie-generation"].severity == "worth knowing"


def test_gpus_that_differ() -> None:
    told = found(gpus=row(0) + row(1, "NVIDIA L4", 23034), topology=table(full(2, "PIX")))
    assert "1 x NVIDIA L40S (45 GiB), 1 x NVIDIA L4 (22 GiB)" in told["gpus-differ"].text
    assert told["gpus-unbalanced"].severity == "slows"
    narrow = found(gpus=row(0) + row(1, width=4) + row(2, most=8, width=8))
    assert "GPU 1: the PCIe link has 4 of 16" in narrow["pcie-width"].text
    assert "GPUs 0, 1 generation 4 x16; GPU 2 generation 4 x8" in narrow["pcie-differs"].text
    assert found(gpus=row(0, width=8))["pcie-width"].severity == "worth knowing"


def test_memory_that_others_hold() -> None:
    apps = "GPU-1, 77, 20000, /usr/bin/python3\nGPU-1, 78, 480, [Not Found]\n"
    two = row(0) + row(1, used=20480)
    told = found(packages(sglang="0.5.9", torch="2.9.1"), gpus=two, apps=apps)
    assert told["gpus-unbalanced"].severity == "stops" and "differs by 45%" in told["gpus-unbalanced"].text
    assert "GPU 1: 20.0 GiB of 45.0 GiB in use by /usr/bin/python3 (pid 77)" in told["gpu-memory-held"].text
    hidden = found(gpus=two, apps=apps, variables="CUDA_VISIBLE_DEVICES=0\n")
    assert "gpu-memory-held" not in hidden and "gpus-unbalanced" not in hidden


def test_mig() -> None:
    off = report("MIG Mode/Current: Enabled")
    assert list(found(report=off)) == ["mig-without-instance"]
    on = (
        off
        + "    MIG Device\n        Index : 0\n        FB Memory Usage\n            Total : 9728 MiB\n            Free : 9700 MiB\n"
    )
    assert list(found(report=on)) == ["mig-on"]


def test_gpus_that_are_gone() -> None:
    bus = "01:00.0 3D controller: NVIDIA Corporation AD102GL [L40S] (rev a1)\n02:00.0 3D controller: NVIDIA Corporation AD102GL\n"
    assert found(gpus=row(0), lspci=bus)["gpu-missing"].severity == "stops"
    assert "gpu-missing" not in found(gpus=row(0) + row(1), lspci=bus)
    assert "nouveau-loaded" in found(lspci=bus + "\tKernel driver in use: nouveau\n")
    lost = found(smi="NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n")
    assert list(lost) == ["driver-not-answering"]
    assert found(smi="nvidia-smi: command not found\n") == {}
    off = "Unable to determine the device handle for GPU1: 0000:02:00.0: Unknown Error\n"
    assert list(found(gpus=row(0), smi=off)) == ["gpu-lost"]


@pytest.mark.parametrize(
    ("log", "severity"),
    [
        ("NVRM: Xid (PCI:0000:41:00): 79, pid='<unknown>', GPU has fallen off the bus.", "stops"),
        ("NVRM: Xid (PCI:0000:41:00): 63, pid=1, Row Remapper: new row", "slows"),
        ("NVRM: Xid (PCI:0000:41:00): 13, pid=1, Graphics Exception", None),
    ],
)  # fmt: skip
def test_what_the_kernel_complains_of(log: str, severity: str | None) -> None:
    told = found(gpus=row(0), dmesg=f"[ 1.0] {log}\n")
    assert (told["xid"].severity if "xid" in told else None) == severity


def test_errors_of_the_bus_and_killed_processes() -> None:
    log = (
        "pcieport 0000:40:01.1: AER: enabled with IRQ 30\npcieport 0000:40:01.1: AER: Corrected error received: 0000:41:00.0\n"
        "Out of memory: Killed process 4242 (sglang::schedul) total-vm:1kB\n"
    )
    told = found(gpus=row(0), dmesg=log)
    assert (
        set(told) == {"aer-errors", "killed-before"}
        and "sglang::schedul (pid 4242)" in told["killed-before"].text
    )
    assert found(gpus=row(0), dmesg=log.splitlines()[0]) == {}


# --- links and host ---------------------------------------------------------------------------------------

OK = " \tGPU0\tGPU1\n GPU0\tX\tOK\n GPU1\tOK\tX\n"
TWO = row(0) + row(1)


def test_links_through_the_cpu() -> None:
    phb = table(full(2, "PHB"))
    assert "links-through-host" in found(gpus=TWO, topology=phb)
    # NCCL lets two GPUs copy across an AMD CPU
    assert "links-through-host" not in found(gpus=TWO, topology=phb, lscpu="Model name:  AMD EPYC 7402P\n")
    four = found(
        gpus="".join(map(row, range(4))), topology=table(full(4, "NODE")), lscpu="Model name:  AMD EPYC 7402P\n"
    )
    assert {"links-through-host", "custom-all-reduce-off"} <= set(four)
    pairs = [
        ["X", "NV4", "SYS", "SYS"],
        ["NV4", "X", "SYS", "SYS"],
        ["SYS", "SYS", "X", "NV4"],
        ["SYS", "SYS", "NV4", "X"],
    ]
    told = found(gpus="".join(map(row, range(4))), topology=table(pairs))
    assert "NVLink joins 2 of 6 pairs" in told["nvlink-partial"].text and "links-through-host" not in told


def test_nvlinks_that_are_down_and_the_fabric_manager() -> None:
    status = "GPU 0: NVIDIA A100\n\t Link 0: 25 GB/s\n\t Link 1: <inactive>\nGPU 1: NVIDIA A100\n\t Link 0: 25 GB/s\n"
    assert "GPU 0: 1 of 2" in found(gpus=TWO, nvlink=status)["nvlink-down"].text
    eight = {"gpus": "".join(map(row, range(8))), "topology": table(full(8, "NV12"))}
    assert found(**eight, fabric="inactive\n")["fabric-manager-inactive"].severity == "stops"
    assert "fabric-manager-inactive" not in found(**eight, fabric="active\n")
    assert "fabric-manager-inactive" not in found(gpus=TWO, topology=table(full(2, "NV4")), fabric="inactive\n")


def test_direct_copies() -> None:
    told = found(gpus=TWO, p2p_read=OK.replace("OK", "CNS"))
    assert (
        "the chipset does not support it" in told["p2p-refused"].text
        and "GeForce" not in told["p2p-refused"].remedy
    )
    off = found(gpus=TWO, p2p_read=OK, variables="export NCCL_P2P_DISABLE=1\n")
    assert "NCCL_P2P_DISABLE=1 is set" in off["p2p-disabled-by-variable"].text
    assert "NCCL_P2P_DISABLE" in off["p2p-disabled-by-variable"].source
    iommu = {"cmdline": "ro intel_iommu=on\n"}
    assert found(gpus=TWO, **iommu)["iommu-translates"].severity == "slows"
    assert (
        found(gpus=TWO, topology=table(full(2, "NV4")), **iommu)["iommu-translates"].severity == "worth knowing"
    )
    assert "iommu-translates" not in found(gpus=row(0), **iommu)


def test_the_host() -> None:
    assert "shm-small" in found(gpus=TWO, shm="shm 65536 0 65536 0% /dev/shm\n")
    assert "shm-tight" in found(gpus=row(0), shm="shm 65536 0 65536 0% /dev/shm\n")
    limits = "Max locked memory   8388608  8388608  bytes\nMax open files   1024   4096   files\n"
    told = found(gpus=TWO, topology=table(full(2, "PIX"), nics=2), limits=limits)
    assert {"memlock-low", "nofile-low"} == set(told) and "1024 files (4096 at most)" in told["nofile-low"].text
    assert "memlock-low" not in found(gpus=TWO, topology=table(full(2, "PIX")), limits=limits)
    memory = "MemTotal: 131072000 kB\nMemAvailable: 120000000 kB\nHugetlb: 67108864 kB\n"
    told = found(
        gpus=row(0), memory=memory, cgroup="8589934592\n", governor="powersave\n", numa_balancing="1\n"
    )
    assert set(told) == {"hugepages-hold", "cgroup-memory", "governor-slow"}
    assert "governor-slow" not in found(
        gpus=row(0), governor="powersave\n", lscpu="Model name: Intel(R) Xeon(R)\n"
    )
    short = found(gpus=row(0), memory="MemTotal: 16777216 kB\nMemAvailable: 8388608 kB\n")
    assert "8.0 GiB of host memory" in short["host-memory-short"].text


def test_nothing_is_said_of_gpus_where_there_are_none() -> None:
    assert (
        found(
            shm="shm 65536 0 65536 0% /dev/shm\n", limits="Max open files 1 1 files\n", governor="powersave\n"
        )
        == {}
    )


# --- pairs ------------------------------------------------------------------------------------------------

PRO = "NVIDIA RTX PRO 6000 Blackwell Server Edition"
BLACKWELL = row(0, PRO, 97887, capability="12.0") + row(1, PRO, 97887, capability="12.0")


@pytest.mark.parametrize(
    ("installed", "saved", "name", "holds"),
    [
        (packages(nvidia_nccl_cu12="2.25.1"), {"gpus": BLACKWELL}, "nccl-blackwell-shared-memory", True),
        (packages(nvidia_nccl_cu12="2.26.2"), {"gpus": BLACKWELL}, "nccl-blackwell-shared-memory", False),
        (packages(nvidia_nccl_cu12="2.25.1"), {"gpus": TWO}, "nccl-blackwell-shared-memory", False),
        (packages(nvidia_nccl_cu13="2.29.2"), {"gpus": TWO}, "nccl-2292-hang", True),
        (packages(nvidia_nccl_cu13="2.29.3"), {"gpus": TWO}, "nccl-2292-hang", False),
        (packages(nvidia_nccl_cu13="2.29.2"), {"gpus": row(0)}, "nccl-2292-hang", False),
        (packages(triton="3.4.0"), {"gpus": row(0, "NVIDIA B300 SXM6 AC", 275040, capability="10.3", driver="580.9")},
         "triton-ptxas-sm103", True),
        (packages(flashinfer_python="0.6.13"), {"gpus": BLACKWELL, "nvcc": "release 12.8, V12.8.93"}, "flashinfer-sm12-old-nvcc", True),
        (packages(flashinfer_python="0.6.13"), {"gpus": BLACKWELL, "nvcc": "release 12.9, V12.9.86"}, "flashinfer-sm12-old-nvcc", False),
        (packages(flashinfer_python="0.6.13"), {"gpus": BLACKWELL}, "flashinfer-sm12-old-nvcc", False),
        (packages(flashinfer_python="0.6.3"), {"gpus": BLACKWELL, "nvcc": "release 12.8, V12.8.93"}, "flashinfer-sm12-old-nvcc", False),
        (packages(vllm="0.11.0", transformers="5.1.0"), {}, "vllm-transformers-5", True),
        (packages(vllm="0.11.0", transformers="4.57.1"), {}, "vllm-transformers-5", False),
        (packages(vllm="0.12.0", transformers="5.1.0"), {}, "vllm-transformers-5", False),
        (packages(sglang="0.5.9", torch="2.9.1+cu128", nvidia_cudnn_cu12="9.10.2.21"), {}, "sglang-torch-291-cudnn", True),
        (packages(sglang="0.5.9", torch="2.9.1", nvidia_cudnn_cu12="9.16.0.29"), {}, "sglang-torch-291-cudnn", False),
        (packages(sgl_kernel="0.3.21", torch="2.9.1+cu130"), {}, "sgl-kernel-cuda12-under-13", True),
        (packages(sgl_kernel="0.3.21+cu130", torch="2.9.1+cu130"), {}, "sgl-kernel-cuda12-under-13", False),
        (packages(sglang="0.5.9"), {"gpus": row(0, "Tesla V100-SXM2-32GB", 32510, capability="7.0")}, "sglang-old-gpu", True),
        (None, {"gpus": row(0, "NVIDIA GeForce RTX 3090", driver="545.23.08") + row(1, "NVIDIA GeForce RTX 3090", driver="545.23.08"),
                "topology": table(full(2, "PHB"))}, "driver-545-p2p", True),
        (None, {"gpus": row(0, "NVIDIA GeForce RTX 4090") + row(1, "NVIDIA GeForce RTX 4090")}, "geforce-without-p2p", True),
        (None, {"smi": "No devices were found\n", "lspci": "01:00.0 VGA compatible controller: NVIDIA Corporation GB202 [GeForce RTX 5090]\n",
                "module": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.124.06  x\n"}, "blackwell-needs-open-modules", True),
        (None, {"smi": "No devices were found\n", "lspci": "01:00.0 VGA compatible controller: NVIDIA Corporation GB202 [GeForce RTX 5090]\n",
                "module": "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.124.06\n"}, "blackwell-needs-open-modules", False),
    ],
)  # fmt: skip
def test_pairs(installed: Installed | None, saved: dict[str, str], name: str, holds: bool) -> None:
    assert (name in found(installed, **saved)) is holds


def test_every_pair_is_tried_somewhere_or_plain() -> None:
    """Ids are unique and new among the findings; sources are places that one can look up; texts can be written."""
    ids = [one.id for one in rows.pairs()]
    assert len(ids) == len(set(ids)) and not set(ids) & set(texts())
    for one in rows.pairs():
        assert len(one.source) > 8 and ("#" in one.source or ".py" in one.source or ".cpp" in one.source), (
            one.id
        )
        assert one.seen[:4].isdigit() and one.seen[4] == "-", one.id
        assert one.text.format_map({"version": "1", "gpu": "x"}).endswith("."), one.id
        assert not (one.severity == "stops" and one.result == "unknown"), one.id


def test_spans_do_not_overlap() -> None:
    for group in rows.spans(rows.pairs()).values():
        for one, other in combinations(group, 2):
            limits = [v for v in (one.since, one.until, other.since, other.until) if v]
            for text in limits:
                release = Version(text.lstrip("≤"))
                assert not (one.span.holds(release) and other.span.holds(release)), (one.id, other.id)
    for one in rows.pairs():
        if one.since and one.until:
            assert Version(one.since.lstrip("≤")) < Version(one.until), one.id


def test_wheels_do_not_overlap_and_have_sources() -> None:
    for one in wheels():
        assert len(one.source) > 10
        assert all(len(text.split(".")) == 2 for text in one.architectures)
    for one, other in combinations(wheels(), 2):
        if (one.cuda, one.machine) == (other.cuda, other.machine):
            for text in (one.since, one.until, other.since, other.until):
                assert text is None or not (
                    one.span.holds(Version(text)) and other.span.holds(Version(text))
                ), one.cuda


def test_tables_of_software_are_whole() -> None:
    cudas = [toolkit.cuda for toolkit in software().toolkit]
    assert cudas == sorted(set(cudas), key=Version)
    for toolkit in software().toolkit:
        assert toolkit.least <= toolkit.driver and toolkit.source
    versions = [torch.version for torch in software().torch]
    assert versions == sorted(set(versions), key=Version)
    for torch in software().torch:
        assert torch.cuda in cudas, torch.version
        # what the coarse row says is what the build's own list says
        build = wheel(torch.version, torch.cuda)
        assert build is not None, torch.version


def test_findings_have_words_and_sources() -> None:
    for one in texts().values():
        assert one.severity in SEVERITIES and len(one.source) > 8 and len(one.remedy) > 5, one.id
    with pytest.raises(KeyError):
        say("gpus-differ")


def test_parts_are_found_by_their_names() -> None:
    names = [name for part in parts().values() for name in part.packages]
    assert len(names) == len(set(names))
    assert {"vllm", "sglang", "torch", "nccl", "triton", "flashinfer", "transformers"} <= set(parts())


@pytest.mark.parametrize(
    "line",
    ['component = "nothing"', 'when = { colour = "x" }', 'when = { capability = ["SM120"] }', 'source = " "', 'severity = "bad"', "other = 1"],
)  # fmt: skip
def test_a_pair_that_is_none_is_refused(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = tomllib.loads((SRC / "check" / "pairs.toml").read_text())["pair"][2]
    text = {key: f"{key} = {value!r}" for key, value in good.items() if key != "when"}
    text[line.partition(" ")[0]] = line
    (tmp_path / "madeup_pairs").mkdir()
    (tmp_path / "madeup_pairs/__init__.py").write_text("")
    (tmp_path / "madeup_pairs/pairs.toml").write_text("[[pair]]\n" + "\n".join(text.values()) + "\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(rows, "load", lambda _package, name, kind: load("madeup_pairs", name, kind))
    rows.pairs.cache_clear()
    load.cache_clear()
    try:
        with pytest.raises(TableError):
            rows.pairs()
    finally:
        monkeypatch.undo()
        rows.pairs.cache_clear()
        load.cache_clear()
