"""One POST to a server that is not trusted, as those of pings and webhooks are.

A server that answers a byte now and then gets no more time than one that is silent. Redirects are
not followed, and the body of the answer is not read: the address is a secret, and nothing in the
answer but its status is of use. Proxies are taken from the environment (`HTTPS_PROXY`, `NO_PROXY`).
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from http import HTTPStatus
from typing import Any
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from urllib3 import HTTPConnectionPool, HTTPSConnectionPool, PoolManager, ProxyManager
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import HTTPError
from urllib3.util import make_headers

from supervisor.features.outbound.answer import Answer

USER_AGENT = "celery-beat-supervisor"

#: For each of: to connect, to send, and to receive all headers of the answer.
TIMEOUT_SECONDS = 5.0

#: Refusals that a person may mend, by a new token for example.
MAY_PASS = (
    HTTPStatus.UNAUTHORIZED,
    HTTPStatus.FORBIDDEN,
    HTTPStatus.PROXY_AUTHENTICATION_REQUIRED,
    HTTPStatus.REQUEST_TIMEOUT,
    HTTPStatus.TOO_MANY_REQUESTS,
)


def post(url: str, body: bytes, headers: Mapping[str, str]) -> tuple[Answer, str]:
    """What the server answered, and what went wrong in words that do not repeat the address."""
    try:
        user = make_headers(basic_auth=credentials(url))
        response = manager_for(url).request(
            "POST",
            url,
            body=body,
            headers={"User-Agent": USER_AGENT, **user, **headers},
            timeout=TIMEOUT_SECONDS,
            retries=False,
            redirect=False,
            preload_content=False,
        )
        response.close()
    except (HTTPError, OSError, ValueError) as error:
        cause = error.__cause__
        why = str(cause) if isinstance(cause, OSError) else type(error).__name__
        return Answer.UNAVAILABLE, why
    if 200 <= response.status < 300:
        return Answer.TAKEN, ""
    return answer_to(response.status), f"status {response.status}"


def answer_to(status: int) -> Answer:
    """status: any but a success."""
    is_final = status < HTTPStatus.INTERNAL_SERVER_ERROR and status not in MAY_PASS
    return Answer.REFUSED if is_final else Answer.UNAVAILABLE


def credentials(url: str) -> str | None:
    """The `user:password` of an address, in latin-1: that is how urllib3 encodes it again."""
    user, is_there, _ = urlsplit(url).netloc.rpartition("@")
    return unquote(user, "latin-1") if is_there else None


class BoundedConnection(HTTPConnection):
    """One whose time-out is that of all headers of an answer, not that of each part received."""

    def getresponse(self) -> Any:
        connected, is_over = self.sock, threading.Event()

        def end() -> None:
            is_over.set()
            with suppress(OSError):  # it may be closed by now
                socket.socket.shutdown(connected, socket.SHUT_RDWR)

        timer = threading.Timer(self.timeout or TIMEOUT_SECONDS, end)
        timer.daemon = True
        timer.start()
        try:
            return super().getresponse()
        finally:
            timer.cancel()
            if is_over.is_set():  # also where the headers so far look like all of them
                raise TimeoutError("no answer in time")


class BoundedTlsConnection(BoundedConnection, HTTPSConnection):
    pass


class Pool(HTTPConnectionPool):
    ConnectionCls = BoundedConnection


class TlsPool(HTTPSConnectionPool):
    ConnectionCls = BoundedTlsConnection


def manager_for(url: str) -> PoolManager:
    """By way of a proxy where the environment names one for the address."""
    parts = urlsplit(url)
    is_direct = proxy_bypass(parts.hostname or "")
    return manager(None if is_direct else getproxies().get(parts.scheme))


@cache
def manager(proxy: str | None) -> PoolManager:
    if proxy:
        made: PoolManager = ProxyManager(
            proxy, proxy_headers=make_headers(proxy_basic_auth=credentials(proxy))
        )
    else:
        made = PoolManager()
    made.pool_classes_by_scheme = {"http": Pool, "https": TlsPool}
    return made
