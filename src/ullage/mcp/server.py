"""The server: lists the tools, checks what it is asked, has it answered elsewhere, and passes it on."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import anyio
import mcp_types as types
import msgspec
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

import ullage
from ullage.core.errors import InputError, UllageError
from ullage.core.secrets import masked
from ullage.mcp import arguments as given
from ullage.mcp import texts
from ullage.mcp.answers import sealed
from ullage.mcp.launches import Launches, new_name, state
from ullage.mcp.tools import INSTRUCTIONS, Kind, kinds, listed
from ullage.mcp.worker import Answer, Question, Settings
from ullage.mcp.workers import Workers

#: seconds that an end may take before the process goes all the same; what it started ends by itself
END_S = 15.0
Context = ServerRequestContext[Any]


class Host:
    """The tools of one server. ``hub``: the model hub may be asked; ``allow_run``: servers may be launched."""

    def __init__(self, roots: Sequence[str], *, hub: bool = False, allow_run: bool = False) -> None:
        settings = Settings(tuple(roots), hub)
        self.kinds = kinds(allow_run=allow_run)
        self.tools = [listed(kind, hub=hub) for kind in self.kinds.values()]
        self.short, self.large = Workers(2, settings), Workers(2, settings)
        self.launches = Launches()

    def server(self) -> Server[Any]:
        return Server(
            "ullage", version=ullage.__version__, title="ullage", instructions=INSTRUCTIONS,
            on_list_tools=self._list, on_call_tool=self._call,
        )  # fmt: skip

    async def _list(
        self, _context: Context, _params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        return types.ListToolsResult(tools=self.tools)

    async def _call(self, _context: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
        try:
            found, text = await self.answer(params.name, params.arguments or {})
        except UllageError as error:
            return _result(masked(error.line)[:2000], error=True)
        return _result(text, found)

    async def answer(self, name: str, arguments: dict[str, Any]) -> tuple[dict[str, Any], str]:
        """(the structured result, the short text). Raises UllageError for what the caller can mend."""
        kind = self.kinds.get(name)
        if kind is None:
            raise InputError(f"is no tool of this server: {name[:60]!r}", hint=", ".join(self.kinds))
        asked = _checked(kind, arguments)
        if isinstance(asked, given.Launch):
            return await self._launch(asked)
        if isinstance(asked, given.Status):
            return await self._status(asked)
        if isinstance(asked, given.Stop):
            await self.launches.stop(asked.name)
            return await _state(asked.name, 20)
        answer = await self._ask(kind.name, asked, self.large if kind.large else self.short)
        return msgspec.json.decode(answer.found), answer.text

    async def _ask(self, tool: str, asked: msgspec.Struct, workers: Workers) -> Answer:
        answer = await workers.ask(Question(tool, msgspec.Raw(msgspec.json.encode(asked))))
        if answer.error is not None:
            raise InputError(answer.error)
        return answer

    async def _launch(self, asked: given.Launch) -> tuple[dict[str, Any], str]:
        planned = msgspec.json.decode((await self._ask("run", asked, self.short)).found)
        options = [*planned["options"], *(["--keep-going"] if asked.keep_going else [])]
        name = asked.name or new_name()
        try:
            await self.launches.start(name, options, planned["words"])
            await self.launches.wait(name, asked.wait_s)
        except anyio.get_cancelled_exc_class():
            # whoever asked does not learn its name: nobody else could end it
            with anyio.CancelScope(shield=True), suppress(UllageError):
                await self.launches.stop(name)
            raise
        return await _state(name, 20)

    async def _status(self, asked: given.Status) -> tuple[dict[str, Any], str]:
        await self.launches.wait(asked.name, asked.wait_s)
        return await _state(asked.name, asked.lines)

    async def close(self) -> None:
        """End all that was started, however this is called."""
        with anyio.CancelScope(shield=True), anyio.move_on_after(END_S):
            async with anyio.create_task_group() as group:
                for one in (self.short, self.large, self.launches):
                    group.start_soon(one.close)


async def _state(name: str, lines: int) -> tuple[dict[str, Any], str]:
    found, record = await anyio.to_thread.run_sync(state, name, lines)
    log = "\n".join(line[:200] for line in found["log"][-5:])
    head = f"{record.name}: {found['state']}{', ready' if found['ready'] else ''}"
    return sealed(found), masked("\n".join(filter(None, (head, texts.run(record), log))))


def _checked(kind: Kind, arguments: dict[str, Any]) -> msgspec.Struct:
    """The arguments as the tool takes them. Raises InputError in one line for anything else."""
    try:
        asked = msgspec.convert(arguments, kind.arguments)
        raw = msgspec.json.encode(asked)
    except (msgspec.ValidationError, UnicodeEncodeError, RecursionError) as error:
        raise InputError(str(error)[:300], where=f"arguments of {kind.name}") from None
    if rb"\u0000" in raw and "\0" in "".join(_texts(msgspec.to_builtins(asked))):
        raise InputError("holds a NUL character", where=f"arguments of {kind.name}")
    return asked


def _texts(found: Any) -> list[str]:
    if isinstance(found, str):
        return [found]
    inner = [*found, *found.values()] if isinstance(found, dict) else found if isinstance(found, list) else []
    return [text for item in inner for text in _texts(item)]


def _result(text: str, found: dict[str, Any] | None = None, *, error: bool = False) -> types.CallToolResult:
    return types.CallToolResult(
        content=[types.TextContent(type="text", text=text)], structured_content=found, is_error=error
    )


async def stdio(host: Host) -> None:
    """Serve the client on stdin and stdout until it goes, or a signal asks to end."""
    server = host.server()
    with suppress(BrokenPipeError):
        async with anyio.create_task_group() as group:
            group.start_soon(_signals, host)
            async with stdio_server() as (reading, writing):
                await server.run(reading, writing, server.create_initialization_options())
            group.cancel_scope.cancel()
    await host.close()


async def _signals(host: Host) -> None:
    """End at once when asked to: the thread that reads stdin would hold up an orderly end."""
    import os

    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for number in signals:
            await host.close()
            os._exit(128 + number)
