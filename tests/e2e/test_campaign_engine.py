"""A real campaign with the real vLLM on the CPU: what helps, what does not, what cannot be, and what is mixed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e import tiny_model
from tests.e2e.engine import ENVIRONMENT, vllm
from tests.lab.started import free_port

pytestmark = [pytest.mark.engine, pytest.mark.slow]

FILE = """\
launch: {env} {vllm} serve {model} --host 127.0.0.1 --port {port} --max-model-len 1024 --max-num-seqs 32 --enforce-eager
engine_version: 0.32.0
baseline: {{reason: what is in use}}
approaches:
  - name: another seed
    reason: nothing that is measured depends on it
    flags: {{seed: 7}}
  - name: too long
    reason: longer prompts
    flags: {{max-model-len: 100000}}
  - name: no room for a cache
    reason: memory for something else
    env: {{VLLM_CPU_KVCACHE_SPACE: "-1"}}
  - name: one sequence
    reason: to see what batching is worth
    flags: {{max-num-seqs: 1}}
benchmark:
  kind: vllm
  args: {{num-prompts: 96, random-input-len: 32, random-output-len: 48, max-concurrency: 32, num-warmups: 8}}
goals: [output_throughput, median_e2el_ms]
repeats: 3
least_effect: 0.1
limits: {{start: 5m, benchmark: 3m, stop: 30s}}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a campaign that has run."""
    program = vllm()
    found = tmp_path_factory.mktemp("campaign")
    model = tiny_model.write(found / "model", max_len=2048)
    env = " ".join(f"{name}={value}" for name, value in ENVIRONMENT.items())
    (found / "real.yaml").write_text(FILE.format(env=env, vllm=program, model=model, port=free_port()))
    done = _ullage(found, "run", "real.yaml")
    assert done.returncode == 0, done.stderr.decode()
    return found


def _ullage(folder: Path, *words: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "ullage.cli", "campaign", *words], cwd=folder, capture_output=True, check=False,
        timeout=1200, env={**os.environ, "ULLAGE_HOME": str(folder / "home"), "NO_COLOR": "1"},
    )  # fmt: skip


def _experiments(folder: Path) -> dict[str, dict[str, Any]]:
    found = json.loads(_ullage(folder, "export", "real.yaml").stdout)
    return {each["name"]: each for each in found["experiments"]}


@pytest.mark.timeout(1300)
def test_the_verdicts(folder: Path) -> None:
    found = _experiments(folder)
    assert {name: each["stage"] for name, each in found.items()} == {
        "baseline": "done", "another seed": "done", "too long": "refused", "no room for a cache": "crashed",
        "one sequence": "done", "baseline, again": "done",
    }  # fmt: skip
    # how sure the verdict is depends on how quiet the machine is; that it follows from the interval does not
    same, slow = found["another seed"]["effects"][0], found["one sequence"]["effects"][0]
    assert slow["value"] < -0.2
    assert slow["low"] < slow["value"] < slow["high"]
    assert slow["word"] == ("worse" if slow["high"] < -0.1 else "no difference shown")
    assert slow["value"] < same["value"]
    assert (same["word"] == "no difference shown") == (same["low"] <= 0.1 and same["high"] >= -0.1)


def test_what_was_refused_crashed_and_mixed(folder: Path) -> None:
    found = _experiments(folder)
    assert "2,048" in found["too long"]["why"]
    assert found["too long"]["runs"] == []
    crashed = found["no room for a cache"]
    assert crashed["told"] is not None and crashed["told"]["evidence"]
    mixed = found["one sequence"]
    assert [c["setting"] for c in mixed["confounded"]] == ["max_num_batched_tokens"]
    # the split that is proposed is the approach that declares all that it changes
    assert any(each["flags"] == {"max-num-seqs": 1, "max-num-batched-tokens": 2048} for each in mixed["split"])
    assert found["another seed"]["confounded"] == []


def test_every_standard_metric(folder: Path) -> None:
    repeat = _experiments(folder)["baseline"]["repeats"][0]
    for name in (
        "output_throughput",
        "request_throughput",
        "mean_ttft_ms",
        "median_itl_ms",
        "p90_tpot_ms",
        "p99_e2el_ms",
    ):
        assert repeat[name] > 0, name
    assert repeat["completed"] == 96
    assert repeat["median_ttft_ms"] <= repeat["p90_ttft_ms"] <= repeat["p99_ttft_ms"]


def test_the_reports(folder: Path) -> None:
    text = _ullage(folder, "report", "real.yaml", "--html", "report.html").stdout.decode()
    for words in ("BASELINE", "CONFOUNDED", "RULED OUT", "max_num_batched_tokens: 2048 -> 1024"):
        assert words in text, text
    page = (folder / "report.html").read_text()
    assert page.count("<svg") == 3
    assert not re.search(r"\b(?:src|href)=|url\(|<script", page)
    assert str(folder) not in page
    assert "one sequence" in _ullage(folder, "report", "real.yaml", "--markdown").stdout.decode()
    assert "by earlier runs" in _ullage(folder, "run", "--dry-run", "real.yaml").stdout.decode()


@pytest.fixture
def dashboard(folder: Path) -> Iterator[str]:
    program = Path(sys.executable).with_name("optuna-dashboard")
    if not program.exists():
        pytest.skip("optuna-dashboard is not installed")
    port = free_port()
    server = subprocess.Popen(
        [program, f"sqlite:///{folder}/real.db", "--host", "127.0.0.1", "--port", str(port)],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(20)


def _fetched(url: str) -> Any:
    until = time.monotonic() + 60
    while True:
        try:
            with urllib.request.urlopen(url, timeout=20) as answer:
                return json.loads(answer.read())
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.3)


def test_optuna_dashboard_opens_it(dashboard: str) -> None:
    studies = _fetched(f"{dashboard}/api/studies")["study_summaries"]
    assert [each["study_name"] for each in studies] == ["real"]
    detail = _fetched(f"{dashboard}/api/studies/{studies[0]['study_id']}")
    states = [trial["state"] for trial in detail["trials"]]
    assert states == ["Complete", "Complete", "Pruned", "Fail", "Complete", "Complete"]
    names = [next(a["value"] for a in trial["user_attrs"] if a["key"] == "name") for trial in detail["trials"]]
    assert names[1] == "another seed"
