"""Silences of notices by the page, the API and the command line: the same, and shown everywhere."""

from __future__ import annotations

import httpx
import pytest

from supervisor.features.notices.silences import SilenceStore
from supervisor.ledger.ledger import Ledger
from supervisor.web.openapi import API
from tests.jobs import job
from tests.tools.web.visits import FROM_OUR_PAGE

ACME = {"tenant": "acme"}


def posted(client: httpx.Client, path: str, **fields: str) -> httpx.Response:
    return client.post(path, data=fields, headers=FROM_OUR_PAGE, follow_redirects=False)


def page(client: httpx.Client, path: str = "/") -> str:
    answer = client.get(path, headers=FROM_OUR_PAGE)
    assert answer.status_code == 200
    return answer.text


def test_the_page_silences_a_job_until_a_time_of_its_zone(
    editor: httpx.Client, ledger: Ledger
) -> None:
    job(ledger, timezone="Europe/Berlin")
    form = "/actions/silence/nightly"
    assert "Or until, in Europe/Berlin" in page(editor, form)
    done = posted(editor, form, duration="1h", until="2099-07-01T06:00", reason="moving")
    assert (done.status_code, done.headers["location"]) == (303, "/jobs/nightly")
    [made] = SilenceStore(ledger).in_force(ledger.now())
    assert (made.job, made.by, f"{made.ends_at:%Y-%m-%d %H:%M}") == (
        "nightly",
        "token",
        "2099-07-01 04:00",
    )
    for path in ("/", "/jobs/nightly"):
        text = page(editor, path)
        assert "moving" in text
        assert "2099-07-01 04:00:00Z" in text
    assert "notices silenced" in page(editor)


def test_a_page_shows_the_silences_that_concern_it(editor: httpx.Client, ledger: Ledger) -> None:
    job(ledger, labels=ACME)
    job(ledger, "other")
    posted(editor, "/actions/silence/", label="tenant", duration="2h", reason="an upgrade")
    assert "an upgrade" in page(editor, "/jobs/nightly")
    assert "an upgrade" not in page(editor, "/jobs/other")
    [made] = SilenceStore(ledger).in_force(ledger.now())
    assert "jobs with tenant" in page(editor, f"/actions/unsilence/{made.id}")
    assert posted(editor, f"/actions/unsilence/{made.id}").headers["location"] == "/"
    assert "an upgrade" not in page(editor, "/jobs/nightly")
    assert editor.get(f"/actions/unsilence/{made.id}", headers=FROM_OUR_PAGE).status_code == 404


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"duration": "soon", "reason": "r"}, "is not a duration"),
        ({"duration": "1h"}, "takes a reason"),
        ({"duration": "0s", "reason": "r"}, "in the past"),
        ({"until": "2020-01-01T00:00", "reason": "r"}, "in the past"),
    ],
    ids=str,
)
def test_a_form_says_what_is_wrong_and_keeps_what_was_typed(
    editor: httpx.Client, ledger: Ledger, fields: dict[str, str], said: str
) -> None:
    job(ledger)
    answer = posted(editor, "/actions/silence/nightly", **fields)
    assert (answer.status_code, said in answer.text) == (400, True), answer.text
    assert SilenceStore(ledger).in_force(ledger.now()) == []
    assert all(text in answer.text for text in fields.values())


def test_the_api_makes_lists_and_ends_silences(bearer: httpx.Client, ledger: Ledger) -> None:
    job(ledger, labels=ACME)
    asked = {"label": "tenant=acme", "duration": "2h", "reason": "an upgrade"}
    made = bearer.post(f"{API}/silences", json=asked)
    assert made.status_code == 201
    [listed] = bearer.get(f"{API}/silences").json()
    assert listed == made.json()
    assert (listed["job"], listed["label"], listed["by"]) == ("", "tenant=acme", "token")
    path = f"{API}/silences/{listed['id']}"
    assert bearer.delete(path).status_code == 204
    assert (bearer.delete(path).status_code, bearer.get(f"{API}/silences").json()) == (404, [])


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        ({"job": "nigthly", "duration": "1h", "reason": "r"}, 404),
        ({"job": "nightly", "label": "tenant", "duration": "1h", "reason": "r"}, 400),
        ({"job": "nightly", "duration": "1h"}, 400),
        ({"job": "nightly", "reason": "r"}, 400),
        ({"job": "nightly", "for": "1h", "reason": "r"}, 400),
    ],
    ids=str,
)
def test_the_api_refuses(
    bearer: httpx.Client, ledger: Ledger, asked: dict[str, str], status: int
) -> None:
    job(ledger)
    answer = bearer.post(f"{API}/silences", json=asked)
    assert (answer.status_code, bool(answer.json()["error"])) == (status, True)
    assert SilenceStore(ledger).in_force(ledger.now()) == []
