"""Environments are read from their files: releases, what each asks for, and never a line of them is run."""

from __future__ import annotations

import io
import json
import os
import tarfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from ullage.core.errors import InputError
from ullage.hardware import environment, image
from ullage.hardware.check import facts, findings
from ullage.hardware.environment import Installed, of_path, present
from ullage.hardware.listed import of_image, of_list
from ullage.hardware.outputs import Outputs, Saved
from ullage.planning.checks import Asked, check


def install(site: Path, name: str, version: str, *requires: str, module: str = "") -> None:
    folder = site / f"{name.replace('-', '_')}-{version}.dist-info"
    folder.mkdir(parents=True)
    wants = "".join(f"Requires-Dist: {line}\n" for line in requires)
    (folder / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{wants}\nVersion: 9.9 of the text\n"
    )
    if module:
        (site / f"{name}.py").write_text(module)


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    site = tmp_path / "venv/lib/python3.12/site-packages"
    (tmp_path / "venv/bin").mkdir(parents=True)
    (tmp_path / "venv/bin/python").write_text("#!/bin/sh\ntouch ran\n")
    (tmp_path / "venv/pyvenv.cfg").write_text("home = /usr/bin\nversion = 3.12.3\n")
    install(
        site,
        "torch",
        "2.9.1+cu128",
        "nvidia-nccl-cu12==2.27.5; platform_system == 'Linux'",
        module="raise SystemExit\n",
    )
    install(site, "vllm", "0.14.0", "torch==2.9.1", "flashinfer-python==0.5.3", "transformers<5,>=4.56.0",
            'ray==9; extra == "ray"', 'xformers==1; platform_machine == "aarch64"', "triton==1; sys_platform == 'win32'")  # fmt: skip
    install(site, "nvidia-nccl-cu12", "2.27.5")
    install(site, "flashinfer-python", "0.5.3")
    install(site, "transformers", "4.57.1")
    install(site, "requests", "2.32.0")
    return tmp_path / "venv"


def ids(installed: Installed, **texts: str) -> list[str]:
    outputs = Outputs({name: Saved(f"{name}.txt", text) for name, text in texts.items()}, "made up")
    return [finding.id for finding in findings(facts(outputs, installed))]


@pytest.mark.parametrize("part", ["", "bin/python", "lib/python3.12/site-packages"])
def test_a_virtual_environment_is_read(venv: Path, part: str) -> None:
    found = of_path(venv / part)
    told = {name: package.version for name, package in found.packages.items()}
    assert told == {"torch": "2.9.1+cu128", "vllm": "0.14.0", "nvidia-nccl-cu12": "2.27.5", "flashinfer-python": "0.5.3",
                    "transformers": "4.57.1"}  # fmt: skip
    assert found.packages["vllm"].wants == {
        "torch": "==2.9.1", "flashinfer-python": "==0.5.3", "transformers": "<5,>=4.56.0",
    }  # fmt: skip
    assert ids(found) == []
    assert not (venv / "ran").exists() and not Path("ran").exists()
    if "lib" not in part:
        assert found.python == "3.12.3"


def test_a_broken_environment_is_read_as_far_as_it_goes(venv: Path) -> None:
    site = venv / "lib/python3.12/site-packages"
    (site / "triton-3.5.1.dist-info").mkdir()
    (site / "numpy-2.2.6.dist-info").mkdir()
    (site / "numpy-2.2.6.dist-info/METADATA").write_bytes(b"\x00\xff" * 400_000)
    (site / "torchvision-0.24.dist-info").write_text("a file where a folder should be")
    (site / "xgrammar-0.1.dist-info").symlink_to(site / "xgrammar-0.1.dist-info")
    told = {name: package.version for name, package in of_path(venv).packages.items()}
    assert told["triton"] == "3.5.1" and told["numpy"] == "2.2.6" and told["torch"] == "2.9.1+cu128"


