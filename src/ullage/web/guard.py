"""Who may ask: this machine's own browser, at the address asked for, with the token where there is one.

A page of another site can make a browser send requests here, and can give its name this machine's address
(DNS rebinding). So the Host header must be one of ours, a request that changes or computes must come from our
own page, and beyond loopback a token is needed.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ullage.core.loopback import from_another_site

COOKIE = "ullage-token"
#: scripts, styles and pictures of ours alone; no frame, no form to elsewhere
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY, "x-content-type-options": "nosniff", "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin", "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store", "x-frame-options": "DENY",
}  # fmt: skip


class Guard:
    """Wraps the application. ``hosts`` are the values of the Host header that are ours."""

    def __init__(self, app: ASGIApp, hosts: Iterable[str], token: str | None = None) -> None:
        self.app = app
        self.hosts = frozenset(host.lower() for host in hosts)
        self.token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def sealed(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
            await send(message)

        refused = self._refused(scope)
        if refused is not None:
            await PlainTextResponse(f"refused: {refused}\n", 403)(scope, receive, sealed)
        elif self.token and not self._known(scope):
            await self._ask(scope, receive, sealed)
        else:
            await self.app(scope, receive, sealed)

    def _refused(self, scope: Scope) -> str | None:
        """Why the request is not for us; None where it is."""
        headers = Headers(scope=scope)
        if headers.get("host", "").lower() not in self.hosts:
            return "this Host is not the page's own address"
        if scope["method"] not in ("GET", "HEAD") and from_another_site(headers):
            return "the request comes from another site"
        return None

    def _known(self, scope: Scope) -> bool:
        headers = Headers(scope=scope)
        given = headers.get("authorization", "").removeprefix("Bearer ").strip()
        if not given:
            try:
                cookie = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
            except CookieError:
                cookie = None
            given = cookie.value if cookie else ""
        return self._right(given)

    def _right(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), (self.token or "").encode())

    async def _ask(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The address that was printed carries the token once; a cookie holds it after that."""
        given = parse_qs(scope.get("query_string", b"").decode("latin-1")).get("token", [""])[0]
        if scope["method"] != "GET" or not self._right(given):
            await PlainTextResponse("a token is needed: open the address that ullage printed\n", 401)(
                scope, receive, send
            )
            return
        reply = RedirectResponse(scope["path"], 303)
        reply.set_cookie(COOKIE, given, httponly=True, samesite="strict", path="/")
        await reply(scope, receive, send)
