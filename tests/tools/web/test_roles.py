"""Who may what: every route, by visitors of every kind; docs/internals/access-table.md."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from supervisor.features.notices import silences
from supervisor.ledger.actions import Actor
from supervisor.ledger.ledger import Ledger
from supervisor.times import DAY
from supervisor.web.access import guarded, keys_of
from supervisor.web.needs import NEEDS
from supervisor.web.record import Visits
from supervisor.web.server import create
from tests.jobs import at_work, job
from tests.tools.web.access_files import access_of, bearing, named_by_the_proxy
from tests.tools.web.conftest import Serve
from tests.tools.web.visits import FROM_OUR_PAGE, TOKEN, log_in

PAGE = Path(__file__).parents[3] / "docs" / "internals" / "access-table.md"
BEGIN, END = "<!-- made by tests/tools/web/test_roles.py -->\n", "<!-- until here -->"

BY = Actor("ann", "cli")

#: The titles of the columns, in the order in which they are tried.
VISITORS = (
    "anonymous, loopback",
    "anonymous, elsewhere",
    "viewer's token",
    "operator's token",
    "editor's token",
    "operator by the proxy",
    "editor's session",
    "and without our origin",
)


async def anything(_: Request) -> Response:
    return Response()


def test_a_route_whose_role_is_not_declared_is_not_served(ledger: Ledger) -> None:
    with pytest.raises(KeyError, match="/new"):
        guarded([Route("/new", anything)], Visits(ledger))


def routes_of(ledger: Ledger) -> set[str]:
    routes = [route for route in create(ledger).routes if isinstance(route, Route)]
    return {key for route in routes for key in keys_of(route).values()}


def test_every_declared_role_is_of_a_route(ledger: Ledger) -> None:
    assert routes_of(ledger) == NEEDS.keys()


def test_the_table_says_who_may_what(serve: Serve, ledger: Ledger, tmp_path: Path) -> None:
    rows = list(tried(serve, ledger, tmp_path))
    header = f"| request | {' | '.join(VISITORS)} |\n|{'---|' * (len(VISITORS) + 1)}\n"
    table = header + "".join(f"| {' | '.join(row)} |\n" for row in rows)
    before, _, rest = PAGE.read_text().partition(BEGIN)
    said, _, after = rest.partition(END)
    if os.environ.get("WRITE_TABLE"):
        PAGE.write_text(before + BEGIN + table + END + after)
        return
    assert said == table, "WRITE_TABLE=1 writes what is true; look at what has changed"


def tried(serve: Serve, ledger: Ledger, directory: Path) -> Iterator[tuple[str, ...]]:
    """A row for each route; nothing is changed on the way but pauses and triggered runs."""
    run = at_work(ledger, job(ledger), 0).run_id
    here, there = serve(access_of(directory)), serve(access_of(directory, is_local=False))
    session = serve(access_of(directory))
    log_in(session)
    proxied = named_by_the_proxy("ada", "staff, ops")
    visitors = (
        (here, FROM_OUR_PAGE),
        (there, FROM_OUR_PAGE),
        *((there, bearing(name)) for name in ("reads", "acts", "edits")),
        (there, proxied),
        (session, FROM_OUR_PAGE),
        (session, {"accept": "text/html"}),
    )
    # Last what ends a session that the others are tried with.
    for key in sorted(NEEDS, key=lambda key: (key == "POST /logout", key.split(" ")[::-1])):
        method, path = key.split(" ")
        answers = []
        for client, headers in visitors:
            if "silence" in path:  # one of them ends it
                silences.silence(ledger, "nightly", duration=DAY, by=BY, reason="r")
            answers.append(answer(client, method, filled(path, "nightly", run), headers))
        yield (f"`{method} {shown(path)}`", *answers)


def shown(path: str) -> str:
    is_of_run = any(word in path for word in ("/runs/", "/logs/", "cancel"))
    path = path.replace("{target:path}", "RUN" if is_of_run else "JOB")
    path = path.replace("{silence}", "JOB")
    return path.replace("{job:path}", "JOB").replace("{run:path}", "RUN")


def filled(path: str, name: str, run: str) -> str:
    return shown(path).replace("JOB", name).replace("RUN", run)


def answer(client: httpx.Client, method: str, path: str, headers: dict[str, str]) -> str:
    """yes: the route itself answered, if only that this is not possible as things are."""
    data = {"token": TOKEN} if path == "/login" and method == "POST" else None
    json = {"task": "proj.nightly"} if method in ("POST", "PUT") and "/api/" in path else None
    json = {} if path.endswith(("/trigger", "/pause", "/resume", "/cancel")) else json
    cookies = dict(client.cookies)
    with client.stream(method, path, headers=headers, data=data, json=json) as got:
        client.cookies = httpx.Cookies(cookies)  # who logs in here is still nobody afterwards
        if got.status_code in (401, 403, 404):
            return str(got.status_code)
        location = got.headers.get("location", "")
        return "login" if location.startswith("/login") else "yes"