def test_no_environment(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent", Path("/dev/null"), Path("x\0y")):
        with pytest.raises(InputError) as raised:
            of_path(path)
        assert "\n" not in raised.value.line


def test_the_present_one(venv: Path, tmp_path: Path) -> None:
    found = present({"VIRTUAL_ENV": str(venv), "PATH": ""})
    assert found is not None and found.packages["vllm"].version == "0.14.0" and "$VIRTUAL_ENV" in found.source
    (venv / "bin/python3").write_text("#!/bin/sh\n")
    (venv / "bin/python3").chmod(0o755)
    found = present({"PATH": f"{tmp_path}:{venv / 'bin'}"})
    assert found is not None and "vllm" in found.packages
    assert present({"PATH": str(tmp_path)}) is None


def test_another_torch_than_the_engine_asks_for(venv: Path) -> None:
    site = venv / "lib/python3.12/site-packages"
    (site / "torch-2.9.1+cu128.dist-info/METADATA").write_text("Name: torch\nVersion: 2.10.0\n\n")
    assert "torch-not-the-engines" in ids(of_path(venv))


def test_what_else_is_asked_for_is_worth_knowing(venv: Path) -> None:
    site = venv / "lib/python3.12/site-packages"
    (site / "transformers-4.57.1.dist-info/METADATA").write_text("Name: transformers\nVersion: 5.3.0\n\n")
    assert ids(of_path(venv)) == ["pin-not-met"]


def test_parts_that_quarrel(venv: Path) -> None:
    site = venv / "lib/python3.12/site-packages"
    install(site, "flashinfer-cubin", "0.6.13")
    install(site, "sgl-kernel", "0.3.21")
    install(site, "sglang-kernel", "0.4.1")
    assert ids(of_path(venv)) == ["flashinfer-parts-differ", "two-of-a-kind"]
    (site / "flashinfer_cubin-0.6.13.dist-info/METADATA").write_text(
        "Name: flashinfer-cubin\nVersion: 0.5.3+cu128\n\n"
    )
    assert ids(of_path(venv)) == ["two-of-a-kind"]


ROW = "0, GPU-1, {}, 32607, 400, 0, 32207, {}, {}, Disabled, Enabled, Enabled, 00000000:01:00.0, 5, 16, 16\n"


@pytest.mark.parametrize(
    ("torch", "gpu", "driver", "capability", "expected"),
    [
        ("2.6.0+cu124", "NVIDIA GeForce RTX 5090", "570.86", "12.0", "torch-lacks-architecture"),
        ("2.7.0+cu128", "NVIDIA GeForce RTX 5090", "570.86", "12.0", ""),
        ("2.9.1", "NVIDIA GB10", "580.95", "12.1", ""),
        ("2.11.0+cu130", "Tesla V100-SXM2-32GB", "580.95", "7.0", "torch-lacks-architecture"),
        ("2.9.1+cu128", "Tesla V100-SXM2-32GB", "570.95", "7.0", ""),
        ("2.9.1+cu126", "NVIDIA L4", "560.35", "8.9", ""),
        ("2.11.0", "NVIDIA H100 80GB HBM3", "570.95", "9.0", "driver-older-than-runtime"),
        ("2.11.0+cu128", "NVIDIA H100 80GB HBM3", "570.95", "9.0", ""),
        ("2.11.0+cu129", "NVIDIA H100 80GB HBM3", "535.104", "9.0", "driver-older-than-its-runtime"),
        ("2.9.0", "NVIDIA B300 SXM6 AC", "570.95", "10.3", "driver-older-than-gpu"),
        ("2.9.1+cpu", "NVIDIA L4", "570.95", "8.9", "torch-without-gpu"),
        ("2.9.1+rocm6.4", "NVIDIA L4", "570.95", "8.9", "torch-without-gpu"),
        ("nonsense", "NVIDIA L4", "570.95", "8.9", ""),
    ],
)  # fmt: skip
def test_torch_against_gpu_and_driver(
    torch: str, gpu: str, driver: str, capability: str, expected: str
) -> None:
    installed = Installed("made up", {"torch": environment.Package("torch", torch, "packages.txt:1")})
    told = [
        one
        for one in ids(installed, gpus=ROW.format(gpu, driver, capability))
        if one.startswith(("torch-", "driver-"))
    ]
    assert told == ([expected] if expected else [])


def test_on_aarch64_other_builds_count() -> None:
    installed = Installed("made up", {"torch": environment.Package("torch", "2.9.1+cu126", "packages.txt:1")})
    row, arm = ROW.format("NVIDIA GH200 480GB", "570.95", "9.0"), "Architecture:  aarch64\n"
    assert "torch-lacks-architecture" not in ids(installed, gpus=row, lscpu=arm)
    assert "torch-lacks-architecture" in ids(
        installed, gpus=ROW.format("NVIDIA GB10", "580.95", "12.1"), lscpu=arm
    )


def test_lists_of_packages() -> None:
    text = (
        "# Python 3.11.2\ntorch==2.9.1+cu128\nsglang @ file:///x\nPackage    Version\n---------- -------\nnumpy      2.2.6\n"
        "[pip3] nvidia-nccl-cu12==2.27.5\n[conda] triton   3.5.1    pypi_0    pypi\n-e git+https://x\n"
    )
    found = of_list(Saved("pip.txt", text), "pip.txt")
    told = {name: (package.version, package.where) for name, package in found.packages.items()}
    assert told == {
        "torch": ("2.9.1+cu128", "pip.txt:2"), "numpy": ("2.2.6", "pip.txt:6"),
        "nvidia-nccl-cu12": ("2.27.5", "pip.txt:7"), "triton": ("3.5.1", "pip.txt:8"),
    }  # fmt: skip
    assert found.python == "3.11.2"


INSPECTED = [
    {
        "RepoTags": ["vllm/vllm-openai:v0.20.0"], "Architecture": "amd64",
        "Config": {
            "Env": ["PATH=/usr/bin", "CUDA_VERSION=13.0.1", "NCCL_VERSION=2.28.9-1", "HF_TOKEN=hf_abcdefghijklmnopqrstuvwxyz"],
            "Labels": {"org.opencontainers.image.title": "ubuntu", "org.opencontainers.image.version": "22.04"},
        },
    }
]  # fmt: skip


def test_an_image_by_its_metadata() -> None:
    found = of_image("vllm/vllm-openai:v0.20.0", json.dumps(INSPECTED))
    told = {name: package.version for name, package in found.packages.items()}
    assert told == {"vllm": "0.20.0", "nvidia-nccl-cu12": "2.28.9"} and found.cuda == "13.0"


def test_an_image_on_a_saved_machine(tmp_path: Path) -> None:
    (tmp_path / "nvidia-smi-query.csv").write_text(ROW.format("NVIDIA H100 80GB HBM3", "550.90", "9.0"))

    def run(words: Sequence[str], seconds: float) -> str | None:
        assert words[:3] == ("docker", "image", "inspect") and words[-2:] == ("--", "vllm/vllm-openai:v0.20.0")
        return json.dumps(INSPECTED)

    found = check(Asked(folder=str(tmp_path), image="vllm/vllm-openai:v0.20.0"), run)
    installed = found.facts.installed
    assert installed is not None and installed.packages["torch"].version == "2.11.0"
    assert "driver-older-than-runtime" in [finding.id for finding in found.findings]
    assert found.engine == "vllm 0.20.0" and found.exit_code == 1


@pytest.mark.parametrize(
    "said", ["", "Error: No such image: x", "[]", "[1]", "{", '[{"Config": 3}]', '[{"Config": {"Env": [1], "Labels": []}}]']
)  # fmt: skip
def test_what_docker_says_of_no_image(said: str) -> None:
    try:
        assert of_image("x", said).packages == {}
    except InputError as error:
        assert "docker pull" in error.line and "\n" not in error.line


def archive(layers: list[dict[str, str]], *, packed: str = "", noise: bytes = b"") -> bytes:
    """What `docker image save` streams: layers in an order of its own, and a manifest at the end."""

    def tar(files: dict[str, bytes], mode: str = "w") -> bytes:
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode=mode) as made:  # type: ignore[call-overload]
            for name, content in files.items():
                info = tarfile.TarInfo(name)
                info.size = len(content)
                made.addfile(info, io.BytesIO(content))
        return out.getvalue()

    names = [f"blobs/sha256/{number:064x}" for number in range(len(layers))]
    blobs = {
        name: tar({file: text.encode() for file, text in layer.items()}, f"w{packed}")
        for name, layer in zip(names, layers, strict=True)
    }
    whole = {"blobs/sha256/config": b'{"a": 1}', **dict(reversed(blobs.items()))}
    if noise:
        whole["blobs/sha256/noise"] = noise
    whole["manifest.json"] = json.dumps([{"Config": "c", "Layers": names}]).encode()
    return tar(whole)


