"""Jobs that are made, edited and removed over HTTP: by programs, and by people with the form."""

from __future__ import annotations

import re
from datetime import timedelta
from html import unescape
from typing import Any

import httpx
import pytest
from celery import Celery

from supervisor import jobs
from supervisor.features.notices.keys import Event
from supervisor.ledger.job_record import AT_RUN_TIME
from supervisor.ledger.ledger import Ledger
from supervisor.web.access import Access
from supervisor.web.openapi import API
from tests.jobs import job, lasted
from tests.presence import worker_is_there
from tests.tools.web.conftest import Serve
from tests.tools.web.test_api import checked
from tests.tools.web.visits import FROM_ANOTHER_SITE, FROM_OUR_PAGE, TOKEN, log_in

HOURLY: dict[str, Any] = {"task": "proj.report", "every": "1h"}

JOB = f"{API}/jobs/report"

PATH = "/jobs/{job}"


def put(client: httpx.Client, name: str = "report", **keys: Any) -> httpx.Response:
    return client.put(f"{API}/jobs/{name}", json={**HOURLY, **keys})


def test_a_job_is_made_read_edited_and_removed(maker: httpx.Client, ledger: Ledger) -> None:
    made = put(maker, kwargs={"tenant": "acme"})
    body = checked(made, PATH, 201)
    assert body["keys"] == {**HOURLY, "kwargs": {"tenant": "acme"}}
    assert (body["source"], body["editable"]) == ("runtime", True)
    assert body["place"].endswith("by token (the API)")
    assert made.headers["etag"] == f'"{body["version"]}"' == maker.get(JOB).headers["etag"]
    edited = put(maker, every="2h")
    assert checked(edited, PATH, 200)["version"] > body["version"]
    assert ledger.spec("report").every == timedelta(hours=2)
    assert put(maker, every="2h").headers["etag"] == edited.headers["etag"]
    assert maker.delete(JOB).status_code == 204
    assert checked(maker.get(JOB), PATH, 404)
    assert checked(maker.delete(JOB), PATH, 404)


def test_only_the_version_that_was_named_is_replaced(maker: httpx.Client) -> None:
    seen = put(maker).headers["etag"]
    theirs = maker.put(JOB, json={**HOURLY, "every": "2h"}, headers={"if-match": seen})
    assert theirs.status_code == 200
    mine = maker.put(JOB, json={**HOURLY, "every": "3h"}, headers={"if-match": seen})
    assert checked(mine, PATH, 412)["version"] == theirs.json()["version"]
    checked(maker.delete(JOB, headers={"if-match": seen}), PATH, 412)
    again = maker.put(JOB, json=HOURLY, headers={"if-none-match": "*"})
    checked(again, PATH, 412)
    assert maker.get(JOB).json()["keys"]["every"] == "2h"
    either = {"if-match": f'"1", {theirs.headers["etag"]}'}
    assert maker.put(JOB, json=HOURLY, headers=either).status_code == 200
    assert maker.delete(JOB, headers={"if-match": "*"}).status_code == 204
    checked(maker.put(JOB, json=HOURLY, headers={"if-match": "*"}), PATH, 412)
    assert maker.put(JOB, json=HOURLY, headers={"if-none-match": "*"}).status_code == 201
    checked(maker.put(JOB, json=HOURLY, headers={"if-none-match": '"1"'}), PATH, 400)


def test_all_problems_are_listed_and_nothing_is_saved(maker: httpx.Client, ledger: Ledger) -> None:
    wrong = {"every": "5x", "overlpa": "skip", "app": 1, "name": "x", "source": "files"}
    answer = maker.put(JOB, json={**HOURLY, **wrong})
    body = checked(answer, PATH, 422)
    assert [text.split("(")[0].strip() for text in body["problems"]] == [
        "'every': '5x' is not a duration such as 90s, 5m or 1h30m",
        "unknown key 'overlpa'",
        "unknown key 'app'",
        "unknown key 'name'",
        "unknown key 'source'",
    ]
    assert ledger.job_names() == []


