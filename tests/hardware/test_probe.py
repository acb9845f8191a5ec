"""The machine as it is: what the tools print, replayed; no GPU is needed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.hardware.test_topology import full, table

from ullage.core.deployment import Deployment
from ullage.core.errors import InputError
from ullage.core.machine import Machine
from ullage.core.units import GIB, MIB
from ullage.hardware import nvml, probe, smi
from ullage.hardware.devices import narrowed
from ullage.hardware.probe import Printed, machine_from, probe_ssh
from ullage.planning import machines
from ullage.planning.plan import Asked, plan

RECORD = Path(__file__).resolve().parents[2].parent / "shared/logs/machines/pcie-8x-rtx-pro-6000"
PRO = "NVIDIA RTX PRO 6000 Blackwell Server Edition"
MEMINFO = "MemTotal:       127600748 kB\nMemFree:  100 kB\nMemAvailable:   118566368 kB\n"
LINUX = "Linux version 6.8.0-60-generic (buildd@lcy02) (x86_64-linux-gnu-gcc-13)\n"
WSL = "Linux version 5.15.167.4-microsoft-standard-WSL2 (root@f9c826d3017f) (gcc (GCC) 11.2.0)\n"


def row(index: int = 0, name: str = PRO, total: object = 97887, reserved: object = 636, used: object = 0,
        capability: str = "12.0", mig: str = "Disabled") -> str:  # fmt: skip
    numbers = all(isinstance(size, int) for size in (total, reserved, used))
    free = int(str(total)) - int(str(reserved)) - int(str(used)) if numbers else "[N/A]"
    return (
        f"{index}, GPU-{index}aaaa-bbbb, {name}, {total}, {reserved}, {used}, {free}, 595.58.03, {capability}, {mig},"
        f" Enabled, Enabled, 00000000:{index:02X}:00.0, 5, 16, 16\n"
    )


def replay(answers: dict[str, str]) -> Callable[[Sequence[str], float], str | None]:
    """A `run` that answers by the first key that stands in the command."""

    def run(words: Sequence[str], seconds: float) -> str | None:
        assert 0 < seconds <= 10
        return next((text for key, text in answers.items() if key in " ".join(words)), None)

    return run


@pytest.fixture(autouse=True)
def _no_real_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "library", lambda: None)
    machines._probed.cache_clear()


def here(answers: dict[str, str], environment: dict[str, str] | None = None) -> Machine:
    found = probe.probe(replay(answers), environment or {})
    assert found is not None and found.gpu is not None
    return found


@pytest.mark.skipif(not RECORD.exists(), reason="the record of the real machine is not here")
def test_the_real_host_from_its_saved_report() -> None:
    texts = Printed(
        report=(RECORD / "nvidia_smi_full.log").read_text(), topology=(RECORD / "nvidia_topo.log").read_text()
    )
    found = machine_from(texts, {}, "saved")
    assert found is not None and found.gpu is not None and found.gpu.free_bytes is not None
    assert (found.count, found.gpu.name, found.driver, found.cuda) == (8, PRO, "595.58.03", "13.2")
    assert (found.nvlink, found.worst_link) == (False, "SYS")
    device = found.devices[5]
    assert (device.index, device.total_bytes, device.reserved_bytes) == (5, 97887 * MIB, 636 * MIB)
    assert (device.ecc, device.mig, device.persistence, device.pcie_generation, device.pcie_width) == (
        True,
        False,
        True,
        5,
        16,
    )
    # the engine's log of this very host: 94.08 GiB free once its context is there (facts/founding-case.md)
    assert found.gpu.free_bytes.low <= 94.08 * GIB <= found.gpu.free_bytes.high


def test_a_query_is_read_with_processes_and_cuda() -> None:
    answers = {
        "--query-gpu": row(0, used=20480) + row(1),
        "--query-compute-apps": "GPU-0aaaa-bbbb, 4242, 20470, /usr/bin/python3\nGPU-0aaaa-bbbb, 7, [N/A], [Not Found]\nnonsense\n",
        "nvidia-smi -q": "Driver Version : 595.58.03\nCUDA Version : 13.2\n", "topo": table(full(2, "PIX")), "cat": LINUX + MEMINFO,
    }  # fmt: skip
    found = here(answers)
    assert found.source == "probed here (nvidia-smi)"
    assert (found.count, found.driver, found.cuda, found.worst_link, found.wsl) == (
        2,
        "595.58.03",
        "13.2",
        "PIX",
        False,
    )
    assert [(p.pid, p.used_bytes) for p in found.devices[0].processes] == [(4242, 20470 * MIB), (7, None)]
    assert found.host_bytes == 127600748 * 1024
    gpu = found.gpu
    assert (
        gpu is not None
        and gpu.capability == (12, 0)
        and gpu.cuda_bytes is not None
        and gpu.free_bytes is not None
    )
    assert abs(gpu.cuda_bytes.value / GIB - 94.97) < 0.01
    # the busy device decides, and its neighbour where it alone is used
    assert 73.0 < gpu.free_bytes.value / GIB < 75.0
    alone = narrowed(found, 1, 1).gpu
    assert alone is not None and alone.free_bytes is not None and alone.free_bytes.value > 94 * GIB


def test_an_old_driver_is_asked_for_less() -> None:
    def run(words: Sequence[str], seconds: float) -> str | None:
        asked = " ".join(words)
        if "memory.reserved" in asked:
            return 'Field "memory.reserved" is not a valid field to query.\n'
        return (
            "0, GPU-1, Tesla V100-SXM2-32GB, 32510, 4, 32506, 450.80.02\n" if "--query-gpu" in asked else None
        )

    found = probe.probe(run, {})
    assert found is not None and found.gpu is not None and found.driver == "450.80.02"
    assert (
        found.gpu.capability == (7, 0) and found.gpu.cuda_bytes is not None and found.gpu.free_bytes is not None
    )


@pytest.mark.parametrize(
    ("environment", "shown"),
    [
        ({}, [0, 1, 2, 3]),
        ({"CUDA_VISIBLE_DEVICES": "2,0"}, [2, 0]),
        ({"CUDA_VISIBLE_DEVICES": "1, 9, 2"}, [1]),
        ({"CUDA_VISIBLE_DEVICES": "GPU-3aa,GPU-1"}, [3, 1]),
        ({"CUDA_VISIBLE_DEVICES": "3,-1,2"}, [3]),
        ({"CUDA_VISIBLE_DEVICES": "1,1"}, [1]),
    ],
)
def test_the_devices_are_those_that_cuda_shows(environment: dict[str, str], shown: list[int]) -> None:
    found = here({"--query-gpu": "".join(map(row, range(4))), "topo": table(full(4, "NODE"))}, environment)
    assert [device.index for device in found.devices] == shown and found.count == len(shown)


@pytest.mark.parametrize("hidden", ["", "-1", "NoDevFiles"])
def test_no_visible_device_is_no_machine(hidden: str) -> None:
    assert probe.probe(replay({"--query-gpu": row()}), {"CUDA_VISIBLE_DEVICES": hidden}) is None


def test_the_faster_of_unlike_cards_comes_first() -> None:
    rows = row(0, "NVIDIA GeForce GT 1030", 2048, 60, 0, "6.1") + row(
        1, "NVIDIA GeForce RTX 3090", 24576, 300, 0, "8.6"
    )
    assert [device.index for device in here({"--query-gpu": rows}).devices] == [1, 0]
    by_bus = here({"--query-gpu": rows}, {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"})
    assert [device.index for device in by_bus.devices] == [0, 1]
    first = narrowed(here({"--query-gpu": rows}), 1).gpu
    assert first is not None and first.name == "NVIDIA GeForce RTX 3090"


def test_unified_memory_is_the_hosts() -> None:
    found = here(
        {
            "--query-gpu": row(0, "NVIDIA GB10", "[N/A]", "[N/A]", "[N/A]", "12.1", "[N/A]"),
            "cat": LINUX + MEMINFO,
        }
    )
    assert found.gpu is not None and found.gpu.unified_memory and found.devices[0].mig is None
    assert found.gpu.total_bytes == 127600748 * 1024
    assert found.gpu.free_bytes is not None and 112 < found.gpu.free_bytes.value / GIB < 113.1


def test_wsl_is_told_and_its_processes_have_no_size() -> None:
    answers = {
        "--query-gpu": row(0, "NVIDIA GeForce RTX 4090", 24564, 400, 1500, "8.9"), "cat": WSL + MEMINFO,
        "--query-compute-apps": "GPU-0aaaa-bbbb, 33, [N/A], /python3.12\n",
    }  # fmt: skip
    found = here(answers)
    assert found.wsl and found.devices[0].processes[0].used_bytes is None


def test_mig_gives_an_instance_not_the_card() -> None:
    report = """
