"""One ping over HTTP, in the form of healthchecks.io: the address says what happened, the body why.

``POST <url>/start?rid=<uuid>``, ``<url>``, ``<url>/fail``, ``<url>/log``. The `rid` is the same for
all pings of a run, so that the check knows its duration although runs may be at work side by side.

The server is not trusted: one that answers a byte now and then, or `100 Continue` again and again,
gets no more time than one that is silent.
"""

from __future__ import annotations

import io
import socket
import time
from enum import StrEnum
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit, urlunsplit
from urllib.request import (
    HTTPHandler,
    HTTPRedirectHandler,
    HTTPSHandler,
    Request,
    build_opener,
)
from uuid import UUID, uuid5

from supervisor.ledger.pings import Ping, PingKind
from supervisor.times.durations import render

#: From the connection to the head of the answer; each attempt to connect has as much.
TIMEOUT_SECONDS = 5.0

#: Of an answer's head. The body is not read.
MOST_BYTES = 64 * 1024

#: Run ids become UUIDs in it.
NAMESPACE = UUID("6d1f9bb4-70c1-5a4c-9f5e-0b3f1a6f1c53")

PATHS = {
    PingKind.START: "/start",
    PingKind.SUCCESS: "",
    PingKind.FAIL: "/fail",
    PingKind.LOG: "/log",
}

#: Refusals that may pass.
MAY_PASS = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS)


class Answer(StrEnum):
    """refused: asking again would not help. away: it may."""

    TAKEN = "taken"
    REFUSED = "refused"
    AWAY = "away"


class NoRedirects(HTTPRedirectHandler):
    """The address is a secret: nobody sends it on to others."""

    def redirect_request(self, *_: Any) -> None:
        return None


class Answered(io.RawIOBase):
    """What a socket receives, up to a deadline on the monotonic clock and to MOST_BYTES."""

    def __init__(self, connected: socket.socket, ends_at: float) -> None:
        self._socket = connected
        self._ends_at = ends_at
        self._bytes_left = MOST_BYTES

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        seconds_left = self._ends_at - time.monotonic()
        if seconds_left <= 0:
            raise TimeoutError("the answer took too long")
        if self._bytes_left <= 0:
            raise HTTPException("the answer is too long")
        self._socket.settimeout(seconds_left)
        received = self._socket.recv_into(buffer)
        self._bytes_left -= received
        return received


class BoundedSocket:
    """As much of a socket as a connection of http.client needs once it is connected."""

    def __init__(self, connected: socket.socket, ends_at: float) -> None:
        self._socket = connected
        self._ends_at = ends_at
        self.sendall = connected.sendall
        self.close = connected.close

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(Answered(self._socket, self._ends_at))


class Bounded(HTTPConnection):
    """A connection whose time-out is that of the whole exchange."""

    def connect(self) -> None:
        assert self.timeout is not None
        ends_at = time.monotonic() + self.timeout
        super().connect()
        self.sock: Any = BoundedSocket(self.sock, ends_at)


class BoundedTls(Bounded, HTTPSConnection):
    pass


class OverHttp(HTTPHandler):
    def http_open(self, request: Request) -> Any:
        return self.do_open(Bounded, request)


class OverTls(HTTPSHandler):
    def https_open(self, request: Request) -> Any:
        return self.do_open(BoundedTls, request)


_opener = build_opener(NoRedirects, OverHttp, OverTls)


def send(url: str, ping: Ping, timeout: float = TIMEOUT_SECONDS) -> tuple[Answer, str]:
    """Tells it, and gives what went wrong, in words that do not repeat the address."""
    request = Request(address(url, ping), data=body(ping).encode(), method="POST")
    request.add_header("Content-Type", "text/plain; charset=utf-8")
    request.add_header("User-Agent", "celery-beat-supervisor")
    try:
        with _opener.open(request, timeout=timeout):
            return Answer.TAKEN, ""
    except HTTPError as error:
        error.close()
        final = error.code < HTTPStatus.INTERNAL_SERVER_ERROR and error.code not in MAY_PASS
        return (Answer.REFUSED if final else Answer.AWAY), f"status {error.code}"
    except URLError as error:
        return Answer.AWAY, str(error.reason)
    except (HTTPException, OSError, ValueError) as error:
        return Answer.AWAY, type(error).__name__


def address(url: str, ping: Ping) -> str:
    parts = urlsplit(url)
    query = "&".join(filter(None, (parts.query, f"rid={uuid5(NAMESPACE, ping.run)}")))
    return urlunsplit(parts._replace(path=parts.path.rstrip("/") + PATHS[ping.kind], query=query))


def body(ping: Ping) -> str:
    facts = {
        "run": ping.run,
        "outcome": ping.outcome,
        "reason": ping.reason,
        "attempt": str(ping.attempt) if ping.attempt else "",
        "duration": render(ping.lasted) if ping.attempt else "",
    }
    return "".join(f"{name}: {fact}\n" for name, fact in facts.items() if fact)