@pytest.mark.parametrize(
    ("body", "status", "word"),
    [
        (b"x" * 2_000_000, 413, "65,536 bytes"),
        (b'{"task": "a", "every": "1h", "every": "2h"}', 400, "'every' is given twice"),
        (b"[" * 30_000, 400, "levels"),
        (b'{"kwargs": {"x": ' + b'{"x": ' * 20 + b"1" + b"}" * 22, 400, "20 levels"),
        (b'{"kwargs": {"x": NaN}}', 400, "NaN is not JSON"),
        (b'{"every": ' + b"9" * 5_000 + b"}", 400, "JSON"),
        (b"[]", 400, "object"),
        (b"", 400, "JSON"),
        (b"\xff\xfe", 400, "JSON"),
        (b'{"task": "a", "every": "1h", "kwargs": {"x": "\\ud800"}}', 422, "'kwargs'"),
        (b'{"task": "a\\ud800", "every": "1h"}', 422, "'task'"),
        (b'{"task": "a", "every": "1h", "description": "\\ud800"}', 422, "'description'"),
    ],
)
def test_a_body_that_is_no_job_is_refused(
    maker: httpx.Client, ledger: Ledger, body: bytes, status: int, word: str
) -> None:
    answer = maker.put(JOB, content=body, headers={"content-type": "application/json"})
    assert word in checked(answer, PATH, status)["error"]
    assert ledger.job_names() == []


def test_arguments_of_up_to_16_kib_are_taken(maker: httpx.Client) -> None:
    fits = "x" * (16 * 1024 - len('[]{"x": ""}'))
    assert put(maker, kwargs={"x": fits}).status_code == 201
    assert "16,384 are allowed" in checked(put(maker, kwargs={"x": fits + "x"}), PATH, 422)["error"]


@pytest.mark.parametrize(
    "name", ["%2e%2e", "a%20b", "%00", "-a", "a/b", "a%22", "%3Cscript%3E", "%ff", "x" * 101]
)
def test_a_name_that_is_no_name_is_refused(maker: httpx.Client, ledger: Ledger, name: str) -> None:
    answer = put(maker, name)
    assert "is not a name for a job" in checked(answer, PATH, 422)["error"]
    assert ledger.job_names() == []


def test_a_job_of_files_is_read_only_here(maker: httpx.Client, ledger: Ledger) -> None:
    job(ledger, "report", place="schedules/a.yaml:12")
    body = checked(maker.get(JOB), PATH, 200)
    assert (body["source"], body["place"], body["editable"]) == (
        "files",
        "schedules/a.yaml:12",
        False,
    )
    for answer in (put(maker), maker.delete(JOB)):
        assert "schedules/a.yaml:12; change it" in checked(answer, PATH, 409)["error"]
    check = maker.post(f"{JOB}/check", json=HOURLY).json()
    assert "schedules/a.yaml:12" in check["problems"][0]


def test_arguments_that_a_task_does_not_take_are_a_warning(
    maker: httpx.Client, app: Celery
) -> None:
    """The server's code may be older than that of the workers."""

    @app.task(name="proj.report", shared=False)
    def report(hall: str) -> None: ...

    wrong = {**HOURLY, "kwargs": {"hall": "north", "second": 3}}
    body = checked(maker.post(f"{JOB}/check", json=wrong), f"{PATH}/check", 200)
    assert body["problems"] == []
    said = "the task cannot be called like this: got an unexpected keyword argument 'second'"
    assert any(said in warning for warning in body["warnings"])
    assert put(maker, kwargs=wrong["kwargs"]).status_code == 201


def test_a_check_tells_what_saving_would_do_and_saves_nothing(
    maker: httpx.Client, ledger: Ledger
) -> None:
    answer = maker.post(f"{JOB}/check", json={**HOURLY, "paused": True})
    body = checked(answer, f"{PATH}/check", 200)
    assert (body["problems"], body["change"], len(body["next_ticks"])) == ([], "added", 5)
    wrong = checked(maker.post(f"{JOB}/check", json={"every": "x"}), f"{PATH}/check", 200)
    assert (len(wrong["problems"]), wrong["change"], wrong["next_ticks"]) == (2, None, [])
    assert ledger.job_names() == []