Driver Version                            : 580.1
CUDA Version                              : 13.0
GPU 00000000:00:00.0
    Product Name                          : NVIDIA H100 80GB HBM3
    MIG Mode
        Current                           : Enabled
    MIG Device
        Index                             : 0
        FB Memory Usage
            Total                         : 40448 MiB
            Free                          : 40423 MiB
    MIG Device
        Index                             : 1
        FB Memory Usage
            Total                         : 20096 MiB
            Free                          : 20080 MiB
    FB Memory Usage
        Total                             : 81559 MiB
        Free                              : 80000 MiB
    Processes
        GPU instance ID                   : 1
            Process ID                    : 99
            Type                          : C
            Name                          : python
            Used GPU Memory               : 512 MiB
"""
    found = here(
        {
            "--query-gpu": row(0, "NVIDIA H100 80GB HBM3", 81559, 551, 60, "9.0", "Enabled"),
            "nvidia-smi -q": report,
        }
    )
    assert found.gpu is not None and found.gpu.total_bytes == 20096 * MIB
    device = smi.report(report).devices[0]
    assert device.total_bytes == 81559 * MIB and device.processes[0].used_bytes == 512 * MIB


def test_a_card_of_a_known_name_and_other_memory_is_what_the_driver_says() -> None:
    gpu = here({"--query-gpu": row(0, "NVIDIA GeForce RTX 4090", 49140, 500, 0, "8.9")}).gpu
    assert gpu is not None and gpu.cuda_bytes is not None and gpu.cuda_bytes.value == (49140 - 500) * MIB


def test_an_amd_host_by_its_json() -> None:
    text = (
        '{"card0": {"Card Series": "AMD Instinct MI300X OAM", "VRAM Total Memory (B)": "206141652992",'
        ' "VRAM Total Used Memory (B)": "297005056"}, "system": {"Driver version": "6.10.5"}}'
    )
    found = here({"rocm-smi": text})
    assert found.gpu is not None and found.gpu.vendor == "amd" and found.driver == "6.10.5"
    assert found.gpu.total_bytes == 206141652992 and found.devices[0].free_bytes == 206141652992 - 297005056


def test_no_tool_and_no_device_are_no_machine() -> None:
    assert probe.probe(replay({}), {}) is None
    assert probe.probe(replay({"--query-gpu": "No devices were found\n"}), {}) is None


@pytest.mark.parametrize(
    "answers",
    [
        {
            "--query-gpu": "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.95\n"
        },
        {"--query-gpu": "\x00\xff\x1b[2J garbage, 1, 2\n" * 9},
        {"rocm-smi": "{not json"},
    ],
)
def test_what_is_no_answer_is_told_in_one_line(answers: dict[str, str]) -> None:
    with pytest.raises(InputError) as error:
        probe.probe(replay(answers), {})
    assert error.value.line.isprintable()


@given(st.text(max_size=300), st.text(max_size=300))
def test_no_output_breaks_it(gpus: str, others: str) -> None:
    texts = [
        Printed(gpus, others, others, others, others, others),
        Printed(row() + gpus, gpus, gpus, f"Driver Version : 1\n{others}", gpus),
    ]
    for printed in texts:
        try:
            machine_from(printed, {}, "made up")
        except InputError as error:
            assert "\n" not in error.line


def test_ssh_asks_once_and_reads_the_sections() -> None:
    asked: list[Sequence[str]] = []

    def run(words: Sequence[str], seconds: float) -> str | None:
        asked.append(words)
        mark = "ullage-section:"
        return f"Welcome\n{mark}host\n{LINUX}{MEMINFO}{mark}gpus\n{row()}{row(1)}{mark}apps\n{mark}report\n{mark}topology\n{table(full(2, 'NV4'))}"

    found = probe_ssh("admin@gpu-box.example", run)
    assert found is not None and found.count == 2 and found.nvlink is True
    assert found.source == "probed over ssh at admin@gpu-box.example"
    (words,) = asked
    assert words[0] == "ssh" and "BatchMode=yes" in words and words[-3:-1] == ("--", "admin@gpu-box.example")


@pytest.mark.parametrize("host", ["-oProxyCommand=x", "a b", "", "a@-b", "a;b", "$(x)", "x\n", "h" * 400])
def test_what_is_no_host_never_reaches_ssh(host: str) -> None:
    def run(words: Sequence[str], seconds: float) -> str | None:
        raise AssertionError(words)

    with pytest.raises(InputError):
        probe_ssh(host, run)


def test_ssh_that_fails_says_why() -> None:
    with pytest.raises(InputError, match="Permission denied"):
        probe_ssh("box", replay({"ssh": "x@box: Permission denied (publickey).\n"}))
    assert (
        probe_ssh("box", replay({"ssh": "ullage-section:host\nullage-section:gpus\nullage-section:topology\n"}))
        is None
    )


def test_a_command_that_hangs_or_floods_is_ended() -> None:
    start = time.monotonic()
    assert probe.run(["sh", "-c", "echo first; sleep 60 & sleep 60"], 0.3) == "first\n"
    assert len(probe.run(["sh", "-c", "yes"], 5.0) or "") < probe.MOST_BYTES + (1 << 17)
    assert probe.run(["no-such-tool-of-ullage"], 5.0) is None
    assert time.monotonic() - start < 5


class Binding:
    """As much of nvidia-ml-py as a machine with one card that lacks some answers gives."""

    def __getattr__(self, name: str) -> object:
        answers: dict[str, object] = {
            "nvmlInit": None, "nvmlShutdown": None, "nvmlDeviceGetCount": 1, "nvmlDeviceGetHandleByIndex": "h",
            "nvmlDeviceGetName": PRO.encode(), "nvmlDeviceGetUUID": "GPU-1", "nvmlSystemGetDriverVersion": "595.58.03",
            "nvmlSystemGetCudaDriverVersion": 13020, "nvmlDeviceGetCudaComputeCapability": (12, 0),
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=97887 * MIB, reserved=636 * MIB, used=0, free=97251 * MIB),
            "nvmlDeviceGetEccMode": [1, 1], "nvmlDeviceGetPersistenceMode": 0,
            "nvmlDeviceGetComputeRunningProcesses": [SimpleNamespace(pid=5, usedGpuMemory=3 * MIB)],
            "nvmlSystemGetProcessName": "python",
        }  # fmt: skip

        def answer(*args: object, **keys: object) -> object:
            if name not in answers:
                raise RuntimeError("Not Supported")
            return answers[name]

        return answer


def test_nvml_answers_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "library", Binding)
    found = here({})
    assert found.source == "probed here (NVML)" and (found.driver, found.cuda) == ("595.58.03", "13.2")
    device = found.devices[0]
    assert (device.name, device.mig, device.ecc, device.persistence) == (PRO, None, True, False)
    assert device.processes[0].name == "python" and device.free_bytes == 97251 * MIB


def test_nvml_that_hangs_is_left() -> None:
    hanging = SimpleNamespace(nvmlInit=lambda: time.sleep(1.0))
    assert nvml.described(hanging, 0.05) is None


def test_the_real_binding_has_every_name_that_is_asked() -> None:
    pynvml = pytest.importorskip("pynvml")
    asked = set(re.findall(r"nvml\.(nvml\w+)", Path(nvml.__file__).read_text()))
    assert len(asked) > 15 and not [name for name in asked if not hasattr(pynvml, name)]
    assert nvml.described(pynvml, 5.0) is None or pynvml.nvmlInit() is None


# plan

COMMAND = "vllm serve Qwen/Qwen3-8B --gpu-memory-utilization 0.9"


REAL = probe.probe


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[dict[str, str]], None]:
    """A machine with an nvidia-smi that prints the answers."""
    (tmp_path / "nvidia-smi").touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))

    def replaying(answers: dict[str, str]) -> None:
        machines._probed.cache_clear()
        monkeypatch.setattr(probe, "probe", lambda environment: REAL(replay(answers), environment))

    return replaying


def test_plan_takes_the_gpus_that_are_here(use: Callable[[dict[str, str]], None]) -> None:
    use({"--query-gpu": row(0) + row(1), "topo": table(full(2, "PIX"))})
    for gpu in (None, "here"):
        found = plan(Asked(COMMAND, gpu, "0.19.0"))
        assert found.machine is not None and found.machine.gpu is not None
        assert (found.machine.count, found.machine.gpu.source) == (2, "probed here (nvidia-smi)")
        assert found.verdict == "starts" and not any(c.id == "gpu-busy" for c in found.cautions)
    named = plan(Asked(COMMAND, "4x L40S", "0.19.0")).machine
    assert named is not None and named.count == 4 and not named.devices
    small = plan(Asked(f"{COMMAND} -tp 4", None, "0.19.0"))
    assert small.verdict == "fails" and "--gpu" in small.why


def test_plan_counts_what_others_hold(use: Callable[[dict[str, str]], None]) -> None:
    use({"--query-gpu": row(0, used=20480) + row(1),
                      "--query-compute-apps": "GPU-0aaaa-bbbb, 4242, 20470, python3\n"})  # fmt: skip
    found = plan(Asked(COMMAND, None, "0.19.0"))
    assert found.verdict == "fails" and found.cause == "free-memory-below-request"
    assert any(c.id == "gpu-busy" and "4242" in c.text for c in found.cautions)
    other = plan(Asked(f"CUDA_VISIBLE_DEVICES=1 {COMMAND}", None, "0.19.0"))
    assert other.verdict == "starts" and other.machine is not None and other.machine.count == 1


def test_the_ledger_of_a_busy_gpu_names_what_others_hold(use: Callable[[dict[str, str]], None]) -> None:
    use({"--query-gpu": row(0, used=20480)})
    command = "python -m sglang.launch_server --model-path Qwen/Qwen3-8B --mem-fraction-static 0.8"
    (ledger,) = plan(Asked(command, None, "0.5.9")).budget.ledgers
    first = ledger.entries[0]
    assert (first.name, first.bytes, first.certainty) == ("other processes", 20480 * MIB, "observed")
    assert abs(ledger.total_bytes - 94.97 * GIB) < 0.1 * GIB


def test_plan_without_a_gpu_or_with_a_broken_driver_goes_on_unless_it_was_asked(
    use: Callable[[dict[str, str]], None],
) -> None:
    for answer in ({}, {"--query-gpu": "Failed to initialize NVML: Unknown Error\n"}):
        use(answer)
        assert plan(Asked(COMMAND, None, "0.19.0")).machine is None
        with pytest.raises(InputError):
            plan(Asked(COMMAND, "here", "0.19.0"))


def test_a_named_machine_is_left_as_it_is() -> None:
    deployment = Deployment(launch=None, machine=Machine(count=8))  # type: ignore[arg-type]
    assert machines.fitted(deployment, 8) is deployment


def test_the_installed_command_asks_the_machine(tmp_path: Path) -> None:
    """One run of the command itself, with a made-up nvidia-smi and an ssh that stays here."""
    tool = tmp_path / "nvidia-smi"
    tool.write_text(
        f"#!/bin/sh\ncase $* in *query-gpu*) printf '%s' '{row(0)}{row(1)}';; *) echo none;; esac\n"
    )
    remote = tmp_path / "ssh"
    remote.write_text('#!/bin/sh\nfor last; do :; done\neval "$last"\n')
    tool.chmod(0o755)
    remote.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "HOME": str(tmp_path)}
    words = [sys.executable, "-m", "ullage.cli", "plan", "--json", "--engine-version", "0.19.0"]
    for more, source in (([], "here"), (["--gpu", "here"], "here"), (["--gpu", "ssh:box"], "over ssh at box")):
        done = subprocess.run(
            [*words, *more, "--", *COMMAND.split()],
            env=environment,
            capture_output=True,
            timeout=60,
            check=False,
        )
        answer = json.loads(done.stdout)
        assert done.returncode == 0 and answer["gpus"]["count"] == 2 and source in answer["gpus"]["source"], (
            done.stderr
        )
