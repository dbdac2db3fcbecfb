"""Who may what: every route, by visitors of every kind; the table in docs/how-to/access.md.

Who may see some jobs only: the others are not there, to be read or acted on.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from celery import Celery
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from supervisor.job.run import Reported, ReportedLine, RunState
from supervisor.job.spec import JobSpec
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.page_reads import Kind, Topic
from supervisor.ledger.scoped import Scope, ScopedLedger, current_scope
from supervisor.web.access import guarded, keys_of
from supervisor.web.access_file import NEEDS, digest
from supervisor.web.live import seen_of
from supervisor.web.record import Visits
from supervisor.web.server import create
from tests.ledger.jobs import at_work, begin, job, run_id, ticks
from tests.web.access_files import SECRET, access_of, bearing, named_by_the_proxy
from tests.web.conftest import Serve
from tests.web.visits import FROM_OUR_PAGE, TOKEN, log_in, visiting

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "access.md"
BEGIN, END = "<!-- made by tests/web/test_roles.py -->\n", "<!-- until here -->"

#: The titles of the columns, in the order in which they are tried.
VISITORS = (
    "anonymous, loopback",
    "anonymous, elsewhere",
    "viewer's token",
    "operator's token",
    "editor's token",
    "editor's of `billing-*`: own job",
    "and another",
    "operator by the proxy",
    "editor's session",
    "and without our origin",
)


async def anything(_: Request) -> Response:
    return Response()


def test_a_route_whose_role_is_not_declared_is_not_served(ledger: Ledger) -> None:
    with pytest.raises(KeyError, match="/new"):
        guarded([Route("/new", anything)], ScopedLedger(ledger.client, ledger.keys), Visits(ledger))


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
    runs = {}
    for number, name in enumerate(("nightly", "billing-daily")):
        spec = job(ledger, name)
        runs[name] = at_work(ledger, spec, number, f"token{number}").run_id
    here, there = serve(access_of(directory)), serve(access_of(directory, is_local=False))
    session = serve(access_of(directory))
    log_in(session)
    proxied = named_by_the_proxy("ada", "staff, ops")
    visitors = (
        (here, FROM_OUR_PAGE, "nightly"),
        (there, FROM_OUR_PAGE, "nightly"),
        *((there, bearing(name), "nightly") for name in ("reads", "acts", "edits")),
        *((there, bearing("some"), name) for name in ("billing-daily", "nightly")),
        (there, proxied, "nightly"),
        (session, FROM_OUR_PAGE, "nightly"),
        (session, {"accept": "text/html"}, "nightly"),
    )
    # Last what ends a session that the others are tried with.
    for key in sorted(NEEDS, key=lambda key: (key == "POST /logout", key.split(" ")[::-1])):
        method, path = key.split(" ")
        answers = [
            answer(client, method, filled(path, name, runs[name]), headers)
            for client, headers, name in visitors
        ]
        yield (f"`{method} {shown(path)}`", *answers)


def shown(path: str) -> str:
    is_of_run = "/runs/" in path or "cancel" in path
    path = path.replace("{target:path}", "RUN" if is_of_run else "JOB")
    return path.replace("{job:path}", "JOB").replace("{run:path}", "RUN")


def filled(path: str, name: str, run: str) -> str:
    return shown(path).replace("JOB", name).replace("RUN", run)


def answer(client: httpx.Client, method: str, path: str, headers: dict[str, str]) -> str:
    """yes: the route itself answered, if only that this is not possible as things are."""
    data = {"token": TOKEN} if path == "/login" and method == "POST" else None
    json = {"task": "proj.nightly"} if method in ("POST", "PUT") and "/api/" in path else None
    json = {} if path.endswith(("/trigger", "/pause", "/resume", "/cancel")) else json
    with client.stream(method, path, headers=headers, data=data, json=json) as got:
        if got.status_code in (401, 403, 404):
            return str(got.status_code)
        location = got.headers.get("location", "")
        return "login" if location.startswith("/login") else "yes"


# Some jobs only


#: In the name of the other team's job, and in all that it says.
OTHER = "otherteam"

BILLING = {"team": "billing"}

SCOPED = """\
tokens: []
proxy:
  hash: "sha256:{digest}"
  people:
    - {{user: named, role: editor, jobs: ["billing-*"]}}
    - {{user: labelled, role: editor, labels: [team=billing]}}
"""


@pytest.fixture(params=["named", "labelled"])
def person(
    request: pytest.FixtureRequest, ledger: Ledger, app: Celery, tmp_path: Path
) -> Iterator[httpx.Client]:
    """An editor of billing's jobs, by their names or by their label."""
    access = access_of(tmp_path, text=SCOPED.format(digest=digest(SECRET)))
    with visiting(ledger, access, app) as client:
        client.headers.update(named_by_the_proxy(request.param))
        yield client


@pytest.fixture
def own_run(ledger: Ledger) -> str:
    """Of a job of billing; the other team's has runs of all kinds, logs, troubles and a queue."""
    own = job(ledger, "billing-daily", labels=BILLING)
    other = job(ledger, OTHER, description=OTHER, queue=OTHER, labels={"team": OTHER})
    job(ledger, f"{OTHER}-after", after=["billing-daily"], every=None)
    ledger.client.sadd(ledger.keys.followers("billing-daily"), f"{OTHER}-after")
    for spec in (own, other):
        at_work(ledger, spec, 0)
        said = Reported(1, None, (ReportedLine(1, f"{spec.name} logs", 0.0),))
        assert ledger.reports.write(run_id(spec, 0), "token", said, 0.0)
        ledger.finish(run_id(spec, 0), "token", RunState.FAILED, f"{spec.name} failed")
        at_work(ledger, spec, 1)
        ledger.admit(ticks(spec, 2))
    ledger.drains.drain(OTHER)
    problem = {"problems": f'["{OTHER} is wrong"]', "last_reload_successful": 0}
    ledger.client.hset(ledger.keys.beat, mapping=problem)
    return run_id(own, 0)