def test_a_check_foresees_overlaps_by_what_was_observed(
    maker: httpx.Client, ledger: Ledger
) -> None:
    lasted(ledger, job(ledger, "report", source=AT_RUN_TIME, **HOURLY), *[180] * 19, 780)
    answer = maker.post(f"{JOB}/check", json={**HOURLY, "every": "1m"})
    body = checked(answer, f"{PATH}/check", 200)
    assert body["change"] == "changed"
    assert body["overlaps"]["overlaps_a_day"] > 100
    assert "skips a day; a safe interval is" in body["overlaps_text"]


def test_a_job_that_others_follow_stays(maker: httpx.Client, editor: httpx.Client) -> None:
    lost = {"task": "proj.load", "after": ["extract"]}
    check = maker.post(f"{JOB}/check", json=lost).json()
    refused = checked(maker.put(JOB, json=lost), PATH, 422)
    assert check["problems"] == refused["problems"]
    assert "extract" in refused["error"]
    put(maker, "extract")
    assert maker.put(JOB, json=lost).status_code == 201
    answer = maker.delete(f"{API}/jobs/extract")
    assert "report" in checked(answer, PATH, 422)["error"]
    form = fields_on(editor.get("actions/remove/extract"))
    answer = editor.post("actions/remove/extract", data=form, headers=FROM_OUR_PAGE)
    assert (answer.status_code, "report" in text_of(answer)) == (409, True)


def test_what_mask_hides_is_kept_and_never_shown(maker: httpx.Client, ledger: Ledger) -> None:
    secret = {"kwargs": {"day": 1, "password": "geheim"}, "mask": ["password"]}
    url = "https://hc-ping.com/0b1c"
    notify = ["${SLACK}", {"url": "pagerduty://geheim@key", "events": ["lost"]}]
    shown = checked(put(maker, **secret, ping_url=url, notify=notify), PATH, 201)["keys"]
    assert (shown["kwargs"], shown["ping_url"]) == (
        {"day": 1, "password": "***"},
        "https://hc-ping.com/***",
    )
    assert shown["notify"] == ["${SLACK}", {"url": "pagerduty://***", "events": ["lost"]}]
    edited = [{"url": "pagerduty://***", "events": ["failed"]}]
    answer = maker.put(JOB, json={**shown, "notify": edited})
    assert "stands for a value that is hidden" in checked(answer, PATH, 422)["error"]
    del shown["notify"][0]
    shown["kwargs"]["day"] = 2
    answer = maker.put(JOB, json=shown)
    assert "geheim" not in answer.text
    spec = ledger.spec("report")
    assert (spec.kwargs, spec.ping_url) == ({"day": 2, "password": "geheim"}, url)
    assert [(to.url, to.events) for to in spec.notify] == [("pagerduty://geheim@key", {Event.LOST})]
    wrong = checked(put(maker, notify=["geheim"]), PATH, 422)
    assert "'notify': not an address" in wrong["error"] and "geheim" not in str(wrong)
    for change in ({"mask": []}, {"task": "proj.log"}):
        answer = maker.put(JOB, json={**shown, **change})
        assert "stands for a value that is hidden" in checked(answer, PATH, 422)["error"]


def test_making_jobs_takes_the_token_and_an_app(
    serve: Serve, maker: httpx.Client, bearer: httpx.Client, reader: httpx.Client, ledger: Ledger
) -> None:
    assert "supervisor -A proj serve" in checked(put(bearer), PATH, 409)["error"]
    checked(put(reader), PATH, 403)
    del maker.headers["authorization"]
    for answer in (put(maker), maker.delete(JOB), maker.post(f"{JOB}/check", json=HOURLY)):
        assert answer.status_code == 401
    assert maker.put(JOB, json=HOURLY, headers=FROM_ANOTHER_SITE).status_code == 403
    assert ledger.job_names() == []


