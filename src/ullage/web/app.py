"""The routes of the page."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import cache
from importlib.resources import files as package_files
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from ullage.core.errors import UllageError
from ullage.lab.records import default_root
from ullage.render.html.env import asset
from ullage.web.files import Files
from ullage.web.guard import Guard
from ullage.web.lab import campaign_of, campaigns_in, runs_of
from ullage.web.work import (
    PlanAsked,
    SpecAsked,
    WhyAsked,
    Workers,
    lines_of,
    names_of,
    plan_of,
    spec_of,
    why_of,
)

if TYPE_CHECKING:
    from jinja2 import Environment

T = TypeVar("T")
#: a question of the page; logs come as bodies of their own
MOST_QUESTION = 2 << 20
PAGES = {"why": "Why", "plan": "Plan", "spec": "Speculation", "runs": "Runs", "campaigns": "Campaigns"}
_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


class Site:
    """What the routes share: the files that may be read and the processes that work."""

    def __init__(self, roots: Sequence[str]) -> None:
        self.files = Files([*roots, str(default_root() / "runs")])
        self.short = Workers(max(2, os.cpu_count() or 2))
        self.logs = Workers(2)

    def routes(self) -> list[BaseRoute]:
        return [
            Route("/", lambda _request: RedirectResponse("/why", 307)),
            *(Route(f"/{name}", self.page) for name in PAGES),
            Route("/static/{name}", self.static),
            Route("/api/plan", _answers(self.plan), methods=["POST"]),
            Route("/api/logs", _answers(self.drop), methods=["POST"]),
            Route("/api/why", _answers(self.why), methods=["POST"]),
            Route("/api/lines", _answers(self.lines)),
            Route("/api/names", _answers(self.names)),
            Route("/api/spec", _answers(self.spec), methods=["POST"]),
            Route("/api/runs", _answers(self.runs)),
            Route("/api/campaigns", _answers(self.campaigns)),
        ]

    async def page(self, request: Request) -> Response:
        return HTMLResponse(shown(request.url.path.strip("/")))

    async def static(self, request: Request) -> Response:
        found = static(request.path_params["name"])
        return found or Response("not found\n", 404, media_type="text/plain")

    async def plan(self, request: Request) -> dict[str, Any]:
        return await self.short.ask(plan_of, await _read(request, PlanAsked))

    async def drop(self, request: Request) -> dict[str, Any]:
        kept = await self.files.keep(request.query_params.get("name", "log"), request.stream())
        return {"id": f"id:{kept.id}", "name": kept.name}

    async def why(self, request: Request) -> dict[str, Any]:
        asked = await _read(request, WhyAsked)
        paths = {log: self.files.path(log) for log in (*asked.logs, *asked.baseline)}
        return await self.logs.ask(why_of, asked, paths, self.files.names(list(paths.values())))

    async def lines(self, request: Request) -> dict[str, Any]:
        given = request.query_params
        path = self.files.path(given.get("log", ""))
        return await self.logs.ask(
            lines_of, path, _number(given.get("from")), _number(given.get("count")) or 200
        )

    async def names(self, _request: Request) -> dict[str, Any]:
        return await self.short.ask(names_of)

    async def spec(self, request: Request) -> dict[str, Any]:
        return await self.short.ask(spec_of, await _read(request, SpecAsked))

    async def runs(self, request: Request) -> dict[str, Any]:
        return await self.short.ask(runs_of, request.query_params.get("name", ""))

    async def campaigns(self, request: Request) -> dict[str, Any]:
        given = request.query_params.get("file", "")
        if given:
            return await self.logs.ask(campaign_of, self.files.path(given))
        return await self.logs.ask(campaigns_in, [str(root) for root in self.files.roots])

    @asynccontextmanager
    async def lifespan(self, _app: Starlette) -> AsyncIterator[None]:
        yield
        self.close()

    def close(self) -> None:
        self.short.close()
        self.logs.close()
        self.files.close()


def application(hosts: Iterable[str], roots: Sequence[str] = (), token: str | None = None) -> Guard:
    """The page as an ASGI application. ``hosts``: the Host headers that are its own; ``roots``: folders whose
    logs it may read; ``token``: what is needed beyond loopback."""
    site = Site(roots)
    return Guard(Starlette(routes=site.routes(), lifespan=site.lifespan), hosts, token)


def shown(name: str) -> str:
    """A page of the site."""
    return _environment().get_template(f"{name}.html.j2").render(page=name, pages=PAGES)


@cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(loader=PackageLoader("ullage.web"), autoescape=True, undefined=StrictUndefined)


def static(name: str) -> Response | None:
    """A file of ours; None where there is none of that name."""
    if name == "report.css":
        return Response(asset("style.css"), media_type="text/css")
    kind = _TYPES.get(Path(name).suffix)
    folder = package_files("ullage.web") / "static"
    if kind is None or "/" in name or not (folder / name).is_file():
        return None
    return Response((folder / name).read_bytes(), media_type=kind)


def _answers(ask: Callable[[Request], Awaitable[dict[str, Any]]]) -> Callable[[Request], Awaitable[Response]]:
    """A route that answers JSON; what a person can mend comes back as {"error": one line} and 422."""

    async def answer(request: Request) -> Response:
        try:
            found = await ask(request)
        except UllageError as error:
            found = {"error": error.line}
        return JSONResponse(found, 422 if "error" in found else 200)

    return answer


async def _read(request: Request, kind: type[T]) -> T:
    from ullage.core.errors import InputError

    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MOST_QUESTION:
            raise InputError("larger than 2 MiB", where="request")
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.DecodeError as error:
        raise InputError(str(error), where="request") from None


def _number(text: str | None) -> int:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 12 else 0
