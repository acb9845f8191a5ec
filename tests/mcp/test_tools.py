"""Each tool over stdio: its structured result follows its schema, its text says what to do."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import anyio
import jsonschema

from .conftest import FOUNDING, GPU, LAUNCH, Served, text

SPECULATION = (
    " --speculative-algorithm EAGLE3 --speculative-num-steps 2 --speculative-eagle-topk 1"
    " --speculative-num-draft-tokens 3"
)
READ_ONLY = ["plan", "why", "diff", "spec", "comm_plan", "check", "runs"]


async def asked(client: Any, name: str, **arguments: Any) -> Any:
    """The structured result, once it is seen to follow the schema that the tool declares."""
    found = await client.call_tool(name, arguments)
    assert not found.is_error, text(found)
    tool = {tool.name: tool for tool in (await client.list_tools()).tools}[name]
    jsonschema.validate(found.structured_content, tool.output_schema)
    assert 0 < len(text(found)) < 4200
    return found


def test_the_tools_say_what_they_take_and_change(served: Served) -> None:
    async def body(client: Any) -> None:
        tools = (await client.list_tools()).tools
        assert [tool.name for tool in tools] == READ_ONLY
        for tool in tools:
            jsonschema.Draft202012Validator.check_schema(tool.input_schema)
            jsonschema.Draft202012Validator.check_schema(tool.output_schema)
            assert tool.annotations.read_only_hint and not tool.annotations.open_world_hint
            assert tool.description and tool.title
            assert tool.input_schema["additionalProperties"] is False
            for name, field in tool.input_schema["properties"].items():
                assert field.get("description") or name == "name", (tool.name, name)

        await no_secret(client, served)

    served.stdio(body, mode="legacy")


def test_the_founding_case(served: Served) -> None:
    async def body(client: Any) -> None:
        found = await asked(client, "why", logs=["fewer-channels.log"], baseline=["baseline.log"])
        why = found.structured_content
        assert (why["schema"], why["cause"], why["certainty"]) == (
            "ullage.why/1",
            "budget-below-weights",
            "certain",
        )
        assert [d["setting"] for d in why["compare"]["differences"] if d["decisive"]] == ["mem_fraction_static"]
        said = text(found)
        for words in (
            "cause: budget-below-weights (certain)",
            "21.78 - 94.08 x (1 - 0.55) = -20.56 GiB",
            "it is not: NCCL buffers",
            "--mem-fraction-static must be above 0.769",
            "try: --mem-fraction-static 0.88 -> will start, pool 10.49 GiB, 160,291 tokens",
            "first: fewer-channels.log:53",
        ):
            assert words in said
        for log in sorted(FOUNDING.glob("*.log")):
            outcome = (await asked(client, "why", logs=[log.name])).structured_content["outcome"]
            assert outcome == ("started" if log.name == "baseline.log" else "crashed")
        found = await asked(client, "diff", a="baseline.log", b=str(FOUNDING / "fewer-channels.log"))
        assert found.structured_content["schema"] == "ullage.diff/1"
        assert "decides: mem_fraction_static" in text(found)

    served.stdio(body)


def test_the_other_read_only_tools(served: Served) -> None:
    async def body(client: Any) -> None:
        found = await asked(client, "plan", command=f"{LAUNCH} 0.55", gpu=GPU, engine_version="0.5.9")
        assert found.structured_content["verdict"] == "fails"
        assert "try: --mem-fraction-static 0.8" in text(found) and "best 0.8" in text(found)
        found = await asked(
            client, "plan", command=f"{LAUNCH} 0.88", gpu=GPU, engine_version="0.5.9",
            readings={"free_after_weights_gib": 21.71, "free_at_start_gib": 94.08}, contexts=[8192],
        )  # fmt: skip
        assert found.structured_content["verdict"] == "starts"
        assert list(found.structured_content["kv"]["concurrency"]) == ["8192"]
        found = await asked(
            client, "spec", command=f"{LAUNCH} 0.88{SPECULATION}", gpu=GPU, engine_version="0.5.9",
            accept_length=[2.04, 2.28], allreduce_us=246, batch=[1],
        )  # fmt: skip
        acceptance = found.structured_content["acceptance"]
        assert (acceptance["low"], acceptance["length"], acceptance["high"]) == (2.04, 2.16, 2.28)
        found = await asked(
            client, "comm_plan", command=f"{LAUNCH} 0.88", gpu=GPU, batch=[1], phases=["decode"]
        )
        assert found.structured_content["all_reduces"] == 122
        assert len(found.structured_content["forwards"]) == 1
        await asked(client, "check")
        assert (await asked(client, "runs")).structured_content["runs"] == []

    served.stdio(body)


async def no_secret(client: Any, served: Served) -> None:
    key = "sk-" + "abcdefghijklmnop"
    log = (FOUNDING / "fewer-channels.log").read_text()
    (served.logs / "secret.log").write_text(f"HF_TOKEN={key} api_key='{key}'\n{log}")
    command = f"HF_TOKEN={key} vllm serve Qwen/Qwen3-8B --api-key {key}"
    for name, arguments in (
        ("plan", {"command": command, "gpu": "H100"}),
        ("why", {"logs": ["secret.log"], "command": command}),
        ("why", {"logs": [f"--api-key {key}"]}),
        ("plan", {"command": f"{command} --config {key}.txt"}),
    ):
        found = await client.call_tool(name, arguments)
        assert key not in found.model_dump_json(), name


def test_a_large_log_holds_up_nothing_and_a_withdrawn_question_ends_its_process(served: Served) -> None:
    import psutil

    big = served.logs / "big.log"
    with big.open("wb") as stream:
        stream.write((FOUNDING / "baseline.log").read_bytes())
        stream.truncate(6 << 30)  # sparse: bytes that take seconds to read, and no disk

    def workers() -> list[psutil.Process]:
        found = []
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):  # it may just have ended
                if "ullage.mcp.worker" in process.cmdline():
                    found.append(process)
        return found

    async def body(client: Any) -> None:
        await asked(client, "plan", command=f"{LAUNCH} 0.55", gpu=GPU)
        answered: list[str] = []

        async def large() -> None:
            await client.call_tool("why", {"logs": ["big.log"]})
            answered.append("why")

        async with anyio.create_task_group() as group:
            group.start_soon(large)
            with anyio.fail_after(10):
                while len(workers()) < 2:
                    await anyio.sleep(0.05)
            await client.call_tool("plan", {"command": f"{LAUNCH} 0.55", "gpu": GPU})
            assert not answered, "the plan waited for the log"
            group.cancel_scope.cancel()
        with anyio.fail_after(5):
            while len(workers()) > 1:
                await anyio.sleep(0.05)
        await asked(client, "why", logs=["baseline.log"])

    served.stdio(body)
