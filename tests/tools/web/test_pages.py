"""The pages as they are made on the server: what is on them, and that text stays text."""

from __future__ import annotations

import html
import json
import re
from datetime import timedelta
from html import unescape
from html.parser import HTMLParser
from urllib.parse import quote, urlsplit

import httpx
import pytest

from supervisor.job.reports import Reported, ReportedLine, ReportedProgress
from supervisor.job.run import RunState
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.limits import ATTEMPTS_KEPT
from supervisor.ledger.presence import Broker, Registration, WorkerProcess
from supervisor.operate.planning import plan_of
from supervisor.operate.plans import plan_lines
from supervisor.operate.question import question_of_run
from supervisor.operate.why import answer
from supervisor.schedule.ticks import PassedOver
from supervisor.testing import has_run_for
from supervisor.times import ms_of
from supervisor.web.access import Access
from supervisor.web.jobs_query import PAGE_SIZE
from supervisor.web.pages import MOST_RELATED
from supervisor.web.server import create
from tests.core.ledger.test_many_waiting import crowd
from tests.damage import lose
from tests.jobs import (
    MIDNIGHT,
    admitted,
    at_work,
    begin,
    begun,
    job,
    job_has,
    lasted,
    pause,
    reload,
    remove,
    run_id,
    ticks,
    try_often,
)
from tests.presence import beat_says, worker_is_there
from tests.tools.web.conftest import Serve
from tests.tools.web.visits import FROM_OUR_PAGE, TOKEN, log_in, serving_app
from tests.waiting import scaled, wait_until

HTML = {"accept": "text/html"}

EVIL = "\"'><script>alert(1)</script><img src=x onerror=alert(1)>\x1b[2J"

STEP = {"task": "a", "priority": 1}


