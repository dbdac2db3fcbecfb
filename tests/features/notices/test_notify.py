"""What becomes of a notice at real servers of mail and HTTP, in the words of `send`."""

from __future__ import annotations

import json
import logging
import re
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from supervisor.features.notices import services
from supervisor.features.notices.keys import Destination, Event
from supervisor.features.notices.rules import Notice
from supervisor.features.notices.services import missing_extra, send, webhook_body
from supervisor.features.outbound import http
from supervisor.features.outbound.answer import Answer
from tests.listener import Listener, listening
from tests.mailbox import Mailbox, receiving_mail
from tests.waiting import scaled

AT = datetime(2026, 3, 1, 2, 5, tzinfo=UTC)
NOTICE = Notice(
    key="incident-1.2",
    incident="incident-1",
    event=Event.FAILED,
    cause="ValueError",
    jobs=("import-orders",),
    job_count=1,
    first_at=AT,
    last_at=AT,
    run="import-orders@2026-03-01T02:05:00Z",
    reason="ValueError: <b>5 & 6</b>",
    link="https://jobs.test/jobs/import-orders",
)
SECRET = "geheim"
PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "notices.md"


def told(url: str, notice: Notice = NOTICE, **keys: Any) -> tuple[Answer, str]:
    return send(Destination(url=url, **keys), notice, ENVIRON)


ENVIRON = {
    "HOOK_SECRET": SECRET,
    "EMPTY": "",
    "NESTED": "${HOOK_SECRET}",
    "IRC": "irc://n%0d%0aSET@geheim/x",
}

NO_ADDRESS = (
    "notify: what it stands for is not an address such as https://host/path or mailtos://...,"
    " or ${NAME}"
)
ENCODED = "an address with an encoded control character"


@pytest.fixture
def listener() -> Iterator[Listener]:
    with listening() as listener:
        yield listener


@pytest.fixture
def pagerduty(listener: Listener, monkeypatch: pytest.MonkeyPatch) -> str:
    """An address of PagerDuty, whose servers are the listener."""
    from apprise.plugins import pagerduty

    servers = dict.fromkeys(pagerduty.PAGERDUTY_API_LOOKUP, listener.url)
    monkeypatch.setattr(pagerduty, "PAGERDUTY_API_LOOKUP", servers)
    return "pagerduty://integration@api"


@pytest.fixture
def mailbox() -> Iterator[Mailbox]:
    with receiving_mail() as mailbox:
        yield mailbox


def test_a_webhook_gets_json_with_a_key_and_a_signature_that_holds(listener: Listener) -> None:
    url = f"{listener.url}/hook?x=1"
    assert told(url, secret="${HOOK_SECRET}") == (Answer.TAKEN, "")
    [(path, body)], [headers] = listener.heard, listener.headers
    assert path == "/hook?x=1"
    assert headers["Idempotency-Key"] == headers["webhook-id"] == NOTICE.key
    assert json.loads(body) == {
        "type": "failed",
        "timestamp": "2026-03-01T02:05:00Z",
        "data": {
            "key": "incident-1.2",
            "incident": "incident-1",
            "title": "import-orders failed: ValueError",
            "text": (
                "ValueError: <b>5 & 6</b>\n"
                "Last at 2026-03-01T02:05:00Z, import-orders@2026-03-01T02:05:00Z\n"
                "supervisor why import-orders\n"
                "https://jobs.test/jobs/import-orders"
            ),
            "cause": "ValueError",
            "jobs": ["import-orders"],
            "job_count": 1,
            "first_at": "2026-03-01T02:05:00Z",
            "last_at": "2026-03-01T02:05:00Z",
            "runs": 1,
            "run": "import-orders@2026-03-01T02:05:00Z",
            "reason": "ValueError: <b>5 & 6</b>",
            "link": "https://jobs.test/jobs/import-orders",
        },
    }


def test_the_body_on_the_page_has_the_keys_of_a_real_one() -> None:
    [written] = re.findall(r"```json\n(.*?)```", PAGE.read_text(), re.DOTALL)
    real = json.loads(webhook_body(NOTICE))
    assert json.loads(written).keys() == real.keys()
    assert json.loads(written)["data"].keys() == real["data"].keys()


def verifier() -> Any:
    """The function that the page has for who receives webhooks."""
    [code] = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)
    return names["is_from_supervisor"]


