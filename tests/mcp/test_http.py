"""Streamable HTTP: the client of the SDK, and those who may not ask."""

from __future__ import annotations

import json
from typing import Any

import anyio
import httpx
import pytest

from .conftest import GPU, LAUNCH, Served, text

QUESTION = {
    "jsonrpc": "2.0", "id": 1, "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
}  # fmt: skip
HEADERS = {"accept": "application/json, text/event-stream", "content-type": "application/json"}


def posted(address: str, **headers: str) -> httpx.Response:
    with httpx.Client(trust_env=False) as client:
        return client.post(address, json=QUESTION, headers={**HEADERS, **headers})


async def connected(address: str, token: str | None, body: Any) -> None:
    import httpx2
    from mcp.client.streamable_http import streamable_http_client

    from mcp import Client

    headers = {"authorization": f"Bearer {token}"} if token else {}
    async with (
        httpx2.AsyncClient(headers=headers, trust_env=False) as http,
        Client(streamable_http_client(address, http_client=http)) as client,
    ):
        await body(client)


def test_a_client_over_http(served: Served) -> None:
    async def body(client: Any) -> None:
        found = await client.call_tool("why", {"logs": ["fewer-channels.log"], "baseline": ["baseline.log"]})
        assert found.structured_content["cause"] == "budget-below-weights"
        found = await client.call_tool("plan", {"command": f"{LAUNCH} 0.55", "gpu": GPU})
        assert found.structured_content["verdict"] == "fails" and "will not start" in text(found)
        assert (await client.call_tool("why", {"logs": ["/etc/hosts"]})).is_error

    with served.http() as (address, token):
        assert token is None and address.startswith("http://127.0.0.1:")
        anyio.run(connected, address, None, body)


def test_foreign_hosts_and_origins(served: Served) -> None:
    with served.http() as (address, _):
        own = httpx.URL(address)
        assert posted(address).status_code == 200
        assert posted(address, origin=f"http://127.0.0.1:{own.port}").status_code == 200
        for headers in (
            {"host": "attacker.example"}, {"host": f"attacker.example:{own.port}"}, {"host": f"127.0.0.1:{own.port}.evil"},
            {"host": "127.0.0.1"}, {"origin": "http://attacker.example"}, {"origin": "null"},
            {"origin": f"http://127.0.0.1:{own.port + 1}"}, {"sec-fetch-site": "cross-site"},
        ):  # fmt: skip
            assert posted(address, **headers).status_code == 403, headers
            with httpx.Client(trust_env=False) as client:
                got = client.get(address, headers={"accept": "text/event-stream", **headers})
                assert got.status_code == 403, headers
        with httpx.Client(trust_env=False) as client:
            large = client.post(address, content=b"x" * (2 << 20), headers=HEADERS)
            assert large.status_code == 413
            assert client.post(address, content=b"{", headers=HEADERS).status_code == 400
            assert client.get(str(own.copy_with(path="/other"))).status_code == 404


@pytest.mark.parametrize("options", [("--listen", "0.0.0.0"), ("--allow-run",)])
def test_a_token_is_needed(served: Served, options: tuple[str, ...]) -> None:
    async def body(client: Any) -> None:
        assert len((await client.list_tools()).tools) == (10 if "--allow-run" in options else 7)

    with served.http(*options) as (address, token):
        assert token and len(token) > 30
        for headers in (
            {},
            {"authorization": "Bearer wrong"},
            {"authorization": f"Basic {token}"},
        ):
            refused = posted(address, **headers)
            assert refused.status_code == 401 and refused.headers["www-authenticate"] == "Bearer"
        with httpx.Client(trust_env=False) as client:
            odd = [(b"authorization", b"Bearer \xe9"), *((k.encode(), v.encode()) for k, v in HEADERS.items())]
            assert client.post(address, json=QUESTION, headers=odd).status_code == 401
        assert posted(f"{address}?token={token}").status_code == 401
        assert (
            posted(address, authorization=f"Bearer {token}", origin="http://attacker.example").status_code
            == 403
        )
        reply = posted(address, authorization=f"Bearer {token}")
        assert reply.status_code == 200 and token not in json.dumps(reply.text)
        anyio.run(connected, address, token, body)