# The form.


NEW = {
    "version": "0",
    "edits": "",
    "text": "jobs:\n  report:\n    task: proj.report\n    every: 1h\n",
}


def send(client: httpx.Client, action: str, **fields: str) -> httpx.Response:
    return client.post(f"actions/{action}", data={**NEW, **fields}, headers=FROM_OUR_PAGE)


def with_keys(*lines: str, name: str = "report") -> str:
    return f"jobs:\n  {name}:\n" + "".join(f"    {line}\n" for line in lines)


def text_of(answer: httpx.Response) -> str:
    return unescape(re.sub(r"<[^>]+>", " ", answer.text))


def fields_on(page: httpx.Response) -> dict[str, str]:
    """What the form would send as it is."""
    matches = re.findall(r'<input[^>]* name="(\w+)"[^>]* value="([^"]*)"', page.text)
    matches += re.findall(r'<textarea[^>]* name="(\w+)"[^>]*>\n([^<]*)</textarea>', page.text)
    return {name: unescape(value) for name, value in matches if name != "csrf"}


def test_the_text_of_a_schedule_file_makes_a_job(editor: httpx.Client, ledger: Ledger) -> None:
    assert fields_on(editor.get("actions/new"))["text"].startswith("jobs:\n")
    answer = send(
        editor,
        "put",
        text=with_keys(
            "task: proj.report",
            "cron: 30 2 * * 1-5",
            "timezone: Europe/Berlin",
            "args: [a]",
            "overlap: queue_one",
            "start_deadline: 10m",
        ).replace("\n", "\r\n"),  # as browsers send it
    )
    assert (answer.status_code, answer.headers["location"][-12:]) == (303, "/jobs/report")
    spec = ledger.spec("report")
    assert (spec.cron, spec.args, spec.overlap) == ("30 2 * * 1-5", ("a",), "queue_one")
    assert spec.start_deadline == timedelta(minutes=10)


def test_the_form_of_a_job_says_what_the_job_is(editor: httpx.Client, app: Celery) -> None:
    keys = {
        "task": "proj.report",
        "cron": "0 6 * * *",
        "args": ["<b>", {"x": [1, None]}],
        "kwargs": {"password": "geheim", "text": "a\nb: 'c' \"d\""},
        "mask": ["password"],
        "exclude": ["SAT", "2026-12-24..2026-12-26"],
        "paused": True,
        "description": "</textarea>\n<script>\u202e",
        "max_retries": 3,
        "start_at": "2026-01-01T00:00:00",
        "ping_url": "https://hc-ping.com/secret",
        "notify": ["${SLACK}", {"url": "https://hooks.test/geheim", "secret": "geheim"}],
        "key": "all:{text}",
    }
    before = jobs.put("report", app=app, **keys)
    form = editor.get("actions/edit/report")
    assert "geheim" not in form.text and "hc-ping.com/secret" not in form.text
    assert "<script>" not in form.text.replace("<script src", "")
    assert "\u202e" not in form.text
    fields = fields_on(form)
    saved = editor.post("actions/put", data=fields, headers=FROM_OUR_PAGE)
    assert saved.status_code == 303, text_of(saved)
    assert jobs.get("report", app=app) == before
    fields["text"] = fields["text"].replace("0 6 * * *", "0 7 * * *")
    assert editor.post("actions/put", data=fields, headers=FROM_OUR_PAGE).status_code == 303
    assert jobs.get("report", app=app).spec == before.spec.model_copy(update={"cron": "0 7 * * *"})


def test_the_tasks_that_workers_know_stand_beside_the_text(
    editor: httpx.Client, ledger: Ledger
) -> None:
    assert "No worker is running" in editor.get("actions/new").text
    worker_is_there(ledger, "w1", tasks=("proj.nightly", "celery.chord", "shop.<b>"))
    text = editor.get("actions/new").text
    assert "Tasks that workers know (2)" in text
    assert "<code>proj.nightly</code>" in text
    assert "<code>shop.&lt;b&gt;</code>" in text


