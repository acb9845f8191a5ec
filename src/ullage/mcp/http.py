"""Streamable HTTP: who may ask, and serving.

A page of another site can make a browser send requests here, and can give its name this machine's address (DNS
rebinding). So Host and Origin must be ours, on every method; and beyond loopback, or where servers may be
launched, each request carries the token that was printed.
"""

from __future__ import annotations

import hmac
import socket
from collections.abc import Iterable

import uvicorn
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from ullage.core.loopback import from_another_site
from ullage.mcp.server import Host

PATH = "/mcp"
#: one question with all its arguments; sessions at once
MOST_BYTES, MOST_SESSIONS = 1 << 20, 64


class Guard:
    """Wraps the application. ``hosts``: values of the Host header that are ours; None: any, where it listens on
    every address (the token is needed then)."""

    def __init__(self, app: ASGIApp, hosts: Iterable[str] | None, token: str | None = None) -> None:
        self.app = app
        self.hosts = None if hosts is None else frozenset(host.lower() for host in hosts)
        self.token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            refused = self._refused(headers)
            if refused is not None:
                await PlainTextResponse(f"refused: {refused}\n", 403)(scope, receive, send)
                return
            if not self._known(headers):
                said = {"www-authenticate": "Bearer"}
                text = "a token is needed: Authorization: Bearer TOKEN, as ullage printed it\n"
                await PlainTextResponse(text, 401, said)(scope, receive, send)
                return
        elif scope["type"] != "lifespan":
            return
        await self.app(scope, receive, send)

    def _refused(self, headers: Headers) -> str | None:
        if self.hosts is not None and headers.get("host", "").lower() not in self.hosts:
            return "this Host is not the server's own address"
        return "the request comes from another site" if from_another_site(headers) else None

    def _known(self, headers: Headers) -> bool:
        if self.token is None:
            return True
        kind, _, given = headers.get("authorization", "").partition(" ")
        return kind.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), self.token.encode())


def application(host: Host, hosts: Iterable[str] | None, token: str | None) -> Guard:
    from mcp.server.transport_security import TransportSecuritySettings

    app = host.server().streamable_http_app(
        streamable_http_path=PATH, max_request_body_size=MOST_BYTES, max_sessions=MOST_SESSIONS,
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
    )  # fmt: skip
    return Guard(app, hosts, token)


async def serve(host: Host, bound: socket.socket, hosts: Iterable[str] | None, token: str | None) -> None:
    """Serve on a socket that listens until a signal asks to end."""
    config = uvicorn.Config(
        application(host, hosts, token), log_level="error", access_log=False, server_header=False,
        lifespan="on", timeout_graceful_shutdown=2,
    )  # fmt: skip
    try:
        await uvicorn.Server(config).serve(sockets=[bound])
    finally:
        await host.close()
