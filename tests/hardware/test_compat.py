"""The compatibility rows: their form, which of them hold, and the rules on NCCL's variables and the software."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest
from packaging.version import Version

from ullage.core.errors import TableError
from ullage.core.launch import Launch
from ullage.core.machine import Machine
from ullage.core.tables import load
from ullage.hardware import compat, gpus
from ullage.hardware.compat import nccl, rows, software
from ullage.hardware.compat.subject import between_releases, is_pattern, matches
from ullage.hardware.nccl import Buffers, ring_and_tree_bytes

TABLES = {
    "components": compat.table("ullage.hardware.compat", "components.toml"),
    "sglang": compat.table("ullage.engines.sglang", "compat.toml"),
    "vllm": compat.table("ullage.engines.vllm", "compat.toml"),
}
CAPABILITIES = [(7, 0), (7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (10, 3), (11, 0), (12, 0), (12, 1)]


def asked(gpu: str = "8x RTX PRO 6000", release: str | None = "0.5.9", env: dict[str, str] | None = None,
          **worked_out: Any) -> compat.Subject:  # fmt: skip
    launch = Launch("sglang", version=release, env=env or {})
    found = {f"@{name}": value for name, value in ({"group": 8} | worked_out).items()}
    return compat.subject(launch, None, gpus.find(gpu), launch.release, found)


def ids(subject: compat.Subject) -> list[str]:
    return [hazard.id for hazard in nccl.hazards(subject)]


# --- the form of the rows ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TABLES)
def test_every_row_has_a_source_and_names_a_known_cause(name: str) -> None:
    import tomllib
    from pathlib import Path

    causes = Path(__file__).parents[1] / "cases" / "CAUSES.toml"
    known = {row["id"] for row in tomllib.loads(causes.read_text())["cause"]}
    for row in TABLES[name].rows:
        component = TABLES[name].components[row.component]
        assert len(row.source) > 10, row.name
        assert (row.cause or component.cause or "gpu-arch-unsupported") in known, row.name
        assert row.stopping <= row.certain, row.name
        assert row.stopping <= (bool(row.message) or bool(row.text)), row.name


@pytest.mark.parametrize("name", TABLES)
def test_every_sentence_can_be_written_and_reads_as_one(name: str) -> None:
    subject = asked()
    for row in TABLES[name].rows:
        if row.result != "works":
            text = rows._hazard(row, TABLES[name].components[row.component], subject).text
            assert 30 < len(text) < 420, (row.name, text)
            assert "{" not in text.replace("{'", ""), row.name
            assert (
                text[0].isupper()
                or text[0] == "-"
                or text.split()[0].lower() == text.split()[0]
                or text[:4] == "vLLM"
            )
            assert text.endswith((".", "”")), row.name


@pytest.mark.parametrize("name", TABLES)
def test_no_two_rows_contradict_each_other(name: str) -> None:
    """On an architecture and in a release an unconditional "works" and an unconditional "fails" exclude each other."""
    plain = [row for row in TABLES[name].rows if not (row.when or row.unless or row.ranks_over or row.nvlink)]
    releases = [
        None,
        *map(Version, ("0.4.5", "0.4.9", "0.5.3", "0.5.9", "0.5.12", "0.5.23", "0.11.2", "0.19.0", "0.33.0")),
    ]
    for one, other in combinations(plain, 2):
        if one.component != other.component or {one.result, other.result} != {"works", "fails"}:
            continue
        for release in releases:
            both = one.span.holds(release) and other.span.holds(release)
            for capability in CAPABILITIES if both else ():
                met = [row.of_architecture(capability, "nvidia") for row in (one, other)]
                assert not all(met), (one.component, capability, release)


@pytest.mark.parametrize(
    "line",
    [
        'result = "fails"\nmessage = "m"',  # no source at all
        'result = "fails"\nmessage = "m"\nsource = " "',
        'result = "fails"\nmessage = "m"\nsource = "s, file"\narchitectures = ["SM120"]',
        'result = "fails"\nsource = "s, file"',  # never said
        'result = "fails"\nmessage = "m"\nsource = "s"\ncertain = false\nstops = true',
        'result = "breaks"\nmessage = "m"\nsource = "s"',
        'result = "fails"\nmessage = "m"\nsource = "s"\nkolour = 1',
    ],
)  # fmt: skip
def test_a_row_that_is_none_is_refused(line: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "madeup_rows"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "x.toml").write_text(f'[[component]]\nid = "c"\nname = "C"\n\n[[row]]\ncomponent = "c"\n{line}\n')
    monkeypatch.syspath_prepend(str(tmp_path))
    rows.table.cache_clear()
    load.cache_clear()
    with pytest.raises(TableError):
        compat.table("madeup_rows", "x.toml")


def test_architectures() -> None:
    assert matches((12, 1), "12.x") and matches((12, 1), ">=10.0") and not matches((12, 1), "12.0")
    assert matches((8, 9), "<9.0") and not matches((9, 0), "<9.0") and matches((10, 3), ">10.0")
    assert not is_pattern("sm_90") and not is_pattern("") and is_pattern("*")


# --- what holds -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("table", "component", "capability", "release", "result"),
    [
        ("sglang", "torch-symmetric-memory", (12, 0), "0.5.9", "unknown"),  # depends on the number of ranks
        ("sglang", "torch-symmetric-memory", (12, 0), "0.5.23", "ignored"),
        ("sglang", "torch-symmetric-memory", (9, 0), "0.5.9", "works"),
        ("sglang", "all-reduce-fusion", (12, 0), "0.5.9", "ignored"),
        ("sglang", "all-reduce-fusion", (12, 0), "0.5.23", "fails"),
        ("sglang", "all-reduce-fusion", (10, 3), "0.5.23", "works"),
        ("sglang", "trtllm-mha", (12, 0), "0.5.9", "fails"),
        ("sglang", "trtllm-mha", (12, 0), "0.5.23", "works"),
        ("sglang", "fa3", (12, 1), "0.5.9", "fails"),
        ("sglang", "fa3", (9, 0), "0.5.9", "works"),
        ("vllm", "flashinfer", (7, 5), "0.14.0", "works"),
        ("vllm", "flashinfer", (7, 5), "0.33.0", "fails"),
        ("vllm", "vllm-flashmla", (12, 0), "0.33.0", "fails"),
        ("vllm", "b12x", (12, 1), "0.33.0", "works"),
        ("vllm", "b12x", (12, 1), "0.14.0", "unknown"),
    ],
)  # fmt: skip
def test_status(table: str, component: str, capability: tuple[int, int], release: str, result: str) -> None:
    assert compat.status(TABLES[table], component, capability, Version(release)).result == result


def test_status_knows_the_fabric() -> None:
    table = TABLES["components"]

    def custom(ranks: int, nvlink: bool) -> str:
        return compat.status(table, "custom-all-reduce", (12, 0), None, ranks=ranks, nvlink=nvlink).result

    assert (custom(8, False), custom(2, False), custom(8, True)) == ("ignored", "works", "works")


def test_only_a_named_release_is_certain() -> None:
    assert between_releases(Version("0.20.2rc1.dev249+fork")) and not between_releases(Version("0.5.8.post1"))
    row = next(row for row in TABLES["sglang"].rows if row.name == "trtllm-mha-unsupported" and row.stopping)
    component = TABLES["sglang"].components["trtllm-mha"]
    stops = [
        rows._hazard(row, component, asked(release=version)).stops for version in ("0.5.9", None, "0.5.10.dev3")
    ]
    assert stops == [True, False, False]


# --- NCCL -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({"NCCL_BUFFSIZE": "16"}, "nccl-buffsize-units"),
        ({"NCCL_BUFFSIZE": "131072"}, "nccl-buffsize-saves-little"),
        ({"NCCL_BUFFSIZE": "16777216"}, "nccl-buffers-large"),
        ({"NCCL_MIN_NCHANNELS": "32", "NCCL_MAX_NCHANNELS": "2"}, "nccl-channels-min-over-max"),
        ({"NCCL_LL128_BUFFSIZE": "131072"}, "nccl-ll128-buffsize"),
        ({"NCCL_P2P_LEVEL": "3"}, "nccl-p2p-level-spelling"),
        ({"NCCL_P2P_LEVEL": "PCIE"}, "nccl-p2p-level-spelling"),
        ({"NCCL_P2P_LEVEL": "SYS", "NCCL_P2P_DISABLE": "1"}, "nccl-p2p-disable-wins"),
        ({"NCCL_SHM_DISABLE": "1"}, "nccl-shm-disabled"),
        ({}, "nccl-host-bridge-p2p"),
    ],
)
def test_nccl_variables(env: dict[str, str], expected: str) -> None:
    assert expected in ids(asked(env=env))


@pytest.mark.parametrize(
    "env",
    [
        {"NCCL_P2P_LEVEL": "SYS"},
        {"NCCL_P2P_LEVEL": "SYS", "NCCL_BUFFSIZE": "4194304"},
        {"NCCL_P2P_LEVEL": "sys", "NCCL_MAX_NCHANNELS": "8"},
        {
            "NCCL_P2P_LEVEL": "SYS",
            "NCCL_BUFFSIZE": "9" * 400,
            "NCCL_MIN_NCHANNELS": "²",
            "NCCL_MAX_NCHANNELS": "-1",
        },
    ],
)
def test_what_is_in_order_or_unreadable_says_nothing(env: dict[str, str]) -> None:
    assert ids(asked(env=env)) == []


def test_links_decide() -> None:
    assert ids(asked("8x H100")) == []
    assert ids(asked("4x RTX 4090", group=4)) == []  # no P2P between GeForce cards with the stock driver
    assert ids(asked("8x RTX PRO 6000", group=2)) == []
    assert "nccl-p2p-disable-not-custom-all-reduce" in ids(asked(group=2, env={"NCCL_P2P_DISABLE": "1"}))
    assert ids(asked("8x MI300X")) == []


def test_buffers_follow_the_formula() -> None:
    """Table a.2 of the measured sizes: (channels, buffer) -> MiB of rings and trees."""
    mib = 1 << 20
    measured = {(1, 131072): 16, (2, 131072): 32, (2, 4 * mib): 48, (8, 4 * mib): 192, (16, 4 * mib): 384,
                (16, 16 * mib): 768, (32, 4 * mib): 768}  # fmt: skip
    found = {
        (channels, size): ring_and_tree_bytes(channels, Buffers(simple=size)) // mib
        for channels, size in measured
    }
    assert found == measured


# --- torch, CUDA, driver ----------------------------------------------------------------------------------


def hazards(gpu: str, torch: str, driver: float | None) -> list[str]:
    ships = software.Ships("0.5.9", torch, "made up")
    return [hazard.id for hazard in software.hazards(asked(gpu), ships, driver)]


@pytest.mark.parametrize(
    ("gpu", "torch", "driver", "expected"),
    [
        ("RTX PRO 6000", "2.9.1", None, []),
        ("RTX PRO 6000", "2.9.1", 580.95, []),
        ("RTX PRO 6000", "2.7.1", None, ["torch-without-architecture"]),
        ("RTX PRO 6000", "2.9.1", 565.57, ["driver-older-than-gpu"]),
        ("H100", "2.9.1", 550.124, ["driver-older-than-toolkit"]),
        ("H100", "2.11.0", 570.26, ["driver-too-old"]),
        ("RTX 4090", "2.6.0", 470.0, ["driver-too-old"]),
        ("V100 32GB", "2.11.0", None, ["torch-without-architecture"]),
        ("V100 32GB", "2.9.1", None, []),
        ("GB10", "2.9.1", None, []),
        ("MI300X", "2.6.0", 1.0, []),
        ("H100", "9.9.9", 550.0, []),
        ("H100", "2.9.1", float("nan"), []),
        ("H100", "2.9.1", float("inf"), []),
    ],
)
def test_software(gpu: str, torch: str, driver: float | None, expected: list[str]) -> None:
    assert hazards(gpu, torch, driver) == expected


def test_every_torch_has_its_toolkit() -> None:
    table = software.software()
    assert {row.cuda for row in table.torch} <= {row.cuda for row in table.toolkit}


def test_nothing_known_says_nothing() -> None:
    assert compat.warnings(Launch("vllm"), None, None, None) == []
    assert compat.warnings(Launch("vllm"), None, Machine(), None) == []
