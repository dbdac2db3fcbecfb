"""One request to a server that is not trusted, as pings and webhooks are.

A server that answers a byte now and then, or `100 Continue` again and again, gets no more time than
one that is silent. Redirects are not followed: the address is a secret.
"""

from __future__ import annotations

import io
import socket
import time
from base64 import b64encode
from collections.abc import Mapping
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import unquote_to_bytes, urlsplit, urlunsplit
from urllib.request import HTTPHandler, HTTPRedirectHandler, HTTPSHandler, Request, build_opener

from supervisor.job.notices import Answer

USER_AGENT = "celery-beat-supervisor"

#: The most that is read of an answer: its headers. The body is not read.
MOST_BYTES = 64 * 1024

#: Refusals that may pass: a token may be corrected within the day for which a notice is retried.
MAY_PASS = (
    HTTPStatus.UNAUTHORIZED,
    HTTPStatus.FORBIDDEN,
    HTTPStatus.PROXY_AUTHENTICATION_REQUIRED,
    HTTPStatus.REQUEST_TIMEOUT,
    HTTPStatus.TOO_MANY_REQUESTS,
)


def post(
    url: str, body: bytes, headers: Mapping[str, str], *, timeout_seconds: float
) -> tuple[Answer, str]:
    """What the server answered, and what went wrong in words that do not repeat the address.

    timeout_seconds: from the connection to the end of the answer's headers; an attempt to connect
    has as much.
    """
    try:
        url, authorization = without_user(url)
        sent = {"User-Agent": USER_AGENT, **authorization, **headers}
        request = Request(url, data=body, headers=sent, method="POST")
        with _opener.open(request, timeout=timeout_seconds):
            return Answer.TAKEN, ""
    except HTTPError as error:
        error.close()
        return answer_to(error.code), f"status {error.code}"
    except URLError as error:
        return Answer.UNAVAILABLE, str(error.reason)
    except (HTTPException, OSError, ValueError) as error:
        return Answer.UNAVAILABLE, type(error).__name__


def without_user(url: str) -> tuple[str, Mapping[str, str]]:
    """The address, and the header for a `user:password@` that it had. Raises ValueError."""
    parts = urlsplit(url)
    user, is_there, host = parts.netloc.rpartition("@")
    if not is_there:
        return url, {}
    words = b64encode(unquote_to_bytes(user)).decode()
    return urlunsplit(parts._replace(netloc=host)), {"Authorization": f"Basic {words}"}


def answer_to(status: int) -> Answer:
    """status: any but a success."""
    is_final = status < HTTPStatus.INTERNAL_SERVER_ERROR and status not in MAY_PASS
    return Answer.REFUSED if is_final else Answer.UNAVAILABLE


class NoRedirects(HTTPRedirectHandler):
    """The address is a secret, and not for other servers."""

    def redirect_request(self, *_: Any) -> None:
        return None


class Answered(io.RawIOBase):
    """What a socket receives, up to a deadline on the monotonic clock and up to MOST_BYTES."""

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
    """What http.client needs of a connected socket."""

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
