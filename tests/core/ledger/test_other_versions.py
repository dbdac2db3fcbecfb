"""Jobs that another version has loaded: what this one cannot read is passed over alone."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from celery import Celery

from supervisor.catalog.entries import Entries
from supervisor.catalog.load import load
from supervisor.errors import UnknownJob, UnreadableJob
from supervisor.features.audit.step import audit
from supervisor.job.run import RunState
from supervisor.job.spec import JobSpec
from supervisor.ledger import function_library, specs
from supervisor.ledger.ledger import Ledger
from supervisor.ledger.presence import Broker, Registration, WorkerProcess
from supervisor.schedule.ticks import Tick
from supervisor.sending.messages import assignments
from supervisor.sending.publisher import Publisher
from supervisor.times import ms_of
from tests.core.catalog.test_loading import jobs, spec
from tests.jobs import job
from tests.logged import capture_logs

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
LATER = NOW + timedelta(minutes=7)


def test_facts_that_only_a_newer_version_knows_are_passed_over(ledger: Ledger) -> None:
    registration = Registration(ledger, Broker("celery", is_ledger=True))
    registration.say(WorkerProcess("w1", ("celery",), 2, "digest"))
    [key] = ledger.client.keys(ledger.keys.presence("*"))
    said = json.loads(ledger.client.get(key))
    for record in (said, said["process"], said["broker"]):
        record["newer"] = 1
    ledger.client.set(key, json.dumps(said), keepttl=True)
    assert [worker.name for worker in ledger.presences.processes().workers] == ["w1"]


@pytest.fixture
def newer(ledger: Ledger, entries: Entries) -> JobSpec:
    """A job in words of a version to come, beside one that is as ever."""
    ours, theirs = spec("ours"), spec("theirs")
    load(ledger, entries, jobs(ours, theirs), "newer", NOW)
    text = json.dumps({**theirs.model_dump(mode="json", exclude_defaults=True), "colour": "red"})
    ledger.client.hset(ledger.keys.jobs, "theirs", text)
    ledger.client.hset(entries.key("theirs"), "spec", text)
    return theirs


@pytest.mark.usefixtures("newer")
def test_what_cannot_be_read_keeps_nobody_from_the_rest(
    ledger: Ledger, app: Celery, entries: Entries
) -> None:
    specs.job_spec.cache_clear()
    specs.note.cache_clear()
    with capture_logs() as logs:
        for _ in range(2):
            assert list(ledger.scheduled()) == list(ledger.specs()) == ["ours"]
            assert list(ledger.some_specs(["ours", "theirs"])) == ["ours"]
            # Not as a stock entry of RedBeat's either, which would be sent without the guard.
            [due] = entries.load([[entries.key("ours"), entries.key("theirs")]])
            assert [entry.spec and entry.spec.name for entry in due] == ["ours"]
    [told] = logs
    assert (told["job"], told["problems"].split(":")[0]) == ("theirs", "colour")


@pytest.mark.usefixtures("newer")
def test_who_asks_for_it_hears_why_there_is_no_answer(ledger: Ledger) -> None:
    with pytest.raises(UnreadableJob, match="another version"):
        ledger.spec("theirs")
    with pytest.raises(UnknownJob, match="did you mean 'theirs'"):
        ledger.spec("thiers")


def test_a_task_that_other_code_guards_is_passed_over_likewise(ledger: Ledger) -> None:
    ledger.client.hset(ledger.keys.guarded, "send", '{"name": "send", "colour": "red"}')
    assert ledger.specs() == {}
    with pytest.raises(UnreadableJob):
        ledger.spec("send")


def test_its_runs_are_left_to_who_can_send_them(
    ledger: Ledger, app: Celery, newer: JobSpec
) -> None:
    both = [Tick(each, LATER) for each in (newer, spec("ours"))]
    theirs, ours = (admission.run_id for admission in ledger.admit(both))
    assert list(assignments(ledger, ledger.runs([theirs, ours]))) == [ours]
    assert Publisher(app, ledger).publish(ledger.outbox()) == 1
    assert ledger.run(theirs).state is RunState.QUEUED
    assert ledger.outbox() == []
    assert ledger.client.zscore(ledger.keys.outbox, theirs) > ms_of(ledger.now())


def test_files_replace_it_and_its_ticks_are_counted_on(
    ledger: Ledger, entries: Entries, newer: JobSpec
) -> None:
    assert audit(ledger, [newer], NOW) == []
    changes = load(ledger, entries, jobs(spec("ours"), newer), "older", LATER)
    assert (changes.added, changes.changed, changes.unchanged) == ((), ("theirs",), 1)
    assert ledger.scheduled() == jobs(spec("ours"), newer)
    # Its times are what they were: what was due meanwhile is dealt with.
    assert ledger.marks(["theirs"])["theirs"].watermark == NOW


def test_files_with_other_times_for_it_count_from_now_on(
    ledger: Ledger, entries: Entries, newer: JobSpec
) -> None:
    edited = newer.model_copy(update={"every": timedelta(minutes=1)})
    assert load(ledger, entries, jobs(spec("ours"), edited), "older", LATER).changed == ("theirs",)
    assert ledger.marks(["theirs"])["theirs"].watermark == LATER


@pytest.mark.usefixtures("newer")
def test_files_without_it_remove_it(ledger: Ledger, entries: Entries) -> None:
    assert load(ledger, entries, jobs(spec("ours")), "older", LATER).removed == ("theirs",)
    assert not ledger.knows("theirs")
    assert ledger.client.exists(entries.key("theirs")) == 0


def test_a_process_goes_on_with_the_functions_it_began_with(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    function_library.sources.cache_clear()
    began_before = Ledger(ledger.client, ledger.keys)

    def replaced(_: str) -> Path:
        pytest.fail("read while it runs")

    monkeypatch.setattr(function_library, "files", replaced)
    run = began_before.trigger(job(ledger))
    assert began_before.cancel(run.id, "by hand")
