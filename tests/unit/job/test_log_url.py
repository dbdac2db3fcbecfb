"""The link from a run to its lines in the team's log store."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qs, urlsplit

import pytest

from supervisor.job.log_url import LONGEST, PLACEHOLDERS, checked_template, log_link
from supervisor.job.run import Attempt, Run, RunState

START = datetime(2026, 3, 1, 2, 0, 0, 5000, tzinfo=UTC)
END = START + timedelta(minutes=1)
RUN = Run(
    "nightly@2026-03-01T02:00:00Z/load#3",
    "nightly",
    RunState.FAILED,
    START,
    START,
    started_at=START + timedelta(seconds=30),
    finished_at=END,
    attempt=2,
    worker="host&x=1:17",
    queue="serial.nightly",
    attempts=(Attempt(1, START, "one"), Attempt(2, START + timedelta(seconds=30), "two")),
)


def test_all_that_a_template_may_name_is_in_the_link_as_it_is() -> None:
    template = "https://logs.example/?" + "&".join(f"{name}={{{name}}}" for name in PLACEHOLDERS)
    link = log_link(checked_template(template), RUN, END)
    found = {name: value for name, [value] in parse_qs(urlsplit(str(link)).query).items()}
    assert found == {
        "job": "nightly",
        "run": "nightly@2026-03-01T02:00:00Z",
        "task_id": "nightly@2026-03-01T02:00:00Z/load#3",
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
    assert checked_template(template) == template


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
        ("https://logs.example/" + LONGEST * "a", "not an http or https address"),
    ],
)
def test_what_is_no_template_of_a_link_is_refused_in_words(template: str, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        checked_template(template)
