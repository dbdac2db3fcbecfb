"""The form that runs a job for times that have passed."""

from __future__ import annotations

import httpx
import pytest

from supervisor.ledger.ledger import Ledger
from supervisor.web.access import Access
from supervisor.web.record import last_actions
from tests.jobs import job
from tests.tools.web.conftest import Serve
from tests.tools.web.visits import FROM_OUR_PAGE, TOKEN, log_in

PATH = "/actions/backfill/nightly"
TIMES = {"from": "2026-03-01T00:00", "to": "2026-03-01T06:00"}


@pytest.fixture
def person(serve: Serve) -> httpx.Client:
    client = serve(Access(TOKEN))
    log_in(client)
    return client


def test_the_times_are_shown_and_then_run(person: httpx.Client, ledger: Ledger) -> None:
    job(ledger, every="1h", timezone="Europe/Berlin")
    shown = person.get(PATH, params=TIMES).text
    assert "6 runs" in shown
    assert "Sun 2026-03-01 00:00 CET" in shown
    assert ledger.history("nightly") == []
    fields = {**TIMES, "times": "6", "overlap": "queue_all", "reason": "CHG-7"}
    sent = person.post(PATH, params=TIMES, data=fields, headers=FROM_OUR_PAGE)
    assert (sent.status_code, sent.headers["location"]) == (303, "/jobs/nightly")
    assert len(ledger.history("nightly")) == 6
    [entry, *_] = last_actions(ledger, "nightly")
    assert (entry.action.verb, entry.action.reason) == ("backfill", "CHG-7")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"from": "2026-03-02", "to": "2026-03-01"}, "from must be before to"),
        ({"from": "2026-03-01", "to": "2099-03-01"}, "to is in the future"),
        ({"from": "soon", "to": "2026-03-01"}, "from is not a time"),
        ({"from": "2025-03-01", "to": "2026-03-01"}, "more than 500 nominal times"),
        ({"from": "2026-03-01T00:10", "to": "2026-03-01T00:20"}, "no times in this span"),
        ({**TIMES, "times": "7"}, "these are 6 times by now"),
    ],
)
def test_what_makes_no_sense_runs_nothing(
    person: httpx.Client, ledger: Ledger, fields: dict[str, str], words: str
) -> None:
    job(ledger, every="1h")
    answer = person.post(PATH, data={"times": "6", **fields}, headers=FROM_OUR_PAGE)
    assert answer.status_code == 400
    assert words in answer.text
    assert ledger.history("nightly") == []


def test_a_job_without_a_schedule_has_no_times(person: httpx.Client, ledger: Ledger) -> None:
    job(ledger, every=None)
    assert person.get(PATH).status_code == 409
    assert "backfill" not in person.get("/jobs/nightly").text
