"""Where a server answers, and whether it does: its health route, and a real request of one token."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from contextlib import suppress
from http.client import HTTPConnection, HTTPException, HTTPSConnection

from msgspec import Struct

from ullage.core import tables
from ullage.core.launch import Launch

#: addresses that a server listens on and nobody can connect to
_ANY = ("", "0.0.0.0", "::", "[::]")
#: variables that hold the key which a server asks for
_KEYS = ("VLLM_API_KEY", "SGLANG_API_KEY")
#: an answer longer than this is not read further
_MOST_BYTES = 1 << 20


class Row(Struct, frozen=True):
    engine: str
    port: int
    health: str
    models: str
    completions: str
    source: str


class _Rows(Struct, frozen=True):
    endpoint: list[Row]


class Endpoint(Struct, frozen=True):
    """``unix_socket`` stands instead of host and port where the server listens on one. ``key`` is not kept."""

    host: str
    port: int
    health: str = "/health"
    models: str = "/v1/models"
    completions: str = "/v1/completions"
    secure: bool = False
    unix_socket: str | None = None
    key: str | None = None

    @property
    def where(self) -> str:
        """For people: "127.0.0.1:8000"."""
        return f"unix:{self.unix_socket}" if self.unix_socket else f"{self.host}:{self.port}"


def row(engine: str) -> Row | None:
    found = tables.load("ullage.lab", "endpoints.toml", _Rows).endpoint
    return next((each for each in found if each.engine == engine), None)


def of_launch(launch: Launch, environment: Mapping[str, str] | None = None) -> Endpoint | None:
    """Where the launch will answer on the machine (or in the container) that it runs on; None where it opens no
    port (a further node of several) or its engine is not known."""
    known = row(launch.engine)
    if known is None or launch.flag("headless") or (launch.integer("node_rank") or 0) > 0:
        return None
    host = launch.text("host") or ""
    keys = {**(environment or {}), **launch.env}
    return Endpoint(
        "127.0.0.1" if host in _ANY or host == "localhost" else host.strip("[]"),
        launch.integer("port") or known.port, known.health, known.models, known.completions,
        launch.get("ssl_certfile") is not None, launch.text("uds"), _key(launch, keys),
    )  # fmt: skip


def _key(launch: Launch, environment: Mapping[str, str]) -> str | None:
    given = launch.get("api_key")
    first = given[0] if isinstance(given, list) and given else given
    if isinstance(first, str):
        return first
    return next((environment[name] for name in _KEYS if environment.get(name)), None)


def healthy(endpoint: Endpoint, timeout_s: float = 2.0) -> bool:
    """True if the health route answers with success now."""
    status, _ = _ask(endpoint, "GET", endpoint.health, None, timeout_s)
    return status is not None and 200 <= status < 300


def answers(endpoint: Endpoint, timeout_s: float = 60.0) -> str | None:
    """None if a request of one token is answered within ``timeout_s`` seconds, else why not, in a few words."""
    status, body = _ask(endpoint, "GET", endpoint.models, None, timeout_s)
    if status != 200:
        return _refused(endpoint.models, status, body)
    try:
        name = json.loads(body)["data"][0]["id"]
    except (ValueError, LookupError, TypeError):
        return f"{endpoint.models} names no model"
    request = json.dumps({"model": name, "prompt": "1", "max_tokens": 1, "temperature": 0}).encode()
    status, body = _ask(endpoint, "POST", endpoint.completions, request, timeout_s)
    if status != 200:
        return _refused(endpoint.completions, status, body)
    with suppress(ValueError):
        if isinstance(json.loads(body).get("choices"), list):
            return None
    return f"{endpoint.completions} answered without choices"


def _refused(path: str, status: int | None, body: bytes) -> str:
    said = " ".join(body.decode("utf-8", "replace").split())[:200]
    if status is None:
        return f"{path}: no answer ({said})"
    return f"{path} answered {status}{': ' + said if said else ''}"


def _ask(
    endpoint: Endpoint, method: str, path: str, body: bytes | None, timeout_s: float
) -> tuple[int | None, bytes]:
    """(status, body); (None, the reason) where there is no answer."""
    headers = {"Content-Type": "application/json", "Connection": "close"}
    if endpoint.key:
        headers["Authorization"] = f"Bearer {endpoint.key}"
    connection = _connection(endpoint, timeout_s)
    try:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read(_MOST_BYTES)
    except (OSError, HTTPException, ValueError) as error:
        return None, str(error).encode() or type(error).__name__.encode()
    finally:
        connection.close()


def _connection(endpoint: Endpoint, timeout_s: float) -> HTTPConnection:
    if endpoint.unix_socket:
        return _UnixConnection(endpoint.unix_socket, timeout_s)
    if endpoint.secure:
        import ssl

        # the server is our own child: its certificate is for its clients, and is often self-signed
        return HTTPSConnection(
            endpoint.host, endpoint.port, timeout=timeout_s, context=ssl._create_unverified_context()
        )
    return HTTPConnection(endpoint.host, endpoint.port, timeout=timeout_s)


class _UnixConnection(HTTPConnection):
    """HTTP over a socket file."""

    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)
