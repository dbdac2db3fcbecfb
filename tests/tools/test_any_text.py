"""Text that people and jobs write has any character, and every reader still shows the rest.

One job, its runs and what belongs to them have the same text in all places that take one. Each verb
that reads, each page, each address of the API, the metrics and a turn of beat then go on with it.
"""

from __future__ import annotations

import json
import re
from datetime import timedelta
from urllib.parse import quote

import pytest
from celery import Celery
from prometheus_client.parser import text_string_to_metric_families
from structlog.typing import EventDict

from supervisor.beat.scheduler import SupervisedScheduler
from supervisor.cli import SECTIONS
from supervisor.features.notices.incidents import PendingNotice, notice_of
from supervisor.features.notices.rules import body, title
from supervisor.features.notices.services import webhook_body
from supervisor.features.notices.silences import silence
from supervisor.features.notices.step import Maker
from supervisor.features.outbound.store import LedgerOutbox
from supervisor.job.reports import LINE_LENGTH, Reported, ReportedLine, ReportedProgress, kept_text
from supervisor.job.run import RunState
from supervisor.ledger.actions import LONGEST_REASON, Action, Actor
from supervisor.ledger.job_record import AT_RUN_TIME
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.run_reads import note_run
from supervisor.ledger.run_request import RunRequest
from supervisor.operate.control import pause
from supervisor.testing import comes_due
from supervisor.web.access import Access
from supervisor.web.openapi import API
from supervisor.web.operations import OPERATIONS
from supervisor.web.pages import PAGES
from tests.commands import Supervisor
from tests.damage import tear
from tests.jobs import admitted, begin, job, run_id, ticks
from tests.logged import capture_logs
from tests.presence import beat_is_there, beat_says, worker_is_there
from tests.tools.web.visits import TOKEN, log_in, visiting

#: What Python's `splitlines` takes for the end of a line.
SEPARATORS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"

TEXTS = {
    "separators": "".join(f"a{each}" for each in SEPARATORS),
    "controls": "".join(map(chr, [*range(1, 32), *range(127, 160)])),
    "nul": "a\0b\0",
    "directions": "a\u202eb\u2066c\u200fd\ufeff",
    "half characters": "a\ud800b\udc80",
    "markup": "</script><b>&\"'`{{ 1 }}%s\\u2028\\",
    "long": "a\u2028" * 250_000,
}

#: Verbs that start, change or write something, or read files and the app alone.
NO_READERS = {
    *("init", "up", "check", "plan", "apply", "schema", "put", "remove", "import", "adopt"),
    *("pause", "resume", "trigger", "retry", "cancel", "backfill", "silence", "unsilence"),
    *("notify", "serve", "token", "drain", "undrain", "render", "release", "health"),
}

#: The others, with the words that come after them.
READERS = {
    "jobs": [()],
    "next": [("{job}",)],
    "why": [("{job}",), ("{run}",), ("{stepped}",)],
    "export": [()],
    "runs": [(), ("{job}",), ("--outcome", "failed")],
    "show": [("{run}",), ("{open}",), ("{stepped}",)],
    "doctor": [()],
    "log": [()],
    "audit": [()],
    "silences": [()],
    "queues": [()],
}

HTML = {"accept": "text/html"}

BY = Actor("ann", "cli", "host")


@pytest.fixture(params=TEXTS)
def text(request: pytest.FixtureRequest) -> str:
    return TEXTS[request.param]


