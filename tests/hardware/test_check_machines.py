"""`ullage check --from` on recorded machines: what is found of each, and nothing else."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from ullage.cli import answer as run
from ullage.hardware.check.finding import texts
from ullage.hardware.check.pairs import pairs
from ullage.planning.checks import Asked, Checked, check
from ullage.render import check_json, check_text
from ullage.render.lines import WIDTH

MACHINES = sorted(path.parent for path in (Path(__file__).parents[1] / "machines").glob("*/expect.toml"))


def expected(machine: Path) -> dict[str, Any]:
    return tomllib.loads((machine / "expect.toml").read_text())


@pytest.fixture(scope="module", params=MACHINES, ids=lambda path: path.name)
def machine(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    return path


@pytest.fixture(scope="module")
def found(machine: Path) -> Checked:
    return check(Asked(folder=str(machine)))


def test_there_are_machines_of_every_kind() -> None:
    assert len(MACHINES) >= 6
    for path in MACHINES:
        said = (path / "README.md").read_text()
        assert "Composed, not recorded" in said or "A real machine" in said, path.name


def test_what_is_found(machine: Path, found: Checked) -> None:
    told = [f"{finding.severity}: {finding.id}" for finding in found.findings]
    assert sorted(told) == sorted(expected(machine)["findings"])
    assert found.exit_code == expected(machine)["exit_code"]


def test_each_finding_says_what_it_saw_and_what_helps(found: Checked) -> None:
    for finding in found.findings:
        assert finding.source and finding.remedy and finding.text, finding.id
        assert "{" not in finding.text + finding.remedy + finding.source, finding.id
        if finding.id != "pcie-differs":
            assert finding.evidence, f"{finding.id} shows nothing"
        for evidence in finding.evidence:
            assert evidence.text and len(evidence.text) <= 160


def test_each_line_of_evidence_stands_in_the_file(machine: Path, found: Checked) -> None:
    for finding in found.findings:
        for evidence in finding.evidence:
            file = machine / evidence.file
            if evidence.line and file.exists():
                line = file.read_text().splitlines()[evidence.line - 1]
                last = evidence.text.split()[-1]
                assert last in line, (finding.id, evidence)


def test_the_facts(machine: Path, found: Checked) -> None:
    told = check_json.check_object(found)
    for name, value in expected(machine).get("facts", {}).items():
        at: Any = told
        for key in name.split("/"):
            at = at[int(key)] if isinstance(at, list) else at[key]
        assert at == value, name


def test_the_text_fits_the_screen_and_names_the_gpu(found: Checked) -> None:
    lines = [line if isinstance(line, str) else line[0] for line in check_text.lines(found)]
    assert all(len(line) <= WIDTH for line in lines)
    assert not any("None" in line.split() and "Processes" not in line for line in lines)
    if found.found_gpus:
        assert found.facts.devices[0].name in lines[0]


def test_the_command_prints_one_object(machine: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert run(["check", "--from", str(machine), "--json"]) == expected(machine)["exit_code"]
    told = json.loads(capfdbinary.readouterr().out)
    assert told["schema"] == "ullage.check/1"
    assert set(told) >= {"gpus", "links", "host", "software", "findings", "backends", "missing", "outcome"}


def test_every_id_is_one_of_the_tables() -> None:
    known = {*texts(), *(row.id for row in pairs())}
    for path in MACHINES:
        assert {line.partition(": ")[2] for line in expected(path)["findings"]} <= known, path.name
