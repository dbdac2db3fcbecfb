"""Running again on the page and over HTTP: one run, a group of failures, and many at once."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest

from supervisor.job.run import RunState
from supervisor.ledger.actions import ActionQuery
from supervisor.ledger.ledger import Ledger
from supervisor.operate.failures import normalised
from supervisor.web.access import Access
from supervisor.web.bulk import MOST_CHOSEN
from tests.jobs import begin, failed, fails, job, run_id, ticks
from tests.tools.operate.test_repeating import failed_steps
from tests.tools.web.conftest import Serve
from tests.tools.web.visits import FROM_OUR_PAGE, TOKEN, log_in

API = "/api/v1"


@pytest.fixture
def operator(serve: Serve) -> httpx.Client:
    """A person who has logged in."""
    client = serve(Access(TOKEN))
    log_in(client)
    client.headers.update(FROM_OUR_PAGE)
    return client


def failed_with(ledger: Ledger, name: str, *reasons: str, **keys: Any) -> list[str]:
    """Runs of a job that failed with these reasons, a second apart."""
    spec = job(ledger, name, **{"overlap": "queue_all", **keys})
    runs = [run_id(spec, second) for second in range(len(reasons))]
    for run, tick, reason in zip(runs, ticks(spec, *range(len(reasons))), reasons, strict=True):
        ledger.admit([tick])
        begin(ledger, run, run)
        ledger.finish(run, run, RunState.FAILED, reason)
    return runs


def test_a_run_is_run_again_over_http(ledger: Ledger, bearer: httpx.Client) -> None:
    run = failed(ledger, job(ledger), 0)
    answer = bearer.post(f"{API}/runs/{run}/retry", json={"reason": "the disk is back"})
    assert answer.status_code == 201
    again = answer.json()["run"]
    assert (again["repeats"], answer.json()["of"], answer.json()["edited"]) == (run, run, False)
    assert bearer.get(f"{API}/runs/{run}").json()["repeated_by"] == [again["run"]]
    refused = bearer.post(f"{API}/runs/{run}/retry", json={})
    assert (refused.status_code, again["run"] in refused.json()["error"]) == (409, True)
    assert bearer.post(f"{API}/runs/nightly@none/retry", json={}).status_code == 404


def test_all_failures_of_a_job_are_run_again_over_http(
    ledger: Ledger, bearer: httpx.Client
) -> None:
    runs = failed_with(ledger, "nightly", "a", "b", "c")
    response = bearer.post(f"{API}/jobs/nightly/retry", json={"limit": 2}).json()
    assert [one["of"] for one in response] == runs[:2]
    assert [one["run"]["state"] for one in response] == ["queued", "waiting"]
    later = bearer.post(f"{API}/jobs/nightly/retry", json={"since": "2100-01-01T00:00"})
    assert later.json() == []
    beyond = {"since": "9999-12-31T23:59:59-23:59"}
    assert bearer.post(f"{API}/jobs/nightly/retry", json=beyond).status_code == 400


def test_the_page_of_a_failed_run_has_it_run_again(ledger: Ledger, operator: httpx.Client) -> None:
    run = failed(ledger, job(ledger), 0)
    assert f'href="actions/retry/{run}"' in operator.get(f"/runs/{run}").text
    sent = operator.post(f"/actions/retry/{run}", data={"reason": "why"})
    [again] = ledger.run(run).repeated_by
    assert (sent.status_code, sent.headers["location"]) == (303, f"/runs/{again}")
    assert f'Repeated by<dd><div><a class="run" href="runs/{again}"' in (
        operator.get(f"/runs/{run}").text
    )
    assert f'Repeats<dd><a class="run" href="runs/{run}"' in operator.get(f"/runs/{again}").text
    [entry] = ledger.actions.search(ActionQuery(verb="retry"))
    assert (entry.action.reason, entry.action.by.origin) == ("why", "page")
    refused = operator.post(f"/actions/retry/{run}", data={})
    assert (refused.status_code, "is being run again" in refused.text) == (409, True)


def test_the_form_asks_from_which_step_on(ledger: Ledger, operator: httpx.Client) -> None:
    run = failed_steps(ledger)
    form = operator.get(f"/actions/retry/{run}").text
    assert "not again: extract, scan" in form
    operator.post(f"/actions/retry/{run}", data={"from": "failed"})
    [again] = ledger.run(run).repeated_by
    assert [below.partition("~")[2] for below in ledger.steps.below([again])] == ["convert"]
    assert operator.get(f"/runs/{again}").text.count("done before") == 2
    fail_all(ledger, again)
    operator.post(f"/actions/retry/{run}", data={"from": "first"})
    whole = ledger.run(run).repeated_by[-1]
    assert [below.partition("~")[2] for below in ledger.steps.below([whole])] == ["extract"]


def fail_all(ledger: Ledger, run: str) -> None:
    for below in ledger.steps.below([run]):
        fails(ledger, below)


def test_what_cannot_be_run_again_has_no_button(ledger: Ledger, operator: httpx.Client) -> None:
    spec = job(ledger)
    ledger.admit(ticks(spec, 0))
    run = run_id(spec, 0)
    assert "actions/retry" not in operator.get(f"/runs/{run}").text
    form = operator.get(f"/actions/retry/{run}").text
    assert "has not ended" in form
    assert '<button class="primary' not in form


def rows(text: str) -> list[tuple[str, str, int]]:
    """Job, error and count of each group on a page."""
    matches = re.findall(
        r'class="name" href="jobs/[^"]*">([^<]+)</a>.*?data-label="Error"[^>]*>([^<]*)<'
        r".*?data-label=\"Runs\".*?>([\d,]+)<",
        text,
        re.DOTALL,
    )
    return [(name, error, int(count)) for name, error, count in matches]


def test_failures_are_grouped_by_job_and_error(ledger: Ledger, reader: httpx.Client) -> None:
    failed_with(ledger, "b", "KeyError: order 4711\nmore", "HTTP 404", "KeyError: order 4712")
    failed_with(ledger, "a", "KeyError: order 4711", labels={"tenant": "acme"})
    assert rows(reader.get("/failures").text) == [
        ("a", "KeyError: order 4711", 1),
        ("b", "KeyError: order 4712", 2),
        ("b", "HTTP 404", 1),
    ]
    for query, names in (
        ("job=b", ["b", "b"]),
        ("label=tenant%3Dacme", ["a"]),
        ("error=http", ["b"]),
        ("error=more", ["b"]),
        ("job=none", []),
    ):
        assert [name for name, _, _ in rows(reader.get(f"/failures?{query}").text)] == names
    groups = re.findall(r'href="(failures\?group=\w+)"', reader.get("/failures").text)
    text = reader.get(f"/{groups[1]}").text
    assert text.count('data-label="Ended"') == 2


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("lost nightly@2026-03-01T02:00:00Z", "lost nightly@2026-03-02T02:00:00Z"),
        ("<Order 0x7f3a2b> is gone", "<Order 0x7f3a2c> is gone"),
        ("user 0b1c2d3e-0b1c-0b1c-0b1c-0b1c2d3e4f50", "user 1b1c2d3e-0b1c-0b1c-0b1c-0b1c2d3e4f50"),
        ("took 12.31 s", "took 7.5 s"),
        ("at 2026-03-01T02:00", "at 2026-03-02 02:01:07"),
        ("row 10000\nwith more", "row 20000"),
    ],
)
def test_errors_that_differ_in_ids_and_times_are_one(one: str, other: str) -> None:
    assert normalised(one) == normalised(other)


@pytest.mark.parametrize(("one", "other"), [("HTTP 404", "HTTP 500"), ("accede", "decade")])
def test_errors_that_differ_in_words_are_two(one: str, other: str) -> None:
    assert normalised(one) != normalised(other)


def test_old_failures_are_shown_when_asked_for(ledger: Ledger, reader: httpx.Client) -> None:
    [run] = failed_with(ledger, "nightly", "no")
    two_days = 2 * 86_400_000
    ledger.client.hincrby(ledger.keys.run(run), "finished", -two_days)
    assert rows(reader.get("/failures").text) == []
    assert "look at seven days" in reader.get("/failures").text
    assert rows(reader.get("/failures?span=7d").text) == [("nightly", "no", 1)]


def action_of(text: str) -> str:
    """Where the form of a confirmation is sent."""
    matches = re.search(r'<form class="fields" method="post" action="([^"]+)"', text)
    assert matches, text
    return matches[1].replace("&amp;", "&").removeprefix(".")


def test_a_group_is_run_again_and_then_has_nothing_left(
    ledger: Ledger, operator: httpx.Client
) -> None:
    runs = failed_with(ledger, "nightly", "no 10001", "no 10002", "other")
    text = operator.get("/failures").text
    [button] = re.findall(r'href="(actions/bulk[^"]+)">Run 2 again', text)
    form = operator.get("/" + button.replace("&amp;", "&")).text
    assert "Run again 2 failed runs?" in form
    sent = operator.post(action_of(form), data={"reason": "all of them"})
    assert (sent.status_code, sent.headers["location"]) == (303, "/failures")
    assert [bool(ledger.run(run).repeated_by) for run in runs] == [True, True, False]
    reasons = {e.action.reason for e in ledger.actions.search(ActionQuery(verb="retry"))}
    assert reasons == {"all of them"}
    assert "Nothing to do" in operator.get(action_of(form)).text
    everything = operator.get("/actions/bulk?of=failures&all=1&verb=retry").text
    assert "Run again 1 failed run?" in everything


def bulk(operator: httpx.Client, verb: str, query: str, **fields: str) -> httpx.Response:
    """Confirms what a list sends."""
    address = action_of(operator.get(f"/actions/bulk?verb={verb}&{query}").text)
    text = operator.get(address).text
    digest = re.search(r'name="digest" value="(\w+)"', text)
    assert digest
    return operator.post(address, data={"digest": digest[1], **fields})


def test_jobs_are_paused_and_resumed_by_box(ledger: Ledger, operator: httpx.Client) -> None:
    for name in ("a", "b", "c"):
        job(ledger, name)
    assert operator.get("/").text.count('name="pick"') == 3
    sent = bulk(operator, "pause", "of=jobs&pick=a&pick=c", reason="the move")
    assert (sent.status_code, sent.headers["location"]) == (303, "/./?")
    assert ledger.paused(["a", "b", "c"]) == {"a", "c"}
    assert ledger.job("a").paused_note == "the move"
    partly = bulk(operator, "resume", "of=jobs&pick=a&pick=b", reason="moved")
    assert partly.status_code == 200
    assert "1 of 2 jobs done" in partly.text
    assert "it is not paused" in partly.text
    assert ledger.paused(["a", "b", "c"]) == {"c"}


def test_jobs_are_triggered_by_filter(ledger: Ledger, operator: httpx.Client) -> None:
    for name in ("a", "b"):
        job(ledger, name, labels={"tenant": "acme"})
    job(ledger, "c")
    bulk(operator, "trigger", "of=jobs&label=tenant&all=1")
    assert [len(ledger.history(name)) for name in "abc"] == [1, 1, 0]


def test_what_matches_is_asked_about_again_when_it_has_changed(
    ledger: Ledger, operator: httpx.Client
) -> None:
    job(ledger, "a")
    address = "/actions/bulk?verb=pause&of=jobs&all=1"
    digest = re.search(r'name="digest" value="(\w+)"', operator.get(address).text)
    assert digest
    job(ledger, "b")
    sent = operator.post(address, data={"digest": digest[1]})
    assert (sent.status_code, "look at it again" in sent.text) == (409, True)
    assert not ledger.paused(["a", "b"])


def test_failures_of_jobs_are_run_again_from_the_list(
    ledger: Ledger, operator: httpx.Client
) -> None:
    [one], [other] = failed_with(ledger, "a", "no"), failed_with(ledger, "b", "no")
    assert f'href="actions/retry/{one}"' in operator.get("/").text
    bulk(operator, "retry", "of=jobs&pick=a")
    assert [bool(ledger.run(run).repeated_by) for run in (one, other)] == [True, False]


def test_a_form_is_about_so_many_and_says_how_many_more(
    ledger: Ledger, operator: httpx.Client
) -> None:
    for number in range(MOST_CHOSEN + 2):
        job(ledger, f"job-{number}")
    text = operator.get("/actions/bulk?verb=pause&of=jobs&all=1").text
    assert f"Pause {MOST_CHOSEN} jobs?" in text
    assert "2 more match" in text


def test_many_at_once_take_an_operator_and_a_form_of_ours(
    ledger: Ledger, reader: httpx.Client, operator: httpx.Client
) -> None:
    job(ledger, "a")
    address = "/actions/bulk?verb=pause&of=jobs&pick=a"
    assert reader.post(address, data={}).status_code in (401, 403)
    assert 'name="pick"' not in reader.get("/").text
    operator.auth = None  # type: ignore[assignment]
    assert operator.post(address, data={"csrf": "of another"}).status_code == 403
    assert operator.get("/actions/bulk?verb=remove&of=jobs&pick=a").status_code == 400
    assert not ledger.paused(["a"])
