"""A server in a thread, and what the visitors of the tests know and say."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager

import httpx
import pytest
import uvicorn
from celery import Celery
from starlette.applications import Starlette

from supervisor.ledger.ledger import Ledger
from supervisor.web import budget, bulk
from supervisor.web.access import Access
from supervisor.web.server import create
from tests.waiting import scaled, wait_until

TOKEN = "a token of the tests, long enough"

#: Within which a page, a broker, and what is done to many are to be ready.
SECONDS = [
    (module, name, getattr(module, name))
    for module, name in (
        (budget, "BUDGET_SECONDS"),
        (budget, "BROKER_SECONDS"),
        (bulk, "LONGEST_SECONDS"),
    )
]

FROM_OUR_PAGE = {"sec-fetch-site": "same-origin", "accept": "text/html"}
FROM_ANOTHER_SITE = {"sec-fetch-site": "cross-site", "accept": "text/html"}


@contextmanager
def serving(
    ledger: Ledger, access: Access, port: int = 0, app: Celery | None = None
) -> Iterator[str]:
    """The address of a server that runs meanwhile."""
    with serving_app(create(ledger, access, app=app), port) as address:
        yield address


@contextmanager
def serving_app(app: Starlette, port: int = 0) -> Iterator[str]:
    """On a busy machine an answer takes longer than anyone would wait for it."""
    with (
        pytest.MonkeyPatch.context() as patch,
        socket.create_server(("127.0.0.1", port)) as listener,
    ):
        for module, name, seconds in SECONDS:
            patch.setattr(module, name, scaled(seconds))
        config = uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=3)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            wait_until(lambda: server.started)
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


@contextmanager
def visiting(ledger: Ledger, access: Access, app: Celery | None = None) -> Iterator[httpx.Client]:
    # No TLS is spoken, and to be ready for it takes 50 ms a client.
    with (
        serving(ledger, access, app=app) as address,
        httpx.Client(base_url=address, timeout=scaled(20), verify=False, auth=OurForms()) as client,
    ):
        yield client


class OurForms(httpx.Auth):
    """Sends each form with the token of its page, which is loaded first."""

    def sync_auth_flow(
        self, request: httpx.Request
    ) -> Generator[httpx.Request, httpx.Response, None]:
        if request.method != "POST" or not (page := page_of_form(request.url.path)):
            yield request
            return
        headers = httpx.Headers(request.headers.raw, encoding="utf-8")
        headers["content-type"] = "application/x-www-form-urlencoded"
        del headers["content-length"]
        looking = httpx.Headers(headers.raw, encoding="utf-8")
        looking.update(FROM_OUR_PAGE)
        there = request.url.copy_with(path=page)
        looked = yield httpx.Request("GET", there, headers=looking)
        token = re.search(r'name="csrf" value="([^"]+)"', looked.read().decode())
        content = request.read() + (f"&csrf={token[1]}".encode() if token else b"")
        yield httpx.Request("POST", request.url, headers=headers, content=content)


def page_of_form(path: str) -> str | None:
    """The path of the page that has the form which is sent there; None for another request."""
    if path.endswith("/logout"):
        return path.removesuffix("logout")
    if path.endswith(("/actions/check", "/actions/put")):
        return re.sub("(check|put)$", "new", path)
    return path if "/actions/" in path else None


def log_in(client: httpx.Client, token: str = TOKEN) -> httpx.Response:
    """What the form is answered; the client then has the cookie of a session."""
    return client.post("/login", data={"token": token, "next": "/"}, headers=FROM_OUR_PAGE)