@pytest.fixture
def written(ledger: Ledger, text: str) -> dict[str, str]:
    """Names of what has the text wherever one may be. Only JSON can have half a character."""
    shown = kept_text(text)
    keys = {"description": shown[:1000], "args": [shown], "kwargs": {"text": shown}, "history": 50}
    keys |= {"place": shown, "source": AT_RUN_TIME}
    hooks = {"notify": [{"url": "https://hooks.example/x", "events": ["failed"]}]}
    spec = admitted(ledger, 0, max_retries=1, **keys, **hooks)
    run = run_id(spec, 0)
    reported = Reported(
        *(1, ReportedProgress(1, 2, shown, 0.0)),
        tuple(ReportedLine(number, shown[:LINE_LENGTH], 0.0) for number in (1, 2)),
    )
    assert ledger.begin(run, "first", shown[:1000])
    assert ledger.reports.write(run, "first", reported, 0.0)
    ledger.retry(run, "first", timedelta(0), text, traceback=text)
    ledger.rescue()
    assert ledger.begin(run, "second", text[:1000])
    ledger.finish(run, "second", RunState.FAILED, text, traceback=text)
    ledger.admit(ticks(spec, 1))
    assert ledger.begin(run_id(spec, 1), "third", shown[:1000])
    assert ledger.reports.write(run_id(spec, 1), "third", reported, 0.0)
    request = RunRequest(args=[text], kwargs={"text": text}, options={"headers": {"text": text}})
    ledger.trigger(job(ledger, "called"), request)
    ledger.cancel(ledger.trigger(job(ledger, "cancelled")).id, text)
    steps = [{"task": "a", "priority": each, "name": f"part{each}"} for each in (1, 2)]
    stepped = job(ledger, "stepped", task=None, steps=steps, params={"text": shown})
    ledger.admit(ticks(stepped, 0))
    whole = run_id(stepped, 0)
    begin(ledger, f"{whole}~part2", "step")
    ledger.finish(
        f"{whole}~part2", "step", RunState.SUCCEEDED, returned={"text": text, "more": [text]}
    )
    begin(ledger, f"{whole}~part1", "step")
    ledger.finish(f"{whole}~part1", "step", RunState.FAILED, text, traceback=text)
    pause(ledger, spec.name, by=BY, reason=text[:LONGEST_REASON])
    worker_is_there(ledger, text[:1000])
    beat_is_there(ledger, text[:1000], leads=False)
    told = {"leader": shown, "problems": json.dumps([text]), "last_reload_successful": 0}
    beat_says(ledger, **told)
    ledger.actions.enter(Action(Actor(text, "api", text), "cancel", text, text, (spec.name,)))
    silence(ledger, "called", duration=timedelta(hours=1), by=BY, reason=f"x{text[:400]}")
    return {"job": spec.name, "run": run, "open": run_id(spec, 1), "stepped": whole}


def filled(words: tuple[str, ...], names: dict[str, str]) -> list[str]:
    return [word.format(**names) for word in words]


def test_each_verb_reads_texts_or_none() -> None:
    verbs = {verb for section in SECTIONS.values() for verb in section}
    assert verbs == NO_READERS | READERS.keys()


def test_every_verb_shows_any_text(supervisor: Supervisor, written: dict[str, str]) -> None:
    for verb, calls in READERS.items():
        for words in calls:
            for more in ((), ("--json",)):
                call = [verb, *filled(words, written), *more]
                done = supervisor(*call)
                assert done.exception is None or isinstance(done.exception, SystemExit), call
                assert all(c.isprintable() or c == "\n" for c in done.stdout), call
                if more and verb != "export":
                    assert json.loads(done.stdout) is not None, call
                elif verb not in ("doctor", "audit"):
                    assert done.stdout and done.exit_code == 0, call


def test_every_page_and_address_shows_it(
    ledger: Ledger, app: Celery, written: dict[str, str]
) -> None:
    runs = [written[name] for name in ("run", "open", "stepped")]
    pages = [*(page.path for page in PAGES), "/logs/{target:path}", "/actions/edit/{target:path}"]
    addresses = [API + operation.path for operation in OPERATIONS if operation.method == "get"]
    with visiting(ledger, Access(TOKEN), app) as client:
        log_in(client)
        for path in (*pages, *addresses):
            [place] = re.findall(r"\{.*\}", path) or [" "]
            is_of_run = path.startswith(("/runs/", "/logs/", f"{API}/runs/"))
            for name in (runs if is_of_run else [written["job"]]) if place in path else [""]:
                answer = client.get(path.replace(place, quote(name)), headers=HTML)
                assert answer.status_code == 200, (path, name, answer.text)
                assert path in addresses or all(map(is_shown, answer.text)), (path, name)
        scraped = text_string_to_metric_families(client.get("/metrics").text)
        assert "supervisor_runs_finished" in {family.name for family in scraped}


