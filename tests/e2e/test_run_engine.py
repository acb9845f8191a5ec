"""``ullage run`` with a real vLLM on the CPU: a start that works, and starts that must fail."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e import tiny_model
from tests.e2e.engine import ENVIRONMENT, READY_S, SERVE, vllm
from tests.lab.started import Launched, launched, ullage, until

from ullage.lab import proc_table, processes

pytestmark = [pytest.mark.engine, pytest.mark.slow]


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model.write(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Launched]:
    with launched(tmp_path) as found:
        found.env |= ENVIRONMENT
        yield found


def serve(lab: Launched, model: Path, *more: str) -> tuple[str, ...]:
    return (str(vllm()), "serve", str(model), *SERVE, "--port", str(lab.port), *more)


def nothing_left(lab: Launched) -> None:
    """No process of the run is alive, and its port is free."""
    traces = lab.store.get("last").traces()
    assert traces is not None and traces.leader is not None
    assert processes.find(traces) == []
    assert processes.port_free(lab.port)


def finished(lab: Launched, *options: str, launch: tuple[str, ...]) -> tuple[int, str]:
    """(exit code, stderr) of a start that fails by itself."""
    process = lab.start(*options, launch=launch)
    process.communicate(timeout=READY_S)
    return process.returncode, lab.said()


@pytest.mark.timeout(300)
def test_ready_a_request_answered_and_a_clean_stop(lab: Launched, model: Path) -> None:
    process = lab.start("--request", launch=serve(lab, model, "--max-model-len", "1024"))
    try:
        lab.wait_said("a request of one token was answered", READY_S)
    finally:
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    record = lab.record()
    assert (record.outcome, record.exit_code, record.version) == ("stopped", 0, "0.32.0")
    assert record.observed["kv_tokens"] == 1024**3 // (4 * 2 * 2 * 64 * 2), (
        "layers x (K, V) x heads x dim x 2 B"
    )
    assert record.diagnosis is not None and record.diagnosis["cause"] == "none"
    assert record.versions["vllm"].startswith("0.32.0") and "torch" in record.versions
    assert record.stages["weights"] <= record.stages["kv_pool"] <= (record.ready_s or 0)
    assert 0 < record.stages["args"] < record.stages["kv_pool"], "seen as they came, not at the end"
    assert set(out.splitlines()) <= set(lab.store.get("last").log.read_bytes().splitlines())
    nothing_left(lab)


@pytest.mark.timeout(300)
def test_a_worker_that_is_killed(lab: Launched, model: Path) -> None:
    process = lab.start(launch=serve(lab, model, "--max-model-len", "1024"))
    lab.wait_said("ready at", READY_S)
    traces = lab.store.get("last").traces()
    assert traces is not None
    rows = [proc_table.entry(started.pid) for started in processes.find(traces)]
    worker = next(row for row in rows if row is not None and "Worker" in row.name)
    os.kill(worker.pid, signal.SIGKILL)
    process.communicate(timeout=90)
    record = lab.record()
    assert (record.outcome, record.exit_code) == ("crashed", process.returncode), (
        "vLLM 0.32.0 itself exits with 0"
    )
    assert record.diagnosis is not None
    assert (record.diagnosis["outcome"], record.diagnosis["phase"]) == ("crashed", "serving")
    assert "EngineDeadError" not in record.diagnosis["summary"], "what merely followed is not the cause"
    nothing_left(lab)


@pytest.mark.timeout(300)
def test_a_context_longer_than_the_kv_space(lab: Launched, model: Path) -> None:
    del lab.env["VLLM_CPU_KVCACHE_SPACE"]
    launch = serve(lab, model, "--max-model-len", "4096", "--kv-cache-memory-bytes", "4M")
    code, said = finished(lab, launch=launch)
    assert code == 1 and "not launched" in said and "max-len-exceeds-kv" in said, "the plan knows"
    code, said = finished(lab, "--no-preflight", launch=launch)
    assert code == 1
    record = lab.record()
    assert record.outcome == "crashed"
    assert record.diagnosis is not None and record.diagnosis["cause"] == "max-len-exceeds-kv"
    assert record.diagnosis["certainty"] == "certain"
    assert "max-len-exceeds-kv" in said
    code, text, _ = ullage(lab.home, "why", record.name)
    assert code == 1 and "max-len-exceeds-kv" in text
    nothing_left(lab)


@pytest.mark.timeout(300)
def test_a_port_in_use(lab: Launched, model: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", lab.port))
        holder.listen()
        launch = serve(lab, model, "--max-model-len", "1024")
        code, said = finished(lab, launch=launch)
        assert code == 1 and "not launched: port" in said
        code, said = finished(lab, "--keep-going", launch=launch)
    assert code == 1
    record = lab.record()
    assert record.outcome == "crashed"
    assert record.diagnosis is not None and record.diagnosis["cause"] == "port-in-use"
    until(lambda: processes.port_free(lab.port), 5)
    nothing_left(lab)


@pytest.mark.timeout(300)
def test_a_config_that_the_engine_rejects(lab: Launched, model: Path) -> None:
    launch = serve(lab, model, "--max-model-len", "100000")
    code, said = finished(lab, "--keep-going", launch=launch)
    assert code == 1
    record = lab.record()
    assert record.diagnosis is not None
    assert (record.diagnosis["outcome"], record.diagnosis["phase"]) == ("crashed", "args")
    cause = record.diagnosis["cause"]
    assert cause is not None and cause in said
    assert record.plan is not None
    assert (record.plan["verdict"], record.plan["cause"]) == ("fails", cause), "the plan had said so"
    nothing_left(lab)
