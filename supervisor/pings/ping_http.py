"""One ping over HTTP, in the form of healthchecks.io: the address says what happened, the body why.

``POST <url>/start?rid=<uuid>``, ``<url>``, ``<url>/fail``, ``<url>/log``. The `rid` is the same for
all pings of a run, so that the check knows its duration although runs may be at work side by side.
"""

from __future__ import annotations

from enum import StrEnum
from http import HTTPStatus
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit, urlunsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener
from uuid import UUID, uuid5

from supervisor.ledger.pings import Ping, PingKind
from supervisor.times.durations import render

#: Of each operation on the connection.
TIMEOUT_SECONDS = 5.0

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


_opener = build_opener(NoRedirects)


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
