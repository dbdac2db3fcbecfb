"""Templates: the key of a run's lock, and the link to its lines in the team's log store."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.errors import InvalidKey
from supervisor.job.run import Run, RunAttempt, RunState
from supervisor.job.templates import (
    LOG_PLACEHOLDERS,
    LONGEST_KEY,
    LONGEST_LOG_URL,
    checked_key,
    checked_log_url,
    lock_key,
    log_link,
    placeholders,
)


def key(template: str, *args: Any, **kwargs: Any) -> str:
    return lock_key(template, job="nightly", task="proj.nightly", args=args, kwargs=kwargs)


@pytest.mark.parametrize(
    ("template", "made"),
    [
        ("reports", "reports"),
        ("import:{url}", "import:https://example.org/{x}"),
        ("{0}-{1}", "1-two"),
        ("{job}/{task}", "nightly/proj.nightly"),
        ("{{literal}}", "{literal}"),
        ("{options}", '{"a": 1, "b": [null, true]}'),
    ],
)
def test_a_template_is_filled_from_the_arguments(template: str, made: str) -> None:
    kwargs = {"url": "https://example.org/{x}", "options": {"b": [None, True], "a": 1}}
    assert key(template, 1, "two", **kwargs) == made


@pytest.mark.parametrize(
    ("template", "what"),
    [
        ("{uri}", "no argument 'uri' that is passed by name \\(did you mean 'url'"),
        ("{2}", "no argument '2'"),
        ("{url.host}", "neither a name nor a position"),
        ("{url!r}", "neither a name nor a position"),
        ("{url:>10}", "neither a name nor a position"),
        ("{", "is not a template"),
        ("{}", "neither a name nor a position"),
        ("{empty}", "the key is empty"),
        ("queue/{url}", "cannot begin with 'queue/'"),
    ],
)
def test_a_key_that_cannot_be_made_says_why(template: str, what: str) -> None:
    with pytest.raises(InvalidKey, match=what):
        key(template, "first", "second", url="u", empty=" ")


def test_the_digest_of_all_arguments_tells_them_apart() -> None:
    assert key("{arguments}", 1, a=2) == key("{arguments}", 1, a=2)
    assert (
        len({key("{arguments}", *a, **k) for a, k in [((1,), {}), ((2,), {}), ((), {"a": 1})]}) == 3
    )


@given(st.text(min_size=LONGEST_KEY + 1), st.text(min_size=LONGEST_KEY + 1))
def test_long_keys_are_cut_and_stay_apart(one: str, other: str) -> None:
    prefix = "p" * LONGEST_KEY
    assert len(checked_key(prefix + one)) <= LONGEST_KEY
    assert (checked_key(prefix + one) == checked_key(prefix + other)) is (one == other)


def test_the_placeholders_of_a_template_are_known_without_arguments() -> None:
    assert placeholders("import:{feed_url}:{0}") == ["feed_url", "0"]


START = datetime(2026, 3, 1, 2, 0, 0, 5000, tzinfo=UTC)
END = START + timedelta(minutes=1)
RUN = Run(
    "nightly@2026-03-01T02:00:00Z~load#3",
    "nightly",
    RunState.FAILED,
    START,
    START,
    started_at=START + timedelta(seconds=30),
    finished_at=END,
    attempt=2,
    worker="host&x=1:17",
    queue="serial.nightly",
    attempts=(RunAttempt(1, START, "one"), RunAttempt(2, START + timedelta(seconds=30), "two")),
)


def test_all_that_a_template_may_name_is_in_the_link_as_it_is() -> None:
    template = "https://logs.example/?" + "&".join(
        f"{name}={{{name}}}" for name in LOG_PLACEHOLDERS
    )
    link = log_link(checked_log_url(template), RUN, END)
    found = {name: value for name, [value] in parse_qs(urlsplit(str(link)).query).items()}
    assert found == {
        "job": "nightly",
        "run": "nightly@2026-03-01T02:00:00Z",
        "task_id": "nightly@2026-03-01T02:00:00Z~load#3",
        "step": "load#3",
        "attempt": "2",
        "worker": "host&x=1:17",
        "queue": "serial.nightly",
        "started_at": "2026-03-01T01:59:50.005Z",
        "ended_at": "2026-03-01T02:01:10.005Z",
        "started_ms": "1772330390005",
        "ended_ms": "1772330470005",
    }


def test_a_run_that_goes_on_has_a_link_up_to_now_and_a_queued_one_none() -> None:
    template = "https://logs.example/{ended_at}"
    running = replace(RUN, finished_at=None)
    assert log_link(template, running, END) == "https://logs.example/2026-03-01T02%3A01%3A10.005Z"
    assert log_link(template, replace(RUN, started_at=None), END) is None
    assert log_link(None, RUN, END) is None


@pytest.mark.parametrize(
    "template",
    [
        "http://localhost:3000/explore?panes=%7B%22a%22:%7B%7D%7D&q={run}",
        "https://kibana.example/app/discover#/?_g=(time:(from:'{started_at}',to:'{ended_at}'))",
        "https://aws.example/home?region=eu#logsV2:log-events$3Fstart$3D{started_ms}",
        "https://logs.example/?q={{a}}{run}",
    ],
)
def test_addresses_of_log_stores_are_templates(template: str) -> None:
    assert checked_log_url(template) == template


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("https://logs.example/{strated_at}", "{strated_at} (did you mean 'started_at'?)"),
        ("https://logs.example/{0}", "unknown placeholder {0} (there are job, run"),
        ("https://logs.example/{run.__class__}", "unknown placeholder {run.__class__}"),
        ("https://logs.example/{run!r}", "unknown placeholder {run}"),
        ("https://logs.example/{run:>999999999}", "unknown placeholder {run}"),
        ('https://logs.example/{"a":1}', 'unknown placeholder {"a"}'),
        ("https://logs.example/{run", "write { as %7B"),
        ("javascript:alert({run})", "not an http or https address"),
        ("https://{job}.example/", "not an http or https address"),
        ("https:///{run}", "not an http or https address"),
        ("https://logs.example/ {run}", "not an http or https address"),
        ('https://logs.example/"onclick="{run}', "not an http or https address"),
        ("logs.example/{run}", "not an http or https address"),
        ("https://logs.example/" + LONGEST_LOG_URL * "a", "not an http or https address"),
    ],
)
def test_what_is_no_template_of_a_link_is_refused_in_words(template: str, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        checked_log_url(template)