@pytest.mark.parametrize("secret", [SECRET, "whsec_Z2VoZWlt"])  # the latter is the first in base64
def test_the_function_on_the_page_verifies_a_webhook_and_nothing_else(
    listener: Listener, secret: str
) -> None:
    assert told(listener.url, secret=secret)[0] is Answer.TAKEN
    [(_, body)], [headers] = listener.heard, listener.headers
    is_from_supervisor = verifier()
    now = time.time()
    assert is_from_supervisor(headers, body.encode(), secret, now)
    assert not is_from_supervisor(headers, body.encode() + b" ", secret, now)
    assert not is_from_supervisor(headers, body.encode(), "another", now)
    assert not is_from_supervisor(headers, body.encode(), secret, now + 600)
    headers.replace_header("webhook-id", "another")
    assert not is_from_supervisor(headers, body.encode(), secret, now)


def test_without_a_secret_nothing_is_signed_and_one_may_be_for_all(listener: Listener) -> None:
    told(listener.url)
    destination = Destination(url=listener.url)
    send(destination, NOTICE, {"SUPERVISOR_NOTIFY_SECRET": SECRET})
    without, signed = listener.headers
    assert "webhook-signature" not in without
    assert signed["webhook-signature"].startswith("v1,")


def test_a_user_in_the_address_of_a_webhook_is_sent_as_a_header(listener: Listener) -> None:
    url = listener.url.replace("://", "://beat:p%40ss@")
    assert told(f"{url}/hook") == (Answer.TAKEN, "")
    [headers] = listener.headers
    assert headers["Authorization"] == "Basic YmVhdDpwQHNz"  # beat:p@ss
    assert "beat" not in headers["Host"]


def test_a_secret_that_is_not_what_it_says_is_named(listener: Listener) -> None:
    why = "the secret is not base64 behind whsec_"
    assert told(listener.url, secret="whsec_a") == (Answer.UNAVAILABLE, why)
    assert not listener.heard


@pytest.mark.parametrize(
    ("status", "answer"),
    [
        (200, "taken"),
        (404, "refused"),
        (302, "refused"),
        (401, "unavailable"),
        (429, "unavailable"),
        (503, "unavailable"),
    ],
)
@pytest.mark.parametrize("through", ["", "Pager Duty: "])
def test_answers_of_http_are_told_apart_also_through_apprise(
    listener: Listener, pagerduty: str, through: str, status: int, answer: str
) -> None:
    listener.status = status
    why = "" if status == 200 else f"{through}status {status}"
    assert told(pagerduty if through else listener.url) == (answer, why)
    assert len(listener.heard) == 1


def test_a_mail_says_what_the_notice_says_as_plain_text(mailbox: Mailbox) -> None:
    assert told(f"{mailbox.url},more@jobs.test") == (Answer.TAKEN, "")
    assert [mail["To"] for mail in mailbox.mails] == ["ops@jobs.test", "more@jobs.test"]
    mail = mailbox.mails[0]
    assert (mail["Subject"], mail["From"]) == ("import-orders failed: ValueError", "beat@jobs.test")
    assert mail.get_content_type() == "text/plain"
    assert mail.get_content().startswith("ValueError: <b>5 & 6</b>\r\nLast at 2026-03-01")


def test_a_mail_that_a_server_does_not_take_is_tried_again(mailbox: Mailbox) -> None:
    mailbox.says = "550 nobody of this name"
    assert told(mailbox.url) == (
        Answer.UNAVAILABLE,
        "E-Mail: not taken, and Apprise does not say why",
    )
    mailbox.says = "250 OK"
    assert told(mailbox.url) == (Answer.TAKEN, "")


def test_an_incident_of_pagerduty_is_opened_once_and_resolved(
    listener: Listener, pagerduty: str
) -> None:
    failed = replace(NOTICE, reason="ValueError: " + "x" * 5000)
    recovered = replace(NOTICE, key="incident-1.3", event=Event.RECOVERED)
    for notice in (failed, recovered):
        assert told(pagerduty, notice) == (Answer.TAKEN, "")
    opened, resolved = (json.loads(body) for _, body in listener.heard)
    assert (opened["event_action"], opened["dedup_key"]) == ("trigger", "incident-1")
    assert (resolved["event_action"], resolved["dedup_key"]) == ("resolve", "incident-1")
    assert opened["links"] == [{"href": NOTICE.link}]
    summary = opened["payload"]["summary"]
    assert summary.startswith("import-orders failed: ValueError")
    assert len(summary) <= 1024  # PagerDuty refuses more