def test_each_problem_of_a_text_has_its_line(editor: httpx.Client, ledger: Ledger) -> None:
    wrong = with_keys("task: a", "every: 5x", "retries: 3", "task: b")
    answer = send(editor, "put", text=wrong)
    assert (answer.status_code, re.findall(r'data-line="(\d+)"', answer.text)) == (422, ["6"])
    wrong = with_keys("task: a", "every: 5x", "retries: 3")
    answer = send(editor, "put", text=wrong)
    assert (answer.status_code, fields_on(answer)["text"]) == (422, wrong)
    assert re.findall(r'data-line="(\d+)"', answer.text) == ["4", "5"]
    assert "'5x' is not a duration" in text_of(answer)
    assert re.findall(r'class="failed">(\d+)<', answer.text) == ["4", "5"]
    bad = send(editor, "put", text=with_keys("task: a", "args: [a", "every: 5m"))
    assert "not valid YAML" in text_of(bad)
    outside = send(
        editor, "put", text=with_keys("task: a", "every: 5m", "args: ['${file:/etc/x}']")
    )
    assert "'args': ${file:/etc/x}" in text_of(outside)
    assert re.findall(r'data-line="(\d+)"', outside.text) == ["5"]
    named = send(editor, "put", text=with_keys("task: a", "every: 5m", name="'<b>'"))
    assert "'<b>' is not a name for a job" in text_of(named)
    assert ledger.job_names() == []


@pytest.mark.parametrize(
    "text", ["", "[]", "jobs: {}", "jobs: {a: 1}", "task: a", "jobs: {a: {}, b: {}}", "- a"]
)
def test_a_text_that_is_not_one_job_is_refused(
    editor: httpx.Client, ledger: Ledger, text: str
) -> None:
    answer = send(editor, "put", text=text)
    assert (answer.status_code, "not one job" in text_of(answer)) == (422, True)
    assert ledger.job_names() == []


def test_the_name_of_a_job_stays(editor: httpx.Client, app: Celery) -> None:
    jobs.put("report", app=app, **HOURLY)
    form = fields_on(editor.get("actions/edit/report"))
    form["text"] = form["text"].replace("report:", "other:", 1)
    answer = editor.post("actions/put", data=form, headers=FROM_OUR_PAGE)
    assert (answer.status_code, "cannot be changed" in answer.text) == (422, True)
    assert [found.name for found in jobs.list(app=app)] == ["report"]


def test_a_text_is_checked_without_being_saved(editor: httpx.Client, ledger: Ledger) -> None:
    part = send(editor, "check?part=1")
    assert "<form" not in part.text and "A new job" in part.text
    assert part.text.count("<li>") == 5
    assert "no worker consumes it" in part.text
    whole = send(editor, "check", text=NEW["text"].replace("1h", "30m"))
    assert "30m" in fields_on(whole)["text"] and "A new job" in whole.text
    assert ledger.job_names() == []


def test_the_second_of_two_editors_sees_what_differs_from_the_first(
    editor: httpx.Client, app: Celery
) -> None:
    jobs.put("report", app=app, **HOURLY)
    form = fields_on(editor.get("actions/edit/report"))
    theirs = jobs.put("report", app=app, by="ann", **{**HOURLY, "every": "2h"})
    answer = editor.post(
        "actions/put",
        data={**form, "text": form["text"].replace("1h", "3h")},
        headers=FROM_OUR_PAGE,
    )
    assert answer.status_code == 409
    assert "by ann" in answer.text
    assert re.search(r"every</code><dd><span[^>]*>2h</span> → 3h", answer.text)
    assert '<a href="actions/edit/report">take theirs</a>' in answer.text
    assert jobs.get("report", app=app) == theirs
    again = fields_on(answer)
    assert (again["version"], "every: 3h" in again["text"]) == (str(theirs.version), True)
    assert editor.post("actions/put", data=again, headers=FROM_OUR_PAGE).status_code == 303
    assert jobs.get("report", app=app).spec.every == timedelta(hours=3)


