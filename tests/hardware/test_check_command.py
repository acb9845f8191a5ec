"""The command: saved folders, hostile ones too; what is written; other machines; this one."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from ullage.core.errors import InputError
from ullage.hardware import ask, saved
from ullage.hardware.outputs import MOST_BYTES, Outputs, Saved
from ullage.planning.checks import Asked, Checked, check, keep

MACHINES = Path(__file__).parents[1] / "machines"
H100 = MACHINES / "nvswitch-8x-h100"
ROW = "0, GPU-1, NVIDIA L4, 23034, 400, 0, 22634, 570.95, 8.9, Disabled, Enabled, Enabled, 00000000:01:00.0, 4, 16, 16\n"


def command(*words: str, path: str = "") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PATH": path, "NO_COLOR": "1"} if path else dict(os.environ)
    environment.pop("VIRTUAL_ENV", None)
    return subprocess.run(
        [sys.executable, "-m", "ullage.cli", "check", *words], capture_output=True, text=True, check=False, timeout=60,
        env=environment,
    )  # fmt: skip


# --- this machine -----------------------------------------------------------------------------------------


@pytest.mark.skipif(Path("/dev/nvidiactl").exists() or Path("/dev/kfd").exists(), reason="there is a GPU here")
def test_a_machine_without_a_gpu_cannot_tell_and_says_what_to_do() -> None:
    done = command()
    assert done.returncode == 3 and done.stderr == ""
    assert done.stdout.startswith("no GPU found  ·  cannot tell")
    assert "ullage check --from DIR" in done.stdout and "Traceback" not in done.stdout
    assert re.search(r"host +.*Linux", done.stdout)


def test_commands_that_are_absent_or_refuse_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def run(words: Sequence[str], seconds: float) -> str | None:
        assert 0 < seconds <= ask.ONE_SECONDS
        asked.append(words[0])
        if words[0] == "dmesg":
            return "dmesg: read kernel buffer failed: Operation not permitted\n"
        if words[-1] == "/proc/meminfo":
            return "MemTotal:  100 kB\nMemAvailable:  50 kB\n"
        if words[0] == "systemctl":
            return "System has not been booted with systemd as init system (PID 1). Can't operate.\n"
        return f"/usr/bin/cat: {words[-1]}: No such file or directory\n" if words[0] == "cat" else None

    found = ask.outputs(run)
    assert set(found.texts) == {"memory"} and {"nvidia-smi", "lspci", "rocm-smi"} <= set(asked)


# --- saved folders ----------------------------------------------------------------------------------------


def test_save_and_from_say_the_same(tmp_path: Path) -> None:
    first = check(Asked(folder=str(H100)))
    names = keep(first, str(tmp_path / "copy"))
    assert "nvidia-smi-q.txt" in names and "packages.txt" in names
    again = check(Asked(folder=str(tmp_path / "copy")))
    assert [f.id for f in again.findings] == [f.id for f in first.findings]
    with pytest.raises(InputError, match="already holds"):
        keep(first, str(tmp_path / "copy"))


def test_nothing_secret_is_written(tmp_path: Path) -> None:
    texts = {
        "kernel": "Linux version 6.8 (alice@gpu07) #1\n", "apps": "GPU-0a1b2c3d-0000-1111-2222-333344445555, 7, 5, /home/alice/v/bin/python\n",
        "report": "Driver Version : 1\nGPU 00000000:06:00.0\n    Serial Number : 1652923012345\n"
                  "    GPU UUID : GPU-0a1b2c3d-0000-1111-2222-333344445555\n    GPU PDI : 0x1234abcd\n",
        "variables": saved.variables({"NCCL_DEBUG": "INFO", "HF_TOKEN": "hf_abcdefghijklmnopqrstuvwxyz", "HOME": "/home/alice",
                                      "VLLM_API_KEY": "sk-abcdefghijklmnop", "NCCL_SOCKET_IFNAME": "eth0"}),
        "dmesg": "gpu07 kernel: eth0 aa:bb:cc:dd:ee:ff 10.1.10.95 up\n",
        "cmdline": "root=UUID=9a8b7c6d-1111-2222-3333-444455556666 ip=10.0.0.7:x hf_abcdefghijklmnopqrstuvwxyz\n",
    }  # fmt: skip
    outputs = Outputs({name: Saved(name, text) for name, text in texts.items()}, "this machine")
    saved.save(outputs, tmp_path / "out", "gpu07")
    written = {path.name: path.read_text() for path in (tmp_path / "out").iterdir()}
    whole = "".join(written.values())
    for word in ("gpu07", "alice/", "1652923012345", "0a1b2c3d", "0x1234abcd", "hf_abc", "sk-abc", "aa:bb:cc", "10.1.10.95",
                 "10.0.0.7", "9a8b7c6d", "HF_TOKEN"):  # fmt: skip
        assert word not in whole, word
    uuid = re.search(r"GPU-0{8}-\S+-0{11}\d", written["nvidia-smi-apps.csv"])
    assert (
        uuid is not None and uuid[0].strip(",") in written["nvidia-smi-q.txt"]
    )  # what belongs together stays so
    assert "NCCL_DEBUG=INFO" in written["variables.txt"]


def test_nothing_secret_is_shown(tmp_path: Path) -> None:
    (tmp_path / "nvidia-smi-query.csv").write_text(
        ROW + ROW.replace("0, GPU-1", "1, GPU-2").replace(":01:", ":02:")
    )
    (tmp_path / "env.txt").write_text(
        "HF_TOKEN=hf_abcdefghijklmnopqrstuvwxyz\nDB=postgres://u:pw@h/x\nNCCL_DEBUG=INFO\n"
    )
    (tmp_path / "cmdline.txt").write_text("ro intel_iommu=on key=hf_abcdefghijklmnopqrstuvwxyz\n")
    for words in ((), ("--json",)):
        shown = command("--from", str(tmp_path), *words).stdout
        assert "NCCL_DEBUG" in shown and "iommu-translates" in shown
        assert "hf_abc" not in shown and "pw@" not in shown and "HF_TOKEN" not in shown


def test_a_folder_that_holds_nothing(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    for folder in (tmp_path, tmp_path / "absent", tmp_path / "notes.txt"):
        done = command("--from", str(folder))
        assert done.returncode == 2 and done.stdout == ""
        assert done.stderr.count("\n") == 1 and done.stderr.startswith("ullage: ") and "hint:" in done.stderr


def test_a_hostile_folder_is_bounded(tmp_path: Path) -> None:
    (tmp_path / "nvidia-smi-query.csv").write_text(ROW)
    with (tmp_path / "dmesg.txt").open("w") as stream:
        stream.write("NVRM: Xid (PCI:0000:01:00): 79, pid=1\n")
        stream.truncate(MOST_BYTES * 8)
        stream.seek(0, 2)
    (tmp_path / "lscpu.txt").write_text("Model name: \x1b[31mred\x1b]0;title\x07\n")
    (tmp_path / "lspci.txt").symlink_to("/etc/passwd")
    (tmp_path / "meminfo.txt").symlink_to(tmp_path / "meminfo.txt")
    os.mkfifo(tmp_path / "limits.txt")
    (tmp_path / "nvidia-topo.log").mkdir()
    with pytest.raises(InputError, match="is binary"):
        check(Asked(folder=str(tmp_path)))
    (tmp_path / "dmesg.txt").write_text("NVRM: Xid (PCI:0000:01:00): 79, pid=1\n" * 200_000)
    found = check(Asked(folder=str(tmp_path)))
    assert [finding.id for finding in found.findings] == ["xid"] and found.exit_code == 1
    left = " ".join(found.facts.outputs.left_out)
    assert (
        "lspci.txt: a link out of the folder" in left
        and "limits.txt: no file" in left
        and "only its first 4 MiB" in left
    )
    assert found.facts.host.cpu is not None and "\x1b" not in found.facts.host.cpu.text
    done = command("--from", str(tmp_path))
    assert "\x1b" not in done.stdout and "root:" not in done.stdout


def test_options_that_exclude_each_other() -> None:
    for words in (("--from", str(H100), "--on", "x"), ("--from", str(H100), "--python", "x", "--image", "y")):
        done = command(*words)
        assert done.returncode == 2 and done.stderr.count("\n") == 1


def test_an_engine_that_is_not_there() -> None:
    found = check(Asked(folder=str(H100), engine="sglang"))
    assert "engine-absent" in [finding.id for finding in found.findings]
    assert "engine-absent" not in [
        finding.id for finding in check(Asked(folder=str(H100), engine="vllm")).findings
    ]


# --- other machines ---------------------------------------------------------------------------------------


def over_ssh(answers: dict[str, str], packages: str = "") -> Checked:
    def run(words: Sequence[str], seconds: float) -> str | None:
        assert words[:2] == ("ssh", "-T") and words[-2] == "gpu07"
        if "METADATA" in words[-1]:
            assert "'/opt/my venv'" in words[-1]
            return f"ullage-section:packages\n{packages}"
        sections = "".join(f"ullage-section:{name}\n{text}" for name, text in answers.items())
        return "Welcome to gpu07\n" + sections

    python = "/opt/my venv/bin/python3" if packages else None
    return check(Asked(host="gpu07", python=python), run)


def test_another_machine_is_asked_over_ssh() -> None:
    found = over_ssh(
        {
            "gpus": ROW,
            "nvcc": "bash: line 1: nvcc: command not found\n",
            "lspci": "timeout: failed to run command 'lspci'\n",
        },
        "Name: torch\nVersion: 2.9.1+cpu\nName: vllm\nVersion: 0.14.0\n",
    )
    assert found.facts.devices[0].name == "NVIDIA L4" and set(found.facts.outputs.texts) == {"gpus"}
    assert [finding.id for finding in found.findings] == ["torch-without-gpu"]
    assert (
        found.facts.installed is not None
        and found.facts.installed.source == "/opt/my venv/bin/python3 on gpu07"
    )


def test_a_host_that_is_none_or_does_not_answer() -> None:
    for host, said in (
        ("-oProxyCommand=x", "is no host name"),
        ("gpu07", "cannot be asked: Connection refused"),
    ):
        with pytest.raises(InputError, match=said):
            check(Asked(host=host), lambda words, seconds: "ssh: x\nConnection refused\n")


# --- JSON -------------------------------------------------------------------------------------------------


def test_what_docs_say_of_the_json() -> None:
    done = command("--from", str(H100), "--json")
    told = json.loads(done.stdout)
    page = (Path(__file__).parents[2] / "docs" / "json.md").read_text()
    section = page.partition("ullage check --json")[2]
    for key in told:
        assert f"`{key}`" in section or key == "schema", key
