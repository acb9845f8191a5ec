"""``--allow-run``: servers launched, watched and stopped; nothing is left however it ends."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import jsonschema
import psutil
import pytest

from tests.lab.started import CRASHED, WORKED, Launched, launched, until
from ullage.lab.records import Store

from .conftest import GPU, Served, gone, text


@pytest.fixture
def stub(tmp_path: Path) -> Iterator[Launched]:
    (tmp_path / "stub").mkdir()
    with launched(tmp_path / "stub") as found:
        yield found


def told(stub: Launched, log: Path, **more: object) -> dict[str, str]:
    return {"STUB_PIDS": str(stub.pids_file), "STUB_LOG": str(log), **{k: str(v) for k, v in more.items()}}


def sglang(stub: Launched, fraction: str) -> str:
    return (
        f"{stub.bin / 'sglang'} serve --model-path moonshotai/Kimi-K2.5 --tp 8 --mem-fraction-static {fraction}"
        f" --port {stub.port}"
    )


def test_a_server_is_launched_watched_and_stopped(served: Served, stub: Launched) -> None:
    async def body(client: Any) -> None:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        hints = {name: tools[name].annotations for name in ("run", "run_status", "run_stop")}
        assert not hints["run"].read_only_hint and hints["run_status"].read_only_hint
        assert hints["run_stop"].destructive_hint and not hints["run"].destructive_hint
        command = f"{stub.bin / 'vllm'} serve stub/model --port {stub.port}"
        found = await client.call_tool("run", {"command": command, "name": "mine", "wait_s": 30})
        assert not found.is_error, text(found)
        jsonschema.validate(found.structured_content, tools["run"].output_schema)
        assert found.structured_content["state"] == "running" and found.structured_content["ready"]
        assert text(found).startswith("mine: running, ready")
        again = await client.call_tool("run", {"command": command, "name": "mine"})
        assert again.is_error and "of that name already" in text(again)
        found = await client.call_tool("run_status", {"name": "mine", "lines": 3})
        assert found.structured_content["log"] == WORKED.read_text().splitlines()[-3:]
        found = await client.call_tool("why", {"logs": ["mine"]})
        assert found.structured_content["outcome"] == "started"
        found = await client.call_tool("run_stop", {"name": "mine"})
        jsonschema.validate(found.structured_content, tools["run_stop"].output_schema)
        assert found.structured_content["state"] == "over"
        assert found.structured_content["run"]["outcome"] == "stopped"
        stub.nothing_left()
        shown = (await client.call_tool("runs", {"name": "last"})).structured_content
        assert shown["runs"][0]["name"] == "mine" and shown["runs"][0]["outcome"] == "stopped"
        assert (await client.call_tool("run_stop", {"name": "mine"})).is_error

    served.stdio(body, "--allow-run", **told(stub, WORKED))


def test_what_will_not_start_and_what_crashes(served: Served, stub: Launched) -> None:
    async def body(client: Any) -> None:
        asked = {"command": sglang(stub, "0.55"), "gpu": GPU, "wait_s": 30}
        found = (await client.call_tool("run", asked)).structured_content
        assert (found["state"], found["run"]["outcome"]) == ("over", "refused")
        assert not stub.pids(), "nothing was started"
        found = await client.call_tool("run", {**asked, "keep_going": True})
        run = found.structured_content["run"]
        assert run["outcome"] == "crashed" and run["diagnosis"]["cause"] == "budget-below-weights"
        assert "budget-below-weights" in text(found)
        model = served.folder / "model"
        model.mkdir()
        (model / "config.json").write_text("{}")
        for command, words in (
            (f"{sglang(stub, '0.88')}; touch {served.folder / 'x'}", "needs a shell"),
            ("touch x", "starts neither"),
            (f"{stub.bin / 'vllm'} serve {model}", "outside the folders"),
        ):
            refused = await client.call_tool("run", {"command": command, "wait_s": 0})
            assert refused.is_error and words in text(refused), text(refused)
        assert not (served.folder / "x").exists()

    served.stdio(body, "--allow-run", **told(stub, CRASHED, STUB_EXIT=1))


def test_a_run_ends_with_the_server_and_a_withdrawn_one_at_once(served: Served, stub: Launched) -> None:
    command = f"{stub.bin / 'vllm'} serve stub/model --port {stub.port}"

    async def body(client: Any) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(client.call_tool, "run", {"command": command, "wait_s": 100})
            with anyio.fail_after(15):
                while not stub.left():
                    await anyio.sleep(0.05)
            group.cancel_scope.cancel()
        with anyio.fail_after(10):
            while stub.left():
                await anyio.sleep(0.05)
        found = await client.call_tool("run", {"command": command, "wait_s": 0})
        assert found.structured_content["state"] == "running"
        with anyio.fail_after(10):
            while not stub.left():
                await anyio.sleep(0.05)

    served.stdio(body, "--allow-run", **told(stub, WORKED, STUB_HANG=1, STUB_CHILDREN=2))
    stub.nothing_left(seconds=10)
    assert {record.outcome for _, record in Store(served.home / "runs").records()} == {"stopped"}


def test_a_run_ends_with_a_server_that_is_killed(served: Served, stub: Launched) -> None:
    words = [sys.executable, "-m", "ullage", "mcp", "--allow-run"]
    env = {**served.env, **told(stub, WORKED, STUB_HANG=1)}
    server = subprocess.Popen(
        words,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=env,
        cwd=served.folder,
    )
    assert server.stdin is not None and server.stdout is not None
    try:
        command = f"{stub.bin / 'vllm'} serve stub/model --port {stub.port}"
        for message in (
            {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": "2025-06-18",
             "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}},
            {"jsonrpc": "2.0", "method": "notifications/initialized"},
            {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "run", "arguments": {
             "command": command, "wait_s": 0}}},
        ):  # fmt: skip
            server.stdin.write(json.dumps(message).encode() + b"\n")
            server.stdin.flush()
        until(stub.left, 20, "the stub to start")
        started = psutil.Process(server.pid).children(recursive=True)
        assert started
        server.send_signal(signal.SIGKILL)
        server.wait(10)
        gone(started)
        stub.nothing_left(seconds=10)
    finally:
        server.kill()
        server.wait(10)
        server.stdin.close()
        server.stdout.close()