def test_an_address_that_slack_gives_out_is_slacks_and_not_a_webhook(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    from apprise.plugins.slack import NotifySlack

    monkeypatch.setattr(NotifySlack, "webhook_url", listener.url)
    url = "https://hooks.slack.com/services/T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ"
    assert told(url) == (Answer.UNAVAILABLE, "Slack: status 200")  # its servers say ok, or why not
    listener.says = "ok"
    assert told(url) == (Answer.TAKEN, "")
    path, body = listener.heard[-1]
    assert path == "/T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ"
    assert "import-orders failed: ValueError" in body


def test_an_exception_mentions_and_links_nothing_in_a_chat(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    from apprise.plugins.slack import NotifySlack

    listener.says = "ok"
    monkeypatch.setattr(NotifySlack, "webhook_url", listener.url)
    reason = "ValueError: <!channel> <https://evil.test|log in> [log in](//evil.test) \u202e\x1b[2J"
    told("slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ", replace(NOTICE, reason=reason))
    [message] = json.loads(listener.heard[-1][1])["attachments"]
    assert "<" not in message["text"]
    assert "\u202e" not in message["text"]


def test_each_address_on_the_page_is_that_of_the_service_it_stands_for() -> None:
    [table] = re.findall(r"\| service \| address .*?\n\n", PAGE.read_text(), re.DOTALL)
    examples = re.findall(r"\| `([^`]+)` \|$", table, re.MULTILINE)
    token = "TIiajkdnlazkcOXrIdevi7FQ"
    found = [services._service(re.sub(r"\$\{\w+\}", token, each)) for each in examples]
    named = ["Slack", "Slack", "Power Automate / Workflows (for MSTeams)", "E-Mail", "E-Mail"]
    assert [each and str(each.service_name) for each in found] == [*named, "Pager Duty"]
    mails = [(each.secure_mode, each.port, each.targets) for each in found[3:5]]
    to = [(False, "ops@example.com")]
    assert mails == [("starttls", 587, to), ("insecure", 25, to)]


@pytest.mark.parametrize("scheme", ["http", "json", "mailto"])
def test_a_server_that_hangs_is_left(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (http, services):
        monkeypatch.setattr(module, "TIMEOUT_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"{scheme}://127.0.0.1:{silent.getsockname()[1]}?from=a@b.test&to=c@d.test"
        began = time.monotonic()
        answer, _ = told(url)
        assert answer is Answer.UNAVAILABLE
        assert time.monotonic() - began < scaled(4)


@pytest.mark.parametrize(
    ("url", "answer", "why"),
    [
        ("${MISSING}", "unavailable", "${MISSING}: the variable is not set"),
        ("${EMPTY}", "unavailable", NO_ADDRESS),
        ("${HOOK_SECRET}", "unavailable", NO_ADDRESS),
        ("${IRC}", "unavailable", "notify: what it stands for is " + ENCODED),
        ("irc://n%0d%0aSET@geheim/x", "unavailable", "notify: what it stands for is " + ENCODED),
        ("${NESTED}", "unavailable", "notify: what it stands for is no address"),
        ("pagerduty://geheim", "refused", "Apprise cannot use this address: pagerduty://***"),
        ("http://127.0.0.1:1/geheim", "unavailable", "[Errno 111] Connection refused"),
    ],
)
def test_what_cannot_be_sent_says_why_and_repeats_no_secret(
    url: str, answer: str, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        assert told(url) == (answer, why)
    assert SECRET not in caplog.text


def test_what_else_uses_apprise_logs_as_before(caplog: pytest.LogCaptureFixture) -> None:
    told("pagerduty://geheim")
    logging.getLogger("apprise").warning("of the app itself")
    assert caplog.messages == ["of the app itself"]


def test_without_apprise_webhooks_are_sent_and_others_say_what_to_install(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "apprise", None)
    monkeypatch.setattr(services, "find_spec", lambda name: None)
    assert told(listener.url) == (Answer.TAKEN, "")
    for url in ("mailtos://a:b@c", "https://hooks.slack.com/services/A/B/C"):
        answer, why = told(url)
        assert answer is Answer.UNAVAILABLE
        assert "pip install 'celery-beat-supervisor[notify]'" in why
        assert missing_extra([Destination(url=url)], {}) == why
    ours = [Destination(url="https://h"), Destination(url="${X}")]
    assert missing_extra(ours, {}) is None
    assert missing_extra(ours, {"X": "slack://a/b/c"}) is not None
