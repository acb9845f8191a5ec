"""The wheel holds its data files and runs from them."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    done = subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "-o", str(out), str(ROOT)],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return next(out.glob("*.whl"))


def test_every_file_is_in_the_wheel(wheel: Path) -> None:
    inside = set(zipfile.ZipFile(wheel).namelist())
    source = ROOT / "src"
    wanted = {
        str(path.relative_to(source))
        for path in (source / "ullage").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert wanted <= inside
    assert any(name.endswith("licenses/LICENSE") for name in inside)


def test_runs_from_the_wheel_alone(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    code = f"import sys; sys.path.insert(0, {str(tmp_path / 'site')!r}); from ullage.cli import main; main(sys.argv[1:])"
    log = ROOT / "examples" / "founding" / "fewer-channels.log"
    done = subprocess.run(
        [sys.executable, "-c", code, "why", str(log), "--json"],
        capture_output=True, timeout=60, cwd=tmp_path, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr.decode()
    assert json.loads(done.stdout)["cause"] == "budget-below-weights"