class Elements(HTMLParser):
    """Names of all elements, their attributes, and the text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.attributes: list[tuple[str, str, str | None]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]

    def values(self, attribute: str) -> list[str]:
        return [value or "" for _, name, value in self.attributes if name == attribute]


@pytest.fixture
def evil(ledger: Ledger) -> str:
    """A run with markup in all that people and jobs may write; it failed, another is running."""
    spec = job(ledger, "evil", description=EVIL, history=50)
    steps = job(ledger, "steps", task=None, steps=[STEP], params={"said": EVIL})
    ledger.admit(ticks(spec, 0))
    first = run_id(spec, 0)
    begin(ledger, first)
    reported = Reported(1, ReportedProgress(1, 2, EVIL, 0.0), (ReportedLine(1, EVIL, 0.0),))
    assert ledger.reports.write(first, "token", reported, 0.0)
    ledger.finish(first, "token", RunState.FAILED, EVIL, traceback=EVIL)
    at_work(ledger, spec, 1, "second")
    assert ledger.reports.write(run_id(spec, 1), "second", reported, 0.0)
    ledger.admit(ticks(spec, 2))
    ledger.admit(ticks(steps, 0))
    ledger.pause("steps", EVIL)
    said_by_beat = {"leader": EVIL, "problems": json.dumps([EVIL]), "last_reload_successful": 0}
    beat_says(ledger, **said_by_beat)
    return first


@pytest.mark.parametrize(
    "path",
    [
        *("/", f"/?search={quote(EVIL)}", "/queues", "/jobs/evil", "/jobs/steps", "/runs/{run}"),
        *("/runs/evil@2026-03-01T00:00:01Z", "/runs/steps@2026-03-01T00:00:00Z"),
        *(f"/jobs/{quote(EVIL, safe='')}", f"/login?next={quote(EVIL)}"),
    ],
)
def test_what_jobs_and_people_write_is_text_everywhere(
    reader: httpx.Client, evil: str, path: str
) -> None:
    answer = reader.get(path.replace("{run}", evil), headers={"accept": "text/html"})
    elements = Elements(answer.text)
    assert "img" not in elements.names
    assert "\x1b" not in answer.text
    sources = [
        value for tag, name, value in elements.attributes if (tag, name) == ("script", "src")
    ]
    assert sources == ["static/page.js"] * elements.names.count("script")
    assert [name for _, name, _ in elements.attributes if name.startswith("on")] == []
    assert elements.values("style") == []


@pytest.mark.parametrize("has_jobs", [True, False])
def test_after_a_first_broken_file_the_page_asks_for_no_file(
    reader: httpx.Client, ledger: Ledger, has_jobs: bool
) -> None:
    if has_jobs:
        job(ledger)
    problem = "jobs.yaml:3: job 'a': no 'cron'"
    said_by_beat = {"problems": json.dumps([problem]), "last_reload_successful": 0}
    beat_says(ledger, **said_by_beat)
    page = reader.get("/", headers={"accept": "text/html"}).text
    assert unescape(page).count(problem) == 1
    assert ("The files loaded last stay in force." in page) is has_jobs
    assert ("No job is loaded yet: correct these first." in page) is not has_jobs
    assert "supervisor init" not in page


def test_a_page_asks_no_other_host_for_anything(reader: httpx.Client, evil: str) -> None:
    for path in ("/", "/jobs/evil", f"/runs/{evil}", "/queues", "/static/page.css"):
        text = reader.get(path, headers={"accept": "text/html"}).text
        elements = Elements(text)
        wanted = [v for name in ("src", "href", "action") for v in elements.values(name)]
        assert [url for url in wanted if any(urlsplit(url)[:2])] == []
        assert re.findall(r"url\(|@import", text) == []


def test_the_list_shows_what_runs_what_waits_and_who_blocked(
    reader: httpx.Client, ledger: Ledger
) -> None:
    spec = admitted(ledger, 0, 1, 2, overlap="queue_one")
    begin(ledger, run_id(spec, 0))
    text = reader.get("/").text
    assert "1 running, 1 waiting, 1 skipped" in text
    assert f'href="runs/{run_id(spec, 0)}"' in text
    assert "last skipped by" in text


def test_what_runs_and_what_waits_is_counted_whatever_number_there_is(
    reader: httpx.Client, ledger: Ledger
) -> None:
    spec = crowd(ledger, "a-crowd", 700)
    at_work(ledger, job(ledger, "z-other"), 0)
    text = reader.get("/").text
    counts = re.findall(r'<h2>(\w+) <span class="count">([\d,]+)<', text)
    assert counts == [("Failing", "0"), ("Running", "2"), ("Waiting", "700")]
    assert text.count("700 waiting") == 2  # one row above the list, and one in it
    [first] = ledger.first_open(spec.name, 1)
    assert re.search(rf'waits for <a class="run" href="runs/{first.id}".*which is running', text)
    assert names_on(reader.get("/?state=running")) == ["a-crowd", "z-other"]
    assert names_on(reader.get("/?state=waiting")) == ["a-crowd"]
    assert '<h2>Running <span class="count">2<' in reader.get("/queues").text


def test_a_job_says_first_whether_it_is_well(reader: httpx.Client, ledger: Ledger) -> None:
    assert "never ran" in (job(ledger, "new"), reader.get("/").text)[1]
    spec = job(ledger, history=50)
    for second, outcome in enumerate((RunState.SUCCEEDED, *[RunState.TIMED_OUT] * 3)):
        at_work(ledger, spec, second)
        ledger.finish(run_id(spec, second), "token", outcome, "read(url=1)<b>\nthan it may")
    for path in ("/", "/jobs/nightly"):
        text = reader.get(path).text
        state = text[text.index(">nightly<") :]
        assert '<span class="state failed">failing</span>' in state
        assert re.search("3 times in a row, first <time.*?</time>: <a href=.runs/[^>]*>read", state)
        assert ">read(<wbr>url=<wbr>1)&lt;b&gt;</a>" in state
        assert ">idle<" not in state
    at_work(ledger, spec, 9)
    text = reader.get("/").text
    assert "failing</span>" in text and '"state running">running' in text


def test_a_run_at_work_is_shown_beside_what_its_job_takes(
    reader: httpx.Client, ledger: Ledger
) -> None:
    spec = job(ledger)
    lasted(ledger, spec, 60, 60, 60)
    at_work(ledger, spec, 9)
    assert "median of the job: 1m<" in reader.get(f"/runs/{run_id(spec, 9)}").text


def test_failures_in_a_row_are_counted_to_the_first_as_far_as_that_is_kept(
    reader: httpx.Client, ledger: Ledger
) -> None:
    whole, cut = job(ledger, "whole"), job(ledger, "cut", history=3)
    for spec in (whole, cut):
        for second in range(3):
            at_work(ledger, spec, second)
            ledger.finish(run_id(spec, second), "token", RunState.FAILED)
    many = job(ledger, "many", history=40)
    for second in range(40):
        at_work(ledger, many, second)
        ledger.finish(run_id(many, second), "token", RunState.FAILED)
    at_work(ledger, cut, 3)
    for name, words in (
        ("whole", "3 times in a row"),
        ("cut", "at least 2 times in a row"),
        ("many", "40 times in a row"),
    ):
        text = reader.get(f"/jobs/{name}").text
        [said] = re.findall(r"(?:at least )?\d+ times in a row", text)
        assert said == words


def test_a_job_is_well_whose_last_run_ended_well_after_ticks_were_missed(
    reader: httpx.Client, ledger: Ledger
) -> None:
    spec = job(ledger)
    at_work(ledger, spec, 0)
    missed_at = MIDNIGHT + timedelta(seconds=1)
    ledger.pass_over([PassedOver(spec, RunState.MISSED, "catchup", missed_at, missed_at, 1)])
    missed = ledger.history(spec.name)[0].finished_at
    wait_until(lambda: missed and ledger.now() > missed)
    ledger.finish(run_id(spec, 0), "token", RunState.SUCCEEDED)
    for path in ("/", f"/jobs/{spec.name}"):
        assert "failing</span>" not in reader.get(path).text


def names_on(page: httpx.Response) -> list[str]:
    return re.findall(r'<td class="head"><a class="name" href="jobs/([^"]+)"', page.text)


def test_jobs_are_found_by_name_and_by_state(reader: httpx.Client, ledger: Ledger) -> None:
    running, paused, _ = (job(ledger, name) for name in ("import-a", "import-b", "other"))
    at_work(ledger, running, 0)
    pause(ledger, paused)
    assert names_on(reader.get("/?search=IMPORT")) == ["import-a", "import-b"]
    assert names_on(reader.get("/?search=import&state=paused")) == ["import-b"]
    assert names_on(reader.get("/?state=running")) == ["import-a"]
    ledger.finish(run_id(running, 0), "token", RunState.FAILED)
    assert names_on(reader.get("/?state=failing")) == ["import-a"]
    assert names_on(reader.get("/?state=running")) == []


def standing(ledger: Ledger, name: str, **fields: object) -> None:
    job(ledger, name)
    if fields:
        job_has(ledger, name, **fields)


def test_jobs_are_sorted_by_how_they_stand(reader: httpx.Client, ledger: Ledger) -> None:
    now = round(ledger.now().timestamp() * 1000)
    standing(ledger, "a")
    standing(ledger, "b", next=now + 60_000, last_start=now - 9_000)
    standing(ledger, "c", next=now + 30_000, last_start=now - 90_000, **{"n:finished:lost": 7})
    standing(ledger, "d", paused=1, next=now, **{"n:finished:failed": 5, "n:finished:expired": 4})
    standing(ledger, "e", last_outcome="timed_out", next=now + 90_000)
    orders = {
        "name": "abcde",
        "-name": "edcba",
        "next": "cbead",
        "-next": "ebcad",
        "last": "bcade",
        "-last": "cbade",
        "failures": "dcabe",
        "state": "edabc",
        "nonsense": "abcde",
    }
    for order, names in orders.items():
        assert "".join(names_on(reader.get(f"/?sort={order}"))) == names, order
    text = reader.get("/?sort=next").text
    assert 'aria-sort="ascending"><a href="./?sort=-next">Next run' in text


def test_late_jobs_are_found_and_overdue_ones_say_by_how_much(
    reader: httpx.Client, ledger: Ledger
) -> None:
    now = round(ledger.now().timestamp() * 1000)
    standing(ledger, "overdue", next=now - 180_000)
    standing(ledger, "in-time", next=now - 1_000)
    standing(ledger, "paused", next=now - 180_000, paused=1)
    ledger.admit(ticks(job(ledger, "never-started"), 0))
    page = reader.get("/?state=late")
    assert names_on(page) == ["never-started", "overdue"]
    assert "overdue by 3m" in page.text
    assert [x["job"] for x in reader.get("/api/v1/jobs?state=late").json()] == names_on(page)
    assert reader.get("/api/v1/jobs?state=lost").status_code == 400


def test_deadlines_of_a_job_and_how_its_runs_missed_them_are_shown(
    reader: httpx.Client, ledger: Ledger
) -> None:
    hour = timedelta(seconds=3_610)
    spec = job(ledger, due_by="45m", max_duration="1h", min_duration="5m")
    at_work(ledger, spec, 0)
    ledger.finish(run_id(spec, 0), "token", RunState.FAILED)
    at_work(ledger, spec, 1)
    reload(ledger, spec, ledger.now() - hour)
    has_run_for(ledger, run_id(spec, 1), hour + timedelta(minutes=1))
    listed = reader.get("/").text
    assert re.search(r"success due: <time[^>]*>overdue by 15m", listed)
    text = reader.get("/jobs/nightly").text
    assert re.search(r"Success due<dd><time[^>]*>overdue by 15m", text)
    assert names_on(reader.get("/?state=late")) == ["nightly"]
    assert "5m or more, up to 1h" in text
    assert "longer than max_duration" in text
    assert "longer than max_duration" in reader.get(f"/runs/{run_id(spec, 1)}").text
    has_run_for(ledger, run_id(spec, 1), timedelta())
    ledger.finish(run_id(spec, 1), "token", RunState.SUCCEEDED)
    text = reader.get(f"/runs/{run_id(spec, 1)}").text
    assert "shorter than min_duration" in text
    assert "2026-03-01 00:00:01 had to succeed by 2026-03-01 00:45:01 UTC" in text
    assert re.search(r"success due: <time[^>]*>in 4", reader.get("/").text)
    assert names_on(reader.get("/?state=late")) == []


def test_the_newest_failures_of_all_jobs_are_shown(reader: httpx.Client, ledger: Ledger) -> None:
    for name, outcome in (
        ("a", RunState.FAILED),
        ("b", RunState.TIMED_OUT),
        ("c", RunState.SUCCEEDED),
    ):
        spec = begun(ledger, name=name)
        ledger.finish(run_id(spec, 0), "token", outcome, f"reason of {name}")
    text = reader.get("/failures").text
    assert names_on(reader.get("/failures")) == ["b", "a"]
    assert ("reason of a" in text, "reason of c" in text) == (True, False)


def test_every_page_has_a_title_of_its_own(reader: httpx.Client, ledger: Ledger) -> None:
    spec = admitted(ledger, 0)
    paths = [
        *("/", "/?state=late", "/?sort=next", "/?search=n", "/failures", "/queues", "/login"),
        *("/jobs/nightly", f"/runs/{run_id(spec, 0)}", "/jobs/unknown"),
    ]
    titles = [
        re.findall("<title>(.+) - supervisor</title>", reader.get(path, headers=HTML).text)
        for path in paths
    ]
    assert [len(title) for title in titles] == [1] * len(paths)
    assert len({title for [title] in titles}) == len(paths)


@pytest.mark.parametrize(
    "query", ["page=0", "page=99", "page=x", "page=-1", "state=bad", "search="]
)
def test_an_address_that_makes_no_sense_still_shows_jobs(
    reader: httpx.Client, ledger: Ledger, query: str
) -> None:
    job(ledger)
    assert names_on(reader.get(f"/?{query}")) == ["nightly"]


def test_many_jobs_are_shown_a_page_at_a_time(reader: httpx.Client, ledger: Ledger) -> None:
    names = [f"job-{number:04}" for number in range(PAGE_SIZE * 2 + 1)]
    for name in names:
        job(ledger, name)
    pages = [reader.get(f"/?page={number}") for number in (1, 2, 3)]
    assert [name for page in pages for name in names_on(page)] == names
    assert "page 2 of 3" in pages[1].text


def test_the_timeline_of_a_job_has_its_runs_and_what_was_held_back(
    reader: httpx.Client, ledger: Ledger
) -> None:
    spec = job(ledger)
    moments = ledger.now().replace(microsecond=0)
    at_work(ledger, spec, 0)
    blocked = ledger.trigger(spec)
    assert blocked.queued_at >= moments
    text = reader.get("/jobs/nightly").text
    assert text.count('class="mark running"') == 1
    assert text.count('class="hold skipped"') == 1
    assert f"blocked by {run_id(spec, 0)}" in text


@pytest.mark.parametrize("path", ["/", "/jobs/nightly", "/failures", "/timeline", "RUN"])
def test_people_read_that_a_run_timed_out_in_plain_words(
    reader: httpx.Client, ledger: Ledger, path: str
) -> None:
    spec = begun(ledger)
    ledger.finish(run_id(spec, 0), "token", RunState.TIMED_OUT)
    shown = reader.get(f"/runs/{run_id(spec, 0)}" if path == "RUN" else path).text
    text = re.sub(r'class="[^"]*"|value="timed_out"', "", shown)
    assert ("timed out" in text, "timed_out" in text) == (True, False)


def test_a_run_says_how_many_attempts_are_not_kept(reader: httpx.Client, ledger: Ledger) -> None:
    spec = admitted(ledger, 0)
    try_often(ledger, run_id(spec, 0), ATTEMPTS_KEPT + 2)
    text = reader.get(f"/runs/{run_id(spec, 0)}").text
    assert "2 earlier attempts, of which nothing else is kept" in text


@pytest.mark.parametrize("path", ["/jobs/nobody", "/runs/nobody@never"])
def test_what_is_not_there_is_a_page_that_says_so(reader: httpx.Client, path: str) -> None:
    answer = reader.get(path, headers={"accept": "text/html"})
    assert (answer.status_code, "unknown" in answer.text) == (404, True)


def test_without_a_session_there_are_no_buttons(serve: Serve, ledger: Ledger) -> None:
    job(ledger)
    assert "actions/" not in serve(Access()).get("/").text
    client = serve(Access(TOKEN))
    assert "actions/" not in client.get("/").text
    assert client.get("/actions/trigger/nightly").headers["location"] == (
        "/login?next=/actions/trigger/nightly"
    )
    log_in(client)
    assert "actions/trigger/nightly" in client.get("/jobs/nightly").text


def test_the_forms_do_what_they_say_without_a_script(serve: Serve, ledger: Ledger) -> None:
    job(ledger)
    client = serve(Access(TOKEN))
    log_in(client)

    def send(action: str, **fields: str) -> httpx.Response:
        path = f"/actions/{action}"
        assert client.get(path).status_code == 200
        return client.post(path, data=fields, headers=FROM_OUR_PAGE)

    started = send("trigger/nightly", args="[1]", overlap="", key="", max_wait="")
    run = ledger.history("nightly")[0]
    assert (started.status_code, started.headers["location"]) == (
        303,
        f"{client.base_url.path}runs/{run.id}",
    )
    assert run.args == [1]
    assert send("pause/nightly", reason="why", until="").status_code == 303
    assert ledger.job("nightly").paused_note == "why"
    assert send("resume/nightly").status_code == 303
    assert send(f"cancel/{run.id}").status_code == 303
    assert ledger.run(run.id).state is RunState.CANCELLED
    ended = send(f"cancel/{run.id}")
    assert (ended.status_code, "has ended: cancelled" in ended.text) == (409, True)


def test_a_step_has_a_button_of_its_own_that_ends_it(serve: Serve, ledger: Ledger) -> None:
    spec = admitted(ledger, 0, name="steps", task=None, steps=[STEP])
    step, client = f"{run_id(spec, 0)}~a", serve(Access(TOKEN))
    log_in(client)
    assert f'href="actions/cancel/{quote(step, safe="@:+/")}"' in client.get(f"/runs/{step}").text
    done = client.post(f"/actions/cancel/{step}", headers=FROM_OUR_PAGE)
    assert (done.status_code, ledger.run(step).state) == (303, RunState.CANCELLED)


def test_a_form_that_makes_no_sense_is_shown_again_with_what_is_wrong(
    serve: Serve, ledger: Ledger
) -> None:
    job(ledger)
    client = serve(Access(TOKEN))
    log_in(client)
    fields = {"args": "[1,"}
    answer = client.post("/actions/trigger/nightly", data=fields, headers=FROM_OUR_PAGE)
    assert (answer.status_code, "args is not JSON" in answer.text) == (400, True)
    assert "[1,</textarea>" in answer.text
    assert ledger.history("nightly") == []


def test_a_run_is_triggered_after_another_by_the_form(serve: Serve, ledger: Ledger) -> None:
    before = run_id(admitted(ledger, 0), 0)
    client = serve(Access(TOKEN))
    log_in(client)
    assert 'name="after"' in client.get("/actions/trigger/nightly").text
    fields = {"after": before, "after_policy": "done", "overlap": "allow"}
    answer = client.post("/actions/trigger/nightly", data=fields, headers=FROM_OUR_PAGE)
    assert answer.status_code == 303, answer.text
    newest = ledger.history("nightly")[0]
    assert (newest.after, newest.state) == (before, RunState.WAITING)
    lost = {"after": "nightly@nothing"}
    answer = client.post("/actions/trigger/nightly", data=lost, headers=FROM_OUR_PAGE)
    assert (answer.status_code, "nightly@nothing" in answer.text) == (404, True)


def test_workers_and_queues_without_any_are_shown(reader: httpx.Client, ledger: Ledger) -> None:
    job(ledger)
    job(ledger, "other", queue="wide")
    registration = Registration(ledger, Broker("celery", is_ledger=True))
    registration.say(WorkerProcess("default@host", ("celery",), 4, "digest"))
    text = reader.get("/queues").text
    assert "default@host" in text
    assert len(re.findall(r"present", text)) == 1
    assert re.search(r'"name">wide</span>.*?<b class="failed">none</b>', text, re.S)
    lose(ledger, *ledger.client.keys(ledger.keys.presence("*")))
    assert "missing" in reader.get("/queues").text


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/", "celery -A proj beat"),
        ("/", "supervisor init"),
        ("/queues", "celery -A proj worker -Q celery"),
        ("/queues", "There are no queues yet"),
        ("/timeline", "No jobs are loaded"),
        ("/record", "Nothing has been done yet"),
        ("/failures", "No run has failed"),
    ],
)
def test_an_empty_page_says_what_to_do(reader: httpx.Client, path: str, message: str) -> None:
    assert message in reader.get(path).text


def test_a_job_without_runs_says_when_the_first_is_due(
    reader: httpx.Client, ledger: Ledger
) -> None:
    standing(ledger, "nightly", next=round(ledger.now().timestamp() * 1000) + 60_000)
    job(ledger, "by-hand", every=None)
    assert "The first is due <time" in reader.get("/jobs/nightly").text
    assert "It runs when it is triggered" in reader.get("/jobs/by-hand").text
    ledger.pause("nightly")
    assert "It is paused" in reader.get("/jobs/nightly").text


def test_the_first_page_warns_of_a_queue_without_a_worker(
    reader: httpx.Client, ledger: Ledger
) -> None:
    job(ledger, "alone", serial=True)
    assert "No worker consumes the queue serial.alone" in reader.get("/").text
    assert "<code>celery -A proj worker -Q serial.alone -c 1</code>" in reader.get("/").text
    worker_is_there(ledger, "one@host", queues=("serial.alone",))
    assert 'class="problem"' not in reader.get("/").text
    worker_is_there(ledger, "two@host", queues=("serial.alone",))
    assert "2 workers consume the serial queue serial.alone" in reader.get("/").text


def test_a_run_that_did_not_start_has_the_reason_in_sentences(
    reader: httpx.Client, ledger: Ledger
) -> None:
    spec = begun(ledger)
    ledger.admit(ticks(spec, 1))
    text = reader.get(f"/runs/{run_id(spec, 1)}").text
    assert re.search(r"00:00:01 was skipped: the run of .* was still running on worker", text)
    remove(ledger, spec)
    assert reader.get(f"/runs/{run_id(spec, 1)}").status_code == 200, "its job is gone"


def test_a_job_is_shown_between_those_it_follows_and_those_that_follow_it(
    reader: httpx.Client, ledger: Ledger
) -> None:
    sources = [f"source-{number:02}" for number in range(MOST_RELATED + 3)]
    for source in sources:
        job(ledger, source)
    job(ledger, "load", every=None, after=sources)
    job(ledger, "report", every=None, after=["load"])
    text = reader.get("/jobs/load").text
    [before, after] = re.findall(r"<p>Follow.*?</p>", text)
    assert re.findall('href="jobs/(.+?)"', before) == sources[:MOST_RELATED]
    assert "and 3 more" in before
    assert re.findall('href="jobs/(.+?)"', after) == ["report"]


@pytest.mark.parametrize(
    ("zone", "begun"),
    [
        ("Asia/Tokyo", "2026-03-01 09:00:00 JST"),
        ("", "2026-03-01 00:00:00Z"),
        ("../x", "00:00:00Z"),
    ],
)
def test_times_are_of_the_zone_that_the_cookie_names(
    reader: httpx.Client, ledger: Ledger, zone: str, begun: str
) -> None:
    run = run_id(admitted(ledger, 0), 0)
    reader.cookies.set("supervisor_zone", zone)
    text = reader.get(f"/runs/{run}").text
    assert re.search(f"Nominal time<dd>[^<]*{begun}<", text)
    html = {"accept": "text/html"}
    for page in (text, *(reader.get(path, headers=html).text for path in ("/jobs/no", "/no"))):
        assert (">Asia/Tokyo<" in page) == (zone == "Asia/Tokyo")


LOG_URL = "https://logs.example/?q={run}&from={started_ms}"


def test_a_run_shows_how_it_failed_its_lines_and_where_others_are(
    reader: httpx.Client, ledger: Ledger
) -> None:
    spec = begun(ledger, log_url=LOG_URL)
    run = run_id(spec, 0)
    lines = (ReportedLine(1, "the first", 0.0), ReportedLine(1_200, "the last", 0.0))
    assert ledger.reports.write(run, "token", Reported(1, None, lines), 0.0)
    ledger.finish(run, "token", RunState.FAILED, "not so", traceback="Traceback:\n  a < b\nnot so")
    page = reader.get(f"/runs/{run}").text
    assert (
        '<pre class="log" tabindex="0" aria-label="Traceback">Traceback:&#10;  a &lt; b&#10;'
        in page
    )
    assert page.index("the first") < page.index("(1,198 lines dropped)") < page.index("the last")
    started = ms_of(ledger.run(run).attempts[0].started_at) - 10_000
    [link] = [found for found in Elements(page).values("href") if "logs.example" in found]
    assert link == f"https://logs.example/?q={quote(run, safe='')}&from={started}"
    assert "its lines at logs.example" in page
    whole = reader.get(f"/api/v1/runs/{quote(run, safe='')}").json()
    assert whole["log_url"] == link
    assert [failure["attempt"] for failure in whole["failures"]] == [1]
    assert "not so" in reader.get(f"/jobs/{spec.name}").text


def test_the_page_of_a_run_links_the_runs_before_and_after_it(
    reader: httpx.Client, ledger: Ledger
) -> None:
    spec = admitted(ledger, 0, 1, 2, overlap="allow")
    pages = [reader.get(f"/runs/{run_id(spec, second)}").text for second in range(3)]
    links = [re.findall(r'rel="(prev|next)" href="runs/([^"]+)"', page) for page in pages]
    first, second, third = (run_id(spec, number) for number in range(3))
    assert links == [
        [("next", second)],
        [("prev", first), ("next", third)],
        [("prev", second)],
    ]


def test_the_page_of_a_run_shows_the_arguments_of_its_job_masked(
    reader: httpx.Client, ledger: Ledger
) -> None:
    spec = admitted(ledger, 0, args=[7], kwargs={"token": "hush", "day": "mon"}, mask=["token"])
    text = html.unescape(reader.get(f"/runs/{run_id(spec, 0)}").text)
    assert "<dt>Arguments, of the job<dd><code>[7]</code>" in text
    assert '"day": "mon"' in text
    assert "hush" not in text


def test_a_log_is_searched_and_downloaded(reader: httpx.Client, ledger: Ledger) -> None:
    spec = job(ledger)
    at_work(ledger, spec, 0)
    run = run_id(spec, 0)
    texts = ("connecting", "Reading page 1", "reading page 2")
    lines = tuple(ReportedLine(number, text, 0.0) for number, text in enumerate(texts, 1))
    ledger.reports.write(run, "token", Reported(1, None, lines), 0.0)
    response = reader.get(f"/runs/{run}", params={"find": "READING"}).text
    assert "2 of 3 lines." in response
    assert "<span>connecting</span>" not in response
    assert "No line has" in reader.get(f"/runs/{run}", params={"find": "<nothing>"}).text
    file = reader.get(f"/logs/{run}")
    assert file.headers["content-type"].startswith("text/plain")
    assert file.headers["content-disposition"] == (
        'attachment; filename="nightly-2026-03-01T00-00-00Z.log"'
    )
    assert [line.split("Z ", 1)[1].strip() for line in file.text.splitlines()] == [*texts]
    assert reader.get("/logs/unknown@1").status_code == 404


def test_the_page_of_a_job_has_its_times_and_durations(
    reader: httpx.Client, ledger: Ledger
) -> None:
    spec = job(ledger, every=None, cron="30 2 * * *", timezone="Europe/Berlin")
    at_work(ledger, spec, 0)
    ledger.finish(run_id(spec, 0), "token", RunState.FAILED, "it broke")
    text = reader.get("/jobs/nightly").text
    assert re.search(r"<h2>Next times</h2>\s*<ol.*02:30 CES?T", text)
    assert "Durations" in text


def test_the_list_the_page_and_why_say_the_same_of_durations(
    reader: httpx.Client, ledger: Ledger
) -> None:
    spec = job(ledger)
    lasted(ledger, spec, *range(1, 31))  # more than the chart of the list has
    at_work(ledger, spec, 40)
    for path in ("/", "/jobs/nightly"):
        text = reader.get(path).text
        assert '15s <span class="faint">median</span>' in text
        assert "longest 30s<" in text
    assert "p95 29s" in text
    assert "the longest 30s" in text
    assert "usually finishes within 29s" in " ".join(
        answer(question_of_run(ledger, run_id(spec, 40)))
    )
    plan = plan_of({}, {spec.name: spec}, ledger.durations_of([spec]), ledger.now())
    assert "median 15s, p95 29s, longest 30s, of 30 runs" in "\n".join(plan_lines(plan))
    limit = 'supervisor_job_running_limit_seconds{job="nightly"}'
    assert f"{limit} {4 * 29}.0" in reader.get("/metrics").text
    lasted(ledger, other := job(ledger, "other"), *[60] * 4)
    assert f"{limit.replace('nightly', 'other')}" not in reader.get("/metrics").text
    at_work(ledger, other, 50)
    ledger.finish(run_id(other, 50), "token", RunState.SUCCEEDED)
    assert f"{limit.replace('nightly', 'other')} 240.0" in reader.get("/metrics").text


def test_each_page_is_headed_with_the_installations_name_and_its_colour(ledger: Ledger) -> None:
    def headed(name: str) -> str:
        with serving_app(create(ledger, name=name)) as address:
            return httpx.get(f"{address}/", verify=False, timeout=scaled(20)).text

    production, staging = headed("production <1>"), headed("staging")
    assert "<title>Jobs - production &lt;1&gt;</title>" in production
    assert '<p class="installation">production &lt;1&gt;</p>' in production
    hues = [re.findall(r'class="top (hue-[0-5])"', page) for page in (production, staging)]
    assert len(hues[0]) == len(hues[1]) == 1
    assert "installation" not in headed("")
