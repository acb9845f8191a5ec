"""Reads the beginnings of a hub's files over HTTP: one deadline for all, one host for the token, nothing of the
weights. Imported only where the hub is asked: urllib takes longer to import than a plan takes."""

from __future__ import annotations

import http.client
import os
import socket
import ssl
import threading
import time
import urllib.request
from contextlib import closing, suppress
from urllib.parse import quote, urljoin, urlsplit

from msgspec import Struct

from ullage.core.errors import InputError
from ullage.models.headers import MOST_HEADER_BYTES

#: asked for at once: most headers are smaller, and what lies behind a shorter one is not read
FIRST_BYTES = 128 << 10
MOST_REDIRECTS = 5
_MOVED = (301, 302, 303, 307, 308)
_CHUNK = 64 << 10


class NoAnswerError(InputError):
    """The hub cannot be reached, is too slow, or has a fault of its own: not a fault of the question."""


class Limits(Struct, frozen=True):
    """Seconds to connect, and for everything."""

    connect_s: float = 3.0
    total_s: float = 20.0


class Body(Struct, frozen=True):
    """The first bytes of a file, its whole size where the server tells it, and the commit it belongs to."""

    data: bytes
    size: int | None
    commit: str | None


class Session:
    """Requests to one hub. Safe to share among threads; ``close`` ends all of them, wherever they wait."""

    def __init__(self, endpoint: str, token: str | None, limits: Limits) -> None:
        self.endpoint = endpoint
        self.host = urlsplit(endpoint).netloc
        self.connected = threading.Event()
        self._token = token
        self._limits = limits
        self._deadline = time.monotonic() + limits.total_s
        self._sockets: set[socket.socket] = set()
        self._closed = False
        self._opener = _opener(self)

    def left_s(self) -> float:
        return self._deadline - time.monotonic()

    def close(self) -> None:
        self._closed = True
        for one in list(self._sockets):
            with suppress(OSError, ValueError):
                one.shutdown(socket.SHUT_RDWR)

    def watch(self, connected: socket.socket) -> None:
        """Bound what a connection waits for; called once it stands."""
        self.connected.set()
        self._sockets.add(connected)
        connected.settimeout(max(0.05, self.left_s()))
        if self._closed:
            raise OSError("closed")

    def connect_s(self) -> float:
        return max(0.05, min(self._limits.connect_s, self.left_s()))

    def file(self, model: str, revision: str, name: str, most: int) -> Body | None:
        """A whole small file; None where the model has none of this name."""
        commits: list[str] = []
        with closing(self._open(model, revision, name, None, commits)) as answer:
            if not _found(answer, model, name):
                return None
            data = self._read(answer, most + 1)
            if len(data) > most:
                raise InputError(f"more than {most} bytes", where=f"{model}/{name} at {self.host}")
            return Body(data, len(data), commits[0] if commits else None)

    def header(self, model: str, revision: str, name: str) -> Body | None:
        """The length field and header of a safetensors file, not a byte more; None where there is no such file.

        A server that ignores the range is left after the header too: the connection is closed in its face.
        """
        where = f"{model}/{name} at {self.host}"
        with closing(self._open(model, revision, name, (0, FIRST_BYTES - 1))) as answer:
            if not _found(answer, model, name):
                return None
            size, ranged = _size(answer), answer.status == 206
            data = self._read(answer, 8)
            wanted = 8 + _length(data, where)
            first = wanted - 8 if not ranged else min(wanted, FIRST_BYTES) - 8
            data += self._read(answer, first)
        if len(data) == FIRST_BYTES < wanted:
            data += self._rest(model, revision, name, wanted)
        if len(data) < wanted:
            raise NoAnswerError(f"ended after {len(data)} of {wanted} bytes", where=where)
        return Body(data, size, None)

    def _rest(self, model: str, revision: str, name: str, wanted: int) -> bytes:
        with closing(self._open(model, revision, name, (FIRST_BYTES, wanted - 1))) as answer:
            if answer.status == 206:
                return self._read(answer, wanted - FIRST_BYTES)
            _found(answer, model, name)
            return self._read(answer, wanted)[FIRST_BYTES:]

    def _open(
        self, model: str, revision: str, name: str, span: tuple[int, int] | None,
        commits: list[str] | None = None,
    ) -> http.client.HTTPResponse:  # fmt: skip
        """The answer behind all redirects. The hub itself names the commit, a store behind it need not: it
        goes to ``commits``."""
        url = f"{self.endpoint}/{model}/resolve/{quote(revision, safe='')}/{quote(name, safe='')}"
        for _ in range(MOST_REDIRECTS + 1):
            answer = self._ask(url, span)
            commit = answer.headers.get("X-Repo-Commit")
            if commits is not None and commit and _origin(url) == _origin(self.endpoint):
                commits.append(commit)
            if answer.status not in _MOVED:
                return answer
            with closing(answer):
                url = _next(url, answer, self.host)
        raise NoAnswerError("redirects without an end", where=self.host)

    def _ask(self, url: str, span: tuple[int, int] | None) -> http.client.HTTPResponse:
        request = urllib.request.Request(url, headers={"User-Agent": "ullage"})
        if span:
            request.add_header("Range", f"bytes={span[0]}-{span[1]}")
        if self._token and _origin(url) == _origin(self.endpoint):
            request.add_unredirected_header("Authorization", f"Bearer {self._token}")
        if self._closed or self.left_s() <= 0:
            raise NoAnswerError("too slow", where=self.host)
        try:
            answer = self._opener.open(request, timeout=self.connect_s())
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise NoAnswerError(_reason(error), where=self.host) from None
        assert isinstance(answer, http.client.HTTPResponse)
        return answer

    def _read(self, answer: http.client.HTTPResponse, count: int) -> bytes:
        """Up to ``count`` bytes, within the deadline however slowly they drip."""
        found = bytearray()
        try:
            while len(found) < count and (piece := answer.read1(min(_CHUNK, count - len(found)))):
                found += piece
                if self._closed or self.left_s() <= 0:
                    raise NoAnswerError("too slow", where=self.host)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise NoAnswerError(_reason(error), where=self.host) from None
        return bytes(found)