SITE = "usr/local/lib/python3.12/dist-packages"
LAYERS = [
    {f"{SITE}/torch-2.8.0.dist-info/METADATA": "Name: torch\nVersion: 2.8.0\n", f"{SITE}/numpy-2.2.6.dist-info/METADATA": "Version: 2.2.6\n"},
    {f"{SITE}/.wh.torch-2.8.0.dist-info": "", f"{SITE}/torch-2.9.1.dist-info/METADATA": "Version: 2.9.1+cu130\n",
     f"{SITE}/.wh.numpy-2.2.6.dist-info": "", "etc/passwd": "x"},
    {f"{SITE}/vllm-0.14.0.dist-info/METADATA": "Version: 0.14.0\nRequires-Dist: torch==2.8.0\n"},
]  # fmt: skip


@pytest.mark.parametrize("packed", ["", ":gz"])
def test_an_image_by_its_layers(packed: str) -> None:
    ended: list[bool] = []
    known = of_image("vllm/vllm-openai:v0.14.0", json.dumps(INSPECTED))
    stream = io.BytesIO(archive(LAYERS, packed=packed, noise=os.urandom(1 << 17)))
    found = image.with_files(known, "x", lambda words: (stream, lambda: ended.append(True)))
    told = {name: package.version for name, package in found.packages.items()}
    assert told == {"torch": "2.9.1+cu130", "vllm": "0.14.0", "nvidia-nccl-cu12": "2.28.9"} and ended == [True]
    assert "1 layers are packed" in found.notes[0]
    assert "torch-not-the-engines" in ids(found)


@pytest.mark.parametrize("content", [b"", b"no archive", archive(LAYERS)[:5000], archive([])])
def test_an_image_that_cannot_be_read(content: bytes) -> None:
    known = of_image("x", json.dumps(INSPECTED))
    with pytest.raises(InputError) as raised:
        image.with_files(known, "x\n", lambda words: (io.BytesIO(content), lambda: None))
    assert "\n" not in raised.value.line