READ = sorted(key.removeprefix("GET ") for key in NEEDS if key.startswith("GET "))


def test_nothing_that_is_read_names_a_job_of_others(person: httpx.Client, own_run: str) -> None:
    said = ""
    for path in READ:
        if path != "/events":
            said += person.get(filled(path, "billing-daily", own_run)).text
    assert "billing-daily failed" in said
    assert "billing-daily logs" in said
    assert OTHER not in said


@pytest.mark.parametrize("part", ["job", "timeline", "runs", "log", "run", "steps"])
def test_no_part_of_a_page_is_shown_of_others(
    person: httpx.Client, own_run: str, part: str
) -> None:
    other = own_run.replace("billing-daily", OTHER)
    for path in (f"/jobs/{OTHER}", f"/runs/{other}"):
        answer = person.get(f"{path}?parts={part}")
        assert answer.status_code == 404
        assert f"{OTHER} logs" not in answer.text


def test_the_filters_of_the_lists_find_none_of_others(person: httpx.Client, own_run: str) -> None:
    for query in (f"search={OTHER}", f"label=team={OTHER}", f"prefix={OTHER}", "sort=-failures"):
        names = [each["job"] for each in person.get(f"/api/v1/jobs?{query}").json()]
        assert OTHER not in names
    assert person.get(f"/api/v1/runs?job={OTHER}").status_code == 404
    jobs = {run["job"] for run in person.get("/api/v1/runs?limit=1000").json()}
    assert jobs == {"billing-daily"}


def test_events_tell_nothing_of_others(ledger: Ledger, own_run: str) -> None:
    seen = ScopedLedger(ledger.client, ledger.keys)
    other = own_run.replace("billing-daily", OTHER)
    topics = [Topic(Kind.JOB, n) for n in ("billing-daily", OTHER)]
    topics += [Topic(Kind.RUN, n) for n in (own_run, other)]
    current_scope.set(Scope(labels=("team=billing",)))
    assert seen_of(seen, [*topics, Topic(Kind.BEAT)]) == [topics[0], topics[2], Topic(Kind.BEAT)]


def test_no_run_takes_the_lock_of_others_or_follows_theirs(
    person: httpx.Client, ledger: Ledger, own_run: str
) -> None:
    at = "/actions/trigger/billing-daily"
    assert person.post(at, data={"key": OTHER, "overlap": "replace"}).status_code == 400
    assert (
        person.post(f"/actions/cancel/{own_run.replace('billing-daily', OTHER)}").status_code == 404
    )
    assert ledger.run(f"{OTHER}@2026-03-01T00:00:01Z").state is RunState.RUNNING


def keys(name: str, **more: str) -> dict[str, str]:
    return {"version": "0", "name": name, "task": "a", "kind": "every", "times": "1h", **more}


def test_an_editor_makes_jobs_that_the_editor_sees_alone(
    person: httpx.Client, ledger: Ledger, own_run: str
) -> None:
    labels = "labels: {team: billing}"
    made = person.post("/actions/put", data=keys("billing-new", more=labels))
    assert made.status_code == 303, made.text
    assert ledger.spec("billing-new").labels == BILLING
    before = ledger.spec(OTHER)
    assert person.post("/actions/put", data=keys(OTHER, more=labels)).status_code == 404
    assert ledger.spec(OTHER) == before
    follows = f"after: [{OTHER}]\nlabels: {{team: billing}}"
    asked = keys("billing-2", more=follows) | {"kind": "", "times": ""}
    assert person.post("/actions/put", data=asked).status_code == 422
    asked["more"] = follows.replace(OTHER, "billing-daily")
    assert person.post("/actions/put", data=asked).status_code == 303
    refused = person.post("/actions/put", data=keys("elsewhere", more="labels: {team: x}"))
    assert refused.status_code in (404, 422)
    assert "elsewhere" not in ledger.scheduled()


def test_no_editor_takes_over_the_runs_of_a_removed_job(
    person: httpx.Client, ledger: Ledger, request: pytest.FixtureRequest
) -> None:
    gone = job(ledger, "billing-gone", labels={"team": OTHER})
    ledger.admit(ticks(gone, 0))
    remove(ledger, gone)
    made = person.post("/actions/put", data=keys("billing-gone", more="labels: {team: billing}"))
    is_theirs = "named" in request.node.callspec.params.values()
    assert made.status_code == (303 if is_theirs else 404)
    assert person.get(f"/runs/{run_id(gone, 0)}").status_code == (200 if is_theirs else 404)


def remove(ledger: Ledger, spec: JobSpec) -> None:
    """As a beat does whose files do not have it any more."""
    ledger.client.hset(ledger.keys.job(spec.name), "removed", spec.model_dump_json())
    ledger.client.hdel(ledger.keys.jobs, spec.name)


def test_labels_are_those_that_a_removed_job_had(ledger: Ledger) -> None:
    spec = job(ledger, "gone", labels=BILLING)
    ledger.admit(ticks(spec, 0))
    begin(ledger, run_id(spec, 0))
    remove(ledger, spec)
    seen = ScopedLedger(ledger.client, ledger.keys)
    current_scope.set(Scope(labels=("team=billing",)))
    assert [run.id for run in seen.runs([run_id(spec, 0)])] == [run_id(spec, 0)]
    current_scope.set(Scope(labels=("team=other",)))
    assert seen.runs([run_id(spec, 0)]) == []