def _opener(session: Session) -> urllib.request.OpenerDirector:
    """Proxies of the environment, http and https: no files, no ftp, no redirects that carry headers along."""

    class Plain(http.client.HTTPConnection):
        def connect(self) -> None:
            super().connect()
            session.watch(self.sock)

    class Secure(http.client.HTTPSConnection):
        def connect(self) -> None:
            super().connect()
            session.watch(self.sock)

    class OverHTTP(urllib.request.HTTPHandler):
        def http_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
            return self.do_open(Plain, request)

    class OverHTTPS(urllib.request.HTTPSHandler):
        def https_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
            return self.do_open(Secure, request, context=_certificates())

    opener = urllib.request.OpenerDirector()
    for handler in (urllib.request.ProxyHandler(), OverHTTP(), OverHTTPS(), urllib.request.UnknownHandler()):
        opener.add_handler(handler)
    return opener


def _certificates() -> ssl.SSLContext:
    """As the hub's own client has it: the bundle of REQUESTS_CA_BUNDLE or CURL_CA_BUNDLE, else the system's."""
    bundle = os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE")
    try:
        return ssl.create_default_context(cafile=bundle or None)
    except (OSError, ValueError) as error:
        raise InputError(f"no certificates can be read: {error}", where="REQUESTS_CA_BUNDLE") from error


def _found(answer: http.client.HTTPResponse, model: str, name: str) -> bool:
    """False where only the file is missing. Raises InputError or NoAnswerError for every other refusal."""
    status, code = answer.status, answer.headers.get("X-Error-Code", "")
    if status in (200, 206):
        return True
    if status == 404 and code not in ("RepoNotFound", "RevisionNotFound"):
        return False
    if status == 404:
        raise InputError(
            "no such revision" if code == "RevisionNotFound" else "no such model", where=f"{model} on the hub",
            hint="compare its spelling, or pass --model-dir",
        )  # fmt: skip
    if status in (401, 403):
        raise InputError(
            f"gated, private or not there at all (HTTP {status})", where=f"{model} on the hub",
            hint="it needs an HF_TOKEN that may read it; else pass --model-dir, or --no-hub",
        )  # fmt: skip
    raise NoAnswerError(f"HTTP {status} for {name}", where=model)


def _length(data: bytes, where: str) -> int:
    length = int.from_bytes(data, "little")
    if len(data) < 8 or not 2 <= length <= MOST_HEADER_BYTES:
        raise InputError(f"no safetensors header: its length field says {length} bytes", where=where)
    return length


def _size(answer: http.client.HTTPResponse) -> int | None:
    """The file's whole size: behind the slash of Content-Range, else the length of a whole answer."""
    if answer.status == 206:
        text = answer.headers.get("Content-Range", "").rpartition("/")[2]
    else:
        text = answer.headers.get("Content-Length", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None


def _next(url: str, answer: http.client.HTTPResponse, host: str) -> str:
    try:
        found = urljoin(url, quote(answer.headers.get("Location", ""), safe="%/:=&?~#+!$,;'@()*[]"))
        there = urlsplit(found)
    except ValueError:
        raise NoAnswerError("redirects to what is no address", where=host) from None
    safe = ("https",) if url.startswith("https:") else ("http", "https")
    if there.scheme not in safe or not there.hostname or "@" in there.netloc:
        raise NoAnswerError("redirects to what is no address of its kind", where=host)
    return found


def _origin(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return parts.scheme, parts.netloc.lower()


def _reason(error: Exception) -> str:
    """Why, in few words; never the request, which holds the token."""
    cause = getattr(error, "reason", error)
    if isinstance(cause, TimeoutError):
        return "too slow"
    return str(getattr(cause, "strerror", None) or type(cause).__name__)
