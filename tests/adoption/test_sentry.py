"""What reaches Sentry Crons of the same jobs, with RedBeat's own scheduler and supervised."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

from tests.adoption.conftest import Deploy
from tests.adoption.foreign_app import ForeignApp
from tests.damage import dealt_with_until, stray
from tests.listener import Listener, listening
from tests.waiting import clear_of, wait_until
from tests.written import whole_lines

CheckIn = dict[str, Any]

HOUR = 3_600

#: Those that RedBeat has too: without their own word for it, as the app's SDK says.
JOBS = """
jobs:
  fine: {task: fine, cron: "0 * * * *"}
  breaks: {task: breaks, every: 1h, ping_url: "%s/ping"}
  quiet: {task: quiet, every: 1h}
  often: {task: often, every: 1s}
  dies: {task: dies, every: 1h}
  gone: {task: gone, every: 1h, on_crash: fail}
  again: {task: again, every: 1h, time_limit: 10m}
  renamed: {task: fine, every: 1h, exclude: ["2000-01-01"], sentry_monitor: hourly-tidying}
  silent: {task: fine, every: 1h, sentry_monitor: false}
"""

#: The slugs of those that RedBeat alone has not, and of an entry that is no job.
DONE = ("dies", "again", "hourly-tidying", "unguarded")


@pytest.fixture
def sentry() -> Iterator[Listener]:
    pytest.importorskip("sentry_sdk")
    with listening() as listener:
        yield listener


def deployed(deploy: Deploy, sentry: Listener, *, is_supervised: bool) -> ForeignApp:
    dsn = sentry.url.replace("http://", "http://key@") + "/1"
    foreign_app = deploy("checked", is_supervised, SENTRY_DSN=dsn)
    foreign_app.worker("-c", "1")
    return foreign_app


def check_ins(sentry: Listener) -> dict[str, list[CheckIn]]:
    """By slug, in the order in which they came."""
    by_slug: dict[str, list[CheckIn]] = defaultdict(list)
    for path, envelope in sentry.heard:
        if "/envelope/" not in path:
            continue
        _, *lines = (json.loads(line) for line in envelope.splitlines() if line)
        for header, item in pairwise(lines):
            if header.get("type") == "check_in":
                by_slug[item["monitor_slug"]].append(item)
    return by_slug


def statuses(sentry: Listener) -> dict[str, list[str]]:
    return {slug: [item["status"] for item in own] for slug, own in check_ins(sentry).items()}


def due(foreign_app: ForeignApp, *jobs: str) -> None:
    """As if nothing had emitted these for an hour: they are caught up with."""
    ledger = foreign_app.ledger
    before = ledger.now() - timedelta(hours=1)
    for job in jobs:
        dealt_with_until(ledger, ledger.spec(job), before)
        stray(ledger, "redbeat::schedule", **{f"redbeat:{job}": before.timestamp()})


def traces(foreign_app: ForeignApp) -> list[str]:
    """Those of the runs that came every second."""
    return whole_lines(foreign_app.directory / "traces")


def ended(foreign_app: ForeignApp, job: str) -> int:
    counters = foreign_app.ledger.job(job).counters
    return sum(count for name, count in counters.items() if name.startswith("finished:"))


def test_check_ins_are_those_of_redbeats_scheduler(deploy: Deploy, sentry: Listener) -> None:
    clear_of(HOUR, 30)  # at which all of them would run again
    plain = deployed(deploy, sentry, is_supervised=False)
    plain.code("from checked import enter; enter('fine', 'breaks', 'quiet', 'often'); print(0)")
    plain.start("beat", "beat", "-l", "info")
    ends = {"fine": ["in_progress", "ok"], "breaks": ["in_progress", "error"]}
    wait_until(lambda: statuses(sentry) == ends, 40)
    wait_until(lambda: plain.log("worker").count("often") > 1, 20)
    plain.stop()
    assert statuses(sentry) == ends
    of_redbeat = check_ins(sentry)
    sentry.heard.clear()

    foreign_app = deployed(deploy, sentry, is_supervised=True)
    foreign_app.schedule(JOBS % sentry.url)
    foreign_app.code("from checked import enter; enter('unguarded'); print(0)")
    foreign_app.start("beat", "beat", "-l", "info")
    wait_until(lambda: "silent" in foreign_app.ledger.scheduled(), 30)
    jobs = ("fine", "breaks", "quiet", "dies", "gone", "again", "renamed", "silent")
    due(foreign_app, *jobs)
    wait_until(lambda: all(ended(foreign_app, job) for job in (*jobs, "often")), 40)
    ends |= {slug: ["in_progress", "ok"] for slug in DONE}
    ends["gone"] = ["in_progress", "error"]
    wait_until(lambda: statuses(sentry) == ends, 20)
    wait_until(lambda: {"/ping/start", "/ping/fail"} <= {*sentry.paths}, 20)
    ours = check_ins(sentry)
    for slug, (began, end) in of_redbeat.items():
        for theirs, own in zip((began, end), ours[slug], strict=True):
            assert own["environment"] == theirs["environment"]
            # RedBeat's has no margin: it says that a run begins when it sends the message.
            assert own["monitor_config"].pop("checkin_margin") == 6
            assert own["monitor_config"] == theirs["monitor_config"]
    assert all(began["check_in_id"] == end["check_in_id"] for began, end in ours.values())
    assert len({began["check_in_id"] for began, _ in ours.values()}) == len(ours)
    assert "monitor_config" not in ours["hourly-tidying"][0]
    assert ours["again"][1]["monitor_config"]["max_runtime"] == 10
    assert ours["again"][1]["duration"] is None
    assert ours["fine"][1]["duration"] < 60
    assert foreign_app.log("beat").count("monitor not created") == 1
    wait_until(lambda: len(traces(foreign_app)) > 2, 20)
    found = traces(foreign_app)
    assert len(found) == len({*found})