def is_shown(character: str) -> bool:
    return character.isprintable() or character in "\n\t"


def logged_in_turns(app: Celery) -> list[EventDict]:
    """What a beat logs in its first turns."""
    beat = SupervisedScheduler(app, lazy=True)
    try:
        with capture_logs() as logged:
            for _ in range(3):
                beat.tick()
    finally:
        beat.close()
    return logged


def test_notices_and_beat_go_on_with_it(
    ledger: Ledger, app: Celery, written: dict[str, str]
) -> None:
    logged = logged_in_turns(app)
    # The runs were entered without a beat: all ticks since then are overdue, and the audit says so.
    errors = {line["event"] for line in logged if line["log_level"] == "error"}
    assert errors <= {"ticks unaccounted for"}
    leader, later = ledger.leader("test:lock", "test:schedule"), ledger.now() + timedelta(hours=3)
    assert leader.poll().leads
    Maker(ledger, leader.leadership, {}).make(later)
    store = LedgerOutbox(ledger)
    [entry] = [each for key in store.due(later) for each in store.unsent(key, later)]
    notice = notice_of(PendingNotice.model_validate_json(entry.text), entry.key, entry.name)
    assert written["job"] in title(notice)
    assert all(c.isprintable() or c == "\n" for c in title(notice) + body(notice))
    assert json.loads(webhook_body(notice))["data"]["run"] == written["run"]


# A run that cannot be read at all.


@pytest.fixture
def unreadable(ledger: Ledger) -> tuple[str, str]:
    """A run whose record is damaged, beside one that is sound."""
    spec = admitted(ledger, 0, 1, overlap="allow", max_retries=1)
    damaged, other = run_id(spec, 0), run_id(spec, 1)
    for run in (damaged, other):
        begin(ledger, run, run)
        ledger.retry(run, run, timedelta(0), "no")
    tear(ledger, damaged, attempts="no JSON", rules="{")
    return damaged, other


def test_an_unreadable_run_ends_no_turn_of_beat(
    ledger: Ledger, app: Celery, unreadable: tuple[str, str]
) -> None:
    damaged, other = unreadable
    comes_due(ledger, damaged)
    comes_due(ledger, other)
    logged = logged_in_turns(app)
    assert ledger.run(other).state is RunState.QUEUED
    assert [line for line in logged if damaged in str(line)]


def test_an_unreadable_run_costs_only_itself(
    ledger: Ledger, app: Celery, supervisor: Supervisor, unreadable: tuple[str, str]
) -> None:
    damaged, other = unreadable
    names = {"job": "nightly", "run": other, "open": other, "stepped": other}
    note_run.cache_clear()  # it is logged once by a process
    with capture_logs() as logged:
        assert other in supervisor("runs").stdout
    assert [line["run"] for line in logged if line["event"] == "run not read"] == [damaged]
    for verb, calls in READERS.items():
        for words in calls:
            call = [verb, *filled(words, names)]
            done = supervisor(*call)
            assert done.exception is None or isinstance(done.exception, SystemExit), call
    with visiting(ledger, Access(), app) as client:
        for path in ("/", "/queues", "/failures", "/timeline", "/jobs/nightly", f"/runs/{other}"):
            assert client.get(path, headers=HTML).status_code == 200, path
        assert client.get(f"/runs/{damaged}", headers=HTML).status_code == 404
        assert client.get(f"{API}/runs").json()
        assert client.get("/metrics").status_code == 200