def test_a_form_of_a_removed_job_and_a_name_that_is_taken_are_told(
    editor: httpx.Client, app: Celery
) -> None:
    jobs.put("report", app=app, **HOURLY)
    form = fields_on(editor.get("actions/edit/report"))
    assert "There is a job report already" in text_of(send(editor, "put"))
    jobs.remove("report", app=app)
    answer = editor.post("actions/put", data=form, headers=FROM_OUR_PAGE)
    assert "report was removed" in text_of(answer)
    again = editor.post("actions/put", data=fields_on(answer), headers=FROM_OUR_PAGE)
    assert again.status_code == 303


def test_a_job_is_removed_from_its_page_unless_another_edited_it(
    editor: httpx.Client, app: Celery
) -> None:
    jobs.put("report", app=app, **HOURLY)
    page = editor.get("jobs/report").text
    assert 'href="actions/edit/report"' in page and "made at run time" in page
    form = fields_on(editor.get("actions/remove/report"))
    jobs.put("report", app=app, **{**HOURLY, "every": "2h"})
    refused = editor.post("actions/remove/report", data=form, headers=FROM_OUR_PAGE)
    assert refused.status_code == 409
    form = fields_on(refused)
    removed = editor.post("actions/remove/report", data=form, headers=FROM_OUR_PAGE)
    assert removed.status_code == 303
    assert jobs.list(app=app) == []


def test_a_server_without_an_app_has_no_form_to_open(
    serve: Serve, editor: httpx.Client, app: Celery
) -> None:
    jobs.put("report", app=app, **HOURLY)
    without = serve(Access(TOKEN))
    log_in(without)
    for path in ("./", "jobs/report"):
        assert "actions/new" in editor.get(path).text or "actions/edit" in editor.get(path).text
        text = without.get(path).text
        assert "actions/silence" in text
        assert "actions/new" not in text and "actions/edit" not in text
    assert "supervisor -A proj serve" in text_of(
        send(without, "put", text=with_keys("task: a", "every: 1h", name="other"))
    )


def test_a_job_of_files_shows_its_file_and_has_no_form(
    editor: httpx.Client, ledger: Ledger
) -> None:
    job(ledger, "report", place="schedules/a.yaml:12")
    page = editor.get("jobs/report").text
    assert "schedules/a.yaml:12, read-only here" in page
    assert "actions/edit" not in page
    answer = editor.get("actions/edit/report", headers={"accept": "text/html"})
    assert (answer.status_code, "schedules/a.yaml:12" in answer.text) == (409, True)
    assert send(editor, "put").status_code == 409


def test_the_form_takes_a_session_and_our_own_page(
    editor: httpx.Client, ledger: Ledger, serve: Serve
) -> None:
    for action in ("put", "check", "remove/report"):
        foreign = editor.post(f"actions/{action}", data=NEW, headers=FROM_ANOTHER_SITE)
        assert foreign.status_code == 403
    editor.cookies.clear()
    assert send(editor, "put").status_code == 401
    assert editor.get("actions/new").status_code == 303
    assert ledger.job_names() == []


def test_a_form_with_hostile_fields_is_refused(editor: httpx.Client, ledger: Ledger) -> None:
    for fields, word in (
        ({"text": with_keys("args: " + "[" * 20_000)}, "levels"),
        ({"text": with_keys("a: &x [1]", "b: *x")}, "alias"),
        ({"text": with_keys("task: a", "every: 1h", f"kwargs: {{x: {'y' * 20_000}}}")}, "16,384"),
        ({"version": "-1"}, "version"),
        ({"version": "٣"}, "version"),
        ({"text": with_keys("task: a", name="x" * 500)}, "is not a name"),
    ):
        answer = send(editor, "put", **fields)
        assert answer.status_code in (400, 422), fields
        assert word in text_of(answer)
    assert send(editor, "put", text="x" * 2_000_000).status_code == 413
    assert ledger.job_names() == []
